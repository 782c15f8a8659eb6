//! Everything that touches the kernel: the eBPF programs, their maps, the interfaces and the network namespaces.
//!
//! - [`load`] loads programs and maps, [`shared_maps`] if there are several sets; [`bound`] has programs of one interface each.
//! - [`interfaces`] chooses where to count, [`netns`] enters network namespaces, [`links`] reads and follows interfaces, [`devices`] knows
//!   which stand on each other, and [`attach`] attaches the programs. [`carry`] keeps them attached for the next process. [`ipsec`] and [`flowtables`] find what cannot be counted right.
//! - [`pages`] flips and drains the flow table, [`filled`] hears of pages that fill early, [`account`] reads the counters, [`outers`] has
//!   the tunnels of flows, and [`fragments`] their datagrams. [`rule_maps`] hold the filter rules.
//! - [`connections`] has what TCP knew of connections that ended, [`dns`] DNS messages, [`icmp_errors`] ICMP errors, [`conntrack`] translated
//!   connections, [`processes`] who made
//!   sockets, and [`drops`] what the kernel drops.
//! - [`bpf`] is the system call, [`btf`] reads the kernel's types, and [`layout`] is made from them. [`run_times`] has what the programs
//!   cost, [`loaded`] names programs of others, and [`refusal`] explains why a program was refused. [`capabilities`], [`cgroup_limit`] and
//!   [`limits`] are what this process may do and take. [`ring`], [`tracepoint`], [`iterator`] and [`foreign_map`] are what several of these share.
//!
//! May depend on: `rules`, `sys`, and `agent-common`. Knows nothing about gRPC or outputs.

pub mod account;
pub mod attach;
pub mod bound;
pub mod bpf;
pub mod btf;
pub mod capabilities;
pub mod carry;
pub mod cgroup_limit;
pub mod connections;
pub mod conntrack;
pub mod devices;
pub mod dns;
pub mod drops;
pub mod filled;
pub mod flowtables;
mod foreign_map;
pub mod fragments;
pub mod icmp_errors;
pub mod inner_map;
pub mod interface_table;
pub mod interfaces;
pub mod ipsec;
mod iterator;
pub mod layout;
pub mod limits;
pub mod links;
pub mod load;
pub mod loaded;
mod mapped_array;
pub mod memory;
pub mod netns;
pub mod outers;
pub mod pages;
pub mod processes;
pub mod real_time;
pub mod refusal;
mod ring;
pub mod rule_maps;
pub mod run_times;
mod shared_maps;
mod signals;
pub mod socket_bounds;
mod tracepoint;
