//! The option that says which agent a command asks.

use crate::client::{self, Target};

#[derive(Debug, clap::Args)]
pub struct Connect {
    /// Where the agent listens: unix:PATH or HOST:PORT.
    #[arg(long = "connect", value_name = "ADDRESS", env = "FLOW_AGENT_CONNECT",
          default_value = client::DEFAULT_TARGET, global = true)]
    pub target: Target,
}
