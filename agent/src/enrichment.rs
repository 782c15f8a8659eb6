//! What the agent finds out about flows beyond their packets, if it is asked to.

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
}

impl Enrichment {
    /// What the programs note for all of these.
    pub fn kinds(all: &BTreeSet<Self>) -> Kinds {
        all.iter().fold(Kinds::NONE, |kinds, one| {
            kinds.and(match one {
                Self::Unit => Kinds::CGROUPS,
                Self::Process => Kinds::PROCESSES,
                Self::Tcp => Kinds::TCP,
            })
        })
    }
}
