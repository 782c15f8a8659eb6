//! The limit of open files.

use anyhow::{Context as _, Result};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one.
pub fn raise_limit() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("raise the limit of open files")
}

/// How many files may be open at the same time.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
