//! Run times of the programs, sampled in short windows when metrics are scraped.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::task::spawn_blocking;

use super::{
    Shown,
    families::{Families, Help, Labels},
};

/// How long the kernel counts, which makes all programs of the machine slower by some tens of nanoseconds.
const WINDOW: Duration = Duration::from_millis(100);
/// The shortest pause between two windows.
const PAUSE: Duration = Duration::from_secs(10);

/// The programs' runs in one window.
#[derive(Clone, Debug, Default)]
pub struct Window {
    pub length: Duration,
    pub by_hook: BTreeMap<&'static str, Runs>,
}

/// How often a program has run, and for how long in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    pub count: u64,
    pub time: Duration,
}

/// Has the kernel time the programs for so long. Fails with EPERM if this process may not ask for it and nobody else
/// has. `None` if somebody changed the kernel's setting meanwhile.
pub type TimePrograms = Arc<dyn Fn(Duration) -> io::Result<Option<Window>> + Send + Sync>;

/// Clones share the samples.
#[derive(Clone)]
pub struct Sampler {
    time_programs: TimePrograms,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    is_in_window: bool,
    not_before: Option<Instant>,
    sampled: Sampled,
}

/// The sum of all windows so far.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    pub outcome: Outcome,
    pub length: Duration,
    pub by_hook: BTreeMap<&'static str, Runs>,
}

/// The outcome of the last window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// There was no window yet.
    #[default]
    Pending,
    Sampled,
    /// This process may not have the kernel measure.
    NotPermitted,
    Failed,
}

impl Outcome {
    const ALL: [Self; 4] = [
        Self::Pending,
        Self::Sampled,
        Self::NotPermitted,
        Self::Failed,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Sampled => "sampled",
            Self::NotPermitted => "not_permitted",
            Self::Failed => "failed",
        }
    }
}

impl Sampler {
    pub fn new(time_programs: TimePrograms) -> Self {
        Self {
            time_programs,
            state: Arc::default(),
        }
    }

    /// The samples so far. Starts another window in the background if the pause is over. Call it in a Tokio runtime.
    pub fn sampled(&self) -> Sampled {
        let mut state = self.state();
        let is_due = state.not_before.is_none_or(|time| time <= Instant::now());
        if is_due && !std::mem::replace(&mut state.is_in_window, true) {
            let sampler = self.clone();
            spawn_blocking(move || sampler.sample());
        }
        state.sampled.clone()
    }

    /// If this panics, no further window starts.
    fn sample(&self) {
        let window = (self.time_programs)(WINDOW);
        let mut state = self.state();
        state.is_in_window = false;
        state.not_before = Some(Instant::now() + PAUSE);
        state.sampled.add(window);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sampled {
    fn add(&mut self, window: io::Result<Option<Window>>) {
        match window {
            Ok(Some(window)) => {
                self.outcome = Outcome::Sampled;
                self.length += window.length;
                for (hook, runs) in window.by_hook {
                    let sum = self.by_hook.entry(hook).or_default();
                    sum.count += runs.count;
                    sum.time += runs.time;
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "the kernel does not count the runs of programs");
                let refused = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES));
                self.outcome = if refused {
                    Outcome::NotPermitted
                } else {
                    Outcome::Failed
                };
            }
        }
    }
}

impl Shown {
    /// Before the first window there are no series, rather than zeros.
    pub(super) fn programs(&self, families: &mut Families<'_>) -> fmt::Result {
        let sampled = &self.sampled;
        let states = Outcome::ALL.map(|state| {
            let labels = vec![("state", state.name().to_owned())];
            (labels, f64::from(u8::from(state == sampled.outcome)))
        });
        families.gauge(
            Help(
                "flow_agent_program_sampling",
                "1 for the outcome of the last window in which programs were timed",
            ),
            states,
        )?;
        if sampled.length.is_zero() {
            return Ok(());
        }
        families.counter(
            Help(
                "flow_agent_program_sampled_seconds",
                "Total time in which programs were timed",
            ),
            [(Labels::new(), sampled.length.as_secs_f64())],
        )?;
        let by_hook = || {
            let by_hook = sampled.by_hook.iter();
            by_hook.map(|(hook, runs)| (vec![("hook", (*hook).to_owned())], *runs))
        };
        families.counter(
            Help(
                "flow_agent_program_runs",
                "Runs of the programs in that time",
            ),
            by_hook().map(|(labels, runs)| (labels, runs.count)),
        )?;
        families.counter(
            Help("flow_agent_program_run_seconds", "How long these runs took"),
            by_hook().map(|(labels, runs)| (labels, runs.time.as_secs_f64())),
        )
    }
}
