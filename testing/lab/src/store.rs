//! A service manager that keeps descriptors for the agents that a test starts, kills and starts again
//! (`FileDescriptorStoreMax=`).

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
        unix::{fs::PermissionsExt as _, net::UnixDatagram, process::CommandExt as _},
    },
    path::PathBuf,
    process::{self, Command},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, fcntl_dupfd_cloexec},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, recvmsg, sendmsg_addr,
    },
    pipe::{PipeFlags, pipe_with},
};
use tempfile::TempDir;

use crate::{ControlGroup, Namespace};

/// The unit that programs of [`Store::command`] run in.
const UNIT: &str = "flow-agent.service";
/// Of `FileDescriptorStoreMax=`, unless a test sets another one.
const LIMIT: usize = 2048;
/// The first descriptor that a program is passed.
const FIRST: RawFd = 3;
/// How many descriptors one message may have.
const MOST_FDS: usize = 32;
/// How long to wait for the thread that serves the socket, beside a busy loop on every CPU.
const PATIENCE: Duration = Duration::from_mins(1);

/// Joins the control group and becomes the program. The environment names this process, whose id nobody knows earlier.
const PASS: &str = r#"
    echo $$ > "$1" || exit
    shift
    if [ -n "$LISTEN_FDS" ]; then
        export LISTEN_PID=$$
    fi
    exec "$@"
"#;

/// Prints what `systemctl` would, which is in files. The first one of a job dies of the signal that systemd sends to all
/// processes of a unit that it stops.
const SYSTEMCTL: &str = r#"#!/bin/sh
cd "${0%/*}" || exit
if [ -e first ]; then
    rm first
    kill -TERM $$
fi
case " $* " in
    *" list-jobs "*) exec cat jobs ;;
    *" show --property=FileDescriptorStoreMax "*) exec cat limit ;;
esac
exit 1
"#;

/// Takes the messages of `sd_notify(3)` and keeps descriptors as systemd does (`service_add_fd_store`, 252 to 257). A
/// descriptor over the limit, or whose file is stored already under whatever name, is closed without a word.
pub struct Store {
    socket: Arc<UnixDatagram>,
    kept: Arc<Mutex<Kept>>,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
    group: ControlGroup,
    folder: TempDir,
}

struct Kept {
    limit: usize,
    /// The one stored last comes first: systemd passes them in this order. `systemctl daemon-reload` reverses it.
    fds: Vec<(String, OwnedFd)>,
    /// Over the limit, and not stored.
    refused: usize,
    /// Messages about anything but descriptors.
    told: Vec<String>,
    faults: Vec<String>,
}

impl Store {
    pub fn new() -> Result<Self> {
        Self::with_limit(LIMIT)
    }

