//! What the log says while a test does something.

#![expect(clippy::unwrap_used, reason = "a test ends by a panic")]

use std::{
    fs,
    sync::{Arc, LazyLock},
};

use tempfile::NamedTempFile;
use tracing::{Dispatch, subscriber};

/// While there is only one subscriber in the process, an event that a thread without it reaches first is off for good
/// (`Rebuilder::JustOne` in tracing-core). So there is always another one.
static ANOTHER: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

pub fn logged(work: impl FnOnce()) -> String {
    log_of(|_| work())
}

/// The same if the test looks at the log meanwhile.
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
