//! Files that many senders share. No sender may push out the others' flows: one that fills much of a file gets files of
//! its own.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    time::Instant,
};

use anyhow::Result;
use sys::log_limit::LogLimit;

use super::{Owner, Piece, Rotated, Written};

/// A sender may fill one in `PARTS` of the shared file per rotation interval.
const PARTS: u64 = 16;
/// Most senders with files of their own at the same time.
const MOST_OWN: usize = 16;
/// Most senders whose shares are counted.
const MOST_COUNTED: usize = 1 << 14;

pub struct Shared {
    all: Rotated,
    own: BTreeMap<Owner, Rotated>,
    /// Owners of files that a killed process left.
    left: Vec<Owner>,
    /// Bytes that each sender has written. Halved once per rotation interval.
    written: HashMap<Owner, u64>,
    halved: Instant,
    begins: LogLimit,
    fails: LogLimit,
}

impl Shared {
    pub fn new(all: Rotated) -> Self {
        Self {
            all,
            own: BTreeMap::new(),
            left: Vec::new(),
            written: HashMap::new(),
            halved: Instant::now(),
            begins: LogLimit::default(),
            fails: LogLimit::default(),
        }
    }

    /// The path from the settings.
    pub fn address(&self) -> &Path {
        self.all.address()
    }

    /// Creates the shared file, so that a wrong path is reported at startup.
    pub async fn begin(&mut self) -> Result<()> {
        self.all.write(Vec::new()).await?;
        self.left = self.all.place.names.owners()?;
        Ok(())
    }

    /// Writes and syncs the pieces. Returns for each whether it is on disk. Pieces of one sender stay in order.
    pub async fn write(&mut self, pieces: Vec<(Owner, Piece)>) -> Vec<Result<(), String>> {
        let mut outcomes = vec![Ok(()); pieces.len()];
        let mut files = BTreeMap::<_, Vec<(usize, Piece)>>::new();
        let mut ended = None;
        for (place, (owner, piece)) in pieces.into_iter().enumerate() {
            let has_own = self.has_own(&owner, &piece, &mut ended).await;
            let pieces = files.entry(has_own.then_some(owner)).or_default();
            pieces.push((place, piece));
        }
        if ended.is_some()
            && let Some(mut pieces) = files.remove(&ended)
        {
            // They precede the pieces of the same sender that go to the shared file.
            let all = files.entry(None).or_default();
            pieces.append(all);
            *all = pieces;
        }
        for (owner, pieces) in files {
            let own = owner.and_then(|owner| self.own.get_mut(&owner));
            let (places, pieces): (Vec<_>, Vec<_>) = pieces.into_iter().unzip();
            if let Err(error) = write(own.unwrap_or(&mut self.all), &pieces).await {
                let why = format!("{error:#}");
                for place in places {
                    outcomes[place] = Err(why.clone());
                }
            }
        }
        outcomes
    }

    /// Counts a piece. Returns whether it goes to a file of its sender alone. That may close one other sender's file,
    /// which takes time, so at most one is closed per write.
    async fn has_own(&mut self, owner: &Owner, piece: &Piece, ended: &mut Option<Owner>) -> bool {
        let all = self.count(owner, self.all.share(piece));
        if self.own.contains_key(owner) {
            return true;
        }
        if all <= self.part() {
            return false;
        }
        if self.own.len() >= MOST_OWN {
            if ended.is_some() {
                return false;
            }
            let written = |owner: &Owner| self.written.get(owner).copied().unwrap_or_default();
            let least = self.own.keys().min_by_key(|owner| written(owner)).cloned();
            // Otherwise two senders would keep taking the file from each other.
            let Some(least) = least.filter(|least| written(least) < all / 2) else {
                return false;
            };
            self.end(&least).await;
            *ended = Some(least);
        }
        if let Some(times) = self.begins.event() {
            tracing::info!(
                address = %self.address().display(),
                sender = %owner,
                times,
                "a sender fills much of a file, and gets files of its own"
            );
        }
        self.own.insert(owner.clone(), self.all.of(owner.clone()));
        true
    }

    /// How much a sender may fill of the shared file, in bytes.
    fn part(&self) -> u64 {
        self.all.place.rotation.bytes / PARTS
    }

    /// Adds to a sender's count and returns the sum.
    fn count(&mut self, owner: &Owner, more: u64) -> u64 {
        if self.halved.elapsed() >= self.all.place.rotation.after {
            self.halved = Instant::now();
            self.written.retain(|_, written| {
                *written /= 2;
                *written > 0
            });
        }
        if self.written.len() >= MOST_COUNTED {
            let part = self.part();
            self.written.retain(|_, written| *written > part);
        }
        let written = self.written.entry(owner.clone()).or_default();
        *written = written.saturating_add(more);
        *written
    }

    /// Completes a sender's file. If that fails, the next write of this sender or the next start retries.
    async fn end(&mut self, owner: &Owner) {
        let file = self.own.remove(owner);
        let mut file = file.unwrap_or_else(|| self.all.of(owner.clone()));
        if let Err(error) = file.end().await
            && let Some(times) = self.fails.event()
        {
            tracing::warn!(times, "cannot complete the file of a sender: {error:#}");
        }
    }

    /// Completes the shared file if it is due, and at most one sender's file, so that batches do not wait for all of
    /// them.
    pub async fn complete_if_due(&mut self) -> Result<()> {
        let completed = self.all.complete_if_due().await;
        self.left.retain(|owner| !self.own.contains_key(owner));
        if let Some(owner) = self.left.pop() {
            self.end(&owner).await;
            return completed;
        }
        let due = self.own.iter().filter(|(_, file)| file.is_due());
        let due = due.min_by_key(|(_, file)| file.open.as_ref().map(|open| open.since));
        let Some((owner, file)) = due else {
            return completed;
        };
        let (owner, is_full) = (owner.clone(), file.open.is_some() && !file.is_old());
        self.end(&owner).await;
        if is_full {
            // Keep the sender's slot. Otherwise another sender would take it and lose it again.
            let next = self.all.of(owner.clone());
            self.own.insert(owner, next);
        }
        completed
    }

    /// Completes all files at shutdown, and logs failures because no caller would.
    pub async fn close_at_the_end(&mut self) {
        self.all.close_at_the_end().await;
        for file in self.own.values_mut() {
            file.close_at_the_end().await;
        }
    }
}

async fn write(file: &mut Rotated, pieces: &[Piece]) -> Result<()> {
    while file.write_all(pieces.to_vec()).await? == Written::Anew {}
    file.sync().await
}

#[cfg(test)]
mod tests;
