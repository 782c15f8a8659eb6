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

use anyhow::{Context as _, Result};
use rustix::{
    io::{Errno, fcntl_dupfd_cloexec},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SocketAddrUnix, SocketFlags, SocketType, bind, getsockname, recvmsg, socket_with,
        sockopt::set_socket_passcred,
    },
    process::getuid,
};
use sys::{notify_socket::NotifySocket, open_files};
use tokio::{io::Interest, net::UnixDatagram, process::Command};

use super::{KEEPER, is_our_parent};

/// `FileDescriptorStoreMax=` of the unit.
const MOST: usize = 2048;
/// The first descriptor that a process is passed.
const FIRST: RawFd = 3;
/// What the keeper needs itself.
const OWN_FILES: u64 = 64;
/// How long an agent waits for the keeper's answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest message: names are short.
const LONGEST_BYTES: usize = 4096;
/// How many descriptors a message may have. The kernel closes the others.
const MOST_PASSED: usize = 16;

/// A message with the write end of a pipe. The keeper writes a byte to it if it will start the agent again.
const RESTARTS: &str = "X_KEEPER_RESTARTS=1";

/// What an agent may say or ask.
pub enum Heard {
    Ready,
    /// For the watchdog.
    Alive,
    Stopping,
    AsksForRestart(Answer),
}

/// Where the agent waits to hear whether it will be started again. Without an answer, it will not.
pub struct Answer(OwnedFd);

impl Answer {
    pub fn yes(&self) -> io::Result<()> {
        rustix::io::write(&self.0, &[1])?;
        Ok(())
    }
}

pub struct Store {
    socket: UnixDatagram,
    address: OsString,
    /// The process whose messages count.
    agent: Option<u32>,
    /// Names and descriptors.
    kept: Vec<(String, OwnedFd)>,
    most: usize,
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
        let address = SocketAddrUnix::try_from(getsockname(&socket)?)
            .context("read the name of the socket")?;
        let name = address.abstract_name().unwrap_or_default();
        let address = format!(
            "@{}",
            str::from_utf8(name).context("read the name of the socket")?
        );
        // A start needs each descriptor twice.
        let room = open_files::limit().saturating_sub(OWN_FILES) / 2;
        Ok(Self {
            socket: UnixDatagram::from_std(socket.into()).context("use the socket")?,
            address: address.into(),
            agent: None,
            kept: Vec::new(),
            most: MOST.min(usize::try_from(room).unwrap_or(MOST)),
        })
    }

    /// From here on, only messages of this process count.
    pub fn obey(&mut self, agent: Option<u32>) {
        self.agent = agent;
    }

    /// Passes the socket and the stored descriptors to a command. Keep the returned descriptors open until it has started.
    pub fn pass(&self, command: &mut Command) -> Result<Vec<OwnedFd>> {
        for name in [
            "LISTEN_PID",
            "LISTEN_FDS",
            "LISTEN_FDNAMES",
            "LISTEN_FDS_FIRST_FD",
            "WATCHDOG_PID",
        ] {
            command.env_remove(name);
        }
        command.env("NOTIFY_SOCKET", &self.address);
        command.env("FDSTORE", self.most.to_string());
        if self.kept.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<_> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
        command.env("LISTEN_FDS", names.len().to_string());
        command.env("LISTEN_FDNAMES", names.join(":"));
        // They are moved to the numbers from FIRST on, so none of them may be among these.
        let end = FIRST + RawFd::try_from(names.len()).context("count the descriptors")?;
        let copies = self
            .kept
            .iter()
            .map(|(_, fd)| fcntl_dupfd_cloexec(fd, end))
            .collect::<Result<Vec<OwnedFd>, _>>()
            .context("copy the stored descriptors")?;
        // Nor may anything that is opened on the way there: the standard library reports a failed start through a pipe.
        let mut taken = Vec::new();
        loop {
            let next = fcntl_dupfd_cloexec(&self.socket, FIRST).context("take a descriptor")?;
            if next.as_raw_fd() >= end {
                break;
            }
            taken.push(next);
        }
        let inherit = move || {
            let mut moves = copies.iter().zip(FIRST..);
            moves.try_for_each(|(fd, to)| copy_to(fd.as_fd(), to))
        };
        // SAFETY: between fork and exec, the closure only makes system calls, and it allocates no memory.
        unsafe { command.pre_exec(inherit) };
        Ok(taken)
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

    /// Processes the messages that have arrived.
    pub fn hear_all(&mut self) -> Result<Vec<Heard>> {
        let mut all = Vec::new();
        loop {
            match receive(self.socket.as_fd()) {
                Ok(message) => all.extend(message.and_then(|message| self.process(message))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(all),
                Err(error) => return Err(error).context("receive a notification"),
            }
        }
    }

    fn process(&mut self, message: Message) -> Option<Heard> {
        let Message {
            sender,
            text,
            mut fds,
        } = message;
        if Some(sender) != self.agent {
            return None;
        }
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
            return fds.pop().map(|end| Heard::AsksForRestart(Answer(end)));
        } else if lines.contains(&"READY=1") {
            return Some(Heard::Ready);
        } else if lines.contains(&"WATCHDOG=1") {
            return Some(Heard::Alive);
        } else if lines.contains(&"STOPPING=1") {
            return Some(Heard::Stopping);
        }
        // To close the descriptor is the answer to BARRIER=1.
        None
    }

    fn put(&mut self, name: &str, fd: OwnedFd) {
        if self.kept.len() >= self.most {
            tracing::warn!(
                name,
                most = self.most,
                "the keeper has no room for another descriptor, so counting is not carried over"
            );
        } else if !self.kept.iter().any(|(_, kept)| is_same_file(kept, &fd)) {
            self.kept.push((name.to_owned(), fd));
        }
    }
}

