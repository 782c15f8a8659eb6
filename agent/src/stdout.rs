//! Notices that nobody reads stdout any more, as after `| head -1`, even while there is nothing to write.

use std::{future::pending, io};

use tokio::io::{Interest, unix::AsyncFd};

/// Resolves when the reader of stdout has closed it. Never for what cannot be closed, such as a file.
pub async fn closed() {
    // SAFETY: nothing in this process closes stdout, so the descriptor stays the same while it is watched.
    let watched = unsafe { AsyncFd::register_with_interest(io::stdout(), Interest::ERROR) };
    // epoll does not take files.
    let Ok(watched) = watched else {
        return pending().await;
    };
    loop {
        match watched.ready(Interest::ERROR).await {
            Ok(mut guard) if !guard.ready().is_error() => guard.clear_ready(),
            Ok(_) => return,
            Err(_) => return pending().await,
        }
    }
}
