//! Everything that touches the kernel: settings come in, attached programs, drained pages and
//! accounts go out.
//!
//! [`load`] puts the programs and maps into the kernel, [`attach`] hangs them on interfaces,
//! [`pages`] flips and drains the flow table, [`filled`] hears of pages that fill early, [`rule_maps`]
//! hold the filter rules, [`account`] reads the counters, [`outers`] the tunnels of flows, [`links`]
//! knows the interfaces, [`bpf`] is the system call, [`btf`] the kernel's types, of which
//! [`layout`] is made, [`refusal`] says why a program was not taken, and
//! [`capabilities`] what this process may do.

pub mod account;
pub mod attach;
pub mod bpf;
pub mod btf;
pub mod capabilities;
pub mod filled;
pub mod inner_map;
pub mod interface_table;
pub mod layout;
pub mod links;
pub mod load;
pub mod memory;
pub mod outers;
pub mod pages;
pub mod real_time;
pub mod refusal;
pub mod rule_maps;
mod signals;
