//! The ledger: everything that a successor has to know if this process ends at any moment, in a file in memory that the
//! service manager keeps.
//!
//! A scan reads a page and leaves it as it is. It then commits its batches, the flows that wait for a report, and the
//! page's account to the ledger, publishes the batches, empties the page, and marks the page as empty. So a successor
//! finds each packet either on a page or in the last commit, and knows which.
//!
//! There are two files, which commits take in turns: the last one stays whole until the next one is. A commit is there
//! once its header is: a magic number, a sequence number, the length of the state and its checksum, and two marks. Beside
//! each of them, a second file has the flows that wait: a scan writes all of them, so they go there through a mapping.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use agent_common::Pair;
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use flows::replica::{UNREPORTED_VERSION, UnreportedFlow};
use proto::batch::Batch;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sys::memory_file::{self, MemoryFile};

/// The names of the files in the store.
const NAMES: [&str; 2] = ["ledger.0", "ledger.1"];
const NAMES_OF_FLOWS: [&str; 2] = ["unreported.0", "unreported.1"];

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

/// The flows that wait for a report; if there are more, all are reported.
pub const MOST_UNREPORTED_FLOWS: usize = 500_000;
const MOST_UNREPORTED_BYTES: usize = MOST_UNREPORTED_FLOWS * size_of::<UnreportedFlow>();

/// Writes commits. They outlive the process if the service manager keeps the files.
pub struct Ledger {
    files: [File; 2],
    flows: [MemoryFile; 2],
    len_bytes: [usize; 2],
    /// Of the last commit.
    seq: u64,
    is_delivered: bool,
}

impl Ledger {
    pub fn create() -> Result<Self> {
        const WHAT: &str = "make a file in memory";
        let [first, second] =
            NAMES.map(|name| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from));
        let [first_flows, second_flows] = NAMES_OF_FLOWS.map(MemoryFile::create);
        Ok(Self {
            files: [first.context(WHAT)?, second.context(WHAT)?],
            flows: [first_flows.context(WHAT)?, second_flows.context(WHAT)?],
            len_bytes: [0; 2],
            seq: 0,
            is_delivered: false,
        })
    }

    /// All files, by their names in the store.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        let files = NAMES
            .into_iter()
            .zip(self.files.each_ref().map(File::as_fd));
        let flows = self.flows.each_ref().map(MemoryFile::as_fd);
        files.chain(NAMES_OF_FLOWS.into_iter().zip(flows))
    }

    /// Begins a commit with `count` flows that wait for a report. `write` writes them in place, and passes them on as they
    /// are written. The page of an earlier commit must be empty.
    pub fn begin(
        &mut self,
        count: usize,
        write: impl FnOnce(&mut [UnreportedFlow], &mut dyn FnMut(&[UnreportedFlow])),
    ) -> Result<Unreported> {
        let seq = self.seq + 1;
        // The header of the commit before the last one: without it, these files have none until the end.
        self.file(seq).write_all_at(&[0; STATE_AT as usize], 0)?;
        let len_bytes = count * size_of::<UnreportedFlow>();
        let bytes = self.flows[Self::turn(seq)].first(len_bytes)?;
        let (mut checksum, mut written) = (crc32fast::Hasher::new(), 0);
        write(bytes.as_chunks_mut().0, &mut |flows| {
            checksum.update(flows.as_flattened());
            written += flows.len();
        });
        ensure!(
            written == count,
            "{written} flows of {count} wait for a report"
        );
        Ok(Unreported {
            version: UNREPORTED_VERSION,
            len_bytes: len_bytes as u64,
            crc: checksum.finalize(),
        })
    }

    /// Commits a state, and the bytes of the batches, one after the other. [`Ledger::begin`] must have begun it.
    pub fn commit<'a>(
        &mut self,
        state: &impl Serialize,
        batches: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<()> {
        let state = serde_json::to_vec(state).context("write the ledger's state")?;
        let seq = self.seq + 1;
        let file = self.file(seq);
        file.write_all_at(&state, STATE_AT)?;
        let mut end = STATE_AT + state.len() as u64;
        for batch in batches {
            file.write_all_at(batch, end)?;
            end += batch.len() as u64;
        }
        let len_bytes = memory_file::len_for(end as usize, self.len_bytes[Self::turn(seq)]);
        file.set_len(len_bytes as u64)?;
        file.write_all_at(&header(seq, &state), 0)?;
        self.len_bytes[Self::turn(seq)] = len_bytes;
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
        &self.files[Self::turn(seq)]
    }

    fn turn(seq: u64) -> usize {
        (seq % 2) as usize
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
    /// Whether the page of this commit is empty.
    pub is_cleared: bool,
    pub is_delivered: bool,
    file: File,
    batches_at: u64,
    flows: Option<File>,
}

