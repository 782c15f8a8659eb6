//! Flows whose counts wait for their report interval, as bytes that outlive the process. If it is killed, the next one
//! makes the records.
//!
//! Each flow is a fixed number of words: a scan writes all of them, so it copies them and encodes nothing.

use std::{error, fmt};

use agent_common::{Counts, FlowKey};
use proto::{community_id::community_id, record::Record};
use sys::clock::ScanClock;

use super::{Entry, Handshake, Origin, Segments, Sides, State, Unreported};
use crate::replica::waiting;

/// The bytes are not flows that this version has written.
#[derive(Debug)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("the flows that waited for a report are not as this version writes them")
    }
}

impl error::Error for Malformed {}

/// Change it whenever the words have another meaning or number.
pub const UNREPORTED_VERSION: u32 = 2;
pub type UnreportedFlow = [u8; WORDS * size_of::<u64>()];

/// Makes the last record of each flow in `bytes`, which
/// [`Replica::write_unreported`](super::super::Replica::write_unreported) has written since the last boot.
pub fn read_unreported(
    bytes: &[u8],
    clock: ScanClock,
    sink: &mut impl FnMut(&Record),
) -> Result<(), Malformed> {
    let (flows, rest) = bytes.as_chunks::<{ size_of::<UnreportedFlow>() }>();
    if !rest.is_empty() {
        return Err(Malformed);
    }
    for flow in flows {
        let (entry, unreported) = from_words(&to_words(flow)).ok_or(Malformed)?;
        sink(&entry.record(clock, unreported, None, entry.state.forced_end()));
    }
    Ok(())
}

/// Two counts, each by direction: packets, bytes and IP bytes.
const COUNTS: usize = 6;
const TIMES: usize = 3;
/// The key, unreported and total counts, times, and two words of small fields.
const WORDS: usize = FlowKey::WORDS + 2 * COUNTS + TIMES + 2;

impl Entry {
    #[inline]
    pub fn write_unreported(&self, unreported: &Unreported, place: &mut UnreportedFlow) {
        let times = [
            unreported.began_boot_ns,
            self.first_seen_unix_ns,
            self.last_seen_boot_ns,
        ];
        let rest = write(place, self.key.words());
        let rest = write(rest, &from_counts(unreported.counts));
        let rest = write(rest, &from_counts(self.total));
        let rest = write(rest, &times);
        write(rest, &self.small_fields());
    }

    #[inline]
    fn small_fields(&self) -> [u64; 2] {
        let [flags_a, flags_b] = self.tcp_flags;
        let [class_a, class_b] = self.classes;
        let is_closing = u8::from(self.state == State::Closing);
        let sides = match self.sides {
            Sides::One => 0,
            Sides::Joined => 1,
            Sides::Apart => 2,
        };
        let origin = match self.origin {
            Origin::Unseen => 0,
            Origin::Seen => 1,
            Origin::SeenIfBothAreCounted => 2,
            Origin::GivenAsAssumed => 3,
            Origin::Given => 4,
        };
        let seen = [class_a, class_b, flags_a, flags_b, 0, 0, 0, 0];
        let found = [
            self.initiator | is_closing << 1 | sides << 2 | origin << 4,
            self.handshake.bits(),
            self.segments.bits(),
            self.sockets,
            0,
            0,
            0,
            0,
        ];
        [seen, found].map(u64::from_le_bytes)
    }
}

/// Writes the words to the front of `bytes`, and returns the rest.
#[inline]
fn write<'a, const N: usize>(mut bytes: &'a mut [u8], words: &[u64; N]) -> &'a mut [u8] {
    for word in words {
        let (place, rest) = bytes
            .split_first_chunk_mut()
            .expect("there is a place for each word");
        *place = word.to_le_bytes();
        bytes = rest;
    }
    bytes
}

fn to_words(bytes: &UnreportedFlow) -> [u64; WORDS] {
    let (words, _) = bytes.as_chunks();
    let mut read = [0; WORDS];
    for (to, word) in read.iter_mut().zip(words) {
        *to = u64::from_le_bytes(*word);
    }
    read
}

/// The flow that [`Entry::write_unreported`] has written, and its unreported counts.
fn from_words(words: &[u64; WORDS]) -> Option<(Entry, Unreported)> {
    let (key, rest) = words.split_first_chunk()?;
    let (counts, rest) = rest.split_first_chunk()?;
    let (total, rest) = rest.split_first_chunk()?;
    let &[
        began_boot_ns,
        first_seen_unix_ns,
        last_seen_boot_ns,
        seen,
        found,
    ] = rest.first_chunk()?;
    let key = FlowKey::from_words(*key);
    let [class_a, class_b, flags_a, flags_b, 0, 0, 0, 0] = seen.to_le_bytes() else {
        return None;
    };
    let [kinds, handshake, segments, sockets, 0, 0, 0, 0] = found.to_le_bytes() else {
        return None;
    };
    let initiator = kinds & 1;
    let entry = Entry {
        key,
        total: to_counts(total),
        first_seen_unix_ns,
        last_seen_boot_ns,
        community_id: community_id(&key, initiator),
        scan: 0,
        waiting: waiting::NONE,
        tcp_flags: [flags_a, flags_b],
        handshake: Handshake::from_bits(handshake),
        initiator,
        classes: [class_a, class_b],
        state: match kinds >> 1 & 1 {
            0 => State::Living,
            _ => State::Closing,
        },
        sides: match kinds >> 2 & 3 {
            0 => Sides::One,
            1 => Sides::Joined,
            2 => Sides::Apart,
            _ => return None,
        },
        is_told: true,
        segments: Segments::from_bits(segments),
        origin: match kinds >> 4 {
            0 => Origin::Unseen,
            1 => Origin::Seen,
            2 => Origin::SeenIfBothAreCounted,
            3 => Origin::GivenAsAssumed,
            4 => Origin::Given,
            _ => return None,
        },
        sockets,
    };
    let unreported = Unreported {
        counts: to_counts(counts),
        began_boot_ns,
    };
    Some((entry, unreported))
}

#[inline]
fn from_counts(counts: [Counts; 2]) -> [u64; COUNTS] {
    let [a, b] = counts;
    [
        a.packets, a.bytes, a.ip_bytes, b.packets, b.bytes, b.ip_bytes,
    ]
}

fn to_counts(words: &[u64; COUNTS]) -> [Counts; 2] {
    let (both, _) = words.as_chunks::<{ COUNTS / 2 }>();
    [both[0], both[1]].map(|[packets, bytes, ip_bytes]| Counts {
        packets,
        bytes,
        ip_bytes,
    })
}
