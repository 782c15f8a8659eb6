//! The part of systemd that an agent needs to carry its counting over: a socket for notifications (`sd_notify(3)`), and a
//! store of descriptors that the next process gets (`FDSTORE=`, `sd_listen_fds(3)`).

use std::{
    env,
    ffi::OsString,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
    process,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, fcntl_dupfd_cloexec},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SocketAddrUnix, SocketFlags, SocketType, bind, getsockname, recvmsg, socket_with,
        sockopt::set_socket_passcred,
    },
    pipe::{PipeFlags, pipe_with},
    process::getuid,
};
use sys::notify_socket::NotifySocket;
use tokio::{io::Interest, net::UnixDatagram, process::Command};

/// `FileDescriptorStoreMax=` of the unit.
const MOST: usize = 2048;
/// The first descriptor that a process is passed.
const FIRST: RawFd = 3;
/// How long an agent waits for the keeper's answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest message: names are short.
const LONGEST_BYTES: usize = 4096;
/// How many descriptors a message may have. The kernel closes the others.
const MOST_PASSED: usize = 16;

/// Says to an agent that this keeper has started it, and that it answers [`RESTARTS`].
const VARIABLE: &str = "KEEPER";
/// A message with the write end of a pipe. The keeper writes a byte to it if it will start the agent again.
const RESTARTS: &str = "X_KEEPER_RESTARTS=1";

/// What an agent may ask or say.
pub enum Heard {
    Ready,
    /// Write a byte to the descriptor if the agent is to be started again.
    AsksForRestart(OwnedFd),
}

pub struct Store {
    socket: UnixDatagram,
    address: OsString,
    /// Names and descriptors.
    kept: Vec<(String, OwnedFd)>,
}

impl Store {
    pub fn new() -> Result<Self> {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .context("make a socket for notifications")?;
        set_socket_passcred(&socket, true).context("ask who sends a notification")?;
        // The kernel chooses an abstract name.
        bind(&socket, &SocketAddrUnix::new_unnamed()).context("bind a socket for notifications")?;
        let address = SocketAddrUnix::try_from(getsockname(&socket)?).context("read its name")?;
        let name = address.abstract_name().context("its name is abstract")?;
        let address = format!(
            "@{}",
            str::from_utf8(name).context("its name is of digits")?
        )
        .into();
        Ok(Self {
            socket: UnixDatagram::from_std(socket.into()).context("use the socket")?,
            address,
            kept: Vec::new(),
        })
    }

    /// Prepares a command: the process gets the socket and what is stored.
    pub fn prepare(&self, command: &mut Command) -> Result<()> {
        for name in [
            "LISTEN_PID",
            "LISTEN_FDS",
            "LISTEN_FDNAMES",
            "WATCHDOG_USEC",
            "WATCHDOG_PID",
        ] {
            command.env_remove(name);
        }
        command.env("NOTIFY_SOCKET", &self.address);
        command.env("FDSTORE", MOST.to_string());
        command.env(VARIABLE, "flow-agent");
        // No copy has a number that another one is moved to.
        let above = FIRST + RawFd::try_from(self.kept.len()).context("descriptors are few")?;
        let copies = self
            .kept
            .iter()
            .map(|(_, fd)| fcntl_dupfd_cloexec(fd, above));
        let copies: Vec<OwnedFd> = copies
            .collect::<Result<_, _>>()
            .context("copy what is stored")?;
        if !copies.is_empty() {
            let names: Vec<_> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
            command.env("LISTEN_FDS", names.len().to_string());
            command.env("LISTEN_FDNAMES", names.join(":"));
        }
        let inherit = move || {
            let mut moves = copies.iter().zip(FIRST..);
            moves.try_for_each(|(fd, to)| copy_to(fd.as_fd(), to))
        };
        // SAFETY: between fork and exec, the closure only makes system calls, and it allocates no memory.
        unsafe { command.pre_exec(inherit) };
        Ok(())
    }

    /// Processes messages until one has something for the caller. May be dropped before it resolves.
    pub async fn hear(&mut self) -> Result<Heard> {
        loop {
            let received = self
                .socket
                .async_io(Interest::READABLE, || receive(self.socket.as_fd()))
                .await;
            let received = received.context("receive a notification")?;
            if let Some(message) = received
                && let Some(heard) = self.process(message)
            {
                return Ok(heard);
            }
        }
    }

