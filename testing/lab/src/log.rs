//! Captures the log while a test does something.

#![expect(clippy::unwrap_used, reason = "a test ends by a panic")]

use std::{
    fs,
    sync::{Arc, LazyLock},
};

use tempfile::NamedTempFile;
use tracing::{Dispatch, subscriber};

/// A second subscriber. With only one in the process, an event that a thread without it reaches first is disabled for
/// good (`Rebuilder::JustOne` in tracing-core).
static ANOTHER: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

pub fn logged(work: impl FnOnce()) -> String {
    log_of(|_| work())
}

/// The same, for a test that reads the log in the meantime.
pub fn log_of(work: impl FnOnce(&dyn Fn() -> String)) -> String {
    LazyLock::force(&ANOTHER);
    let log = NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log.reopen().map(Arc::new).unwrap());
    let so_far = || fs::read_to_string(log.path()).unwrap();
    subscriber::with_default(subscriber.finish(), || work(&so_far));
    so_far()
}
