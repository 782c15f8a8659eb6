//! SIGHUP comes in; the rules of the arguments and the file, read again, go to the running agent.

use std::io::IsTerminal as _;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::Args;
use crate::{control::Control, filter};

/// Reads the filter rules again at every SIGHUP, as a service is told to. In a terminal it stays what
/// it is there, the end, unless there is a file to read.
pub(super) fn at_hangup(args: &Args, control: Control) -> Result<()> {
    if args.filter_file.is_none() && std::io::stdin().is_terminal() {
        return Ok(());
    }
    let mut hangup = signal(SignalKind::hangup()).context("handle SIGHUP")?;
    let (rules, file) = (args.filter.clone(), args.filter_file.clone());
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match filter::read_again(&rules, file.as_deref()) {
                Ok(rules) => {
                    let before = control.in_force().rules;
                    let is_empty = rules.is_empty();
                    // What becomes of them is logged where they come into force.
                    let outcome = control.set_filters(rules).await;
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
    Ok(())
}
