//! Tokens by which a collector knows who may call it: over TCP a call shows one of those in the collector's file, in the way of
//! RFC 6750 (`authorization: Bearer TOKEN`).
//!
//! A file has a token in each line, so that a new one can be handed out before an old one goes. Empty lines and those that begin
//! with `#` say nothing.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use subtle::{Choice, ConstantTimeEq as _};
use thiserror::Error;
use tokio::task::spawn_blocking;
use tonic::codegen::http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use tracing::{info, warn};

use crate::{
    in_force::{self, FromFiles, Stamps},
    regular_file,
};

/// Whoever calls makes a collector compare with each of them.
const MOST_TOKENS: usize = 1024;
const MOST_FILE_BYTES: u64 = 128 << 10;
/// 64 bits of chance in hexadecimal digits.
const LEAST_LEN: usize = 16;
const MOST_LEN: usize = 1024;
const SCHEME: &str = "Bearer";
const TOKENS: &str = "the tokens";

/// Why a file of tokens cannot be used. None of them has a token in it.
#[derive(Debug, Error)]
pub enum TokenFault {
    #[error("{0}: {1}")]
    Unread(String, io::Error),
    #[error("{0} has no token (openssl rand -hex 32 makes one)")]
    Empty(String),
    #[error("{0} has more than {MOST_TOKENS} tokens")]
    TooMany(String),
    #[error(
        "line {line} of {file} is no token: {LEAST_LEN} to {MOST_LEN} letters, digits and - . _ ~ + / with = at the end alone \
         (openssl rand -hex 32 makes one)"
    )]
    NoToken { file: String, line: usize },
}

/// A file of tokens, of which the first one is shown. It is read for each connection, so that a new one needs no restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFile(PathBuf);

impl TokenFile {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// What is worth a look, as the file is now.
    pub fn warning(&self) -> Option<String> {
        regular_file::open_to_all_now(&self.0, TOKENS)
    }

    /// What a call shows.
    pub async fn header(&self) -> Result<HeaderValue, TokenFault> {
        let path = self.0.clone();
        // A file may be slow.
        let read = spawn_blocking(move || read(&path)).await;
        let (tokens, _) = read.expect("reading does not panic")?;
        let value = format!("{SCHEME} {}", tokens[0]);
        let mut value = HeaderValue::from_str(&value).expect("a token is of visible characters");
        value.set_sensitive(true);
        Ok(value)
    }
}

impl fmt::Display for TokenFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(formatter)
    }
}

/// The tokens of those who may call, as they were read at one time.
#[derive(Clone)]
pub struct Tokens {
    file: PathBuf,
    stamps: Stamps,
    all: Arc<[String]>,
    warning: Option<String>,
}

/// Without the tokens.
impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(formatter)
    }
}

/// Those in force.
pub type InForce = in_force::InForce<Tokens>;

/// Why a call is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unknown {
    #[error(
        "this collector answers those who show one of its tokens: name a file with one (token_file of an agent's output, \
         --token-file of a command)"
    )]
    NotShown,
    #[error("the token is none of this collector's: look at the file (token_file, --token-file)")]
    NotOurs,
}

impl Tokens {
    pub fn read(file: PathBuf) -> Result<Self, TokenFault> {
        // Before it is read: what is written meanwhile is then seen at the next look.
        let stamps = Stamps::of([&file]);
        let (tokens, mode) = read(&file)?;
        Ok(Self {
            stamps,
            all: tokens.into(),
            warning: regular_file::open_to_all(&file, TOKENS, mode),
            file,
        })
    }

    /// How long it takes says nothing of a token but its length.
    fn has(&self, shown: &str) -> bool {
        let is_any =
            |found: Choice, token: &String| found | token.as_bytes().ct_eq(shown.as_bytes());
        self.all.iter().fold(Choice::from(0), is_any).into()
    }

    fn log(&self, what: &str) {
        let file = self.file.display();
        info!(%file, tokens = self.all.len(), "{what}");
        if let Some(warning) = &self.warning {
            warn!("{warning}");
        }
    }
}

impl InForce {
    /// Why the file of now is not in force.
    pub fn fault(&self) -> Option<String> {
        self.state().fault.clone()
    }

    /// Whether the headers of a call show one of them.
    pub fn admits(&self, headers: &HeaderMap) -> Result<(), Unknown> {
        let shown = headers.get(AUTHORIZATION).ok_or(Unknown::NotShown)?;
        let shown = shown.to_str().ok().and_then(|shown| shown.split_once(' '));
        let (scheme, token) = shown.ok_or(Unknown::NotOurs)?;
        let is_ours =
            scheme.eq_ignore_ascii_case(SCHEME) && self.state().held.has(token.trim_start());
        is_ours.then_some(()).ok_or(Unknown::NotOurs)
    }
}

impl FromFiles for Tokens {
    type Fault = TokenFault;

    fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    fn stamps_now(&self) -> Stamps {
        Stamps::of([&self.file])
    }

    fn read_again(&self) -> Result<Self, TokenFault> {
        Self::read(self.file.clone())
    }

    fn is_of_the_same_files(&self, other: &Self) -> bool {
        self.file == other.file
    }

    fn yields_to(&self, _: &Self) -> Option<String> {
        None
    }

    fn tell_first(&self) {
        self.log("who calls over TCP needs a token");
    }

    fn tell_again(&self) {
        self.log("the tokens have been read again");
    }

    fn tell_kept(&self, fault: &str) {
        warn!("the tokens stay as they were: {fault}");
    }
}

/// At least one token, and the mode of the file.
fn read(path: &Path) -> Result<(Vec<String>, u32), TokenFault> {
    let file = || path.display().to_string();
    let unread = |error| TokenFault::Unread(file(), error);
    let (text, mode) = regular_file::read(path, MOST_FILE_BYTES).map_err(unread)?;
    let mut tokens = Vec::new();
    for (line, number) in text.split(|&byte| byte == b'\n').zip(1..) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let token = token(line).ok_or_else(|| TokenFault::NoToken {
            file: file(),
            line: number,
        })?;
        tokens.push(token);
    }
    if tokens.is_empty() {
        return Err(TokenFault::Empty(file()));
    }
    if tokens.len() > MOST_TOKENS {
        return Err(TokenFault::TooMany(file()));
    }
    Ok((tokens, mode))
}

/// What RFC 6750 (2.1) takes for a token.
fn token(line: &[u8]) -> Option<String> {
    let text = str::from_utf8(line).ok()?;
    let body = text.trim_end_matches('=');
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
    let is_token = !body.is_empty()
        && body.bytes().all(is_of_token)
        && (LEAST_LEN..=MOST_LEN).contains(&text.len());
    is_token.then(|| text.to_owned())
}

#[cfg(test)]
mod tests;
