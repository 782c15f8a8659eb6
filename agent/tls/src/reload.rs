//! Configuration from files that are read again when they change. If the changed files cannot be used, the previous
//! contents stay in use.

use std::{
    convert::Infallible, fmt, fs, future::pending, os::unix::fs::MetadataExt as _, path::PathBuf,
    time::Duration,
};

use tokio::{sync::watch, task::spawn_blocking, time::sleep};

/// How often the files are checked. A changed file is read once it is the same in two checks, so that a program that
/// writes several files can finish.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The contents of a set of files at one time.
pub trait FromFiles: Clone + fmt::Debug + Send + Sync + 'static {
    /// Why files cannot be used.
    type Fault: fmt::Display;

    /// The stamps of the files when they were read.
    fn stamps(&self) -> &Stamps;

    /// The stamps of the same files now.
    fn stamps_now(&self) -> Stamps;

    /// Reads the same files again.
    fn reread(&self) -> Result<Self, Self::Fault>;

    fn has_same_files(&self, other: &Self) -> bool;

    /// Why `before` stays in use although these files could be read.
    fn reason_to_keep(&self, before: &Self) -> Option<String>;

    /// Logs the contents that are in use at the start.
    fn log_first(&self);

    /// Logs that the files were read again.
    fn log_reloaded(&self);

    /// Logs that the contents stay in use although the files have changed.
    fn log_kept(&self, fault: &str);
}

/// The contents in use. Clones share them. Open connections keep the contents they started with.
#[derive(Debug, Clone)]
pub struct Reloadable<T>(watch::Sender<State<T>>);

#[derive(Debug)]
pub(crate) struct State<T> {
    pub(crate) contents: T,
    /// The stamps of the files at the last attempt to read them.
    tried: Stamps,
    /// Why the present files are not in use.
    pub(crate) fault: Option<String>,
}

impl<T: FromFiles> Reloadable<T> {
    pub fn new(contents: T) -> Self {
        contents.log_first();
        Self(watch::Sender::new(State {
            tried: contents.stamps().clone(),
            contents,
            fault: None,
        }))
    }

    pub(crate) fn state(&self) -> watch::Ref<'_, State<T>> {
        self.0.borrow()
    }

    /// Notifies of each change.
    pub(crate) fn changes(&self) -> watch::Receiver<State<T>> {
        self.0.subscribe()
    }

    /// Takes over contents that a reload of the settings has read. Does nothing if the settings name other files, which
    /// need a restart.
    pub fn replace(&self, contents: T) {
        let state = self.state();
        let is_same = state.contents.has_same_files(&contents);
        let is_tried = state.tried == *contents.stamps() && state.fault.is_none();
        drop(state);
        if is_same && !is_tried {
            self.apply(contents.stamps().clone(), Ok(contents));
        }
    }

    /// Checks the files for ever.
    pub async fn watch(self) -> Infallible {
        let mut last = self.tried();
        loop {
            sleep(CHECK_INTERVAL).await;
            let (this, before) = (self.clone(), last.clone());
            // The join fails only while the process is ending.
            if let Ok(seen) = spawn_blocking(move || this.check(&before)).await {
                last = seen;
            }
        }
    }

    pub(crate) fn tried(&self) -> Stamps {
        self.state().tried.clone()
    }

    /// Reads the files if they have changed since they were read, but not since the `last` check. Returns the present
    /// stamps.
    pub(crate) fn check(&self, last: &Stamps) -> Stamps {
        let state = self.state();
        let (contents, tried) = (state.contents.clone(), state.tried.clone());
        drop(state);
        let stamps = contents.stamps_now();
        if stamps == *last && stamps != tried {
            let read = contents.reread().map_err(|fault| fault.to_string());
            self.apply(stamps.clone(), read);
        }
        stamps
    }

    /// Puts the contents in use, or logs why the previous ones stay.
    fn apply(&self, tried: Stamps, read: Result<T, String>) {
        let read =
            read.and_then(
                |contents| match contents.reason_to_keep(&self.state().contents) {
                    Some(fault) => Err(fault),
                    None => Ok(contents),
                },
            );
        match &read {
            Ok(contents) => contents.log_reloaded(),
            Err(fault) => self.state().contents.log_kept(fault),
        }
        self.0.send_modify(|state| {
            state.tried = tried;
            match read {
                Ok(contents) => {
                    state.contents = contents;
                    state.fault = None;
                }
                Err(fault) => state.fault = Some(fault),
            }
        });
    }
}

/// Checks the files for ever, if there are any.
pub async fn watch_files<T: FromFiles>(reloadable: Option<Reloadable<T>>) -> Infallible {
    match reloadable {
        Some(reloadable) => reloadable.watch().await,
        None => pending().await,
    }
}

/// Identifies the state of files. Certificates are often links to files that replace each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamps(Vec<Option<Stamp>>);

/// Device, inode, length, modification time and change time.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl Stamps {
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        let stamp = |path| {
            let file = fs::metadata(path).ok()?;
            let written = (file.mtime(), file.mtime_nsec());
            let changed = (file.ctime(), file.ctime_nsec());
            Some((file.dev(), file.ino(), file.len(), written, changed))
        };
        Self(paths.into_iter().map(stamp).collect())
    }
}
