//! The pages of an earlier process, which no program uses any more.

use std::{collections::BTreeMap, io, os::fd::OwnedFd};

use agent_common::{FlowCounters, FlowKey, Senders, senders::Kinds};
use anyhow::{Context as _, Result, ensure};

use super::{
    Size,
    page::{Behind, Taken, Windows},
};

pub(super) fn windows_name(page: u32, size: Size) -> String {
    format!("windows.{page}.{}", size.windows)
}

pub(super) fn senders_name(page: u32, size: Size) -> String {
    format!("senders.{page}.{}", size.windows)
}

pub(super) fn behind_name(page: u32) -> String {
    format!("behind.{page}")
}

pub(super) fn senders_behind_name(page: u32) -> String {
    format!("senders_behind.{page}")
}

pub struct OldPages {
    both: [OldPage; 2],
    taken: Taken,
}

/// While a page changes its size, it has windows of both sizes; the unused ones are empty.
struct OldPage {
    windows: Vec<Windows>,
    behind: Behind,
}

impl OldPages {
    /// Opens the pages among the files that [`Pages::keep`](super::Pages::keep) has stored. `kinds` is what that process
    /// recorded of senders.
    pub fn open(files: &mut BTreeMap<String, OwnedFd>, kinds: Kinds) -> Result<Self> {
        let [first, second] = [0, 1].map(|page| {
            OldPage::open(files, page, kinds)
                .with_context(|| format!("open page {page} of the predecessor's flow table"))
        });
        Ok(Self {
            both: [first?, second?],
            taken: Taken::default(),
        })
    }

    /// Passes every entry of a page to `sink`, and leaves it there. Returns how many there are.
    pub fn read(
        &mut self,
        page: u32,
        mut sink: impl FnMut(&[FlowKey], &[FlowCounters], &[Senders]),
    ) -> io::Result<u64> {
        let OldPage { windows, behind } = &self.both[page as usize];
        let taken = &mut self.taken;
        let read: u64 = windows
            .iter()
            .map(|windows| windows.read(taken, &mut sink))
            .sum();
        Ok(read + behind.read(&mut sink)?)
    }
}

impl OldPage {
    fn open(files: &mut BTreeMap<String, OwnedFd>, page: u32, kinds: Kinds) -> Result<Self> {
        let prefix = format!("windows.{page}.");
        let sizes = files.keys().filter_map(|name| name.strip_prefix(&prefix));
        // No page is larger: the numbers of its elements fit into 32 bits.
        let sizes = sizes.filter_map(|size| size.parse().ok().filter(|&size| size < 1 << 26));
        let sizes: Vec<_> = sizes.map(|windows| Size { windows }).collect();
        let mut windows = Vec::new();
        for size in sizes {
            let map = files.remove(&windows_name(page, size));
            let map = map.context("its windows are missing")?;
            // Without senders they were not in use yet.
            if let Ok(senders) = senders_of(files, &senders_name(page, size), kinds) {
                windows.push(Windows::open(map, size, senders, kinds).context("open its windows")?);
            }
        }
        ensure!(!windows.is_empty(), "its windows or senders are missing");
        let behind = files.remove(&behind_name(page));
        let behind = behind.context("its overflow map is missing")?;
        let senders = senders_of(files, &senders_behind_name(page), kinds)?;
        Ok(Self {
            windows,
            behind: Behind::open(behind, senders).context("open its overflow map")?,
        })
    }
}

fn senders_of(
    files: &mut BTreeMap<String, OwnedFd>,
    name: &str,
    kinds: Kinds,
) -> Result<Option<OwnedFd>> {
    if kinds == Kinds::NONE {
        return Ok(None);
    }
    let senders = files.remove(name);
    senders.context("its senders are missing").map(Some)
}
