//! Finds the first filter rule that matches a packet, without walking the rules one by one.
//!
//! A set of rules is a table of [`Row`]s and, for each IP version, prefixes with [`NetRows`]. A row
//! is a bitmap of rules: bit `n` stands for rule `n`. Each property of a packet (an address, a
//! port, a protocol, a hook) leads to the row of the rules that it satisfies. The intersection of
//! these rows holds the rules that match, and its lowest bit is the first of them.
//!
//! A prefix's rows include the rules of the shorter prefixes around it. One longest-prefix look-up
//! therefore finds all of them, and the first rule wins whatever the lengths of the prefixes.

use crate::{flow::L4Kind, frame::Header as _, parse::Packet};

/// Rules that a set can have.
pub const MAX_RULES: usize = WORDS * 64;
/// Words in a [`Row`].
pub const WORDS: usize = 16;

/// A bitmap of rules. The look-up tables of a set are made of rows too: there a row holds
/// [`ROW_ENTRIES`] row numbers of 16 bits each, the lowest bits first.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row(pub [u64; WORDS]);

/// Row numbers in a row of a look-up table.
pub const ROW_ENTRIES: u32 = 64;

impl Row {
    pub const NONE: Self = Self([0; WORDS]);
    pub const ALL: Self = Self([u64::MAX; WORDS]);

    pub fn insert(&mut self, rule: usize) {
        self.0[rule / 64] |= 1 << (rule % 64);
    }

    pub fn remove(&mut self, rule: usize) {
        self.0[rule / 64] &= !(1 << (rule % 64));
    }

    /// Entry `index % ROW_ENTRIES` of a look-up table's row.
    #[inline(always)]
    pub fn entry(&self, index: u32) -> u32 {
        let word = self.0[(index / 4) as usize & (WORDS - 1)];
        (word >> ((index & 3) * 16)) as u32 & 0xffff
    }

    pub fn set_entry(&mut self, index: u32, row: u16) {
        let word = &mut self.0[(index / 4) as usize & (WORDS - 1)];
        let shift = (index & 3) * 16;
        *word = *word & !(0xffff << shift) | u64::from(row) << shift;
    }
}

/// The rules that an address satisfies as the sender, as the receiver, and as either one. Every address satisfies a
/// rule without such a term.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetRows {
    pub src: Row,
    pub dst: Row,
    pub either: Row,
}

/// The key of the prefix maps, laid out like `struct bpf_lpm_trie_key`: `N` words of address in memory
/// order (network byte order). IPv4 stands in the first word, and the second one is zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetKey<const N: usize> {
    pub prefix_len: u32,
    pub address_ne: [u32; N],
}

pub type NetKey4 = NetKey<2>;
pub type NetKey6 = NetKey<4>;

/// The numbers of the rows that every set has.
pub const HEAD_ROW: u32 = 0;
pub const ALL_ROW: u32 = 1;
/// The rules whose action is to exclude.
pub const EXCLUDE_ROW: u32 = 2;
pub const FIRST_FREE_ROW: u32 = 3;

/// The words of the head row. A look-up table is given by the number of its first row. 0 means that no rule has such a
/// term, so every entry is [`ALL_ROW`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// How many words of each row the rules take up.
    Words = 0,
    /// 1 if some rule has an address term, so that the prefixes must be looked up.
    HasNets = 1,
    /// By protocol number.
    Protocols = 2,
    /// By [`hook_number`](crate::direction::hook_number).
    Hooks = 3,
    /// By the sender's port.
    SrcPorts = 4,
    /// By the receiver's port.
    DstPorts = 5,
    /// By the sender's and by the receiver's port, for terms about either one.
    Ports = 6,
    /// The row of the rules without a port term, which a packet without ports satisfies.
    Portless = 7,
}

/// Access to a set's rows and prefixes, which lie in kernel maps or in memory.
pub trait RuleSet {
    fn row(&self, number: u32) -> Option<&Row>;
    /// The rows of the longest prefix; `None` only where there is no prefix at all.
    fn nets_v4(&self, key: &NetKey4) -> Option<&NetRows>;
    fn nets_v6(&self, key: &NetKey6) -> Option<&NetRows>;
}

/// The first rule that a packet matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Its place in the set, from 0.
    pub rule: u32,
    pub is_excluded: bool,
}

