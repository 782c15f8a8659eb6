//! The kinds of data that the agent can add to flows beyond their packets.

use std::collections::BTreeSet;

use agent_common::senders::Kinds;

/// A kind of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Enrichment {
    /// The systemd unit and the container whose sockets send a flow's packets
    Unit,
    /// The process that made the sockets which send a flow's packets
    Process,
    /// What TCP knows of the connections of this host: round trips, and what was sent again
    Tcp,
    /// How long the ends of connections take to answer, as their packets show it here, forwarded ones too: handshakes, and acknowledgments
    Rtt,
    /// What addresses are called: names from answers of the DNS that pass the interfaces, and from /etc/hosts
    Dns,
    /// Besides that, each query of the DNS with its answer
    DnsExchanges,
    /// What ICMP errors say of the packets that they quote: hosts, networks and ports that cannot be reached
    Icmp,
    /// Packets that the kernel of the host drops: by its own reasons in the status and the metrics, and by flow
    Drops,
}

impl Enrichment {
    /// Whether any of these needs DNS messages.
    pub fn reads_dns(all: &BTreeSet<Self>) -> bool {
        all.contains(&Self::Dns) || all.contains(&Self::DnsExchanges)
    }

    /// How many DNS messages the programs hand over per second. `rate` is the configured limit.
    pub fn dns_per_second(all: &BTreeSet<Self>, rate: u32) -> u32 {
        if Self::reads_dns(all) { rate } else { 0 }
    }

    /// What the programs have to note for these.
    pub fn kinds(all: &BTreeSet<Self>) -> Kinds {
        all.iter().fold(Kinds::NONE, |kinds, one| {
            kinds.and(match one {
                Self::Unit => Kinds::CGROUPS,
                Self::Process => Kinds::PROCESSES,
                Self::Tcp => Kinds::TCP,
                Self::Rtt => Kinds::ROUND_TRIPS,
                Self::Dns | Self::DnsExchanges | Self::Icmp | Self::Drops => Kinds::NONE,
            })
        })
    }
}
