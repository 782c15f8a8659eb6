//! The filter language of all commands: parses it, applies it to records, explains it, and compiles it into the tables
//! that the kernel programs look up.
//!
//! A filter has rules, which begin with `include` or `exclude`, and conditions, which do not and mean "only these".
//! Rules decide first, in order. Undecided packets pass if a condition matches them, or if there are no conditions. So
//! conditions become rules after all others, followed by `exclude all` ([`set`]).
//!
//! `src` and `dst` are the packet's sender and receiver, as in tcpdump, not the flow's endpoints. A rule with
//! either of them applies to one direction of a conversation; a rule without them applies to both.
//!
//! Records may have names of hosts, packets have none. So [`Rules`] of streams and queries may name hosts, and
//! [`PacketRules`] of an agent may not.
//!
//! [`pattern`] matches names of interfaces, [`fault`] is an error that points at a place in a user's text, and
//! [`similar`] suggests the word behind a misspelt one.
//!
//! May depend on: `proto`, and `agent-common`.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use agent_common::Direction;

use crate::{fault::Fault, parse::Hosts, pattern::Pattern};

pub mod bounds;
mod compile;
mod correct;
mod explain;
pub mod fault;
pub mod link_names;
mod net;
mod parse;
pub mod pattern;
mod probe;
mod read;
mod record;
mod services;
pub mod similar;
mod values;

pub use compile::{CompileError, Compiled, HookNames, networks, rows};
pub use explain::{Explained, explain, not_watched};
pub use net::Net;
pub use probe::{Probe, Verdict};
pub use read::read;
pub use record::{Facts, Known, passes};

/// The form of a rule, and its terms.
macro_rules! language {
    () => {
        "  [include|exclude] TERM...

  [src|dst] net NETWORK,...   as 10.0.0.0/8 or 2001:db8::1
  [src|dst] host HOST,...     an address or a name
  [src|dst] port PORT,...     as 443, https or 1024-65535
  proto PROTOCOL,...          by name or number, as tcp or 47
  on INTERFACE,...            a name, or a glob such as veth*
  ingress | egress            packets that arrive, that leave
  all                         every packet; stands alone

Addresses, networks and names of protocols need no word in front: `10.0.0.1 tcp`. "
    };
}

/// Explains the language in the `--help` of commands that count packets.
pub const HELP: &str = concat!(
    "\
Which packets are counted; the others are left out before they reach the flow table. Repeatable, or separated by semicolons.

",
    language!(),
    "\
Packets have no names, so host takes addresses here.

Without include or exclude in front, only such packets are counted: `port 443` means `include port 443; exclude all`. A \
rule matches if all of its terms hold, each for one of its values. The first rule that matches decides, and what no \
rule matches is counted, unless there are conditions without include or exclude: these come last, and nothing else is \
counted. No port matches a packet without ports. src and dst are the packet's sender and receiver, as in tcpdump: a rule \
with them concerns one direction of a conversation, one without them both.

  --filter 'port https'
  --filter 'include net 10.1.0.0/16; exclude net 10.0.0.0/8'
  --filter 'exclude port 1024-65535 proto udp on eth0 ingress'

A set has at most 1,024 rules and 1,000,000 networks, each of which takes up to 1 KB of kernel memory. What is left \
out is in the account as filtered. `flow-agent check --filter RULES` explains rules."
);