    /// A store for `limit` descriptors.
    pub fn with_limit(limit: usize) -> Result<Self> {
        let folder = TempDir::with_prefix("flow-agent-store-").context("make a folder")?;
        let socket = UnixDatagram::bind(folder.path().join("notify"));
        let socket = Arc::new(socket.context("open a socket for notifications")?);
        let kept = Arc::new(Mutex::new(Kept {
            limit,
            fds: Vec::new(),
            refused: 0,
            told: Vec::new(),
            faults: Vec::new(),
        }));
        let is_over = Arc::new(AtomicBool::new(false));
        let (server_socket, server_kept) = (Arc::clone(&socket), Arc::clone(&kept));
        let server_is_over = Arc::clone(&is_over);
        let server = thread::spawn(move || {
            while !server_is_over.load(Relaxed) {
                let received = receive(&server_socket);
                let mut kept = server_kept.lock().unwrap_or_else(PoisonError::into_inner);
                match received {
                    Ok((message, fds)) => kept.process(&message, fds),
                    Err(Errno::INTR) => {}
                    Err(error) => {
                        kept.faults.push(format!("receive a message: {error}"));
                        return;
                    }
                }
            }
        });
        let group = ControlGroup::slice()?;
        let store = Self {
            socket,
            kept,
            is_over,
            server: Some(server),
            group,
            folder,
        };
        store.set_job(None)?;
        fs::write(store.path("limit"), format!("{limit}\n")).context("write the limit")?;
        let systemctl = store.path("systemctl");
        fs::write(&systemctl, SYSTEMCTL).context("write a systemctl")?;
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755))
            .context("make a systemctl executable")?;
        Ok(store)
    }

    /// A command for a program as the service [`UNIT`] of this manager: with the socket for notifications, the stored
    /// descriptors, and a `systemctl` that knows [the unit's job](Self::set_job). The descriptors are those of this
    /// moment; they stay open as long as the command. The program and its arguments follow.
    pub fn command(&self, namespace: &Namespace, program: impl AsRef<OsStr>) -> Result<Command> {
        let kept = self.settled()?;
        // No copy has a number that another one is moved to.
        let above = FIRST + RawFd::try_from(kept.fds.len()).context("descriptors are few")?;
        let copies = kept
            .fds
            .iter()
            .map(|(_, fd)| fcntl_dupfd_cloexec(fd, above));
        let copies: Vec<OwnedFd> = copies
            .collect::<Result<_, _>>()
            .context("copy a stored descriptor")?;
        let names: Vec<_> = kept.fds.iter().map(|(name, _)| name.as_str()).collect();
        let group = self.group.path().join(UNIT);
        fs::create_dir_all(&group).with_context(|| format!("make {}", group.display()))?;

        let mut command = namespace.command("sh");
        command
            .args(["-c", PASS, "sh"])
            .arg(group.join("cgroup.procs"))
            .arg(program)
            .env("NOTIFY_SOCKET", self.path("notify"))
            .env("PATH", self.search_path()?)
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_PID")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID");
        if !names.is_empty() {
            command
                .env("LISTEN_FDS", names.len().to_string())
                .env("LISTEN_FDNAMES", names.join(":"));
        }
        let inherit = move || {
            let mut moves = copies.iter().zip(FIRST..);
            moves.try_for_each(|(fd, to)| copy_to(fd.as_fd(), to))
        };
        // SAFETY: between fork and exec, the closure only makes system calls, and it allocates no memory.
        unsafe { command.pre_exec(inherit) };
        Ok(command)
    }

    /// Sets the type of the unit's job, which is `restart` while `systemctl restart` stops it.
    pub fn set_job(&self, kind: Option<&str>) -> Result<()> {
        if kind.is_some() {
            fs::write(self.path("first"), "").context("let the first systemctl die")?;
        }
        let line = kind.map(|kind| format!("4711 {UNIT} {kind} running\n"));
        fs::write(self.path("jobs"), line.unwrap_or_default()).context("write the unit's job")
    }

    /// The names of all stored descriptors, the one stored last first.
    pub fn names(&self) -> Result<Vec<String>> {
        let kept = self.settled()?;
        Ok(kept.fds.iter().map(|(name, _)| name.clone()).collect())
    }

    pub fn count(&self) -> Result<usize> {
        Ok(self.settled()?.fds.len())
    }

    /// How many descriptors the store had no room for.
    pub fn refused(&self) -> Result<usize> {
        Ok(self.settled()?.refused)
    }

    /// The messages about anything but descriptors, such as `READY=1`, so far.
    pub fn told(&self) -> Result<Vec<String>> {
        Ok(self.settled()?.told.clone())
    }

    /// Closes all, as systemd does when the service has stopped and no restart is due.
    pub fn close_all(&self) -> Result<()> {
        self.change(Vec::clear)
    }

    /// Changes names and descriptors; the one stored last comes first.
    pub fn change(&self, change: impl FnOnce(&mut Vec<(String, OwnedFd)>)) -> Result<()> {
        change(&mut self.settled()?.fds);
        Ok(())
    }

    /// What is kept once all messages that were sent so far have been processed.
    fn settled(&self) -> Result<MutexGuard<'_, Kept>> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
        self.send("BARRIER=1", Some(write.as_fd()))?;
        drop(write);
        let mut closed = [PollFd::new(&read, PollFlags::empty())];
        let patience = Timespec::try_from(PATIENCE).context("it is short")?;
        let closed = poll(&mut closed, Some(&patience)).context("wait for the store")?;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(kept.faults.is_empty(), "the store: {:?}", kept.faults);
        ensure!(closed == 1, "the store does not process its messages");
        Ok(kept)
    }

    /// Sends a message as a program does.
    fn send(&self, message: &str, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let socket = UnixDatagram::unbound().context("open a socket")?;
        let address = SocketAddrUnix::new(self.path("notify")).context("the path is short")?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = fd.as_slice();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let data = [IoSlice::new(message.as_bytes())];
        sendmsg_addr(&socket, &address, &data, &mut ancillary, SendFlags::empty())
            .with_context(|| format!("send {message}"))?;
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Finds this store's `systemctl` first.
    fn search_path(&self) -> Result<OsString> {
        let usual = env::var_os("PATH").unwrap_or_default();
        let ours = std::iter::once(self.folder.path().to_owned());
        env::join_paths(ours.chain(env::split_paths(&usual))).context("the folder is a search path")
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // Wakes the server up. If that fails, the thread ends with the process.
        if self.socket.shutdown(std::net::Shutdown::Both).is_ok()
            && let Some(server) = self.server.take()
        {
            drop(server.join());
        }
    }
}

