//! Records about the agent: its account, the output's losses, the sampling rate, interface names.

use proto::{FlowBatch, Interface};

use super::{elements as ie, fields::Fields};

/// `flowSelectorAlgorithm`: uniform probabilistic sampling.
const UNIFORM_PROBABILISTIC: u16 = 4;
/// `IFNAMSIZ`.
const NAME_LEN_BYTES: usize = 16;

/// Options records, with their template numbers. Templates of flows have other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Metering = 400,
    Exporting = 401,
    Sampling = 402,
    Interface = 405,
    /// With the network namespace, if there are several.
    InterfaceInNetns = 406,
}

impl Kind {
    /// The number of scope fields.
    pub fn scopes(self) -> u16 {
        match self {
            Self::InterfaceInNetns => 2,
            Self::Metering | Self::Exporting | Self::Sampling | Self::Interface => 1,
        }
    }

    pub fn template(self) -> u16 {
        self as u16
    }

    /// The bit that records the announcement of its template.
    pub fn bit(self) -> u8 {
        1 << (self as u16 - Self::Metering as u16)
    }
}

/// One options record.
#[derive(Clone, Copy)]
pub(super) enum About<'a> {
    Metering(Metering),
    Exporting(Exporting),
    Sampling { domain: u32, rate: u32 },
    Interface(&'a Interface),
    InterfaceInNetns(&'a Interface),
}

/// Observed packets that are in no flow (RFC 7011, section 4.2).
#[derive(Clone, Copy)]
pub(super) struct Metering {
    domain: u32,
    ignored_packets: u64,
    ignored_bytes: u64,
}

/// Sent and unsent records (RFC 7011, sections 4.1 and 4.3).
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

    /// Visits the fields of the record, scope fields first.
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

/// An interface name, padded to a fixed length. The kernel limits names to 15 bytes. Some readers reject messages with
/// variable-length fields.
fn padded(name: &str) -> [u8; NAME_LEN_BYTES] {
    let mut padded = [0; NAME_LEN_BYTES];
    let name = &name[..name.floor_char_boundary(NAME_LEN_BYTES)];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    padded
}
