//! Tokens that identify callers to a collector. A call over TCP sends one as in RFC 6750 (`authorization: Bearer
//! TOKEN`).
//!
//! The caller has a file with the token ([`TokenFile`]). The collector has a file of [`known`] tokens, with the owner,
//! the roles and the hash of each token, but not the token itself.

use std::{
    fmt::{self, Write as _},
    io,
    path::{Path, PathBuf},
};

use rustls::crypto::{GetRandomFailed, ring};
use sys::regular_file;
use thiserror::Error;
use tokio::task::spawn_blocking;
use tonic::codegen::http::HeaderValue;

pub mod known;

pub use known::{Known, ReloadableTokens};

const MOST_FILE_BYTES: u64 = 128 << 10;
/// 64 random bits in hexadecimal digits.
const LEAST_LEN: usize = 16;
const MOST_LEN: usize = 1024;
/// Random bytes in a token that `made` returns.
const MADE_BYTES: usize = 32;
const SCHEME: &str = "Bearer";

/// Why a file has no usable token. No message contains a token.
#[derive(Debug, Error)]
pub enum TokenFault {
    #[error("{0}: {1}")]
    Unread(String, io::Error),
    #[error("{0} has no token (flow-agent token new makes one, at the collector)")]
    Empty(String),
    #[error(
        "line {line} of {file} is not a token: {LEAST_LEN} to {MOST_LEN} letters, digits and - . _ ~ + / with = only \
         at the end (flow-agent token new makes one, at the collector)"
    )]
    NoToken { file: String, line: usize },
}

/// A file whose first token is sent. It is read for each connection, so another token needs no restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFile(PathBuf);

impl TokenFile {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// A warning about the file's present mode.
    pub fn warning(&self) -> Option<String> {
        regular_file::open_to_all_now(&self.0, "the token")
    }

    /// The header that a call sends.
    pub async fn header(&self) -> Result<HeaderValue, TokenFault> {
        let path = self.0.clone();
        // Reading a file may block.
        let read = spawn_blocking(move || first_of(&path)).await;
        let token = read.expect("reading does not panic")?;
        let mut value = HeaderValue::from_str(&format!("{SCHEME} {token}"))
            .expect("a token is of visible characters");
        value.set_sensitive(true);
        Ok(value)
    }
}

impl fmt::Display for TokenFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(formatter)
    }
}

/// A random token in hexadecimal digits.
pub fn made() -> Result<String, GetRandomFailed> {
    let mut bytes = [0; MADE_BYTES];
    ring::default_provider().secure_random.fill(&mut bytes)?;
    Ok(hexadecimal(&bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a `String` cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// The first token of a file. Empty lines and lines that begin with `#` are skipped.
fn first_of(path: &Path) -> Result<String, TokenFault> {
    let file = || path.display().to_string();
    let unread = |error| TokenFault::Unread(file(), error);
    let (text, _) = regular_file::read(path, MOST_FILE_BYTES).map_err(unread)?;
    let mut lines = said(&text);
    let (line, text) = lines.next().ok_or_else(|| TokenFault::Empty(file()))?;
    let token = token(text).ok_or_else(|| TokenFault::NoToken { file: file(), line })?;
    Ok(token.to_owned())
}

/// The other lines, with their numbers.
fn said(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = (1..).zip(text.split(|&byte| byte == b'\n'));
    lines
        .map(|(number, line)| (number, line.trim_ascii()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"))
}

/// The line as a token of RFC 6750 (2.1), if it is one of an accepted length.
fn token(line: &[u8]) -> Option<&str> {
    let text = str::from_utf8(line).ok()?;
    let body = text.trim_end_matches('=');
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
    let is_token = !body.is_empty()
        && body.bytes().all(is_of_token)
        && (LEAST_LEN..=MOST_LEN).contains(&text.len());
    is_token.then_some(text)
}

#[cfg(test)]
mod tests;
