//! What the log says while a test does something.

use std::{fs, sync::Arc};

use tempfile::NamedTempFile;
use tracing::subscriber::with_default;

pub(super) fn logged(work: impl FnOnce()) -> String {
    let log = NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log.reopen().map(Arc::new).unwrap());
    with_default(subscriber.finish(), work);
    fs::read_to_string(log.path()).unwrap()
}
