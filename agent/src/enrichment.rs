//! What the agent finds out about flows beyond their packets, if it is asked to.

/// A kind of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Enrichment {
    /// The systemd unit and the container whose sockets send a flow's packets
    Unit,
}
