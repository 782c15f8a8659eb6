//! The filter rules in force, for the server to show and replace.

use std::{pin::Pin, sync::Arc};

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use proto::Filters;
use rules::Rule;
use thiserror::Error;

/// The task that owns the scanner has ended.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the agent is about to stop")]
pub struct Stopping;

/// Applies the rules to packets, and can replace them while the agent runs.
pub trait Rules: Send + Sync {
    fn active(&self) -> Arc<ActiveRules>;

    /// Returns when the new rules apply to every packet.
    fn replace(&self, rules: Vec<Rule>, author: Author) -> Replacing<'_>;
}

/// A replacement in progress.
pub type Replacing<'a> = Pin<Box<dyn Future<Output = Result<Replaced, ReplaceError>> + Send + 'a>>;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum ReplaceError {
    /// The previous rules stay in force.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Stopping(#[from] Stopping),
}

/// The result of a change.
#[derive(Debug)]
pub struct Replaced {
    pub active: Arc<ActiveRules>,
    /// Rules whose effect may not be intended.
    pub warnings: Vec<String>,
}

/// The origin of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    Settings,
    Client,
}

/// The rules that the programs apply to packets.
#[derive(Debug)]
pub struct ActiveRules {
    pub rules: usize,
    pub author: Author,
    /// All rules if one of them names an interface, otherwise none.
    pub by_interface: Vec<Rule>,
    pub generation: u64,
    /// An encoded [`Filters`] without warnings, shared by all clients.
    pub message: Bytes,
}

impl ActiveRules {
    pub fn new(rules: &[Rule], author: Author, generation: u64) -> Self {
        let mut message = BytesMut::new();
        let mut append = |fields: &Filters| {
            let appended = fields.encode(&mut message);
            appended.expect("the buffer grows as it is written");
        };
        // Protobuf merges concatenated messages. Encoding one rule at a time avoids a second copy of all
        // texts.
        for rule in rules {
            append(&Filters {
                rules: vec![rule.to_string()],
                ..Filters::default()
            });
        }
        append(&Filters {
            generation,
            ..Filters::default()
        });
        let by_interface = if rules.iter().any(|rule| !rule.interfaces.is_empty()) {
            rules.to_vec()
        } else {
            Vec::new()
        };
        Self {
            rules: rules.len(),
            author,
            by_interface,
            generation,
            message: message.freeze(),
        }
    }
}

/// Fixed rules, for a server without programs.
pub struct FixedRules(Arc<ActiveRules>);

impl FixedRules {
    pub fn new(rules: &[Rule]) -> Self {
        Self(Arc::new(ActiveRules::new(rules, Author::Settings, 1)))
    }
}

impl Rules for FixedRules {
    fn active(&self) -> Arc<ActiveRules> {
        Arc::clone(&self.0)
    }

    fn replace(&self, _: Vec<Rule>, _: Author) -> Replacing<'_> {
        let refused = "this agent cannot change its filter rules".to_owned();
        Box::pin(std::future::ready(Err(ReplaceError::Refused(refused))))
    }
}