/// Reads the last whole commit from an earlier process's files. Removes the ledger's files from them.
pub fn read<S: DeserializeOwned>(left: &mut BTreeMap<String, OwnedFd>) -> Result<Commit<S>> {
    let mut take = |name| left.remove(name).map(File::from);
    let (files, mut flows) = (NAMES.map(&mut take), NAMES_OF_FLOWS.map(&mut take));
    let commits = files.into_iter().flatten().filter_map(|file| {
        let (seq, state) = whole(&file)?;
        Some((seq, state, file))
    });
    let last = commits.max_by_key(|(seq, ..)| *seq);
    let (seq, state, file) = last.context("the predecessor's ledger has no whole commit")?;
    let mark = |at| -> Result<bool> {
        let mut mark = [0; 1];
        file.read_exact_at(&mut mark, at)?;
        Ok(mark == [1])
    };
    Ok(Commit {
        is_cleared: mark(CLEARED_AT)?,
        is_delivered: mark(DELIVERED_AT)?,
        file,
        batches_at: STATE_AT + state.len() as u64,
        flows: flows[Ledger::turn(seq)].take(),
        state: serde_json::from_slice(&state).context("read the predecessor's state")?,
    })
}

impl<S> Commit<S> {
    /// The flows that wait for a report, as they were written. `None` if they are not there, or if this version cannot
    /// read them.
    pub fn unreported(&self, written: &Unreported) -> Option<Vec<u8>> {
        if written.len_bytes == 0 {
            return Some(Vec::new());
        }
        let is_ours = written.version == UNREPORTED_VERSION
            && written.len_bytes <= MOST_UNREPORTED_BYTES as u64;
        let flows = self.flows.as_ref().filter(|_| is_ours)?;
        let mut bytes = vec![0; written.len_bytes as usize];
        flows.read_exact_at(&mut bytes, 0).ok()?;
        (crc32fast::hash(&bytes) == written.crc).then_some(bytes)
    }

    /// The batches, as they were stored.
    pub fn batches(&self, stored: &[Stored]) -> Result<Vec<Batch>> {
        let lens = stored.iter().map(|batch| batch.len_bytes);
        let len = lens.fold(0, u64::saturating_add);
        // No more memory than the file has, whatever it says.
        let there = self.file.metadata()?.len().saturating_sub(self.batches_at);
        ensure!(
            len <= there.min(MOST_REST_BYTES),
            "the predecessor's ledger lacks batches"
        );
        let mut bytes = vec![0; len as usize];
        let read = self.file.read_exact_at(&mut bytes, self.batches_at);
        read.context("read the predecessor's batches")?;
        let mut rest = Bytes::from(bytes);
        let cut = |one: &Stored| one.batch(rest.split_to(one.len_bytes as usize));
        stored.iter().map(cut).collect()
    }
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

/// The flows of a commit that wait for a report.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Unreported {
    version: u32,
    len_bytes: u64,
    crc: u32,
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

#[cfg(test)]
mod tests {
    use super::*;

    type State = Vec<u32>;

    fn files(ledger: &Ledger) -> BTreeMap<String, OwnedFd> {
        let files = ledger.files();
        files
            .map(|(name, file)| (name.to_owned(), file.try_clone_to_owned().unwrap()))
            .collect()
    }

    fn found(ledger: &Ledger) -> Commit<State> {
        read(&mut files(ledger)).unwrap()
    }

    fn commit(ledger: &mut Ledger, state: &[u32], flows: &[u8], batches: &[&[u8]]) -> Unreported {
        let unreported = ledger.begin(flows.len(), |places, written| {
            for (place, &byte) in places.iter_mut().zip(flows) {
                place.fill(byte);
            }
            written(places);
        });
        let batches = batches.iter().copied();
        ledger.commit(&state.to_vec(), batches).unwrap();
        unreported.unwrap()
    }

    fn batch(body: &[u8]) -> Batch {
        Batch {
            body: Bytes::copy_from_slice(body),
            records: 1,
            delta: Pair {
                packets: 2,
                bytes: 3,
            },
            scan_id: 4,
            index: 5,
            last_of_scan: true,
        }
    }

    /// The bytes that follow the state.
    fn rest(commit: &Commit<State>, len: usize) -> Vec<u8> {
        let mut rest = vec![0; len];
        let read = commit.file.read_exact_at(&mut rest, commit.batches_at);
        read.unwrap();
        rest
    }

