//! Follows the folders of the cgroup hierarchy.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::{CStr, OsStr},
    fs, io,
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStrExt as _,
            fs::{DirEntryExt as _, MetadataExt as _},
        },
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use agent_common::Senders;
use anyhow::{Context as _, Result, ensure};
use proto::limits::MAX_CGROUP_PATH_BYTES;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::{Errno, fcntl_dupfd_cloexec, read, write},
};

use super::{Added, Known, MOST_LIVING, Share, lock, name};

/// The shortest time between two reads of the whole tree, for cgroups that inotify did not report.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// Room for inotify events; the longest has a name of 255 bytes.
const EVENTS_LEN_BYTES: usize = 8 << 10;

/// Where the cgroup hierarchy is mounted.
pub(super) struct Mount {
    pub path: PathBuf,
}

impl Mount {
    pub fn find() -> Result<Self> {
        let mounts = fs::read("/proc/self/mountinfo").context("read the list of mounts")?;
        let all = Self::of(&mounts);
        ensure!(
            !all.is_empty(),
            "no cgroup2 file system is mounted here to read the names of cgroups from: mount one (systemd mounts it at \
             /sys/fs/cgroup)"
        );
        let is_root =
            |path: &PathBuf| fs::metadata(path).is_ok_and(|folder| folder.ino() == Senders::ROOT);
        let path = all.into_iter().find(is_root).context(
            "the cgroup2 file system here shows only a part of the hierarchy: run the agent in the host's cgroup namespace",
        )?;
        Ok(Self { path })
    }

    /// Mount points of type `cgroup2` in the format of `proc_pid_mountinfo(5)`.
    fn of(mounts: &[u8]) -> Vec<PathBuf> {
        let lines = mounts.split(|&byte| byte == b'\n');
        let paths = lines.filter_map(|line| {
            let mut fields = line.split(|&byte| byte == b' ');
            let path = fields.nth(4)?;
            let mut rest = fields.skip_while(|field| *field != b"-");
            (rest.nth(1)? == b"cgroup2").then(|| PathBuf::from(OsStr::from_bytes(path)))
        });
        paths.collect()
    }
}

/// Wakes the thread. Dropping the last clone ends it.
#[derive(Clone)]
pub struct Wake(Arc<Bell>);

struct Bell(OwnedFd);

impl Wake {
    /// A handle that wakes no thread.
    pub fn silent() -> Self {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Self(Arc::new(Bell(bell.expect("a descriptor is free"))))
    }

    /// Makes the thread read the tree again, since an id is unknown. Does not wait for it.
    pub fn look_again(&self) {
        self.0.ring();
    }
}

impl Bell {
    fn ring(&self) {
        // The write fails only if the counter is full, and then it has already rung.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ring();
    }
}

pub(super) struct Tree {
    root: PathBuf,
    known: Weak<Mutex<Known>>,
    /// `None` if the user has reached the kernel's limit of inotify instances.
    inotify: Option<OwnedFd>,
    bell: OwnedFd,
    /// The paths of the watched folders.
    watched: HashMap<i32, Arc<str>>,
    /// By path: the cgroup, and the watch of its folder, if it has one.
    folders: HashMap<Arc<str>, (u64, Option<i32>)>,
    looked: Instant,
    /// The last look could read everything.
    is_whole: bool,
    told: Told,
}

/// Warnings that were logged, each once.
#[derive(Default)]
struct Told {
    no_watch: bool,
    no_room: bool,
    unreadable: bool,
}

