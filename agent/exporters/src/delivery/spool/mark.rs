//! How far a spool has come, in a file of its own that is written anew.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use hub::Volume;
use serde::{Deserialize, Serialize};
use sys::own_file;

use super::{
    super::waiting::{Point, without},
    MODE,
};

pub const NAME: &str = "mark.json";
/// Several times what the largest numbers take.
const MOST_BYTES: u64 = 16 << 10;

/// As of one moment. In the file it is a line of JSON, and its checksum (CRC-32 in hexadecimal) is the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub stream_id: u64,
    /// Everything up to here was acknowledged, or is lost.
    pub done: Point,
    /// The last number that was given.
    pub last: Point,
    /// What was lost so far before it had a number.
    pub lost_in_queue: Volume,
    /// What is known to be missing among batches with numbers.
    pub lost: Volume,
    /// The part of it up to `done`.
    pub lost_done: Volume,
    /// No number was given afterwards.
    pub is_last: bool,
}

impl Mark {
    /// `None` if there is none, and an error inside if it is not what was written.
    pub fn read(folder: &Path) -> Result<Option<Result<Self>>> {
        let path = folder.join(NAME);
        let reading = || format!("read {}", path.display());
        let mut text = Vec::new();
        match own_file::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => {
                if let Some(file) = file.with_context(reading)? {
                    let read = file.take(MOST_BYTES).read_to_end(&mut text);
                    read.with_context(reading)?;
                }
            }
        }
        let mark = Self::of(&String::from_utf8_lossy(&text))
            .with_context(|| format!("{} is damaged", path.display()));
        Ok(Some(mark))
    }

    fn of(text: &str) -> Result<Self> {
        let (json, crc) = text.split_once('\n').context("it has no checksum")?;
        let crc = u32::from_str_radix(crc.trim_end(), 16).context("read its checksum")?;
        ensure!(
            crc == crc32fast::hash(json.as_bytes()),
            "its checksum is another one"
        );
        let mark: Self = serde_json::from_str(json).context("read its JSON")?;
        let Self { done, last, .. } = mark;
        let is_in_order = done.seq <= last.seq && without(done.sum, last.sum) == Volume::default();
        ensure!(is_in_order, "more was acknowledged than there was");
        Ok(mark)
    }

    /// In the place of the one before, which stays if this fails.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let json = serde_json::to_string(self).context("encode a mark")?;
        let crc = crc32fast::hash(json.as_bytes());
        let new = folder.join("mark.new");
        let made = own_file::replace(&new, MODE);
        let mut file = made.with_context(|| format!("create {}", new.display()))?;
        let written = write!(file, "{json}\n{crc:08x}\n").and_then(|()| file.sync_data());
        written.with_context(|| format!("write {}", new.display()))?;
        fs::rename(&new, folder.join(NAME)).with_context(|| format!("rename {}", new.display()))
    }
}
