//! The view of `flow-agent top`: sums of the flows of a stream, and the screen that shows them.
//!
//! Batches go into a [`fleet::Fleet`], which has a [`picture::Picture`] of each host, and [`rows`] formats their rows. A [`screen::Screen`] holds the user's
//! choices, and [`draw`] draws it. `--once` prints the same rows ([`mod@print`]).

use clap::ValueEnum;

pub mod draw;
pub mod fleet;
pub mod picture;
pub mod print;
mod prompt;
pub mod rows;
pub mod screen;
mod windows;

#[cfg(test)]
mod tests;

/// What a row stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum View {
    /// A flow.
    #[default]
    Flows,
    /// An address beyond the interface: it sent what arrived, or got what left.
    Peers,
    /// A process that made the socket at one end (`--enrich process`).
    Processes,
    /// A systemd unit or container at one end (`--enrich unit`).
    Units,
    /// An interface.
    Interfaces,
    /// The name of an address beyond the interface (`--enrich dns`).
    Names,
    /// The responder's port with its protocol, or a protocol without ports.
    Services,
    /// A host with an agent: of a collector, all that send to it.
    Hosts,
}

/// What comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// The most bytes in the last window.
    #[default]
    Rate,
    /// The most bytes in the last window from the initiator, or TX.
    Sent,
    /// The most bytes in the last window from the responder, or RX.
    Received,
    /// The most packets in the last window.
    Packets,
    /// The most bytes in all.
    Bytes,
    /// Names, or endpoints, from A to Z.
    Name,
    /// The most flows with packets in the last window. Not of flows.
    Flows,
    /// The longest smoothed round trip (`--enrich tcp`). Of flows alone, like the next two.
    Rtt,
    /// The most segments that were sent again (`--enrich tcp`).
    Retrans,
    /// The latest first packet.
    Newest,
}

impl View {
    pub const ALL: [Self; 8] = [
        Self::Flows,
        Self::Peers,
        Self::Processes,
        Self::Units,
        Self::Interfaces,
        Self::Names,
        Self::Services,
        Self::Hosts,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Flows => "Flows",
            Self::Peers => "Peers",
            Self::Processes => "Processes",
            Self::Units => "Units",
            Self::Interfaces => "Interfaces",
            Self::Names => "Names",
            Self::Services => "Services",
            Self::Hosts => "Hosts",
        }
    }

    /// Whether a row has the sums of all hosts. In the others, the same name at another host is another row.
    pub fn is_of_all_hosts(self) -> bool {
        matches!(self, Self::Peers | Self::Names | Self::Services)
    }

    /// The name to show for a group, also for the group of flows without one.
    pub fn shown(self, name: &str) -> &str {
        if name.is_empty() {
            // As in every table.
            "?"
        } else {
            name
        }
    }

    pub fn sorts(self) -> &'static [Sort] {
        match self {
            Self::Flows => &[
                Sort::Rate,
                Sort::Sent,
                Sort::Received,
                Sort::Packets,
                Sort::Bytes,
                Sort::Rtt,
                Sort::Retrans,
                Sort::Newest,
                Sort::Name,
            ],
            Self::Peers
            | Self::Processes
            | Self::Units
            | Self::Interfaces
            | Self::Names
            | Self::Services
            | Self::Hosts => &[
                Sort::Rate,
                Sort::Sent,
                Sort::Received,
                Sort::Packets,
                Sort::Bytes,
                Sort::Flows,
                Sort::Name,
            ],
        }
    }
}

impl Sort {
    pub fn title(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Sent => "sent",
            Self::Received => "received",
            Self::Packets => "packets",
            Self::Bytes => "bytes",
            Self::Name => "name",
            Self::Flows => "flows",
            Self::Rtt => "rtt",
            Self::Retrans => "retrans",
            Self::Newest => "newest",
        }
    }
}