impl Tree {
    /// Reads the tree once.
    pub fn new(mount: Mount, known: &Arc<Mutex<Known>>) -> Result<(Self, Wake)> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let inotify = inotify.map_err(|error| warn_of_no_news(error, "instances"));
        let has_no_news = inotify.is_err();
        let inotify = inotify.ok();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("make an event for the thread that follows the cgroups")?;
        let wake = fcntl_dupfd_cloexec(&bell, 0).context("duplicate an event")?;
        let mut tree = Self {
            root: mount.path,
            known: Arc::downgrade(known),
            inotify,
            bell,
            watched: HashMap::new(),
            folders: HashMap::new(),
            looked: Instant::now(),
            is_whole: true,
            told: Told {
                no_watch: has_no_news,
                ..Told::default()
            },
        };
        tree.look(known);
        Ok((tree, Wake(Arc::new(Bell(wake)))))
    }

    /// Runs until all handles are dropped.
    pub fn follow(mut self) {
        let mut wants_look = false;
        loop {
            let wait = wants_look.then(|| LOOKS_EVERY.saturating_sub(self.looked.elapsed()));
            if let Err(error) = self.wait(wait) {
                tracing::error!(
                    %error,
                    "stopped following cgroups: cgroups created from here on have no name"
                );
                return;
            }
            let Some(known) = self.known.upgrade() else {
                return;
            };
            wants_look |= self.has_rung();
            wants_look |= self.take_events(&known);
            if wants_look && self.looked.elapsed() >= LOOKS_EVERY {
                wants_look = false;
                self.look(&known);
            }
        }
    }

    fn wait(&self, at_most: Option<Duration>) -> io::Result<()> {
        let both = [self.inotify.as_ref(), Some(&self.bell)];
        let both = both.into_iter().flatten();
        let mut both: Vec<_> = both.map(|one| PollFd::new(one, PollFlags::IN)).collect();
        let at_most = at_most.map(|wait| Timespec {
            tv_sec: wait.as_secs().cast_signed(),
            tv_nsec: wait.subsec_nanos().into(),
        });
        match poll(&mut both, at_most.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn has_rung(&self) -> bool {
        let mut count = [0; size_of::<u64>()];
        read(&self.bell, &mut count).is_ok()
    }

    /// Handles the inotify events. Returns whether some were lost.
    fn take_events(&mut self, known: &Mutex<Known>) -> bool {
        let mut buffer = [MaybeUninit::uninit(); EVENTS_LEN_BYTES];
        let mut missed = false;
        let mut news = Vec::new();
        if let Some(inotify) = &self.inotify {
            let mut events = inotify::Reader::new(inotify, &mut buffer);
            while let Ok(event) = events.next() {
                let flags = event.events();
                missed |= flags.contains(ReadFlags::QUEUE_OVERFLOW);
                if flags.contains(ReadFlags::ISDIR)
                    && let Some(Ok(name)) = event.file_name().map(CStr::to_str)
                    && let Some(path) = self.watched.get(&event.wd())
                {
                    news.push((below(path, name), flags.contains(ReadFlags::DELETE)));
                }
            }
        }
        for (path, is_gone) in news {
            if is_gone {
                self.remove(known, &path);
            } else if let Ok(folder) = fs::symlink_metadata(self.folder(&path)) {
                let above = path.rsplit_once('/').map_or("", |(above, _)| above);
                let above = self.folders.get(above).map(|(id, _)| *id);
                let share = above.and_then(|id| lock(known).share_of(id));
                let share = share.unwrap_or_default();
                self.add(known, (folder.ino(), path, share), &mut BTreeSet::new());
            }
        }
        missed
    }

    /// Removes a folder that is gone. The kernel does not end its watch by itself (kernfs counts no links).
    fn remove(&mut self, known: &Mutex<Known>, path: &str) {
        let Some((id, watch)) = self.folders.remove(path) else {
            return;
        };
        self.end_watch(watch);
        lock(known).remove(id);
    }

    fn end_watch(&mut self, watch: Option<i32>) {
        if let Some(watch) = watch
            && let Some(inotify) = &self.inotify
        {
            self.watched.remove(&watch);
            // Fails if the kernel has already ended the watch.
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    /// Reads the whole tree.
    fn look(&mut self, known: &Mutex<Known>) {
        self.looked = Instant::now();
        self.is_whole = true;
        let mut seen = BTreeSet::new();
        match fs::symlink_metadata(&self.root) {
            Ok(root) => {
                let root = (root.ino(), String::new(), Share::Host);
                self.add(known, root, &mut seen);
            }
            Err(error) => self.cannot_read(&self.root.clone(), &error),
        }
        if !self.is_whole {
            // A folder that could not be read may still exist.
            return;
        }
        let folders = self.folders.iter();
        let left = folders.filter(|(_, (id, _))| !seen.contains(id));
        let left: Vec<_> = left.map(|(path, _)| Arc::clone(path)).collect();
        for path in left {
            self.remove(known, &path);
        }
        // Cgroups that have no folder in `folders`. Takes the lock for one at a time, since scans ask meanwhile.
        let ids: Vec<_> = lock(known).living.keys().copied().collect();
        for id in ids.into_iter().filter(|id| !seen.contains(id)) {
            lock(known).remove(id);
        }
    }

    /// Adds a cgroup and all below it, with the share of its folder. Paths are relative to the root, which is empty.
    /// Watches a folder before reading it, so a folder made in between is seen twice rather than missed.
    fn add(&mut self, known: &Mutex<Known>, top: (u64, String, Share), seen: &mut BTreeSet<u64>) {
        let mut to_add = vec![top];
        while let Some((id, path, above)) = to_add.pop() {
            seen.insert(id);
            let before = self.folders.get(path.as_str());
            if before.is_some_and(|(before, _)| *before != id) {
                self.remove(known, &path);
            }
            let cgroup = name::cgroup(id, if path.is_empty() { "/" } else { &path });
            let folder = self.folder(&path);
            let share = lock(known).share_of(id);
            let share = share.unwrap_or_else(|| {
                let uid = fs::symlink_metadata(&folder).map_or(0, |folder| folder.uid());
                Share::below(above, id, &path, uid)
            });
            let added = lock(known).add(cgroup, share);
            if let Added::InPlaceOf(other) = &added
                && let Some((_, watch)) = self.folders.remove(other.path.as_str())
            {
                self.end_watch(watch);
            }
            if added != Added::Yes {
                if !std::mem::replace(&mut self.told.no_room, true) {
                    tracing::warn!(
                        most = MOST_LIVING,
                        "more cgroups than the agent keeps names of: some cgroups of the users and units with the most have only an id"
                    );
                }
                if added == Added::No {
                    continue;
                }
            }
            if path.len() > MAX_CGROUP_PATH_BYTES {
                // Cgroups below this one have only their ids.
                continue;
            }
            if !self.watch(&folder, id, path.as_str().into()) {
                lock(known).remove(id);
                continue;
            }
            match children(&folder) {
                Ok(children) => {
                    let each = children.into_iter();
                    to_add.extend(each.map(|(id, name)| (id, below(&path, &name), share)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.cannot_read(&folder, &error),
            }
        }
    }

    fn cannot_read(&mut self, folder: &Path, error: &io::Error) {
        self.is_whole = false;
        if !std::mem::replace(&mut self.told.unreadable, true) {
            tracing::warn!(%error, folder = %folder.display(), "cannot read this cgroup folder: the cgroups in it have no names");
        }
    }

    /// Returns whether the folder exists.
    fn watch(&mut self, folder: &Path, id: u64, path: Arc<str>) -> bool {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW
            | WatchFlags::EXCL_UNLINK;
        let Some(inotify) = &self.inotify else {
            self.folders.insert(path, (id, None));
            return true;
        };
        match inotify::add_watch(inotify, folder, flags) {
            Ok(watch) => {
                self.watched.insert(watch, Arc::clone(&path));
                self.folders.insert(path, (id, Some(watch)));
            }
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTDIR) => return false,
            Err(error) => {
                self.folders.insert(path, (id, None));
                if !std::mem::replace(&mut self.told.no_watch, true) {
                    warn_of_no_news(error, "watches");
                }
            }
        }
        true
    }

    fn folder(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

/// `what` has run out in the kernel.
fn warn_of_no_news(error: Errno, what: &str) {
    tracing::warn!(
        %error,
        "cannot watch all cgroups: the agent looks some up only when a flow is reported, and a cgroup removed before \
         that has no name (nameless_ends in `flow-agent status`): raise fs.inotify.max_user_{what} (sysctl)"
    );
}

/// The cgroups in a folder: their ids and names. Skips names that are not UTF-8, which no tool writes.
fn children(folder: &Path) -> io::Result<Vec<(u64, String)>> {
    let mut children = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            children.push((entry.ino(), name));
        }
    }
    Ok(children)
}

fn below(path: &str, name: &str) -> String {
    format!("{path}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_the_one_of_the_second_version() {
        let mounts = b"\
22 28 0:20 / /proc rw,nosuid shared:5 - proc proc rw
30 22 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/unified rw,nosuid shared:10 master:3 - cgroup2 cgroup2 rw
";
        assert_eq!(Mount::of(mounts), [PathBuf::from("/sys/fs/cgroup/unified")]);
        assert!(Mount::of(&mounts[..200]).is_empty() && Mount::of(b"").is_empty());
    }
}
