//! How often the attached programs run, and for how long.
//!
//! The kernel counts this only on request, since it reads the clock twice for each run of any program on the machine. A
//! process with `CAP_SYS_ADMIN` asks by opening a descriptor (`bpf_enable_runtime_stats`). The counting ends when the
//! descriptor is closed, so it also ends when the process is killed.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use super::bpf::{self, Runs};

/// The programs of all network namespaces. Clones share them.
#[derive(Clone, Default)]
pub struct RunTimes(Arc<Mutex<Programs>>);

#[derive(Default)]
struct Programs {
    watched: Vec<Watched>,
    /// Programs added since the start.
    numbered: u64,
}

struct Watched {
    number: u64,
    hook: &'static str,
    program: Weak<OwnedFd>,
    /// Keeps programs open that stay loaded as long as the agent runs.
    _kept: Option<Arc<OwnedFd>>,
}

/// Runs of the programs within a period.
#[derive(Clone, Debug, Default)]
pub struct Window {
    pub length: Duration,
    pub by_hook: BTreeMap<&'static str, Runs>,
}

impl RunTimes {
    /// Adds a program, and keeps its descriptor open.
    pub fn watch(&self, name: &str, program: BorrowedFd<'_>) -> io::Result<()> {
        let program = Arc::new(program.try_clone_to_owned()?);
        self.add(name, &program, Some(Arc::clone(&program)));
        Ok(())
    }

    /// Adds a program only for as long as its owner keeps it.
    pub fn watch_while_held(&self, name: &str, program: &Arc<OwnedFd>) {
        self.add(name, program, None);
    }

    fn add(&self, name: &str, program: &Arc<OwnedFd>, kept: Option<Arc<OwnedFd>>) {
        self.programs(|programs| {
            programs
                .watched
                .retain(|one| one.program.strong_count() > 0);
            programs.watched.push(Watched {
                number: programs.numbered,
                hook: hook(name),
                program: Arc::downgrade(program),
                _kept: kept,
            });
            programs.numbered += 1;
        });
    }

    /// Has the kernel count for this long, and returns the result. Fails with EPERM if this process may not ask for
    /// counting and `kernel.bpf_stats_enabled` is off. Returns `None` if somebody switches that setting off meanwhile.
    pub fn window(&self, length: Duration) -> io::Result<Option<Window>> {
        let is_on = is_on_for_all();
        let asked = if is_on {
            None
        } else {
            Some(bpf::count_runs()?)
        };
        let (begun, before) = (Instant::now(), self.read()?);
        thread::sleep(length);
        let (length, after) = (begun.elapsed(), self.read()?);
        drop(asked);
        if is_on && !is_on_for_all() {
            return Ok(None);
        }
        let mut by_hook = BTreeMap::<_, Runs>::new();
        for (number, (hook, after)) in after {
            // A program that was not there before was loaded meanwhile.
            let before = before.get(&number).map(|&(_, before)| before);
            *by_hook.entry(hook).or_default() += after - before.unwrap_or_default();
        }
        Ok(Some(Window { length, by_hook }))
    }

    /// Runs so far, by the program's number.
    fn read(&self) -> io::Result<BTreeMap<u64, (&'static str, Runs)>> {
        self.programs(|programs| {
            let read = |one: &Watched| {
                let program = one.program.upgrade()?;
                let runs = bpf::runs(program.as_fd());
                Some(runs.map(|runs| (one.number, (one.hook, runs))))
            };
            programs.watched.iter().filter_map(read).collect()
        })
    }

    fn programs<T>(&self, work: impl FnOnce(&mut Programs) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The hook of a program, under its name in status and metrics.
fn hook(name: &str) -> &'static str {
    if name.starts_with("xdp") {
        "xdp"
    } else if matches!(
        name,
        "sock_create" | "post_bind4" | "post_bind6" | "tcp_destroy_sock"
    ) {
        "sockets"
    } else if name == "kfree_skb" {
        "drops"
    } else if name.starts_with("tc_egress") {
        "tc_egress"
    } else {
        "tc_ingress"
    }
}

/// Whether `kernel.bpf_stats_enabled` is on.
fn is_on_for_all() -> bool {
    let setting = fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled");
    setting.is_ok_and(|setting| setting.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_counts_for_its_hook() {
        for (program, expected) in [
            ("tc_ingress", "tc_ingress"),
            ("tc_ingress_ip", "tc_ingress"),
            ("tc_egress", "tc_egress"),
            ("tc_egress_ip", "tc_egress"),
            ("sock_create", "sockets"),
            ("post_bind6", "sockets"),
            ("tcp_destroy_sock", "sockets"),
            ("kfree_skb", "drops"),
            ("xdp_ingress", "xdp"),
            ("xdp_ingress_ip", "xdp"),
            ("xdp_frags", "xdp"),
            ("xdp_frags_ip", "xdp"),
        ] {
            assert_eq!(hook(program), expected, "{program}");
        }
    }
}
