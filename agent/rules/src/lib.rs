//! Filter rules: parses them, and compiles them into the tables that the kernel programs look up.
//!
//! `src` and `dst` are the packet's sender and receiver, as in tcpdump, not the flow's endpoints. A rule with
//! either of them applies to one direction of a conversation; a rule without them applies to both.
//!
//! [`pattern`] matches names of interfaces, [`fault`] is an error that points at a place in what a user wrote, and [`similar`] suggests
//! what a misspelt word may have meant.
//!
//! May depend on: `proto`, and `agent-common`.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use agent_common::Direction;

use crate::{fault::Fault, pattern::Pattern};

pub mod bounds;
mod compile;
mod explain;
pub mod fault;
pub mod link_names;
mod net;
mod parse;
pub mod pattern;
mod probe;
mod read;
mod record;
pub mod similar;

pub use compile::{CompileError, Compiled, HookNames, networks, rows};
pub use explain::{Explained, explain, not_watched};
pub use net::Net;
pub use probe::{Probe, Verdict};
pub use read::read;
pub use record::{Facts, passes};

/// Explains the language in `--help`.
pub const HELP: &str = "\
Rules that leave packets out before they reach the flow table; repeatable, or separated by semicolons.

  include|exclude TERM...

  [src|dst] net NETWORK,...   as 10.0.0.0/8 or 2001:db8::1
  [src|dst] port PORT,...     as 443 or 1024-65535
  proto PROTOCOL,...          by name or number, as tcp or 47
  on INTERFACE,...            a name, or a glob such as veth*
  ingress | egress            packets that arrive, that leave
  all                         every packet; stands alone

A rule matches if all of its terms hold, each for one of its values. The first rule that matches decides; what no \
rule matches is counted. No port matches a packet without ports. src and dst are the packet's sender and receiver, as \
in tcpdump: a rule with them concerns one direction of a conversation, one without them both.

  --filter 'include net 10.1.0.0/16; exclude net 10.0.0.0/8'
  --filter 'exclude port 1024-65535 proto udp on eth0 ingress'

A set has at most 1,024 rules and 1,000,000 networks, each of which takes up to 1 KB of kernel memory. What is left \
out is in the account as filtered. `flow-agent check --filter RULES` explains rules.";

/// Networks that a set can have. They take 1.0 GB of kernel memory on 6.18, where an inner node of the trie takes as
/// much as a network (`lpm_trie_node_alloc`).
pub const MAX_NETWORKS: usize = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Include,
    Exclude,
}

/// The values that a rule accepts for the sender, for the receiver, and for either of them. An empty list
/// accepts everything.
#[derive(Clone, Debug)]
pub struct Sides<T> {
    pub src: Vec<T>,
    pub dst: Vec<T>,
    pub either: Vec<T>,
}

impl<T> Sides<T> {
    /// Accepts everything.
    pub const fn none() -> Self {
        Self {
            src: Vec::new(),
            dst: Vec::new(),
            either: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.src.len() + self.dst.len() + self.either.len()
    }

    pub fn is_empty(&self) -> bool {
        self.src.is_empty() && self.dst.is_empty() && self.either.is_empty()
    }

    fn names_a_side(&self) -> bool {
        !self.src.is_empty() || !self.dst.is_empty()
    }
}

impl<T: Clone> Sides<T> {
    /// Swaps the sender's and the receiver's values.
    fn mirrored(&self) -> Self {
        Self {
            src: self.dst.clone(),
            dst: self.src.clone(),
            either: self.either.clone(),
        }
    }
}

pub type Ports = RangeInclusive<u16>;

/// Matches packets that satisfy all of its terms. Every packet satisfies an empty term.
#[derive(Clone, Debug)]
pub struct Rule {
    pub action: Action,
    pub nets: Sides<Net>,
    pub ports: Sides<Ports>,
    /// IANA numbers.
    pub protocols: Vec<u8>,
    /// Names and globs.
    pub interfaces: Vec<Pattern>,
    pub direction: Option<Direction>,
}

impl Rule {
    pub fn new(action: Action) -> Self {
        Self {
            action,
            nets: Sides::none(),
            ports: Sides::none(),
            protocols: Vec::new(),
            interfaces: Vec::new(),
            direction: None,
        }
    }

    /// Whether the rule may match one direction of a conversation and not the other.
    pub fn names_a_direction(&self) -> bool {
        self.direction.is_some() || self.nets.names_a_side() || self.ports.names_a_side()
    }

    fn matches_all(&self) -> bool {
        self.nets.is_empty()
            && self.ports.is_empty()
            && self.protocols.is_empty()
            && self.interfaces.is_empty()
            && self.direction.is_none()
    }
}

/// The rule as its author would write it, with the terms in a fixed order.
impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.action {
            Action::Include => "include",
            Action::Exclude => "exclude",
        })?;
        if self.matches_all() {
            formatter.write_str(" all")?;
        }
        let ports = |ports: &Ports| {
            let (first, last) = (ports.start(), ports.end());
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        };
        term(formatter, "src net", &self.nets.src, Net::to_string)?;
        term(formatter, "dst net", &self.nets.dst, Net::to_string)?;
        term(formatter, "net", &self.nets.either, Net::to_string)?;
        term(formatter, "src port", &self.ports.src, ports)?;
        term(formatter, "dst port", &self.ports.dst, ports)?;
        term(formatter, "port", &self.ports.either, ports)?;
        term(formatter, "proto", &self.protocols, |&number| {
            proto::protocols::name(number).map_or_else(|| number.to_string(), str::to_owned)
        })?;
        term(formatter, "on", &self.interfaces, Pattern::to_string)?;
        if let Some(direction) = self.direction {
            write!(formatter, " {}", direction.name())?;
        }
        Ok(())
    }
}

fn term<T>(
    formatter: &mut fmt::Formatter<'_>,
    name: &str,
    values: &[T],
    text: impl Fn(&T) -> String,
) -> fmt::Result {
    if values.is_empty() {
        return Ok(());
    }
    let values: Vec<String> = values.iter().map(text).collect();
    write!(formatter, " {name} {}", values.join(","))
}

/// The rules of one argument or variable, separated by semicolons.
#[derive(Clone, Debug)]
pub struct Rules(pub Vec<Rule>);

impl FromStr for Rules {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        parse::line(text).map(Self)
    }
}

/// The rules of several arguments as one text.
pub fn text(rules: &[Rules]) -> String {
    let rules = rules.iter().flat_map(|rules| &rules.0);
    let rules: Vec<String> = rules.map(ToString::to_string).collect();
    rules.join("; ")
}

#[cfg(test)]
mod tests;
