//! Frames and their expected meaning, for every test of the parser.
//!
//! [`read`] parses the files into entries, and [`mod@write`] turns an entry back into text. [`peer`] is the second
//! parser, [`check`] compares ours with it, and [`mutation`] derives more frames from those in the files.

use std::{fs, path::Path};

use agent_common::{
    Encapsulation, FlowKey, Frame, LinkType, Outer, Packet, Reason, parse_all,
    tunnel::{self, Opening, outcome},
};
use anyhow::{Context as _, Result, ensure};

pub mod check;
pub mod mutation;
pub mod peer;
mod read;
pub mod seed;
mod write;

pub use peer::Difference;

/// The input of a hook: bytes, the kind of their first header, and the tag (TCI) if the driver removed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawFrame {
    pub link_type: LinkType,
    pub tag: Option<u16>,
    /// Whether the agent is configured to open tunnels.
    pub decapsulate: bool,
    /// Whether the frame stands for several frames on the wire (GSO, GRO).
    pub is_super_frame: bool,
    pub bytes: Vec<u8>,
}

impl RawFrame {
    /// The result of our parser on the host. Leaves out the identification of a whole datagram, which is not used, and
    /// the place of a tunnel's payload, which the inner packet implies. Limits an IP packet to the end of the frame.
    pub fn parse(&self) -> Parsed {
        self.parse_by(self)
    }

    /// The same with another reader of the bytes.
    pub fn parse_by<F: Frame>(&self, frame: &F) -> Parsed {
        let mut packet = Packet::default();
        parse_all(frame, self.link_type, self.tag, &mut packet)?;
        let mut opening = Opening::new(&packet);
        if self.decapsulate {
            tunnel::open(
                frame,
                &mut opening,
                tunnel::read_header,
                tunnel::parse_inner,
            );
        }
        packet = opening.packet;
        if self.decapsulate && packet.is_tunnels_later_fragment() {
            opening.outcome |= outcome::UNOPENED;
        }
        packet.payload_start_bytes = 0;
        packet.ip_end_bytes = packet.ip_end_bytes.min(frame.len_bytes());
        unnamed(&mut packet.key);
        if packet.part.is_whole() {
            packet.datagram_id = 0;
        }
        Ok(Meaning {
            packet,
            outer: (opening.outcome & outcome::DECAPSULATED != 0).then_some(opening.outer),
            outcome: opening.outcome,
        })
    }
}

impl Frame for RawFrame {
    type Header<const N: usize> = [u8; N];

    fn header<const N: usize>(&self, offset_bytes: u32) -> Option<[u8; N]> {
        (&*self.bytes).header(offset_bytes)
    }

    fn len_bytes(&self) -> u32 {
        (&*self.bytes).len_bytes()
    }

    fn is_super_frame(&self) -> bool {
        self.is_super_frame
    }
}

/// The meaning of a frame: a packet, whose key has no interface and no namespace, and how the parser reached it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meaning {
    pub packet: Packet,
    /// The endpoints of the tunnel that carries it, if one was opened.
    pub outer: Option<Outer>,
    /// Bits of [`outcome`].
    pub outcome: u32,
}

/// The meaning of a frame, or the reason why it contains no packet.
pub type Parsed = Result<Meaning, Reason>;

/// A frame of the corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub why: String,
    pub frame: RawFrame,
    pub expected: Parsed,
}

/// The whole corpus, sorted by file name.
pub fn entries() -> Result<Vec<Entry>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("frames");
    let mut paths = fs::read_dir(&folder)
        .and_then(|files| {
            files
                .map(|file| file.map(|file| file.path()))
                .collect::<Result<Vec<_>, _>>()
        })
        .with_context(|| format!("list {}", folder.display()))?;
    paths.sort();
    let mut entries: Vec<Entry> = Vec::new();
    for path in paths {
        let read = || read::entries(&fs::read_to_string(&path)?);
        for entry in read().with_context(|| format!("read {}", path.display()))? {
            ensure!(
                entries.iter().all(|other| other.name != entry.name),
                "{}: a second frame is called {}",
                path.display(),
                entry.name
            );
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// The names of [`agent_common::L4Kind`], by its numbers.
const KINDS: [&str; 5] = ["none", "ports", "icmp", "icmp_query", "fragment"];

/// Clears a key's hash that replaces a missing tunnel number, since no RFC defines it.
pub fn unnamed(key: &mut FlowKey) {
    if Encapsulation::from_u8(key.encapsulation).is_some_and(Encapsulation::is_unnumbered_tunnel) {
        key.tunnel_id = 0;
    }
}

/// The names of [`agent_common::Encapsulation`], by its numbers.
const ENCAPSULATIONS: [&str; 8] = [
    "none",
    "pppoe",
    "mpls",
    "vxlan",
    "geneve",
    "gre",
    "ip_in_ip",
    "gre_without_key",
];

/// The names of the bits of [`outcome`] that do not follow from `outer`.
const OUTCOMES: [(&str, u32); 2] = [("unopened", outcome::UNOPENED), ("deeper", outcome::DEEPER)];
