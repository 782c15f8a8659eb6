//! Threads without which the agent would go on deaf. If one panics, the agent ends with an error.

use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Error, Result, anyhow};
use tokio::sync::mpsc;

use crate::netns::Namespace;

/// Held by such a thread.
struct Alarm {
    thread: &'static str,
    namespace: Namespace,
    failed: mpsc::Sender<Error>,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            let thread = self.thread;
            let error = anyhow!("the thread \"{thread}\" panicked, which is a fault of the agent");
            // If it is full, another one has failed. If nobody listens, the agent is ending.
            let _ = self.failed.try_send(self.namespace.locate(error));
        }
    }
}

/// Starts a thread for work in a network namespace, in which the calling thread is. If it panics, `failed` hears of it.
pub(super) fn spawn<T: Send + 'static>(
    name: &'static str,
    namespace: Namespace,
    failed: mpsc::Sender<Error>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let thread = thread::Builder::new().name(name.to_owned());
    let thread = thread.spawn(move || {
        let _logs = namespace.span().entered();
        let _alarm = Alarm {
            thread: name,
            namespace,
            failed,
        };
        work()
    });
    thread.context("start a thread")
}
