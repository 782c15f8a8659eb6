//! What the commands that show flows are made of: [`client`] speaks to an agent or a collector, [`top`] is the live screen, and
//! [`query`] adds up files.
//!
//! May depend on: `formats`, `exporters`, `rules`, `tls`, `proto`, `sys`. Knows nothing about the kernel.

pub mod client;
pub mod query;
pub mod top;
