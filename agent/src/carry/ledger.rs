//! The ledger: everything that a successor has to know if this process ends at any moment, in a file in memory that the
//! service manager keeps.
//!
//! A scan reads a page and leaves it as it is. It then commits its batches, the flows that wait for a report, and the
//! page's account to the ledger, publishes the batches, empties the page, and marks the page as empty. So a successor
//! finds each packet either on a page or in the last commit, and knows which.
//!
//! There are two files, which commits take in turns: the last one stays whole until the next one is. A commit is there
//! once its header is: a magic number, a sequence number, the length of the state and its checksum, and two marks.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use agent_common::Pair;
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use flows::replica::UNREPORTED_VERSION;
use proto::batch::Batch;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The names of the files in the store.
pub const NAMES: [&str; 2] = ["ledger.0", "ledger.1"];

const MAGIC: u64 = u64::from_le_bytes(*b"flwagt-1");
const HEADER_LEN_BYTES: usize = 40;
/// Beside the header, since they are written later.
const CLEARED_AT: u64 = 40;
const DELIVERED_AT: u64 = 44;
const STATE_AT: u64 = 48;
/// No state is longer. Bounds the memory for a file that somebody else has written.
const MOST_STATE_BYTES: u64 = 64 << 20;

/// Nor is what follows it.
const MOST_REST_BYTES: u64 = 4 << 30;

/// Writes commits. They outlive the process if the service manager keeps the files.
pub struct Ledger {
    files: [File; 2],
    /// Of the last commit.
    seq: u64,
    is_delivered: bool,
}

impl Ledger {
    pub fn create() -> Result<Self> {
        let file = |name: &str| {
            let file = memfd_create(name, MemfdFlags::CLOEXEC);
            file.map(File::from).context("make a file in memory")
        };
        let [first, second] = NAMES.map(file);
        Ok(Self {
            files: [first?, second?],
            seq: 0,
            is_delivered: false,
        })
    }

    pub fn files(&self) -> [(&'static str, BorrowedFd<'_>); 2] {
        let [first, second] = &self.files;
        [(NAMES[0], first.as_fd()), (NAMES[1], second.as_fd())]
    }

    /// Commits a state, the flows that wait for a report, and the bytes of the batches, one after the other. The page of
    /// an earlier commit must be empty.
    pub fn commit<'a>(
        &mut self,
        state: &impl Serialize,
        unreported: &[u8],
        batches: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<()> {
        let state = serde_json::to_vec(state).context("write the ledger's state")?;
        let seq = self.seq + 1;
        let file = self.file(seq);
        // The header of the commit before the last one: without it, this file has none until the end.
        file.write_all_at(&[0; STATE_AT as usize], 0)?;
        file.write_all_at(&state, STATE_AT)?;
        let mut end = STATE_AT + state.len() as u64;
        file.write_all_at(unreported, end)?;
        end += unreported.len() as u64;
        for batch in batches {
            self.file(seq).write_all_at(batch, end)?;
            end += batch.len() as u64;
        }
        let file = self.file(seq);
        file.set_len(end)?;
        file.write_all_at(&header(seq, &state), 0)?;
        self.seq = seq;
        self.is_delivered = false;
        Ok(())
    }

    /// Marks the page of the last commit as empty.
    pub fn cleared(&self) -> io::Result<()> {
        self.file(self.seq).write_all_at(&[1], CLEARED_AT)
    }

    /// Notes that all consumers have the batches of the commit `seq`. Their memory is kept for the next commit, since
    /// getting it from the kernel again would cost as much as writing.
    pub fn delivered(&mut self, seq: u64) -> io::Result<()> {
        if seq != self.seq {
            return Ok(());
        }
        self.is_delivered = true;
        self.file(seq).write_all_at(&[1], DELIVERED_AT)
    }

    /// Whether all consumers have the batches of the last commit.
    pub fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    /// The number of the last commit.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Takes all commits back: a successor then knows that it knows nothing.
    pub fn invalidate(&self) -> io::Result<()> {
        let [first, second] = &self.files;
        [first, second]
            .into_iter()
            .try_for_each(|file| file.set_len(0))
    }

    fn file(&self, seq: u64) -> &File {
        &self.files[(seq % 2) as usize]
    }
}

fn header(seq: u64, state: &[u8]) -> [u8; HEADER_LEN_BYTES] {
    let mut header = [0; HEADER_LEN_BYTES];
    let words = [
        MAGIC,
        seq,
        state.len() as u64,
        crc32fast::hash(state).into(),
    ];
    for (place, word) in header.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let checksum = crc32fast::hash(&header[..32]);
    header[32..].copy_from_slice(&u64::from(checksum).to_le_bytes());
    header
}