struct Message {
    /// Its process id.
    sender: u32,
    text: String,
    fds: Vec<OwnedFd>,
}

/// Receives a message. `None` if a process of another user sent it, or if some of it is missing.
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
    let (mut fds, mut sender) = (Vec::new(), None);
    for message in ancillary.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(passed) => fds.extend(passed),
            RecvAncillaryMessage::ScmCredentials(found) if found.uid == getuid() => {
                sender = u32::try_from(found.pid.as_raw_pid()).ok();
            }
            RecvAncillaryMessage::ScmCredentials(_) | _ => {}
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // The limit of open files, most likely.
        tracing::warn!("the keeper has lost a descriptor, so counting may not be carried over");
    }
    text.truncate(received.bytes);
    let is_whole = !received.flags.contains(ReturnFlags::TRUNC);
    Ok(sender.filter(|_| is_whole).map(|sender| Message {
        sender,
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
    let keeper = env::var_os(KEEPER)?;
    // Without its keeper, the agent has no store.
    Some(if is_our_parent(&keeper) {
        restarts()
    } else {
        Ok(false)
    })
}

fn restarts() -> Result<bool> {
    let socket =
        NotifySocket::from_environment(Some(PATIENCE))?.context("the keeper has no socket")?;
    socket.ask(RESTARTS, PATIENCE).context("ask the keeper")
}

#[cfg(test)]
mod tests {
    use std::{fs::File, thread};

    use lab::privilege::is_root_or_skip;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// A user without any rights.
    const NOBODY: libc::c_long = 65534;

    /// A store for messages of this process.
    fn store() -> Store {
        let mut store = Store::new().unwrap();
        store.obey(Some(process::id()));
        store
    }

    fn send(store: &Store, message: &str, fd: Option<BorrowedFd<'_>>) {
        let socket = NotifySocket::at(&store.address, None).unwrap();
        socket.send(message, fd).unwrap();
    }

    fn names(store: &mut Store) -> Vec<&str> {
        store.hear_all().unwrap();
        store.kept.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[tokio::test]
    async fn each_descriptor_is_kept_once_until_its_name_is_removed() {
        let mut store = store();
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
    async fn no_other_process_can_store_or_remove() {
        let mut store = store();
        let file = File::open("/dev/null").unwrap();
        send(&store, "FDSTORE=1\nFDNAME=ours", Some(file.as_fd()));
        assert_eq!(names(&mut store), ["ours"]);
        store.obey(Some(process::id() + 1));
        send(&store, "FDSTORE=1\nFDNAME=theirs", Some(file.as_fd()));
        send(&store, "FDSTOREREMOVE=1\nFDNAME=ours", None);
        assert_eq!(names(&mut store), ["ours"]);
    }

    #[tokio::test]
    async fn a_program_that_cannot_be_started_changes_nothing_that_is_stored() {
        let mut store = store();
        let mut files = Vec::new();
        for number in 0..40 {
            let file = File::from(memfd_create("stored", MemfdFlags::CLOEXEC).unwrap());
            let message = format!("FDSTORE=1\nFDNAME={number}");
            send(&store, &message, Some(file.as_fd()));
            files.push(file);
            assert_eq!(names(&mut store).len(), files.len());
        }
        // The numbers of some are free where the standard library may open a pipe.
        let copies = store.kept.drain(..20).collect::<Vec<_>>();
        drop(copies);
        let mut command = Command::new("/nowhere/flow-agent");
        let passed = store.pass(&mut command).unwrap();
        assert!(command.spawn().is_err());
        drop(passed);
        for file in files {
            assert_eq!(file.metadata().unwrap().len(), 0);
        }
    }

    #[tokio::test]
    async fn nobody_else_can_store_or_remove() {
        if !is_root_or_skip("agent::nobody_else_can_store_or_remove") {
            return;
        }
        let mut store = store();
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
