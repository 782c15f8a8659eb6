//! Derives frames from those of the corpus, with damage such as faults, attackers or chance cause. These are proptest
//! strategies, so a failing frame is shrunk.

use agent_common::LinkType;
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::{Entry, RawFrame};

/// Byte values that mean something in some header: IP version and header length, protocols, extension headers, halves
/// of EtherTypes, limits.
const TELLING_BYTES: &[u8] = &[
    0, 1, 2, 4, 5, 6, 7, 8, 14, 17, 20, 33, 40, 43, 44, 47, 50, 51, 58, 59, 60, 0x40, 0x44, 0x45,
    0x4f, 0x50, 0x60, 0x65, 0x7f, 0x80, 0x81, 0x86, 0x88, 0x91, 0xa8, 0xdd, 0xe5, 128, 132, 135,
    136, 139, 140, 0xf0, 0xfe, 0xff,
];

#[derive(Clone, Debug)]
enum Mutation {
    Set(Index, u8),
    Flip(Index, u8),
    Cut(Index),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    /// Repeats the bytes at that place, as with stacked headers.
    Repeat(Index, usize),
    Append(Vec<u8>),
    /// Continues with the rest of another frame.
    Cross(Index, Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    let byte = || prop_oneof![prop::sample::select(TELLING_BYTES), any::<u8>()];
    prop_oneof![
        6 => (at(), byte()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        2 => (at(), 0..8_u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        2 => at().prop_map(Mutation::Cut),
        1 => (at(), 1..24_usize).prop_map(|(at, len)| Mutation::Remove(at, len)),
        1 => (at(), vec(byte(), 1..24)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        1 => (at(), 1..48_usize).prop_map(|(at, len)| Mutation::Repeat(at, len)),
        1 => vec(byte(), 1..64).prop_map(Mutation::Append),
        1 => (at(), at()).prop_map(|(other, at)| Mutation::Cross(other, at)),
    ]
}

fn apply(mutation: Mutation, bytes: &mut Vec<u8>, entries: &[Entry]) {
    let len = bytes.len();
    // Includes the position after the last byte.
    let place = |at: Index| at.index(len + 1);
    match mutation {
        Mutation::Set(at, byte) if len > 0 => bytes[at.index(len)] = byte,
        Mutation::Flip(at, bit) if len > 0 => bytes[at.index(len)] ^= 1 << bit,
        Mutation::Set(..) | Mutation::Flip(..) => {}
        Mutation::Cut(at) => bytes.truncate(place(at)),
        Mutation::Remove(at, many) => {
            let from = place(at);
            bytes.drain(from..len.min(from + many));
        }
        Mutation::Insert(at, more) => {
            let at = place(at);
            bytes.splice(at..at, more);
        }
        Mutation::Repeat(at, many) => {
            let from = place(at);
            let again = bytes[from..len.min(from + many)].to_vec();
            bytes.splice(from..from, again);
        }
        Mutation::Append(more) => bytes.extend(more),
        Mutation::Cross(other, at) => {
            let other = &other.get(entries).frame.bytes;
            let from = at.index(len.min(other.len()) + 1);
            bytes.truncate(from);
            bytes.extend(&other[from..]);
        }
    }
}

/// Frames of the corpus with a few mutations.
pub fn mutated(entries: &[Entry]) -> impl Strategy<Value = RawFrame> {
    let tag = prop_oneof![4 => Just(None), 1 => any::<u16>().prop_map(Some)];
    let toggled = prop::bool::weighted(0.1);
    let parts = (any::<Index>(), vec(mutation(), 1..6), tag, toggled);
    parts.prop_map(|(entry, mutations, tag, toggled)| {
        let mut frame = entry.get(entries).frame.clone();
        frame.is_super_frame ^= toggled;
        for mutation in mutations {
            apply(mutation, &mut frame.bytes, entries);
        }
        frame.tag = tag
            .filter(|_| frame.link_type == LinkType::Ethernet)
            .or(frame.tag);
        frame
    })
}

/// Arbitrary bytes. For half of the frames the Ethernet header leads to a part of the parser.
pub fn arbitrary() -> impl Strategy<Value = RawFrame> {
    let ether_type = prop_oneof![
        prop::sample::select(
            &[
                0x0800_u16, 0x86dd, 0x8100, 0x88a8, 0x9100, 0x0806, 0x88e5, 0x8864, 0x8847, 0x8848,
            ][..]
        ),
        any::<u16>(),
    ];
    let first = prop_oneof![
        prop::sample::select(&[0x45_u8, 0x46, 0x4f, 0x60, 0x6f][..]),
        any::<u8>(),
    ];
    let any_bytes = || vec(any::<u8>(), 0..160);
    let headed = (ether_type, first, any_bytes()).prop_map(|(ether_type, first, rest)| {
        [&[2; 12], &ether_type.to_be_bytes()[..], &[first], &rest].concat()
    });
    let link_type = prop_oneof![Just(LinkType::Ethernet), Just(LinkType::Ip)];
    let bytes = prop_oneof![2 => headed, 1 => any_bytes()];
    let flags = (any::<bool>(), any::<bool>());
    (link_type, bytes, flags).prop_map(|(link_type, bytes, (decapsulate, is_super_frame))| {
        // Without a link header the frame begins with the IP header.
        let skipped = if link_type == LinkType::Ip {
            bytes.len().min(14)
        } else {
            0
        };
        RawFrame {
            link_type,
            tag: None,
            decapsulate,
            is_super_frame,
            bytes: bytes[skipped..].to_vec(),
        }
    })
}