impl Kept {
    fn process(&mut self, message: &str, fds: Vec<OwnedFd>) {
        let lines: Vec<_> = message.lines().collect();
        let value = |name: &str| {
            let mut values = lines.iter().filter_map(|line| line.strip_prefix(name));
            values.next()
        };
        let name = value("FDNAME=").filter(|name| is_valid(name));
        if lines.contains(&"BARRIER=1") {
            // Closing the descriptor is the answer.
            self.check(fds.len() == 1 && lines.len() == 1, message);
        } else if lines.contains(&"FDSTOREREMOVE=1") {
            self.check(name.is_some() && fds.is_empty(), message);
            self.fds.retain(|(stored, _)| Some(stored.as_str()) != name);
        } else if lines.contains(&"FDSTORE=1") {
            // Otherwise systemd would close a pipe whose other end is closed.
            let is_kept = value("FDPOLL=") == Some("0");
            self.check(is_kept && name.is_some() && !fds.is_empty(), message);
            for fd in fds {
                self.put(name.unwrap_or("stored"), fd);
            }
        } else {
            self.check(fds.is_empty(), message);
            self.told.push(message.to_owned());
        }
    }

    fn put(&mut self, name: &str, fd: OwnedFd) {
        if self.fds.len() >= self.limit {
            self.refused += 1;
        } else if !self.fds.iter().any(|(_, stored)| is_same_file(stored, &fd)) {
            self.fds.insert(0, (name.to_owned(), fd));
        }
    }

    fn check(&mut self, is_right: bool, message: &str) {
        if !is_right {
            self.faults.push(message.to_owned());
        }
    }
}

/// As `fdname_is_valid`.
fn is_valid(name: &str) -> bool {
    let is_valid = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b':';
    name.len() <= 255 && name.bytes().all(is_valid)
}

/// Whether both are copies of one descriptor, as `same_fd` finds with kcmp(2). Two opened files differ, even of one
/// path.
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

