//! The watched interfaces from scan to scan: their names, their counters around the flip, and which of
//! them have left this network namespace.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::Result;

use crate::{
    kernel::links::{
        Counters, Link,
        statistics::{Names, Snapshot, Statistics},
    },
    wire,
};

/// By their slots.
pub struct Interfaces {
    names: Names,
    statistics: Statistics,
    before: Snapshot,
    after: Snapshot,
    watched: Vec<Watched>,
    on_the_wire: Arc<[wire::Interface]>,
    netns: u32,
}

/// One interface as the last scan found it.
#[derive(Clone, Debug)]
pub struct Watched {
    pub ifindex: u32,
    pub name: String,
    /// For good: an index is not given anew to what comes back under the same name.
    pub is_gone: bool,
    pub before_flip: Counters,
    pub after_flip: Counters,
}

impl Interfaces {
    /// For the network namespace of the calling thread, whose number is `netns`.
    pub fn open(selected: &[Link], netns: u32) -> Result<Self> {
        let watched = selected.iter().map(|link| Watched {
            ifindex: link.ifindex,
            name: link.name.clone(),
            is_gone: false,
            before_flip: Counters::default(),
            after_flip: Counters::default(),
        });
        let mut interfaces = Self {
            names: Names::open()?,
            statistics: Statistics::open()?,
            before: Snapshot::default(),
            after: Snapshot::default(),
            watched: watched.collect(),
            on_the_wire: Arc::new([]),
            netns,
        };
        interfaces.name_on_the_wire();
        Ok(interfaces)
    }

    /// Reads the counters right before a flip. Nothing in here waits for another process.
    pub fn read_before_flip(&mut self) -> Result<()> {
        self.statistics.read(&mut self.before)
    }

    /// Reads them again right behind it, and looks who was renamed or is gone since the last scan.
    /// `left` are known to be gone.
    pub fn read_after_flip(&mut self, left: &BTreeSet<u32>) -> Result<()> {
        self.statistics.read(&mut self.after)?;
        let (before, after) = (self.before.by_name(), self.after.by_name());
        let mut is_renamed = false;
        for watched in self.watched.iter_mut().filter(|watched| !watched.is_gone) {
            let known = std::mem::take(&mut watched.name);
            watched.is_gone = left.contains(&watched.ifindex);
            watched.name = match self.names.of(watched.ifindex) {
                // The index may be another interface's by now.
                Ok(name) if !watched.is_gone => name,
                Ok(_) => known.clone(),
                Err(error) => {
                    watched.is_gone |= error.raw_os_error() == Some(libc::ENODEV);
                    known.clone()
                }
            };
            let name = watched.name.as_str();
            if watched.is_gone {
                tracing::warn!(
                    interface = name,
                    ifindex = watched.ifindex,
                    "the interface is gone and counts no more; should it come back, restart the agent"
                );
                continue;
            }
            // What was read under a name that may have been another's meanwhile is not taken: the
            // reading of the last scan lies before the flip as well.
            let is_same = name == known;
            watched.before_flip = match before.get(name) {
                Some(counters) if is_same => *counters,
                _ => watched.after_flip,
            };
            if let Some(counters) = after.get(name) {
                watched.after_flip = *counters;
            }
            if !is_same {
                is_renamed = true;
                tracing::info!(from = known, to = name, "an interface was renamed");
            }
        }
        if is_renamed {
            self.name_on_the_wire();
        }
        Ok(())
    }

    fn name_on_the_wire(&mut self) {
        let interface = |watched: &Watched| wire::Interface {
            ifindex: watched.ifindex,
            name: watched.name.clone(),
            netns: self.netns,
        };
        self.on_the_wire = self.watched.iter().map(interface).collect();
    }

    /// As batches name them.
    pub fn on_the_wire(&self) -> &Arc<[wire::Interface]> {
        &self.on_the_wire
    }

    pub fn watched(&self, slot: usize) -> &Watched {
        &self.watched[slot]
    }
}
