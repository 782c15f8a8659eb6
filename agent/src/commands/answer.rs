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

/// JSON as [`Format::Json`] asks for it.
pub fn json(answer: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string_pretty(answer)?;
    Ok(harmless::json(&json).into_owned() + "\n")
}

/// [`print()`] while a connection closes: the reader of stdout may be slow.
pub async fn show(text: String) -> Result<()> {
    let shown = spawn_blocking(move || print(&text)).await;
    shown.context("write to stdout")?
}

/// Writes to stdout. A reader that stops early, as `head` does, is no error.
pub fn print(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if is_broken_pipe(&error) => Ok(()),
        written => written.context("write to stdout"),
    }
}
