//! The records about the agent itself: its account, what the output lost, the sampling, the names of interfaces.

use proto::{FlowBatch, Interface};

use super::{elements as ie, fields::Fields};

/// `flowSelectorAlgorithm`: uniform probabilistic sampling.
const UNIFORM_PROBABILISTIC: u16 = 4;
/// `IFNAMSIZ`.
const NAME_LEN_BYTES: usize = 16;

/// The kinds of records, with the numbers of their templates. Those of flows are below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Metering = 400,
    Exporting = 401,
    Sampling = 402,
    Interface = 405,
    /// With the network namespace, where there are several.
    InterfaceInNetns = 406,
}

impl Kind {
    /// How many fields say what the record is about.
    pub fn scopes(self) -> u16 {
        match self {
            Self::InterfaceInNetns => 2,
            Self::Metering | Self::Exporting | Self::Sampling | Self::Interface => 1,
        }
    }

    pub fn template(self) -> u16 {
        self as u16
    }

    /// Among the templates that are announced.
    pub fn bit(self) -> u8 {
        1 << (self as u16 - Self::Metering as u16)
    }
}

/// One record about the agent.
#[derive(Clone, Copy)]
pub(super) enum About<'a> {
    Metering(Metering),
    Exporting(Exporting),
    Sampling { domain: u32, rate: u32 },
    Interface(&'a Interface),
    InterfaceInNetns(&'a Interface),
}

/// Packets that were seen and are in no flow (RFC 7011, section 4.2).
#[derive(Clone, Copy)]
pub(super) struct Metering {
    domain: u32,
    ignored_packets: u64,
    ignored_bytes: u64,
}

/// What was sent and what was not (RFC 7011, sections 4.1 and 4.3).
#[derive(Clone, Copy)]
pub(super) struct Exporting {
    process_id: u32,
    messages: u64,
    records: u64,
    lost_records: u64,
    lost_packets: u64,
    lost_bytes: u64,
}

impl Metering {
    /// `None` if the batch has no account.
    pub fn of(batch: &FlowBatch, domain: u32) -> Option<Self> {
        let account = batch.account.as_ref()?;
        let ignored = account.unparsed_sum() + account.not_inserted_sum();
        Some(Self {
            domain,
            ignored_packets: ignored.packets,
            ignored_bytes: ignored.bytes,
        })
    }
}

impl Exporting {
    pub fn of(batch: &FlowBatch, process_id: u32, messages: u64, records: u64) -> Self {
        Self {
            process_id,
            messages,
            records,
            lost_records: batch.lost_records,
            lost_packets: batch.lost_packets,
            lost_bytes: batch.lost_bytes,
        }
    }
}

impl About<'_> {
    pub fn kind(self) -> Kind {
        match self {
            Self::Metering(_) => Kind::Metering,
            Self::Exporting(_) => Kind::Exporting,
            Self::Sampling { .. } => Kind::Sampling,
            Self::Interface(_) => Kind::Interface,
            Self::InterfaceInNetns(_) => Kind::InterfaceInNetns,
        }
    }

    /// Gives the fields of the record, those that say what it is about first.
    pub fn walk(self, out: &mut impl Fields) {
        match self {
            Self::Metering(metering) => {
                out.u32(ie::OBSERVATION_DOMAIN_ID, metering.domain);
                out.u64(ie::IGNORED_PACKET_TOTAL_COUNT, metering.ignored_packets);
                out.u64(ie::IGNORED_OCTET_TOTAL_COUNT, metering.ignored_bytes);
            }
            Self::Exporting(exporting) => {
                out.u32(ie::EXPORTING_PROCESS_ID, exporting.process_id);
                out.u64(ie::EXPORTED_MESSAGE_TOTAL_COUNT, exporting.messages);
                out.u64(ie::EXPORTED_FLOW_RECORD_TOTAL_COUNT, exporting.records);
                out.u64(ie::NOT_SENT_FLOW_TOTAL_COUNT, exporting.lost_records);
                out.u64(ie::NOT_SENT_PACKET_TOTAL_COUNT, exporting.lost_packets);
                out.u64(ie::NOT_SENT_OCTET_TOTAL_COUNT, exporting.lost_bytes);
            }
            Self::Sampling { domain, rate } => {
                let rate = rate.max(1);
                out.u32(ie::OBSERVATION_DOMAIN_ID, domain);
                out.u32(ie::SAMPLING_INTERVAL, rate);
                out.u16(ie::FLOW_SELECTOR_ALGORITHM, UNIFORM_PROBABILISTIC);
                let probability = 1.0 / f64::from(rate);
                out.u64(ie::SAMPLING_PROBABILITY, probability.to_bits());
            }
            Self::Interface(interface) => {
                out.u32(ie::INGRESS_INTERFACE, interface.ifindex);
                out.field(ie::INTERFACE_NAME, padded(&interface.name));
            }
            Self::InterfaceInNetns(interface) => {
                out.u32(ie::INGRESS_INTERFACE, interface.ifindex);
                out.u32(ie::INGRESS_VRFID, interface.netns);
                out.field(ie::INTERFACE_NAME, padded(&interface.name));
            }
        }
    }
}

/// The kernel's names have at most 15 bytes. Their field has one length, since some readers give up messages with a field that tells its
/// own.
fn padded(name: &str) -> [u8; NAME_LEN_BYTES] {
    let mut padded = [0; NAME_LEN_BYTES];
    let name = &name[..name.floor_char_boundary(NAME_LEN_BYTES)];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    padded
}
