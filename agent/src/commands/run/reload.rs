//! SIGHUP: reads the file of rules again, and replaces the running agent's rules by those of the arguments
//! and the file.

use std::{io::IsTerminal as _, path::PathBuf};

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Args;
use crate::{
    filter::{self, Rules},
    rules::RunningRules,
};

/// Receives SIGHUP. In a terminal the signal keeps its usual effect, which is the end, unless there is a file
/// to read.
pub(super) struct Reload {
    hangup: Option<Signal>,
    arguments: Vec<Rules>,
    file: Option<PathBuf>,
}

impl Reload {
    pub(super) fn listen(args: &Args) -> Result<Self> {
        let has_use = args.filter_file.is_some() || !std::io::stdin().is_terminal();
        let hangup = has_use.then(|| signal(SignalKind::hangup()).context("handle SIGHUP"));
        Ok(Self {
            hangup: hangup.transpose()?,
            arguments: args.filter.clone(),
            file: args.filter_file.clone(),
        })
    }

    /// Reads the rules again at every SIGHUP, including one that came since [`Reload::listen`].
    pub(super) fn start(self, running: RunningRules) {
        let Self {
            hangup,
            arguments,
            file,
        } = self;
        let Some(mut hangup) = hangup else { return };
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                match filter::read_again(&arguments, file.as_deref()) {
                    Ok(rules) => {
                        let before = running.in_force().rules;
                        let is_empty = rules.is_empty();
                        // The result is logged where the rules come into force.
                        let outcome = running.replace(rules).await;
                        if is_empty && before > 0 && outcome.is_ok() {
                            tracing::warn!(
                                before,
                                "no filter rules were found, every packet is counted from here on"
                            );
                        }
                    }
                    Err(error) => tracing::error!("the filter rules stay as they were: {error:#}"),
                }
            }
        });
    }
}