/// The rows to intersect. `[0]` and `[1]` belong to the sender and the receiver. A rule must be in both of
/// `nets` and of `ports`, but only in one of the `either` rows.
struct Satisfied<'a> {
    nets: [&'a Row; 2],
    either_nets: [&'a Row; 2],
    ports: [&'a Row; 2],
    either_ports: [&'a Row; 2],
    protocol: &'a Row,
    hook: &'a Row,
}

/// The first rule of `set` that the packet matches at a hook, by its [`hook_number`](crate::direction::hook_number).
/// `None` if no rule matches, or if the set lacks a row, which no compiled set does.
#[inline(always)]
pub fn first_match<S: RuleSet>(set: &S, packet: &Packet, hook: u32) -> Option<Match> {
    let head = set.row(HEAD_ROW)?;
    let all = set.row(ALL_ROW)?;
    let (nets, either_nets) = if head.0[Head::HasNets as usize] == 0 {
        ([all; 2], [all; 2])
    } else {
        let [src, dst] = nets(set, packet)?;
        ([&src.src, &dst.dst], [&src.either, &dst.either])
    };
    let (ports, either_ports) = if packet.key.l4_kind == L4Kind::Ports as u8 {
        let (mut src, mut dst) = (packet.key.port_a, packet.key.port_b);
        if packet.direction & 1 != 0 {
            (src, dst) = (dst, src);
        }
        let (src, dst) = (u32::from(src), u32::from(dst));
        let ports = [
            satisfied_by(set, [head, all], Head::SrcPorts, src)?,
            satisfied_by(set, [head, all], Head::DstPorts, dst)?,
        ];
        let either = [
            satisfied_by(set, [head, all], Head::Ports, src)?,
            satisfied_by(set, [head, all], Head::Ports, dst)?,
        ];
        (ports, either)
    } else {
        let portless = set.row(head.0[Head::Portless as usize] as u32)?;
        ([portless; 2], [all; 2])
    };
    let protocol = u32::from(packet.key.protocol);
    lowest(
        head.0[Head::Words as usize],
        set.row(EXCLUDE_ROW)?,
        &Satisfied {
            nets,
            either_nets,
            ports,
            either_ports,
            protocol: satisfied_by(set, [head, all], Head::Protocols, protocol)?,
            hook: satisfied_by(set, [head, all], Head::Hooks, hook)?,
        },
    )
}

/// The lowest bit of the intersection, and whether its rule excludes.
#[inline(always)]
fn lowest(words: u64, exclude: &Row, rows: &Satisfied<'_>) -> Option<Match> {
    for word in 0..WORDS {
        if word as u64 >= words {
            break;
        }
        // The addresses usually rule out every rule.
        let mut matches = rows.nets[0].0[word]
            & rows.nets[1].0[word]
            & (rows.either_nets[0].0[word] | rows.either_nets[1].0[word]);
        if matches == 0 {
            continue;
        }
        matches &= rows.protocol.0[word]
            & rows.hook.0[word]
            & rows.ports[0].0[word]
            & rows.ports[1].0[word]
            & (rows.either_ports[0].0[word] | rows.either_ports[1].0[word]);
        if matches != 0 {
            let first = matches & matches.wrapping_neg();
            return Some(Match {
                rule: word as u32 * 64 + first.trailing_zeros(),
                is_excluded: exclude.0[word] & first != 0,
            });
        }
    }
    None
}

/// The row that `index` leads to in a table. Without a table, all rules.
#[inline(always)]
fn satisfied_by<'a, S: RuleSet>(
    set: &'a S,
    [head, all]: [&'a Row; 2],
    table: Head,
    index: u32,
) -> Option<&'a Row> {
    let first = head.0[table as usize] as u32;
    if first == 0 {
        // Reuse the row at hand: in the kernel each look-up is a call.
        return Some(all);
    }
    set.row(set.row(first + index / ROW_ENTRIES)?.entry(index))
}

/// The rows of the sender's and the receiver's address.
#[inline(always)]
fn nets<'a, S: RuleSet>(set: &'a S, packet: &Packet) -> Option<[&'a NetRows; 2]> {
    let (mut src, mut dst) = (words(&packet.key.addr_a), words(&packet.key.addr_b));
    if packet.direction & 1 != 0 {
        (src, dst) = (dst, src);
    }
    Some(if packet.key.ip_version == 4 {
        let key = |address: [u32; 4]| NetKey4 {
            prefix_len: 32,
            address_ne: [address[0], 0],
        };
        [set.nets_v4(&key(src))?, set.nets_v4(&key(dst))?]
    } else {
        let key = |address_ne| NetKey6 {
            prefix_len: 128,
            address_ne,
        };
        [set.nets_v6(&key(src))?, set.nets_v6(&key(dst))?]
    })
}

/// An address as words in memory order.
#[inline(always)]
pub fn words(address: &[u8; 16]) -> [u32; 4] {
    [
        address.ne32::<0>(),
        address.ne32::<4>(),
        address.ne32::<8>(),
        address.ne32::<12>(),
    ]
}

#[cfg(test)]
mod tests;
