//! Descriptors that the service manager passes to this process (`sd_listen_fds(3)`): listening sockets that it opened,
//! and what a predecessor of this process stored with it.

use std::{
    env, io,
    net::TcpListener,
    os::{
        fd::{FromRawFd as _, OwnedFd},
        unix::net::UnixListener,
    },
    path::Path,
};

use anyhow::{Context as _, Result, bail, ensure};
use listenfd::ListenFd;
use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::sockopt,
};
use sys::fd_store;

use super::address::{ListenAddr, ListenError};

/// The first descriptor that the service manager passes.
const FIRST: usize = 3;

/// Listening sockets passed to this process, beside the ones that it binds itself.
#[derive(Debug, Default)]
pub struct PassedSockets(Vec<PassedSocket>);

/// A descriptor that a predecessor stored, with its name without the prefix.
pub type Stored = (String, OwnedFd);

#[derive(Debug)]
pub(super) enum PassedSocket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl PassedSockets {
    /// Takes the sockets and what a predecessor stored, and removes the environment variables that describe them. The
    /// process must have no other thread yet.
    pub fn take() -> Result<(Self, Vec<Stored>)> {
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut passed = ListenFd::from_env();
        let (mut sockets, mut stored) = (Vec::new(), Vec::new());
        for index in 0..passed.len() {
            let name = names.next().unwrap_or_default();
            match name.strip_prefix(fd_store::NAME_PREFIX) {
                Some(name) => stored.push((name.to_owned(), take_stored(&mut passed, index)?)),
                None => sockets.push(PassedSocket::take(&mut passed, index)?),
            }
        }
        Ok((Self(sockets), stored))
    }

    /// Fails if other hosts can reach one of them; see [`ListenAddr::refuse_open`].
    pub fn refuse_open(&self) -> Result<(), ListenError> {
        for socket in &self.0 {
            let address = socket.address().map_err(ListenError::Passed)?;
            address.map_or(Ok(()), |address| address.refuse_open())?;
        }
        Ok(())
    }

    pub(super) fn into_sockets(self) -> Vec<PassedSocket> {
        self.0
    }
}

fn take_stored(passed: &mut ListenFd, index: usize) -> Result<OwnedFd> {
    let number = FIRST + index;
    let what = || format!("take the stored file {number} from the service manager");
    let raw = passed.take_raw_fd(index).with_context(what)?;
    let raw = raw.with_context(what)?;
    // SAFETY: the service manager passed the descriptor to this process, and `passed` has just given it up.
    let stored = unsafe { OwnedFd::from_raw_fd(raw) };
    fcntl_setfd(&stored, FdFlags::CLOEXEC).with_context(what)?;
    Ok(stored)
}

impl PassedSocket {
    fn take(passed: &mut ListenFd, index: usize) -> Result<Self> {
        let number = FIRST + index;
        let (socket, listens) = if let Ok(Some(unix)) = passed.take_unix_listener(index) {
            let listens = sockopt::socket_acceptconn(&unix);
            (Self::Unix(unix), listens)
        } else if let Ok(Some(tcp)) = passed.take_tcp_listener(index) {
            let listens = sockopt::socket_acceptconn(&tcp);
            (Self::Tcp(tcp), listens)
        } else {
            bail!(
                "the service manager passes file {number}, which is not a Unix or TCP stream socket: remove it from \
                     the .socket unit"
            );
        };
        ensure!(
            listens.context("ask whether a passed socket listens")?,
            "the service manager passes file {number}, which is a connection: say Accept=no in the .socket unit"
        );
        Ok(socket)
    }

    /// `None` for a Unix socket without a file.
    pub(super) fn address(&self) -> io::Result<Option<ListenAddr>> {
        Ok(match self {
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().map(Path::to_owned);
                path.map(ListenAddr::Unix)
            }
            Self::Tcp(listener) => Some(ListenAddr::Tcp(listener.local_addr()?)),
        })
    }
}
