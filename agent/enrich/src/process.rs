//! Names of the processes that made the sockets which sent the flows' packets.
//!
//! Records carry a key per process, which the programs store with the socket ([`kernel::processes`]) and note beside the
//! flow. The agent asks the kernel for a process when a record first names it, and then keeps the answer for a while.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use anyhow::Context as _;
use flows::names::Directory;
use kernel::{
    layout,
    processes::{self, MOST_IN_THE_KERNEL, Noting, ProcessNames},
    socket_bounds::{BYTES_PER_SOCKET, MOST_SOCKETS},
};
use proto::Process;
use sys::log_limit::LogLimit;

use crate::{
    kind::{
        AgentStatus, Check, Kernel, Kind, Layout, LoadSettings, Names, Replica, Result, Scanned,
        Settings, Tables,
    },
    unit::cgroups,
};

const LOSS: &str = "flows have no process";

/// The most processes whose names are kept. The ones that records have not named for the longest time are dropped
/// first.
const MOST_KNOWN: usize = 1 << 15;
const BYTES_PER_PROCESS: u64 = 200;
const BYTES_PER_PROCESS_IN_THE_KERNEL: u64 = 120;

/// Clones share the names. When all are dropped, the programs stop noting which process makes a socket.
#[derive(Clone)]
pub struct Processes(Arc<Shared>);

struct Shared {
    source: Source,
    known: Mutex<Known>,
    nameless: AtomicU64,
}

/// Where the names come from.
enum Source {
    Noted {
        by_key: ProcessNames,
        _noting: Noting,
    },
    These(Vec<agent_common::Process>),
}

impl Processes {
    fn with(source: Source) -> Self {
        Self(Arc::new(Shared {
            source,
            known: Mutex::default(),
            nameless: AtomicU64::new(0),
        }))
    }

    /// A fixed set of processes, without any programs.
    pub fn with_known(processes: Vec<agent_common::Process>) -> Self {
        Self::with(Source::These(processes))
    }

    /// How often a batch named a process by its pid alone.
    fn nameless(&self) -> u64 {
        self.0.nameless.load(Relaxed)
    }
}

impl Kind for Processes {
    fn load(_: &Settings, load: &mut LoadSettings) -> Result<()> {
        load.tasks = layout::tasks_of_this_kernel().context(LOSS)?;
        Ok(())
    }

    fn start(_: &Settings, _: &LoadSettings, kernel: &mut Kernel) -> Result<Self> {
        let noted = cgroups::find().and_then(|root| kernel.note_processes(&root));
        let (by_key, noting) = noted.context(LOSS)?;
        Ok(Self::with(Source::Noted {
            by_key,
            _noting: noting,
        }))
    }

    fn most_bytes(_: &Settings, _: &Tables) -> u64 {
        MOST_KNOWN as u64 * BYTES_PER_PROCESS
            + u64::from(MOST_IN_THE_KERNEL) * BYTES_PER_PROCESS_IN_THE_KERNEL
            + MOST_SOCKETS * BYTES_PER_SOCKET
    }

    fn check(mut load: LoadSettings, layout: &Layout) -> Option<Check> {
        let mut outcome = || {
            load.tasks = layout::tasks_of_this_kernel()?;
            let mut kernel = Kernel::verified(&load, layout)?;
            processes::load(&mut kernel.sets[0].programs)?;
            cgroups::find()
        };
        Some(Check {
            name: "processes",
            outcome: outcome().map(|_| "and with --enrich process".to_owned()),
            remedy: "run without --enrich process: flows then have no process",
        })
    }

    fn supply(&self, _: &mut Replica, names: &mut Names) {
        names.processes = Some(Arc::new(self.clone()));
    }

    fn report(&self, scanned: &Scanned<'_>, status: &mut AgentStatus) {
        let replica = status.replica.get_or_insert_default();
        replica.nameless_processes = self.nameless();
        replica.sockets_without_process = scanned.kernel.socket_bounds.without_process();
    }
}

/// If the kernel evicted the entry before it was asked, only the pid is set.
impl Directory<Process> for Processes {
    fn lookup(&self, keys: &[u64], each: &mut dyn FnMut(&Process)) {
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        for &key in keys {
            known.tell(key, || self.0.find(key), &self.0.nameless, &mut *each);
        }
    }
}

