//! The kinds of data that the agent can add to flows beyond their packets. [`Enrichment`] registers each.

use std::collections::BTreeSet;

use agent_common::senders::Kinds;
use clap::ValueEnum as _;
use kernel::netns::Namespace;

use crate::{
    dns::Dns,
    drops::Drops,
    icmp::Icmp,
    kind::{Check, Kernel, Kind, Layout, LoadSettings, Result, Tables},
    nat::Nat,
    process::Processes,
    rtt::Rtt,
    tcp::Tcp,
    unit::Unit,
};

/// A kind of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Enrichment {
    /// The systemd unit and the container whose sockets send a flow's packets
    Unit,
    /// The process that made the sockets which send a flow's packets
    Process,
    /// TCP's own figures of this host's connections: round trips and retransmissions
    Tcp,
    /// How long the ends of connections take to answer, measured from their packets, forwarded ones too: handshakes and
    /// acknowledgments
    Rtt,
    /// Names of addresses, from DNS answers that pass the interfaces and from /etc/hosts
    Dns,
    /// The same, and each DNS query with its answer
    DnsExchanges,
    /// ICMP errors about the packets that they quote: hosts, networks and ports that cannot be reached
    Icmp,
    /// Packets that the host's kernel drops: by its own reasons in the status and the metrics, and by flow
    Drops,
    /// The other addresses and ports of flows that the host translates (NAT), from the kernel's connection tracking
    Nat,
}

impl Enrichment {
    /// The implementation of the kind, and the values that the programs note beside each flow for it.
    fn row(self) -> Row {
        match self {
            Self::Unit => Row::of::<Unit>(Kinds::CGROUPS),
            Self::Process => Row::of::<Processes>(Kinds::PROCESSES),
            Self::Tcp => Row::of::<Tcp>(Kinds::TCP),
            Self::Rtt => Row::of::<Rtt>(Kinds::ROUND_TRIPS),
            Self::Dns | Self::DnsExchanges => Row::of::<Dns>(Kinds::NONE),
            Self::Icmp => Row::of::<Icmp>(Kinds::NONE),
            Self::Drops => Row::of::<Drops>(Kinds::NONE),
            Self::Nat => Row::of::<Nat>(Kinds::NONE),
        }
    }
}

/// A kind that does not run yet.
struct Row {
    senders: Kinds,
    load: fn(&Settings, &mut LoadSettings) -> Result<()>,
    start: fn(&Settings, &LoadSettings, &mut Kernel) -> Result<Box<dyn Kind>>,
    most_bytes: fn(&Settings, &Tables) -> u64,
    check: fn(LoadSettings, &Layout) -> Option<Check>,
}

impl Row {
    fn of<K: Kind + 'static>(senders: Kinds) -> Self {
        Self {
            senders,
            load: K::load,
            start: |settings, loaded, kernel| Ok(Box::new(K::start(settings, loaded, kernel)?)),
            most_bytes: K::most_bytes,
            check: K::check,
        }
    }
}

/// What to find out about flows beyond their packets.
#[derive(Debug)]
pub struct Settings {
    pub kinds: BTreeSet<Enrichment>,
    /// How many names of addresses to keep, and how many messages to read in a second, if these are to be named.
    pub dns_names: u32,
    pub dns_rate: u32,
    /// The network namespaces that the agent counts in; none before they are open.
    pub namespaces: Vec<Namespace>,
}

impl Settings {
    /// Whether each query of the DNS is reported.
    pub(crate) fn has_exchanges(&self) -> bool {
        self.kinds.contains(&Enrichment::DnsExchanges)
    }

    /// The most memory that enrichment may take, in bytes.
    pub fn most_bytes(&self, tables: &Tables) -> u64 {
        let senders = rows(&self.kinds).fold(Kinds::NONE, |all, row| all.and(row.senders));
        let kinds = rows(&self.kinds).map(|row| (row.most_bytes)(self, tables));
        tables.senders(senders) + kinds.sum::<u64>()
    }

    /// Loads `object` with the settings `plain` and all kinds that this kernel supports. Starts these kinds.
    pub fn load(
        &self,
        object: &'static [u8],
        plain: &LoadSettings,
    ) -> Result<(Kernel, Vec<Box<dyn Kind>>)> {
        let mut rows: Vec<_> = rows(&self.kinds).collect();
        loop {
            let mut load = plain.clone();
            rows.retain(|row| {
                let is_taken = warned((row.load)(self, &mut load)).is_some();
                if is_taken {
                    load.senders = load.senders.and(row.senders);
                }
                is_taken
            });
            let mut kernel = Kernel::load_object(object, &load)?;
            let (loaded, mut running) = (rows.len(), Vec::new());
            rows.retain(|row| {
                let kind = warned((row.start)(self, &load, &mut kernel));
                let is_started = kind.is_some();
                running.extend(kind);
                is_started
            });
            if running.len() == loaded {
                return Ok((kernel, running));
            }
            // Loads again, so that the programs do nothing for a kind that does not run.
        }
    }
}

/// What `flow-agent check` says about all kinds. `plain` is without any of them, and `layout` that of this kernel.
pub fn checks(plain: &LoadSettings, layout: &Layout) -> Vec<Check> {
    let all = Enrichment::value_variants().iter().copied().collect();
    let check = |row: Row| {
        let senders = row.senders;
        (row.check)(
            LoadSettings {
                senders,
                ..plain.clone()
            },
            layout,
        )
    };
    rows(&all).filter_map(check).collect()
}

/// The rows of these, each once: `DnsExchanges` does what `Dns` does.
fn rows(kinds: &BTreeSet<Enrichment>) -> impl Iterator<Item = Row> {
    let has_exchanges = kinds.contains(&Enrichment::DnsExchanges);
    let is_part = move |kind: &Enrichment| has_exchanges && *kind == Enrichment::Dns;
    let kinds = kinds.iter().copied().filter(move |kind| !is_part(kind));
    kinds.map(Enrichment::row)
}

fn warned<T>(outcome: Result<T>) -> Option<T> {
    outcome
        .inspect_err(|error| tracing::warn!("{error:#}"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most_bytes(kinds: &[Enrichment]) -> u64 {
        let settings = Settings {
            kinds: kinds.iter().copied().collect(),
            dns_names: 1024,
            dns_rate: 1,
            namespaces: Vec::new(),
        };
        settings.most_bytes(&Tables {
            max_flows: 1000,
            max_tracked_flows: 2000,
            max_interfaces: 3,
        })
    }

    #[test]
    fn each_kind_needs_memory_for_itself() {
        assert_eq!(most_bytes(&[]), 0);
        let mut kinds = Vec::new();
        let mut before = 0;
        for &kind in Enrichment::value_variants() {
            kinds.push(kind);
            let all = most_bytes(&kinds);
            let is_part = kind == Enrichment::DnsExchanges;
            assert!(all > before || is_part, "{kind:?}: {all} after {before}");
            before = all;
        }
    }

    #[test]
    fn the_dns_is_one_kind_with_its_exchanges_and_without() {
        let (names, exchanges) = (Enrichment::Dns, Enrichment::DnsExchanges);
        let once = most_bytes(&[names]);
        assert_eq!(most_bytes(&[exchanges]), once);
        assert_eq!(most_bytes(&[names, exchanges]), once);
        assert_eq!(rows(&BTreeSet::from([names, exchanges])).count(), 1);
    }
}
