//! The service manager's socket (`sd_notify(3)`).

use std::{
    env,
    ffi::OsStr,
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
        SocketFlags, SocketType, sendmsg_addr, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
    pipe::{PipeFlags, pipe_with},
};

/// Sends to the service manager.
#[derive(Debug)]
pub struct NotifySocket {
    socket: OwnedFd,
    address: SocketAddrUnix,
    flags: SendFlags,
}

impl NotifySocket {
    /// The socket that `NOTIFY_SOCKET` names. `None` if no service manager started this process. With `patience`, a
    /// message waits that long for a manager that does not read; otherwise it does not wait.
    pub fn from_environment(patience: Option<Duration>) -> Result<Option<Self>> {
        let path = env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty());
        path.map(|path| {
            let socket = Self::at(&path, patience);
            socket.with_context(|| format!("use NOTIFY_SOCKET {}", path.display()))
        })
        .transpose()
    }

    /// A socket at an absolute path, or at `@` and an abstract name.
    pub fn at(path: &OsStr, patience: Option<Duration>) -> Result<Self> {
        let address = address(path)?;
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .context("make a socket for the service manager")?;
        let mut flags = SendFlags::NOSIGNAL;
        match patience {
            None => flags |= SendFlags::DONTWAIT,
            Some(_) => set_socket_timeout(&socket, Timeout::Send, patience)
                .context("limit the wait for the service manager")?,
        }
        Ok(Self {
            socket,
            address,
            flags,
        })
    }

    /// Sends a message with the write end of a pipe, and waits until the manager closes its copy. Returns whether it wrote
    /// to it before.
    pub fn ask(&self, message: &str, patience: Duration) -> io::Result<bool> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        self.send(message, Some(write.as_fd()))?;
        drop(write);
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&read, PollFlags::IN)], Some(&patience))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(rustix::io::read(&read, &mut [0; 1])? == 1)
    }

    /// Sends a message, with a copy of a descriptor if there is one. Fails with `WouldBlock` if the manager does not read.
    pub fn send(&self, message: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = fd.as_slice();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let message = [io::IoSlice::new(message.as_bytes())];
        let Self {
            socket,
            address,
            flags,
        } = self;
        loop {
            match sendmsg_addr(socket, address, &message, &mut ancillary, *flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn address(path: &OsStr) -> Result<SocketAddrUnix> {
    Ok(match path.as_bytes() {
        path @ [b'/', ..] => SocketAddrUnix::new(path)?,
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        _ => bail!("it is neither an absolute path nor @ and a name"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_a_path_or_an_abstract_name() {
        let path = address(OsStr::new("/run/systemd/notify")).unwrap();
        assert_eq!(path.path_bytes(), Some(&b"/run/systemd/notify"[..]));
        let name = address(OsStr::new("@notify")).unwrap();
        assert_eq!(name.abstract_name(), Some(&b"notify"[..]));
        assert!(address(OsStr::new("vsock:2:1234")).is_err());
    }
}
