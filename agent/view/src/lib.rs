//! The programs that show flows: [`client`] speaks to an agent or a collector, [`top`] is the live screen, and [`query`] adds up files.
//!
//! May depend on: `formats`, `exporters`, `rules`, `tls`, `proto`, `util`. Knows nothing about the kernel.

pub mod client;
pub mod query;
pub mod top;