/// Explains the language in the `--help` of commands that show flows.
pub const HELP_FOR_FLOWS: &str = concat!(
    "\
Only flows of which these rules would count a packet. Repeatable, or separated by semicolons.

",
    language!(),
    "\
Names are those that the agent learned (`--enrich dns`): `host example.com`, or `host *.example.com`.

Without include or exclude in front, only such flows pass: `port 443` means `include port 443; exclude all`. A rule \
matches a packet if all of its terms hold, each for one of its values. The first rule that matches decides, and what no \
rule matches passes, unless there are conditions without include or exclude: these come last, and nothing else passes. \
src and dst are a packet's sender and receiver, as in tcpdump.

  --filter 'port https'
  --filter 'host 192.0.2.1 udp; host example.com'
  --filter 'exclude net 10.0.0.0/8; tcp'"
);

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
    /// Names of hosts, and globs, in lower case. An end matches one of its networks or one of its names.
    pub names: Sides<Pattern>,
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
            names: Sides::none(),
            ports: Sides::none(),
            protocols: Vec::new(),
            interfaces: Vec::new(),
            direction: None,
        }
    }

    /// Whether the rule may match one direction of a conversation and not the other.
    pub fn names_a_direction(&self) -> bool {
        self.direction.is_some()
            || self.nets.names_a_side()
            || self.names.names_a_side()
            || self.ports.names_a_side()
    }

    fn matches_all(&self) -> bool {
        self.nets.is_empty()
            && self.names.is_empty()
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
        ends(formatter, "src ", &self.nets.src, &self.names.src)?;
        ends(formatter, "dst ", &self.nets.dst, &self.names.dst)?;
        ends(formatter, "", &self.nets.either, &self.names.either)?;
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

/// The networks of a term, or its names with the addresses beside them.
fn ends(
    formatter: &mut fmt::Formatter<'_>,
    side: &str,
    nets: &[Net],
    names: &[Pattern],
) -> fmt::Result {
    if names.is_empty() {
        return term(formatter, &format!("{side}net"), nets, Net::to_string);
    }
    let names = names.iter().map(Pattern::to_string);
    let addresses = nets.iter().map(|net| net.address().to_string());
    let hosts: Vec<String> = names.chain(addresses).collect();
    term(formatter, &format!("{side}host"), &hosts, String::clone)
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

/// The rules and the conditions of some texts, in their order.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    rules: Vec<Rule>,
    /// The conditions, as rules that include them.
    conditions: Vec<Rule>,
}

impl Parts {
    /// Adds the rules of a text for an agent's packets, separated by semicolons.
    pub fn add_for_packets(&mut self, text: &str) -> Result<(), Fault> {
        self.add(parse::line(text, Hosts::Unknown)?);
        Ok(())
    }

    fn add(&mut self, other: Self) {
        self.rules.extend(other.rules);
        self.conditions.extend(other.conditions);
    }

    pub fn len(&self) -> usize {
        self.rules.len() + self.conditions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rules in the order of their evaluation. After conditions the last one excludes everything else.
    pub fn into_set(self) -> Vec<Rule> {
        let mut set = self.rules;
        if !self.conditions.is_empty() {
            set.extend(self.conditions);
            set.push(Rule::new(Action::Exclude));
        }
        set
    }
}

/// A filter for records: one argument, variable or field.
#[derive(Clone, Debug)]
pub struct Rules {
    typed: String,
    parts: Parts,
}

impl FromStr for Rules {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        Ok(Self {
            typed: text.trim().to_owned(),
            parts: parse::line(text, Hosts::Known)?,
        })
    }
}

/// A filter for packets, which have no names of hosts: one argument or variable.
#[derive(Clone, Debug)]
pub struct PacketRules(Parts);

impl FromStr for PacketRules {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        parse::line(text, Hosts::Unknown).map(Self)
    }
}

/// The rules of several arguments in the order of their evaluation.
pub fn set(rules: &[Rules]) -> Vec<Rule> {
    let mut parts = Parts::default();
    for rules in rules {
        parts.add(rules.parts.clone());
    }
    parts.into_set()
}

/// The same as a text that every agent can read.
pub fn text(rules: &[Rules]) -> String {
    let rules: Vec<String> = set(rules).iter().map(ToString::to_string).collect();
    rules.join("; ")
}

/// Several arguments as they were typed.
pub fn typed(rules: &[Rules]) -> String {
    let typed = rules.iter().map(|rules| &*rules.typed);
    let typed: Vec<&str> = typed.filter(|typed| !typed.is_empty()).collect();
    typed.join("; ")
}

#[cfg(test)]
mod tests;
