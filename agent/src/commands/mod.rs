//! The subcommands that talk to an agent: arguments come in, what the agent says goes to stdout.

pub mod audit;
pub mod status;
pub mod watch;
