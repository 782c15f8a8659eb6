//! What was read from files and is in force: read again when they change, and kept while those that are there cannot be
//! used.

use std::{
    convert::Infallible, fmt, fs, future::pending, os::unix::fs::MetadataExt as _, path::PathBuf,
    time::Duration,
};

use tokio::{sync::watch, task::spawn_blocking, time::sleep};

/// How often the files are looked at. One that has changed is read when it has stayed the same until the next look, so
/// that whoever writes several is done.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// What was read from files at one time.
pub trait FromFiles: Clone + fmt::Debug + Send + Sync + 'static {
    /// Why files cannot be used.
    type Fault: fmt::Display;

    /// Of the files as they were when they were read.
    fn stamps(&self) -> &Stamps;

    /// Of the same files now.
    fn stamps_now(&self) -> Stamps;

    /// Reads the same files again.
    fn read_again(&self) -> Result<Self, Self::Fault>;

    fn is_of_the_same_files(&self, other: &Self) -> bool;

    /// Why what was in force `before` stays although this could be read.
    fn yields_to(&self, before: &Self) -> Option<String>;

    /// Tells what is in force from the start on.
    fn tell_first(&self);

    /// Tells that it was read again.
    fn tell_again(&self);

    /// Tells that it stays although the files have changed.
    fn tell_kept(&self, fault: &str);
}

/// What is in force. Clones share it. Connections that are open keep what they began with.
#[derive(Debug, Clone)]
pub struct InForce<T>(watch::Sender<State<T>>);

#[derive(Debug)]
pub(crate) struct State<T> {
    pub(crate) held: T,
    /// The files that were read last, or could not be.
    judged: Stamps,
    /// Why those of now are not in force.
    pub(crate) fault: Option<String>,
}

impl<T: FromFiles> InForce<T> {
    pub fn new(held: T) -> Self {
        held.tell_first();
        Self(watch::Sender::new(State {
            judged: held.stamps().clone(),
            held,
            fault: None,
        }))
    }

    pub(crate) fn state(&self) -> watch::Ref<'_, State<T>> {
        self.0.borrow()
    }

    /// Tells of each change.
    pub(crate) fn changes(&self) -> watch::Receiver<State<T>> {
        self.0.subscribe()
    }

    /// Takes over what was read at a reload of the settings. Does nothing if the settings name other files: these take
    /// a restart.
    pub fn replace(&self, held: T) {
        let state = self.state();
        let is_same = state.held.is_of_the_same_files(&held);
        let is_judged = state.judged == *held.stamps() && state.fault.is_none();
        drop(state);
        if is_same && !is_judged {
            self.judge(held.stamps().clone(), Ok(held));
        }
    }

    /// Looks at the files for ever.
    pub async fn follow(self) -> Infallible {
        let mut last = self.judged();
        loop {
            sleep(LOOK_INTERVAL).await;
            let (this, before) = (self.clone(), last.clone());
            // An error means that the process is ending.
            if let Ok(seen) = spawn_blocking(move || this.look(&before)).await {
                last = seen;
            }
        }
    }

    pub(crate) fn judged(&self) -> Stamps {
        self.state().judged.clone()
    }

    /// Reads the files if they have changed, and not since the `last` look. Returns what was seen.
    pub(crate) fn look(&self, last: &Stamps) -> Stamps {
        let state = self.state();
        let (held, judged) = (state.held.clone(), state.judged.clone());
        drop(state);
        let stamps = held.stamps_now();
        if stamps == *last && stamps != judged {
            let read = held.read_again().map_err(|fault| fault.to_string());
            self.judge(stamps.clone(), read);
        }
        stamps
    }

    /// Puts what was read in force, or says once why it stays as it was.
    fn judge(&self, judged: Stamps, read: Result<T, String>) {
        let read = read.and_then(|held| match held.yields_to(&self.state().held) {
            Some(fault) => Err(fault),
            None => Ok(held),
        });
        match &read {
            Ok(held) => held.tell_again(),
            Err(fault) => self.state().held.tell_kept(fault),
        }
        self.0.send_modify(|state| {
            state.judged = judged;
            match read {
                Ok(held) => {
                    state.held = held;
                    state.fault = None;
                }
                Err(fault) => state.fault = Some(fault),
            }
        });
    }
}

/// Looks at the files for ever, if there are any.
pub async fn followed<T: FromFiles>(in_force: Option<InForce<T>>) -> Infallible {
    match in_force {
        Some(in_force) => in_force.follow().await,
        None => pending().await,
    }
}

/// What tells one state of a file from another. Certificates are often links to files that replace each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamps(Vec<Option<Stamp>>);

/// Device, inode, length, and the times of the last writing and change.
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