    #[test]
    fn the_last_whole_commit_is_found() {
        let mut ledger = Ledger::create().unwrap();
        let none = read::<State>(&mut files(&ledger)).unwrap_err().to_string();
        assert!(none.contains("no whole commit"), "{none}");
        commit(&mut ledger, &[1], b"", &[b"one", b"two"]);
        let first = found(&ledger);
        assert_eq!(
            (&first.state, rest(&first, 6)),
            (&vec![1], b"onetwo".to_vec())
        );
        assert!(!first.is_cleared && !first.is_delivered);
        ledger.cleared().unwrap();
        assert!(found(&ledger).is_cleared);

        let written = commit(&mut ledger, &[2, 2], b"ab", &[b"three"]);
        let second = found(&ledger);
        assert_eq!(
            (&second.state, rest(&second, 5)),
            (&vec![2, 2], b"three".to_vec())
        );
        assert!(!second.is_cleared);
        // A mark of an earlier commit is too late.
        ledger.delivered(1).unwrap();
        assert!(!found(&ledger).is_delivered);
        ledger.delivered(2).unwrap();
        let second = found(&ledger);
        assert!(second.is_delivered);

        // The next commit has begun, and is not there yet.
        let begun = ledger.begin(1, |places, written| {
            places[0].fill(b'c');
            written(places);
        });
        begun.unwrap();
        let second = found(&ledger);
        assert_eq!(second.state, [2, 2]);
        let flows: [UnreportedFlow; 2] = [b'a', b'b'].map(|byte| [byte; _]);
        assert_eq!(second.unreported(&written).unwrap(), flows.as_flattened());

        commit(&mut ledger, &[3], b"", &[]);
        assert_eq!(found(&ledger).state, [3]);
        ledger.invalidate().unwrap();
        assert!(read::<State>(&mut files(&ledger)).is_err());
    }

    #[test]
    fn whatever_bit_of_a_commit_is_flipped_the_one_before_it_counts() {
        let mut ledger = Ledger::create().unwrap();
        commit(&mut ledger, &[1], b"", &[]);
        commit(&mut ledger, &[2], b"", &[]);
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
    fn flows_that_wait_are_read_only_as_they_were_written() {
        let mut ledger = Ledger::create().unwrap();
        let written = commit(&mut ledger, &[1], b"ab", &[b"batch"]);
        let is_read = |ledger: &Ledger, written: &Unreported| {
            let found = found(ledger);
            // The batches are whole all the same.
            assert_eq!(rest(&found, 5), b"batch");
            found.unreported(written).is_some()
        };
        assert!(is_read(&ledger, &written));
        let later = Unreported {
            version: UNREPORTED_VERSION + 1,
            ..written.clone()
        };
        assert!(!is_read(&ledger, &later));
        let mut without = files(&ledger);
        without.remove("unreported.1");
        let found = read::<State>(&mut without).unwrap();
        assert!(found.unreported(&written).is_none());
        assert!(found.unreported(&Unreported::default()).is_some());
        ledger.flows[1].first(300).unwrap()[200] ^= 1;
        assert!(!is_read(&ledger, &written));
        ledger.flows[1].first(300).unwrap()[200] ^= 1;
        assert!(is_read(&ledger, &written));
        File::from(files(&ledger).remove("unreported.1").unwrap())
            .set_len(300)
            .unwrap();
        assert!(!is_read(&ledger, &written));
    }

    #[test]
    fn a_commit_without_all_of_its_flows_is_refused() {
        let mut ledger = Ledger::create().unwrap();
        commit(&mut ledger, &[1], b"", &[]);
        let begun = ledger.begin(2, |places, written| written(&places[1..]));
        assert!(begun.is_err());
        assert_eq!(found(&ledger).state, [1]);
    }

    #[test]
    fn batches_are_read_only_as_they_were_stored() {
        let stored = |body: &[u8]| Stored::of(&batch(body)).0;
        let all = [stored(b"abc"), stored(b""), stored(b"de")];
        let read = |bytes: &[u8]| {
            let mut ledger = Ledger::create().unwrap();
            commit(&mut ledger, &[1], b"", &[bytes]);
            found(&ledger).batches(&all)
        };
        let batches = read(b"abcde").unwrap();
        let parts: Vec<_> = batches.iter().map(|batch| &batch.body[..]).collect();
        assert_eq!(parts, [&b"abc"[..], b"", b"de"]);
        assert_eq!(Stored::of(&batches[2]).0, all[2]);
        for other in [&b"abcd"[..], b"abcdE"] {
            assert!(read(other).is_err());
        }
    }

    #[test]
    fn a_short_commit_after_a_long_one_is_read_as_it_is() {
        let mut ledger = Ledger::create().unwrap();
        for (byte, len) in [(1, 100_000), (2, 100_000), (3, 10), (4, 0), (5, 70)] {
            let (stored, body) = Stored::of(&batch(&vec![byte; len]));
            commit(&mut ledger, &[1], b"", &[&body]);
            let found = found(&ledger);
            assert!(found.file.metadata().unwrap().len() > 90_000);
            assert_eq!(found.batches(&[stored]).unwrap()[0].body, body);
        }
    }
}
