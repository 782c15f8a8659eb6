//! The answer of a command that gives one and ends.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};

use crate::output::is_broken_pipe;

/// The forms of an answer that is given once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Text,
    Json,
}

/// Whoever stops reading, as `head` does, has what they wanted.
pub fn print(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if is_broken_pipe(&error) => Ok(()),
        written => written.context("write to stdout"),
    }
}