/// The last commit of a process.
#[derive(Debug)]
pub struct Commit<S> {
    pub state: S,
    /// The flows that wait for a report, and the batches.
    pub rest: Vec<u8>,
    /// Whether the page of this commit is empty.
    pub is_cleared: bool,
    pub is_delivered: bool,
}

/// Reads the last whole commit from the files of a ledger.
pub fn read<S: DeserializeOwned>(files: impl IntoIterator<Item = OwnedFd>) -> Result<Commit<S>> {
    let files: Vec<_> = files.into_iter().map(File::from).collect();
    let commits = files.iter().filter_map(|file| {
        let (seq, state) = whole(file)?;
        Some((seq, state, file))
    });
    let last = commits.max_by_key(|(seq, ..)| *seq);
    let (_, state, file) = last.context("the predecessor's ledger has no whole commit")?;
    let mark = |at| -> Result<bool> {
        let mut mark = [0; 1];
        file.read_exact_at(&mut mark, at)?;
        Ok(mark == [1])
    };
    let (is_cleared, is_delivered) = (mark(CLEARED_AT)?, mark(DELIVERED_AT)?);
    let at = STATE_AT + state.len() as u64;
    let len = file.metadata()?.len().saturating_sub(at);
    ensure!(
        len <= MOST_REST_BYTES,
        "the predecessor's ledger is too long"
    );
    let mut rest = vec![0; len as usize];
    file.read_exact_at(&mut rest, at)
        .context("read the predecessor's batches")?;
    let state = serde_json::from_slice(&state).context("read the predecessor's state")?;
    Ok(Commit {
        state,
        rest,
        is_cleared,
        is_delivered,
    })
}

/// The sequence number and the state of a file's commit, if it is whole.
fn whole(file: &File) -> Option<(u64, Vec<u8>)> {
    let mut found = [0; HEADER_LEN_BYTES];
    file.read_exact_at(&mut found, 0).ok()?;
    let word = |number: usize| {
        let bytes = found[8 * number..].first_chunk().expect("there are five");
        u64::from_le_bytes(*bytes)
    };
    let (seq, len) = (word(1), word(2));
    if len > MOST_STATE_BYTES {
        return None;
    }
    let mut state = vec![0; len as usize];
    file.read_exact_at(&mut state, STATE_AT).ok()?;
    (found == header(seq, &state)).then_some((seq, state))
}

/// The flows that wait for a report, among the bytes of a commit.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Unreported {
    version: u32,
    len_bytes: u64,
    crc: u32,
}

impl Unreported {
    /// Flows as this [`VERSION`](flows::replica::UNREPORTED_VERSION) writes them.
    pub fn of(flows: &[u8]) -> Self {
        Self {
            version: UNREPORTED_VERSION,
            len_bytes: flows.len() as u64,
            crc: crc32fast::hash(flows),
        }
    }

    /// Cuts them off the rest of a commit's bytes. `None` if this version cannot read them.
    pub fn cut(&self, rest: &mut Bytes) -> Result<Option<Bytes>> {
        ensure!(
            self.len_bytes <= rest.len() as u64,
            "the predecessor's ledger lacks flows that waited for a report"
        );
        let flows = rest.split_to(self.len_bytes as usize);
        let is_whole = crc32fast::hash(&flows) == self.crc;
        let is_ours = flows.is_empty() || self.version == UNREPORTED_VERSION;
        Ok((is_whole && is_ours).then_some(flows))
    }
}

/// Where a batch lies among the bytes of a commit.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Stored {
    pub len_bytes: u64,
    /// The first version had none.
    pub crc: Option<u32>,
    pub records: u32,
    pub packets: u64,
    pub bytes: u64,
    pub scan_id: u64,
    pub index: u32,
    pub last_of_scan: bool,
}

impl Stored {
    /// How the ledger has a batch, with its bytes.
    pub fn of(batch: &Batch) -> (Self, Bytes) {
        let body = batch.body.clone();
        let stored = Self {
            len_bytes: body.len() as u64,
            crc: Some(crc32fast::hash(&body)),
            records: batch.records,
            packets: batch.delta.packets,
            bytes: batch.delta.bytes,
            scan_id: batch.scan_id,
            index: batch.index,
            last_of_scan: batch.last_of_scan,
        };
        (stored, body)
    }

    /// The batch, if these are its bytes.
    fn batch(&self, body: Bytes) -> Result<Batch> {
        ensure!(
            self.crc.is_none_or(|crc| crc32fast::hash(&body) == crc),
            "a batch in the predecessor's ledger is not as it was stored"
        );
        Ok(Batch {
            body,
            records: self.records,
            delta: Pair {
                packets: self.packets,
                bytes: self.bytes,
            },
            scan_id: self.scan_id,
            index: self.index,
            last_of_scan: self.last_of_scan,
        })
    }
}

