//! The spool's progress, in a small file that each sync replaces.

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
    latest::Latest,
};

pub const NAME: &str = "mark.json";
/// Several times the length of a mark with the largest numbers.
const MOST_BYTES: u64 = 16 << 10;

/// A snapshot of the progress. The file has a line of JSON and then a line with its CRC-32 in hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub stream_id: u64,
    /// Everything up to here was acknowledged, or is lost.
    pub done: Point,
    /// The last sequence number assigned.
    pub last: Point,
    /// Total lost before it got a sequence number.
    pub lost_in_queue: Volume,
    /// Total known to be lost among batches with sequence numbers.
    pub lost: Volume,
    /// The part of `lost` up to `done`.
    pub lost_done: Volume,
    /// No sequence number was assigned after this mark.
    pub is_last: bool,
    #[serde(default)]
    pub latest: Latest,
    /// The number of the batch noted there last by the process that wrote this mark, and what the queue had lost by then.
    #[serde(default)]
    pub noted: Option<(u64, Volume)>,
}

impl Mark {
    /// `None` if there is no mark. The inner error says that the file is damaged.
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
            "its checksum does not match"
        );
        let mark: Self = serde_json::from_str(json).context("read its JSON")?;
        let Self { done, last, .. } = mark;
        let is_in_order = done.seq <= last.seq && without(done.sum, last.sum) == Volume::default();
        ensure!(is_in_order, "it acknowledges more batches than there were");
        Ok(mark)
    }

    /// Replaces the mark. If this fails, the previous one stays.
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