fn receive(socket: &UnixDatagram) -> Result<(String, Vec<OwnedFd>), Errno> {
    let mut text = vec![0; 1 << 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut text)];
    let received = recvmsg(socket, &mut data, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    text.truncate(received.bytes);
    Ok((String::from_utf8_lossy(&text).into_owned(), fds))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, process::Stdio};

    use super::*;
    use crate::{Process, privilege::is_root_or_skip};

    fn store(store: &Store, name: &str, fd: BorrowedFd<'_>) {
        let message = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
        store.send(&message, Some(fd)).unwrap();
    }

    fn null() -> File {
        File::open("/dev/null").unwrap()
    }

    #[test]
    fn a_program_is_passed_what_is_stored_from_file_3_on() {
        const FILES: usize = 40;
        if !is_root_or_skip("lab::a_program_is_passed_what_is_stored_from_file_3_on") {
            return;
        }
        let namespace = Namespace::new("store").unwrap();
        let kept = Store::new().unwrap();
        let run = || {
            let script = "echo \"$LISTEN_PID\" $$; echo $LISTEN_FDS; echo $LISTEN_FDNAMES; \
                          grep -c flow-agent.service /proc/self/cgroup; \
                          systemctl list-jobs 2>/dev/null || systemctl list-jobs; \
                          cat /proc/$$/fd/[3-9] /proc/$$/fd/[1-9][0-9] 2>/dev/null";
            let mut command = kept.command(&namespace, "bash").unwrap();
            command.args(["-c", script]).stdout(Stdio::piped());
            let mut process = Process::spawn(&mut command).unwrap();
            process.wait(PATIENCE).unwrap();
            let mut stdout = process.child().stdout.take().unwrap();
            io::read_to_string(&mut stdout).unwrap()
        };
        let before = run();
        assert!(before.starts_with(' '), "{before}");

        let folder = TempDir::new().unwrap();
        for number in 0..FILES {
            let path = folder.path().join(number.to_string());
            fs::write(&path, format!("file {number}\n")).unwrap();
            let file = File::open(path).unwrap();
            store(&kept, &format!("name-{number}"), file.as_fd());
        }
        kept.set_job(Some("restart")).unwrap();
        let text = run();
        let lines: Vec<_> = text.lines().collect();
        let (listen_pid, pid) = lines[0].split_once(' ').unwrap();
        assert_eq!(listen_pid, pid);
        assert_eq!(lines[1], FILES.to_string());
        let newest_first: Vec<_> = (0..FILES).rev().collect();
        let names: Vec<_> = newest_first.iter().map(|n| format!("name-{n}")).collect();
        assert_eq!(lines[2], names.join(":"));
        assert_eq!(
            lines[3..5],
            ["1", "4711 flow-agent.service restart running"]
        );
        let files: Vec<_> = newest_first.iter().map(|n| format!("file {n}")).collect();
        assert_eq!(lines[5..], files);
        // As with systemd, passed descriptors stay in the store.
        assert_eq!(kept.count().unwrap(), FILES);
    }

    #[test]
    fn what_is_stored_can_be_removed_by_name_and_a_full_store_takes_no_more() {
        let name = "lab::what_is_stored_can_be_removed_by_name_and_a_full_store_takes_no_more";
        if !is_root_or_skip(name) {
            return;
        }
        let kept = Store::with_limit(3).unwrap();
        let file = null();
        store(&kept, "one", file.as_fd());
        // A copy of a stored one is not stored again, not even under another name.
        store(&kept, "two", file.try_clone().unwrap().as_fd());
        assert_eq!(kept.names().unwrap(), ["one"]);
        for name in ["two", "two", "three"] {
            store(&kept, name, null().as_fd());
        }
        assert_eq!(kept.names().unwrap(), ["two", "two", "one"]);
        assert_eq!(kept.refused().unwrap(), 1);
        kept.send("FDSTOREREMOVE=1\nFDNAME=two", None).unwrap();
        kept.send("READY=1\nSTATUS=fine", None).unwrap();
        assert_eq!(kept.names().unwrap(), ["one"]);
        assert_eq!(kept.told().unwrap(), ["READY=1\nSTATUS=fine"]);
        kept.close_all().unwrap();
        assert_eq!(kept.count().unwrap(), 0);
    }

    #[test]
    fn the_store_holds_the_only_descriptor_of_a_pipe_until_it_closes_it() {
        if !is_root_or_skip("lab::the_store_holds_the_only_descriptor_of_a_pipe_until_it_closes_it")
        {
            return;
        }
        let kept = Store::new().unwrap();
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        store(&kept, "pipe", write.as_fd());
        drop(write);
        let is_closed = || {
            let mut read = [PollFd::new(&read, PollFlags::empty())];
            poll(&mut read, Some(&Timespec::default())).unwrap() == 1
        };
        assert_eq!(kept.count().unwrap(), 1);
        assert!(!is_closed());
        kept.change(|fds| fds[0].1 = null().into()).unwrap();
        assert!(is_closed());
        assert_eq!(kept.names().unwrap(), ["pipe"]);
    }

    #[test]
    fn a_message_that_systemd_would_refuse_is_a_fault() {
        if !is_root_or_skip("lab::a_message_that_systemd_would_refuse_is_a_fault") {
            return;
        }
        for message in [
            "FDSTORE=1\nFDNAME=polled",
            "FDSTORE=1\nFDPOLL=0\nFDNAME=a:b",
        ] {
            let kept = Store::new().unwrap();
            kept.send(message, Some(null().as_fd())).unwrap();
            assert!(kept.count().is_err(), "{message}");
        }
    }
}
