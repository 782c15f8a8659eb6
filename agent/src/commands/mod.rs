//! The subcommands: arguments come in, what they say goes to stdout.

pub mod audit;
pub mod check;
pub mod filter;
pub mod run;
pub mod status;
pub mod watch;
