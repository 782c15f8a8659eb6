//! Prints the answer of a command that answers once and ends.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};
use formats::{harmless, is_broken_pipe};
use serde::Serialize;
use tokio::task::spawn_blocking;

/// The forms of such an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Text,
    Json,
}

/// As [`Format::Json`], for a program or a person.
pub fn json(answer: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string_pretty(answer)?;
    Ok(harmless::json(&json).into_owned() + "\n")
}

/// [`print()`] beside a connection, which ends meanwhile: whoever reads stdout may take long.
pub async fn show(text: String) -> Result<()> {
    let shown = spawn_blocking(move || print(&text)).await;
    shown.context("write to stdout")?
}

/// Writes to stdout. It is no error if the reader stops early, as `head` does: it has what it wanted.
pub fn print(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if is_broken_pipe(&error) => Ok(()),
        written => written.context("write to stdout"),
    }
}
