//! A named network namespace, removed when the value is dropped.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    panic,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result};

use crate::{
    process::{DYING_WITH_PARENT, ENTER},
    run,
};

/// The folder of `ip netns`.
const NAMES: &str = "/run/netns";

/// The prefix of each name. Our process id, a number and the label follow.
const PREFIX: &str = "fa";

/// A network namespace with a unique name, removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    /// Creates an empty namespace with `lo` up, named after this process and `label`.
    pub fn new(label: &str) -> Result<Self> {
        static SWEEP: Once = Once::new();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        SWEEP.call_once(remove_orphans);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}-{}-{number}-{label}", process::id());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let path = Path::new(NAMES).join(&name);
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let namespace = Self { name, file };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// The name for `ip netns`, and for moving an interface here with `ip link`.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> PathBuf {
        Path::new(NAMES).join(&self.name)
    }

    /// The inode number that identifies the namespace.
    pub fn inode(&self) -> Result<u64> {
        Ok(self
            .file
            .metadata()
            .context("stat the network namespace")?
            .ino())
    }

    /// Runs `work` on a separate thread in this namespace and waits for it.
    ///
    /// Sockets opened there stay in the namespace, and `/proc/sys/net` shows the namespace's settings.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let inside = || {
            set_network_namespace(&self.file)
                .with_context(|| format!("enter network namespace {}", self.name))?;
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    }

    /// A command that runs in this namespace. The kernel kills it if the thread that started it ends first. Unlike
    /// `ip netns exec` it keeps the mounts, so that a BPF file system stays visible.
    ///
    /// Both are done by other programs rather than a closure in the child: with a closure the process would be forked,
    /// and copying its large page tables took a sixth of the time of all tests.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(ENTER);
        let mut net = OsString::from("--net=");
        net.push(self.path());
        command.arg(net).args(DYING_WITH_PARENT).arg(program);
        command
    }

    /// Runs `ip` in this namespace.
    pub fn ip(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        run(self.command("ip").args(arguments))
    }

    /// Adds a veth pair with both ends here. They are up, and without addresses they send nothing on their own.
    pub fn add_wire(&self, ends: [&str; 2]) -> Result<()> {
        let [near, far] = ends;
        self.ip(&["link", "add", near, "type", "veth", "peer", "name", far])?;
        for end in ends {
            let silent = ["arp", "off", "addrgenmode", "none"];
            self.ip(&[&["link", "set", end, "up"][..], &silent].concat())?;
        }
        Ok(())
    }

    /// Writes a setting such as `net/ipv6/conf/all/disable_ipv6`.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(name);
        self.enter(|| {
            fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))
        })
    }

    /// The index of an interface in this namespace.
    pub fn ifindex(&self, interface: &str) -> Result<u32> {
        let name =
            std::ffi::CString::new(interface).context("an interface name has no zero byte")?;
        // SAFETY: the name is a C string that outlives the call.
        let ifindex = self.enter(|| Ok(unsafe { libc::if_nametoindex(name.as_ptr()) }))?;
        anyhow::ensure!(
            ifindex != 0,
            "there is no interface {interface} in {}",
            self.name
        );
        Ok(ifindex)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Moves the calling thread into the network namespace to which `file` refers.
fn set_network_namespace(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open; the call changes only the calling thread.
    match unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Removes the namespaces of processes that were killed before they could do so.
fn remove_orphans() {
    let names = fs::read_dir(NAMES).into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.strip_prefix('-')?.split('-').next());
        let Some(owner) = owner.and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if !Path::new("/proc").join(owner.to_string()).exists() {
            remove(&name);
        }
    }
}

fn remove(name: &str) {
    if let Err(error) = run(Command::new("ip").args(["netns", "del", name])) {
        eprintln!("{error:#}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privilege::is_root_or_skip;

    #[test]
    fn a_namespace_is_entered_by_a_thread_and_by_a_command_and_goes_away() {
        if !is_root_or_skip(
            "lab::a_namespace_is_entered_by_a_thread_and_by_a_command_and_goes_away",
        ) {
            return;
        }
        let namespace = Namespace::new("test").unwrap();
        let expected = format!("net:[{}]", namespace.inode().unwrap());
        let seen = namespace
            .enter(|| Ok(fs::read_link("/proc/thread-self/ns/net")?))
            .unwrap();
        assert_eq!(seen.to_str().unwrap(), expected);
        let seen = run(namespace.command("readlink").arg("/proc/self/ns/net")).unwrap();
        assert_eq!(String::from_utf8(seen).unwrap().trim(), expected);
        let outside = fs::read_link("/proc/thread-self/ns/net").unwrap();
        assert_ne!(outside.to_str().unwrap(), expected);

        let path = namespace.path();
        drop(namespace);
        assert!(!path.exists());
    }
}