/// Cuts the rest of a commit's bytes into its batches.
pub fn cut(mut rest: Bytes, stored: &[Stored]) -> Result<Vec<Batch>> {
    let mut cut = Vec::new();
    for one in stored {
        ensure!(
            one.len_bytes <= rest.len() as u64,
            "the predecessor's ledger lacks batches"
        );
        cut.push(one.batch(rest.split_to(one.len_bytes as usize))?);
    }
    ensure!(
        rest.is_empty(),
        "the predecessor's ledger has too many bytes"
    );
    Ok(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    type State = Vec<u32>;

    fn files(ledger: &Ledger) -> Vec<OwnedFd> {
        let files = ledger.files.iter();
        files.map(|file| file.try_clone().unwrap().into()).collect()
    }

    fn found(ledger: &Ledger) -> Commit<State> {
        read(files(ledger)).unwrap()
    }

    #[test]
    fn the_last_whole_commit_is_found() {
        let mut ledger = Ledger::create().unwrap();
        let none = read::<State>(files(&ledger)).unwrap_err().to_string();
        assert!(none.contains("no whole commit"), "{none}");
        ledger.commit(&[1], b"", [&b"one"[..], b"two"]).unwrap();
        let first = found(&ledger);
        assert_eq!((first.state, first.rest), (vec![1], b"onetwo".to_vec()));
        assert!(!first.is_cleared && !first.is_delivered);
        ledger.cleared().unwrap();
        assert!(found(&ledger).is_cleared);

        ledger.commit(&[2, 2], b"flows", [&b"three"[..]]).unwrap();
        let second = found(&ledger);
        assert_eq!(
            (second.state, second.rest),
            (vec![2, 2], b"flowsthree".to_vec())
        );
        assert!(!second.is_cleared);
        // A mark of an earlier commit is too late.
        ledger.delivered(1).unwrap();
        assert!(!found(&ledger).is_delivered);
        ledger.delivered(2).unwrap();
        let second = found(&ledger);
        assert!(second.is_delivered && second.rest == b"flowsthree");

        ledger.commit(&[3], b"", []).unwrap();
        assert_eq!(found(&ledger).state, [3]);
        ledger.invalidate().unwrap();
        assert!(read::<State>(files(&ledger)).is_err());
    }

    #[test]
    fn whatever_bit_of_a_commit_is_flipped_the_one_before_it_counts() {
        let mut ledger = Ledger::create().unwrap();
        ledger.commit(&[1], b"", []).unwrap();
        ledger.commit(&[2], b"", []).unwrap();
        let file = ledger.file(2);
        let len = file.metadata().unwrap().len();
        for at in (0..len).filter(|at| !(CLEARED_AT..STATE_AT).contains(at)) {
            for bit in 0..8 {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
                assert_eq!(found(&ledger).state, [1], "bit {bit} of byte {at}");
                file.write_all_at(&byte, at).unwrap();
            }
        }
        assert_eq!(found(&ledger).state, [2]);
        for cut in 0..len {
            file.set_len(cut).unwrap();
            assert_eq!(found(&ledger).state, [1], "cut at {cut}");
        }
    }

    #[test]
    fn flows_that_wait_are_cut_as_they_were_stored() {
        let flows = Unreported::of(b"flows");
        let cut = |bytes: &'static [u8]| {
            let mut rest = Bytes::from_static(bytes);
            flows.cut(&mut rest).map(|flows| (flows, rest)).ok()
        };
        let batch = Bytes::from_static(b"batch");
        let whole = Bytes::from_static(b"flows");
        assert_eq!(cut(b"flowsbatch"), Some((Some(whole), batch.clone())));
        // The batches are whole all the same.
        assert_eq!(cut(b"flawsbatch"), Some((None, batch)));
        assert_eq!(cut(b"flow"), None);
        let later = Unreported {
            version: UNREPORTED_VERSION + 1,
            ..flows.clone()
        };
        assert_eq!(later.cut(&mut Bytes::from_static(b"flows")).unwrap(), None);
    }

    #[test]
    fn batches_are_cut_as_they_were_stored() {
        let batch = |body: &'static [u8]| Batch {
            body: Bytes::from_static(body),
            records: 1,
            delta: Pair {
                packets: 2,
                bytes: 3,
            },
            scan_id: 4,
            index: 5,
            last_of_scan: true,
        };
        let stored = |body| Stored::of(&batch(body)).0;
        let all = [stored(b"abc"), stored(b""), stored(b"de")];
        let cut = |bytes: &'static [u8]| cut(Bytes::from_static(bytes), &all);
        let batches = cut(b"abcde").unwrap();
        let parts: Vec<_> = batches.iter().map(|batch| &batch.body[..]).collect();
        assert_eq!(parts, [&b"abc"[..], b"", b"de"]);
        assert_eq!(Stored::of(&batches[2]).0, all[2]);
        for other in [&b"abcd"[..], b"abcdef", b"abcdE"] {
            assert!(cut(other).is_err());
        }
    }
}
