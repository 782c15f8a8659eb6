//! Starts threads that the agent cannot do without. If one panics, the agent ends with an error.

use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Error, Result, anyhow};
use tokio::sync::mpsc;

use crate::netns::Namespace;

/// Held by such a thread; reports if the thread panics.
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
            // If the channel is full, another thread has failed already. If it is closed, the agent is ending.
            let _ = self.failed.try_send(self.namespace.locate(error));
        }
    }
}

/// Starts a thread for work in the network namespace of the calling thread. If it panics, `failed` receives an error.
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
