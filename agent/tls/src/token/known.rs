//! The tokens that a collector knows. A line of its file has a name, the token's roles, and the token's SHA-256, so a
//! reader of the file learns no token. Several lines may have the same name, so that a new token can be handed out
//! before the old one is removed.

use std::{
    collections::HashMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use sys::regular_file;
use thiserror::Error;
use tonic::codegen::http::{HeaderMap, header::AUTHORIZATION};
use tracing::{info, warn};

use super::{SCHEME, hexadecimal, said};
use crate::{
    identity::{Grant, Identity, Roles},
    reload::{FromFiles, Reloadable, Stamps, State},
};

/// One for each host of a large fleet.
const MOST_TOKENS: usize = 16 << 10;
pub const MOST_FILE_BYTES: u64 = 8 << 20;
const HASH: &str = "sha256:";

type Hash = [u8; 32];

/// Why a file of tokens cannot be used.
#[derive(Debug, Error)]
pub enum KnownFault {
    #[error("{0}: {1}")]
    Unread(String, io::Error),
    #[error("{0} has no token (flow-agent token new NAME --file {0} adds one)")]
    Empty(String),
    #[error("{0} has more than {MOST_TOKENS} tokens")]
    TooMany(String),
    #[error(
        "line {line} of {file} is not NAME ROLES {HASH}DIGITS: flow-agent token new NAME --file {file} adds a line and prints \
         its token, which is not in this file"
    )]
    NoToken { file: String, line: usize },
    #[error("line {line} of {file} has the token of another line with another name")]
    OfTwo { file: String, line: usize },
}

/// The tokens of a file, as they were read at one time.
#[derive(Clone)]
pub struct Known {
    file: PathBuf,
    stamps: Stamps,
    all: Arc<HashMap<Hash, Grant>>,
}

impl fmt::Debug for Known {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(formatter)
    }
}

/// The tokens in use.
pub type ReloadableTokens = Reloadable<Known>;

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unknown {
    #[error(
        "this collector answers only callers with one of its tokens: name a file with one (token_file of an agent's \
         output, --token-file of a command)"
    )]
    NotShown,
    #[error("unknown token: check the file (token_file, --token-file)")]
    NotOurs,
}

/// A token that a call has sent.
#[derive(Debug, Clone)]
pub struct Shown {
    hash: Hash,
    pub grant: Grant,
}

impl Known {
    pub fn read(file: PathBuf) -> Result<Self, KnownFault> {
        // Take the stamps first, so that the next check notices a write during the read.
        let stamps = Stamps::of([&file]);
        let all = read(&file)?;
        Ok(Self {
            stamps,
            all: Arc::new(all),
            file,
        })
    }

    /// Its duration depends on the token's hash, which does not reveal the token.
    fn find(&self, hash: &Hash) -> Option<&Grant> {
        let (known, grant) = self.all.get_key_value(hash)?;
        bool::from(known.ct_eq(hash)).then_some(grant)
    }

    fn log(&self, what: &str) {
        let file = self.file.display();
        info!(%file, tokens = self.all.len(), "{what}");
    }
}

impl ReloadableTokens {
    /// Why the present file is not in use.
    pub fn fault(&self) -> Option<String> {
        self.state().fault.clone()
    }

    /// The token in the headers of a call.
    pub fn shown(&self, headers: &HeaderMap) -> Result<Shown, Unknown> {
        let shown = headers.get(AUTHORIZATION).ok_or(Unknown::NotShown)?;
        let shown = shown.to_str().ok().and_then(|shown| shown.split_once(' '));
        let (scheme, token) = shown.ok_or(Unknown::NotOurs)?;
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return Err(Unknown::NotOurs);
        }
        let hash = hash_of(token.trim_start());
        let grant = self.state().contents.find(&hash).cloned();
        let grant = grant.ok_or(Unknown::NotOurs)?;
        Ok(Shown { hash, grant })
    }

    /// Returns once the token is removed from the file, or its grant changes.
    pub async fn withdrawn(self, shown: Shown) {
        let mut changes = self.changes();
        let is_withdrawn =
            |state: &State<Known>| state.contents.find(&shown.hash) != Some(&shown.grant);
        // `self` holds the sender, so the channel is not closed.
        let _ = changes.wait_for(is_withdrawn).await;
    }
}

impl FromFiles for Known {
    type Fault = KnownFault;

    fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    fn stamps_now(&self) -> Stamps {
        Stamps::of([&self.file])
    }

    fn reread(&self) -> Result<Self, KnownFault> {
        Self::read(self.file.clone())
    }

    fn has_same_files(&self, other: &Self) -> bool {
        self.file == other.file
    }

    fn reason_to_keep(&self, _: &Self) -> Option<String> {
        None
    }

    fn log_first(&self) {
        self.log("callers over TCP need a token");
    }

    fn log_reloaded(&self) {
        self.log("read the tokens again");
    }

    fn log_kept(&self, fault: &str) {
        warn!("keeping the tokens as read before: {fault}");
    }
}

/// The file's line for a token.
pub fn line(identity: &Identity, roles: Roles, token: &str) -> String {
    let hash = hexadecimal(&hash_of(token));
    format!("{identity} {roles} {HASH}{hash}\n")
}

fn hash_of(token: &str) -> Hash {
    Sha256::digest(token).into()
}

/// Reads the file, which must have at least one token.
fn read(path: &Path) -> Result<HashMap<Hash, Grant>, KnownFault> {
    let file = || path.display().to_string();
    let unread = |error| KnownFault::Unread(file(), error);
    let (text, _) = regular_file::read(path, MOST_FILE_BYTES).map_err(unread)?;
    let mut tokens = HashMap::new();
    for (line, text) in said(&text) {
        let known = known(text).ok_or_else(|| KnownFault::NoToken { file: file(), line })?;
        let (hash, grant) = known;
        if tokens.get(&hash).is_some_and(|other| *other != grant) {
            return Err(KnownFault::OfTwo { file: file(), line });
        }
        tokens.insert(hash, grant);
        if tokens.len() > MOST_TOKENS {
            return Err(KnownFault::TooMany(file()));
        }
    }
    if tokens.is_empty() {
        return Err(KnownFault::Empty(file()));
    }
    Ok(tokens)
}

/// Parses one line.
fn known(line: &[u8]) -> Option<(Hash, Grant)> {
    let mut words = str::from_utf8(line).ok()?.split_ascii_whitespace();
    let identity = Identity::named(words.next()?)?;
    let roles = Roles::read(words.next()?)?;
    let digits = words.next()?.strip_prefix(HASH)?;
    let hash = hash(digits)?;
    let grant = Grant { identity, roles };
    words.next().is_none().then_some((hash, grant))
}

/// Parses hexadecimal digits.
fn hash(digits: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    let is_hash =
        digits.len() == 2 * hash.len() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_hash {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests;