    /// Processes what was sent before now.
    pub fn process_all(&mut self) -> Result<()> {
        loop {
            match receive(self.socket.as_fd()) {
                Ok(message) => drop(message.and_then(|message| self.process(message))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("receive a notification"),
            }
        }
    }

    fn process(&mut self, Message { text, mut fds }: Message) -> Option<Heard> {
        let lines: Vec<_> = text.lines().collect();
        let name = lines.iter().find_map(|line| line.strip_prefix("FDNAME="));
        let name = name.filter(|name| is_valid(name));
        if lines.contains(&"FDSTOREREMOVE=1") {
            self.kept.retain(|(kept, _)| Some(kept.as_str()) != name);
        } else if lines.contains(&"FDSTORE=1") {
            let name = name?;
            for fd in fds {
                self.put(name, fd);
            }
        } else if lines.contains(&RESTARTS) {
            return fds.pop().map(Heard::AsksForRestart);
        } else if lines.contains(&"READY=1") {
            return Some(Heard::Ready);
        }
        // To close the descriptor is the answer to BARRIER=1.
        None
    }

    fn put(&mut self, name: &str, fd: OwnedFd) {
        if self.kept.len() >= MOST {
            tracing::warn!(
                name,
                "the keeper has room for {MOST} descriptors, so this one is not kept"
            );
        } else if !self.kept.iter().any(|(_, kept)| is_same_file(kept, &fd)) {
            self.kept.push((name.to_owned(), fd));
        }
    }
}

struct Message {
    text: String,
    fds: Vec<OwnedFd>,
}

/// Receives a message. `None` if a process of another user sent it, or if it is too long.
fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    let mut text = vec![0; LONGEST_BYTES];
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_PASSED), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut text)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = match recvmsg(socket, &mut data, &mut ancillary, flags) {
        Err(Errno::INTR) => return Ok(None),
        received => received?,
    };
    let (mut fds, mut is_ours) = (Vec::new(), false);
    for message in ancillary.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(passed) => fds.extend(passed),
            RecvAncillaryMessage::ScmCredentials(sender) => is_ours = sender.uid == getuid(),
            _ => {}
        }
    }
    text.truncate(received.bytes);
    let is_whole = !received.flags.contains(ReturnFlags::TRUNC);
    Ok((is_ours && is_whole).then(|| Message {
        text: String::from_utf8_lossy(&text).into_owned(),
        fds,
    }))
}

/// As systemd's `fdname_is_valid`.
fn is_valid(name: &str) -> bool {
    let is_valid = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b':';
    !name.is_empty() && name.len() <= 255 && name.bytes().all(is_valid)
}

/// Whether both are copies of one descriptor. Two opened files differ, even of one path.
fn is_same_file(one: &OwnedFd, other: &OwnedFd) -> bool {
    const KCMP_FILE: libc::c_long = 0;
    let pid = libc::c_long::from(process::id());
    let [one, other] = [one, other].map(|fd| libc::c_long::from(fd.as_raw_fd()));
    // SAFETY: the call takes no pointers.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, pid, pid, KCMP_FILE, one, other) };
    order == 0
}

/// The copy stays open in the program that the process becomes.
fn copy_to(fd: BorrowedFd<'_>, to: RawFd) -> io::Result<()> {
    // SAFETY: the call takes no pointers. Between fork and exec, nothing else uses the number.
    match unsafe { libc::dup2(fd.as_raw_fd(), to) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Asks the keeper that started this process whether it will start it again. `None` if none did.
pub fn ask_for_restart() -> Option<Result<bool>> {
    env::var_os(VARIABLE)?;
    Some(restarts())
}

fn restarts() -> Result<bool> {
    let socket =
        NotifySocket::from_environment(Some(PATIENCE))?.context("the keeper has no socket")?;
    let (answer, end) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
    socket
        .send(RESTARTS, Some(end.as_fd()))
        .context("ask the keeper")?;
    drop(end);
    let mut readable = [PollFd::new(&answer, PollFlags::IN)];
    let patience = Timespec::try_from(PATIENCE).context("it is short")?;
    let is_there = poll(&mut readable, Some(&patience)).context("wait for the keeper")?;
    ensure!(is_there == 1, "the keeper does not answer");
    Ok(rustix::io::read(&answer, &mut [0; 1])? == 1)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, thread};

    use lab::privilege::is_root_or_skip;

    use super::*;

    /// A user without any rights.
    const NOBODY: libc::c_long = 65534;

    fn send(store: &Store, message: &str, fd: Option<BorrowedFd<'_>>) {
        let socket = NotifySocket::at(&store.address, None).unwrap();
        socket.send(message, fd).unwrap();
    }

    fn names(store: &mut Store) -> Vec<&str> {
        store.process_all().unwrap();
        store.kept.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[tokio::test]
    async fn each_descriptor_is_kept_once_until_its_name_is_removed() {
        let mut store = Store::new().unwrap();
        let null = || File::open("/dev/null").unwrap();
        let (one, other) = (null(), null());
        for (name, file) in [
            ("one", &one),
            ("again", &one),
            ("other", &other),
            ("a:b", &null()),
            ("", &null()),
        ] {
            let message = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
            send(&store, &message, Some(file.as_fd()));
        }
        assert_eq!(names(&mut store), ["one", "other"]);
        send(&store, "FDSTOREREMOVE=1\nFDNAME=one", None);
        send(&store, "FDSTOREREMOVE=1", None);
        send(&store, "STATUS=all is well", None);
        assert_eq!(names(&mut store), ["other"]);
        send(&store, "STATUS=it counts\nREADY=1", None);
        assert!(matches!(store.hear().await, Ok(Heard::Ready)));
    }

    #[tokio::test]
    async fn nobody_else_can_store_or_remove() {
        if !is_root_or_skip("agent::nobody_else_can_store_or_remove") {
            return;
        }
        let mut store = Store::new().unwrap();
        let file = File::open("/dev/null").unwrap();
        send(&store, "FDSTORE=1\nFDNAME=ours", Some(file.as_fd()));
        thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: no pointers. Unlike the function of the C library, the call changes this thread alone.
                let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
                assert_eq!(changed, 0);
                send(&store, "FDSTORE=1\nFDNAME=theirs", Some(file.as_fd()));
                send(&store, "FDSTOREREMOVE=1\nFDNAME=ours", None);
            });
        });
        assert_eq!(names(&mut store), ["ours"]);
    }
}
