//! The flow cache in userspace, and the records that it reports.
//!
//! A drained page of the kernel's flow table goes into the [`replica`], which keeps totals, ends flows and makes records;
//! [`encoder`] writes these into batches. [`names`] is what both ask for names. [`icmp_error`] finds the flow of a packet that
//! an ICMP error quotes.
//!
//! May depend on: `proto`, `sys`. Does no I/O.

pub mod encoder;
pub mod icmp_error;
pub mod names;
pub mod replica;
