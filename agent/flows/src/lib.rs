//! The flow cache in userspace, and the records that it reports.
//!
//! A drained page of the kernel's flow table goes into the [`replica`], which keeps totals, ends flows and makes records;
//! [`encoder`] writes these into batches. [`quoted`] finds the flow of a packet that an ICMP error quotes.
//!
//! May depend on: `enrich`, `proto`, `sys`. Does no I/O of its own; through `enrich` it links `kernel`.

pub mod encoder;
pub mod quoted;
pub mod replica;
