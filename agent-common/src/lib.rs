//! Types and code shared by the kernel programs and the agent.
//!
//! The modules, in the order a packet meets them:
//!
//! - [`frame`] gives access to the bytes of a frame.
//! - [`parse()`] turns them into a [`Packet`] (link layer, IP, transport, and [`tunnel`]s). Its [`FlowKey`]
//!   names an entry of the flow table, whose value is a [`FlowCounters`].
//! - [`link_header`] detects a packet whose link header is not the one that its interface promises.
//! - [`slots`] lets programs on several CPUs share the table's entries.
//! - [`segmentation`] and [`wire_size`] tell how many frames on the wire a packet stands for.
//! - [`filter`] and [`sample`] leave packets out.
//! - [`senders`] describes the sockets that send a flow's packets, [`process`] the processes that made these sockets,
//!   and [`tcp`] their connections. [`round_trip`] measures round trips from the packets alone.
//! - [`dns`] has the DNS messages that the programs copy to userspace, and [`icmp`] the ICMP errors.
//! - [`drops`] has the kernel's own reasons to drop packets.
//! - [`translation`] is a connection that the kernel translates.
//! - [`account`] has a counter for every way that a packet can end.
//! - [`kernel_call`] has the placeholder that the loader replaces with a kernel function's number.
//! - [`pages`] is the state that userspace and the programs exchange: which page to fill, and how full it is.
//!
//! Everything here is `no_std`, allocates nothing, and is the same source in the kernel, in the
//! host tests and in the benches.

#![cfg_attr(not(test), no_std)]

pub mod account;
pub mod direction;
pub mod dns;
pub mod drops;
pub mod filter;
pub mod flow;
pub mod frame;
pub mod icmp;
pub mod interface;
mod ip;
pub mod kernel_call;
mod link;
pub mod link_header;
pub mod pages;
pub mod parse;
pub mod process;
pub mod protocol;
pub mod round_trip;
pub mod sample;
pub mod segmentation;
pub mod senders;
pub mod slots;
pub mod tcp;
pub mod translation;
pub mod transport;
pub mod tunnel;
pub mod wire_size;

pub use account::{HookAccount, Pair, Reason};
pub use direction::Direction;
pub use flow::{Clocks, Counts, Encapsulation, FlowCounters, FlowKey, L4Kind, Outer};
pub use frame::{Frame, Header};
pub use interface::{Interface, InterfaceId};
pub use pages::{PageFill, PageSize, Switches};
pub use parse::{LinkType, Packet, Part, parse, parse_all};
pub use process::Process;
pub use round_trip::Sample;
pub use senders::Senders;
pub use tcp::TcpInfo;
