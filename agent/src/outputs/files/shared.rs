//! Files that many senders fill, of which none may cost the others theirs: whoever has filled its part of a file gets one of
//! its own, until that is complete by its age.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use anyhow::Result;

use super::{Owner, Piece, Rotated, Written};
use crate::log_limit::LogLimit;

/// A sender may fill one in so many parts of a file that has the flows of others.
const PARTS: u64 = 8;
/// Files of senders that are written at the same time. Further senders fill the file of all.
const MOST_OWN: usize = 8;

pub struct Shared {
    all: Rotated,
    own: BTreeMap<Owner, Rotated>,
    /// What each sender has in the file of all, in bytes and rows.
    filled: HashMap<Owner, [u64; 2]>,
    begins: LogLimit,
}

impl Shared {
    pub fn new(all: Rotated) -> Self {
        Self {
            all,
            own: BTreeMap::new(),
            filled: HashMap::new(),
            begins: LogLimit::default(),
        }
    }

    /// As in the settings.
    pub fn address(&self) -> &Path {
        self.all.address()
    }

    /// Makes the file of all, so that a start tells what would be wrong later.
    pub async fn begin(&mut self) -> Result<()> {
        self.all.write(Vec::new()).await.map(drop)
    }

    /// Brings pieces to the disk for sure, and says of each whether it is there: those of a sender are in their order.
    pub async fn write(&mut self, pieces: Vec<(Owner, Piece)>) -> Vec<Result<(), String>> {
        // Whoever filled its own file until now writes on into the file of all. What fails is tried again.
        drop(self.complete_if_due().await);
        if self.all.open.is_none() {
            self.filled.clear();
        }
        let mut outcomes = vec![Ok(()); pieces.len()];
        let mut files = BTreeMap::<_, (Vec<usize>, Vec<(Owner, Piece)>)>::new();
        for (place, (owner, piece)) in pieces.into_iter().enumerate() {
            let file = self.own_file(&owner, &piece).then(|| owner.clone());
            let (places, pieces) = files.entry(file).or_default();
            places.push(place);
            pieces.push((owner, piece));
        }
        for (file, (places, pieces)) in files {
            let written = match file {
                None => self.write_for_all(pieces).await,
                Some(owner) => {
                    let file = self.own.get_mut(&owner).expect("it is of this sender");
                    let pieces = pieces.into_iter().map(|(_, piece)| piece);
                    write(file, &pieces.collect::<Vec<_>>()).await.map(drop)
                }
            };
            if let Err(error) = written {
                let why = format!("{error:#}");
                for place in places {
                    outcomes[place] = Err(why.clone());
                }
            }
        }
        outcomes
    }

    /// Whether a piece of this sender goes into a file of its own.
    fn own_file(&mut self, owner: &Owner, piece: &Piece) -> bool {
        if self.own.contains_key(owner) {
            return true;
        }
        let [bytes, rows] = self.filled.get(owner).copied().unwrap_or_default();
        let filled = [bytes + piece.bytes.len() as u64, rows + piece.rows];
        if self.own.len() < MOST_OWN && self.all.is_part(filled, PARTS) {
            if self.begins.event().is_some() {
                tracing::info!(
                    address = %self.address().display(),
                    sender = %owner,
                    "a sender has filled an eighth of a file: from now on it has files of its own"
                );
            }
            self.own.insert(owner.clone(), self.all.of(owner.clone()));
            return true;
        }
        self.filled.insert(owner.clone(), filled);
        false
    }

    async fn write_for_all(&mut self, pieces: Vec<(Owner, Piece)>) -> Result<()> {
        let (owners, pieces): (Vec<_>, Vec<_>) = pieces.into_iter().unzip();
        if write(&mut self.all, &pieces).await? == Written::Anew {
            self.filled.clear();
            for (owner, piece) in owners.into_iter().zip(pieces) {
                let [bytes, rows] = self.filled.entry(owner).or_default();
                *bytes += piece.bytes.len() as u64;
                *rows += piece.rows;
            }
        }
        Ok(())
    }

    /// Completes the files that are old enough.
    pub async fn complete_if_due(&mut self) -> Result<()> {
        let mut completed = self.all.complete_if_due().await;
        let mut over = Vec::new();
        for (owner, file) in &mut self.own {
            match file.is_over().await {
                Ok(true) => over.push(owner.clone()),
                Ok(false) => {}
                Err(error) => completed = completed.and(Err(error)),
            }
        }
        for owner in over {
            self.own.remove(&owner);
        }
        completed
    }

    /// Completes the files at the end of the process, where nobody else would tell that this fails.
    pub async fn close_at_the_end(&mut self) {
        self.all.close_at_the_end().await;
        for file in self.own.values_mut() {
            file.close_at_the_end().await;
        }
    }
}

/// Says whether a file was begun for these pieces.
async fn write(file: &mut Rotated, pieces: &[Piece]) -> Result<Written> {
    let mut begun = Written::Yes;
    while file.write_all(pieces.to_vec()).await? == Written::Anew {
        begun = Written::Anew;
    }
    file.sync().await?;
    Ok(begun)
}

#[cfg(test)]
mod tests;
