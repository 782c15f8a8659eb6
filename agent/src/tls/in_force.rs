//! What was read from files and is in force: read again when they change, and kept while those that are there cannot be
//! used.

use std::{
    convert::Infallible,
    fmt,
    path::Path,
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, task::spawn_blocking, time::sleep};

use super::pem::{self, FileFault, Stamps, Validity};

/// How often the files are looked at. One that has changed is read when it has stayed the same until the next look, so
/// that whoever writes several is done.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// What was read from files at one time.
pub trait FromFiles: Clone + fmt::Debug + Send + Sync + 'static {
    /// Of the files as they were when they were read.
    fn stamps(&self) -> &Stamps;

    /// Of the same files now.
    fn stamps_now(&self) -> Stamps;

    /// Reads the same files again.
    fn read_again(&self) -> Result<Self, FileFault>;

    fn is_of_the_same_files(&self, other: &Self) -> bool;

    /// The file of the certificate that is shown, and when it holds, if one is shown.
    fn certificate(&self) -> Option<(&Path, Validity)>;

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
pub(super) struct State<T> {
    pub(super) tls: T,
    /// The files that were read last, or could not be.
    judged: Stamps,
    /// Why those of now are not in force.
    pub(super) fault: Option<String>,
}

impl<T: FromFiles> InForce<T> {
    pub fn new(tls: T) -> Self {
        tls.tell_first();
        Self(watch::Sender::new(State {
            judged: tls.stamps().clone(),
            tls,
            fault: None,
        }))
    }

    pub(super) fn state(&self) -> watch::Ref<'_, State<T>> {
        self.0.borrow()
    }

    /// Takes over what was read at a reload of the settings. Does nothing if the settings name other files: these take
    /// a restart.
    pub fn replace(&self, tls: T) {
        let state = self.state();
        let is_same = state.tls.is_of_the_same_files(&tls);
        let is_judged = state.judged == *tls.stamps() && state.fault.is_none();
        drop(state);
        if is_same && !is_judged {
            self.judge(tls.stamps().clone(), Ok(tls));
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

    pub(super) fn judged(&self) -> Stamps {
        self.state().judged.clone()
    }

    /// Reads the files if they have changed, and not since the `last` look. Returns what was seen.
    pub(super) fn look(&self, last: &Stamps) -> Stamps {
        let state = self.state();
        let (tls, judged) = (state.tls.clone(), state.judged.clone());
        drop(state);
        let stamps = tls.stamps_now();
        if stamps == *last && stamps != judged {
            let read = tls.read_again().map_err(|fault| fault.to_string());
            self.judge(stamps.clone(), read);
        }
        stamps
    }

    /// Puts what was read in force, or says once why it stays as it was.
    fn judge(&self, judged: Stamps, read: Result<T, String>) {
        let read = read.and_then(|tls| match self.has_expired_instead(&tls) {
            Some(fault) => Err(fault),
            None => Ok(tls),
        });
        match &read {
            Ok(tls) => tls.tell_again(),
            Err(fault) => self.state().tls.tell_kept(fault),
        }
        self.0.send_modify(|state| {
            state.judged = judged;
            match read {
                Ok(tls) => {
                    state.tls = tls;
                    state.fault = None;
                }
                Err(fault) => state.fault = Some(fault),
            }
        });
    }

    /// What is wrong with a certificate that has expired in the place of one that has not.
    fn has_expired_instead(&self, read: &T) -> Option<String> {
        let now = SystemTime::now();
        let (path, validity) = read.certificate()?;
        let state = self.state();
        let before = state.tls.certificate();
        let was_valid = before.is_none_or(|(_, before)| !before.has_ended(now));
        (validity.has_ended(now) && was_valid).then(|| {
            let (path, end) = (path.display(), pem::shown(validity.end()));
            format!("the certificate in {path} expired at {end}")
        })
    }
}