impl Shared {
    fn find(&self, key: u64) -> Option<agent_common::Process> {
        let noted = match &self.source {
            Source::Noted { by_key, .. } => by_key.of(key),
            Source::These(processes) => Ok(processes.iter().copied().find(|one| one.key() == key)),
        };
        noted
            .inspect_err(|error| tracing::debug!("{error:#}"))
            .ok()
            .flatten()
    }
}

/// The process as a message.
fn told(key: u64, process: Option<agent_common::Process>) -> Process {
    let Some(process) = process else {
        return Process {
            key,
            pid: agent_common::Process::pid_of(key),
            ..Process::default()
        };
    };
    let bytes: Vec<u8> = process
        .name
        .into_iter()
        .flat_map(u64::to_ne_bytes)
        .collect();
    let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    Process {
        key,
        pid: process.pid,
        name: String::from_utf8_lossy(name).into_owned(),
        uid: Some(process.uid),
    }
}

/// Processes in two halves. When the newer half is full, the older one is dropped, with all processes that were not
/// asked for since the newer half began.
#[derive(Default)]
struct Known {
    newer: HashMap<u64, Process>,
    older: HashMap<u64, Process>,
    log: LogLimit,
}

impl Known {
    const HALF: usize = MOST_KNOWN / 2;

    fn tell(
        &mut self,
        key: u64,
        find: impl FnOnce() -> Option<agent_common::Process>,
        nameless: &AtomicU64,
        each: impl FnOnce(&Process),
    ) {
        if let Some(known) = self.newer.get(&key) {
            each(known);
            return;
        }
        let known = if let Some(known) = self.older.remove(&key) {
            known
        } else if let Some(process) = find() {
            told(key, Some(process))
        } else {
            self.miss(nameless);
            each(&told(key, None));
            return;
        };
        each(&known);
        if self.newer.len() == Self::HALF {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, known);
    }

    fn miss(&mut self, nameless: &AtomicU64) {
        let so_far = nameless.fetch_add(1, Relaxed) + 1;
        if self.log.event().is_some() {
            tracing::warn!(
                so_far,
                "some processes are known only by pid: this scan had more processes than the kernel keeps names of; \
                 lower --scan-interval"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::limits::MAX_PROCESS_NAME_BYTES;

    use super::*;

    fn process(pid: u32, name: [u8; 8]) -> agent_common::Process {
        agent_common::Process {
            name: [u64::from_ne_bytes(name), 0],
            uid: 1000,
            pid,
        }
    }

    #[test]
    fn processes_are_told_by_name_or_else_by_number_and_then_counted() {
        let known = process(7, *b"nginx\0\0\0");
        // A process with a pid higher than any in use.
        let unknown = process(1 << 30, *b"gone\0\0\0\0").key();
        let processes = Processes::with_known(vec![known]);
        for nameless in 1..3 {
            let mut told = Vec::new();
            processes.lookup(&[known.key(), unknown], &mut |one| told.push(one.clone()));
            let [first, second] = &told[..] else {
                panic!("{told:?}");
            };
            assert_eq!((first.pid, first.name.as_str()), (7, "nginx"));
            assert_eq!(first.uid, Some(1000));
            assert_eq!((second.pid, second.name.as_str()), (1 << 30, ""));
            assert_eq!((second.key, second.uid), (unknown, None));
            assert_eq!(processes.nameless(), nameless);
        }
    }

    #[test]
    fn names_that_are_in_use_stay_and_there_is_a_bound() {
        let mut known = Known::default();
        let nameless = AtomicU64::new(0);
        let used = process(1, *b"used\0\0\0\0");
        let mut asked = 0;
        for pid in 2..=u32::try_from(2 * MOST_KNOWN).unwrap() {
            for one in [used, process(pid, *b"other\0\0\0")] {
                let find = || {
                    asked += u32::from(one == used);
                    Some(one)
                };
                known.tell(one.key(), find, &nameless, |told| {
                    assert_eq!(told.pid, one.pid);
                });
            }
            assert!(known.newer.len() + known.older.len() <= MOST_KNOWN);
        }
        assert_eq!(asked, 1, "it is asked for once");
    }

    #[test]
    fn a_name_that_is_no_text_is_told_as_one() {
        let odd = process(7, [0xff, b'a', 0, b'b', 0, 0, 0, 0]);
        assert_eq!(told(1, Some(odd)).name, "\u{fffd}a");
        let long = agent_common::Process {
            name: [u64::MAX, u64::MAX >> 8],
            ..odd
        };
        assert!(told(1, Some(long)).name.len() <= MAX_PROCESS_NAME_BYTES);
    }
}
