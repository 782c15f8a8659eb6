//! How far a spool has come, in a file of its own that is written anew.

use std::{fs, io::Write as _, path::Path};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::super::waiting::Point;
use crate::hub::Volume;

const NAME: &str = "mark.json";

/// As of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub stream_id: u64,
    /// Everything up to this number was acknowledged, or is lost.
    pub done_seq: u64,
    /// What batches up to that number report.
    pub done: Sum,
    /// The last number that was given.
    pub last_seq: u64,
    /// What batches up to that number report.
    pub all: Sum,
    /// What was lost so far before it had a number.
    pub lost_in_queue: Volume,
    /// What is known to be missing among those with numbers.
    pub lost: Volume,
    /// The part of it up to `done_seq`.
    pub lost_done: Volume,
    /// The kernel's number for the time since it began, during which what was written is there.
    pub boot_id: String,
    /// Nothing was written afterwards.
    pub is_last: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    pub records: u64,
    pub packets: u64,
    pub bytes: u64,
}

impl Mark {
    pub fn done(&self) -> Point {
        Point {
            seq: self.done_seq,
            sum: self.done.into(),
        }
    }

    /// `None` where there is none. Fails if it cannot be read.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(NAME);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let mark = serde_json::from_slice(&text);
        Ok(Some(mark.with_context(|| {
            format!("{} cannot be read", path.display())
        })?))
    }

    /// In the place of the one before, which stays where this fails.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let new = folder.join("mark.new");
        let mut file =
            fs::File::create(&new).with_context(|| format!("create {}", new.display()))?;
        let text = serde_json::to_vec(self).context("encode a mark")?;
        let written = file.write_all(&text).and_then(|()| file.sync_data());
        written.with_context(|| format!("write {}", new.display()))?;
        fs::rename(&new, folder.join(NAME)).with_context(|| format!("rename {}", new.display()))
    }
}
