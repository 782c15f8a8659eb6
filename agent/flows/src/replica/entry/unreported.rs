//! Flows whose counts wait for their report interval, as bytes that outlive the process. If it is killed, the next one
//! makes the records.
//!
//! Each flow is a fixed number of varints, most of them short: some 80 bytes for an IPv4 flow.

use std::{error, fmt};

use agent_common::{Counts, FlowKey};
use prost::encoding::varint::{decode_varint, encode_varint};
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
pub const UNREPORTED_VERSION: u32 = 1;

/// Makes the last record of each flow in `bytes`, which [`Replica::write_unreported`](super::super::Replica::write_unreported) has
/// written since the last boot.
pub fn read_unreported(
    mut bytes: &[u8],
    clock: ScanClock,
    sink: &mut impl FnMut(&Record),
) -> Result<(), Malformed> {
    while !bytes.is_empty() {
        let mut words = [0; WORDS];
        for word in &mut words {
            *word = decode_varint(&mut bytes).map_err(|_| Malformed)?;
        }
        let (entry, unreported) = from_words(&words).ok_or(Malformed)?;
        sink(&entry.record(clock, unreported, None, entry.state.forced_end()));
    }
    Ok(())
}

/// Two counts, each by direction: packets, bytes and IP bytes.
const COUNTS: usize = 6;
/// The key, unreported and total counts, three times, and two words of small fields.
const WORDS: usize = FlowKey::WORDS + 2 * COUNTS + 3 + 2;

impl Entry {
    pub fn write_unreported(&self, unreported: &Unreported, out: &mut Vec<u8>) {
        for word in self.to_words(unreported) {
            encode_varint(word, out);
        }
    }

    fn to_words(&self, unreported: &Unreported) -> [u64; WORDS] {
        let [first, second] = unreported.counts.map(from_counts);
        let [first_total, second_total] = self.total.map(from_counts);
        let times = [
            unreported.began_boot_ns,
            self.first_seen_unix_ns,
            self.last_seen_boot_ns,
        ];
        let [flags_a, flags_b] = self.tcp_flags;
        let [class_a, class_b] = self.classes;
        let handshake = self.handshake.bits();
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
        // Bytes that are often zero come last, where they take no room.
        let seen = [class_a, class_b, flags_a, flags_b, 0, 0, 0, 0];
        let found = [
            self.initiator | is_closing << 1 | sides << 2 | origin << 4,
            handshake,
            self.segments.bits(),
            self.sockets,
            0,
            0,
            0,
            0,
        ];
        let small = [seen, found].map(u64::from_le_bytes);
        let mut words = [0; WORDS];
        let parts = self.key.words().iter();
        let parts = parts.chain(&first).chain(&second);
        let parts = parts.chain(&first_total).chain(&second_total);
        for (word, &part) in words.iter_mut().zip(parts.chain(&times).chain(&small)) {
            *word = part;
        }
        words
    }
}

/// The flow that [`Entry::to_words`] has written, and its unreported counts.
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

fn from_counts(counts: Counts) -> [u64; COUNTS / 2] {
    [counts.packets, counts.bytes, counts.ip_bytes]
}

fn to_counts(words: &[u64; COUNTS]) -> [Counts; 2] {
    let (both, _) = words.as_chunks::<{ COUNTS / 2 }>();
    [both[0], both[1]].map(|[packets, bytes, ip_bytes]| Counts {
        packets,
        bytes,
        ip_bytes,
    })
}
