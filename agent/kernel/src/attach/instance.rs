//! Distinguishes living agents of this network namespace from killed ones. Each agent has a socket, and its filters
//! carry the socket's number.
//!
//! The number is the socket's inode. The kernel assigns it, and nobody else can have it while the socket lives.
//! Everyone in a network namespace can list its Unix sockets. So agents in two containers with the host's network see
//! each other's sockets, though not each other's files.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::{
        fd::OwnedFd,
        unix::{fs::MetadataExt as _, net::UnixDatagram},
    },
};

use anyhow::{Context as _, Result};

/// A number that is held until the value is dropped or the process ends, however it ends.
pub(super) struct Instance {
    pub number: u64,
    _socket: File,
}

impl Instance {
    pub(super) fn new() -> Result<Self> {
        let socket = UnixDatagram::unbound().context("open a Unix socket")?;
        let socket = File::from(OwnedFd::from(socket));
        let number = socket.metadata().context("stat a Unix socket")?.ino();
        Ok(Self {
            number,
            _socket: socket,
        })
    }
}

/// How often to read the list. The kernel returns it page by page, and continues at a line's position in its hash
/// bucket. If a socket of that bucket is closed in between, a line is skipped: one in some ten thousand where programs
/// only open and close sockets.
const READINGS: u32 = 3;

/// The inodes of the sockets found so far in this network namespace, whether they belong to agents or not.
#[derive(Default)]
pub(super) struct Living {
    numbers: BTreeSet<u64>,
    readings: u32,
}

impl Living {
    /// Whether this agent lives. Reads the list until it is found, at most `READINGS` times.
    pub(super) fn has(&mut self, number: u64) -> Result<bool> {
        while !self.numbers.contains(&number) {
            if self.readings == READINGS {
                return Ok(false);
            }
            self.readings += 1;
            self.numbers.append(&mut listed()?);
        }
        Ok(true)
    }
}

/// Reads the list once.
fn listed() -> Result<BTreeSet<u64>> {
    let path = "/proc/thread-self/net/unix";
    let sockets = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    Ok(inodes(&sockets))
}

/// Parses the seventh column, after a line of titles.
fn inodes(sockets: &str) -> BTreeSet<u64> {
    let lines = sockets.lines().skip(1);
    lines
        .filter_map(|line| line.split_whitespace().nth(6)?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{
        iter,
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn an_instance_lives_until_it_is_dropped() {
        let (instance, other) = (Instance::new().unwrap(), Instance::new().unwrap());
        let numbers = [instance.number, other.number];
        let alive = |at: usize| Living::default().has(numbers[at]).unwrap();
        assert!(alive(0) && alive(1));
        drop(instance);
        // A child that another test has forked holds the socket until it calls exec.
        let end = Instant::now() + Duration::from_secs(30);
        while alive(0) {
            assert!(Instant::now() < end, "its socket is still there");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(alive(1));
    }

    #[test]
    fn an_instance_is_listed_whatever_other_sockets_are_closed_meanwhile() {
        let instances: Vec<_> = iter::repeat_with(|| Instance::new().unwrap())
            .take(300)
            .collect();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ends.load(Relaxed) {
                        let sockets = iter::repeat_with(|| Instance::new().unwrap());
                        drop(sockets.take(100).collect::<Vec<_>>());
                    }
                });
            }
            let all_live = || {
                let mut living = Living::default();
                let mut each = instances.iter();
                each.try_fold(true, |all, one| Ok(all & living.has(one.number)?))
            };
            let found: Result<Vec<bool>> = (0..600).map(|_| all_live()).collect();
            // Stop the other threads before an assertion can fail, since the scope waits for them.
            ends.store(true, Relaxed);
            let missing = found.unwrap().into_iter().filter(|all| !all).count();
            assert_eq!(missing, 0);
        });
    }

    #[test]
    fn a_socket_with_a_name_is_read_as_one_without() {
        let sockets = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             00000000c133e2a4: 00000003 00000000 00000000 0001 03 104150\n\
             0000000000000000: 00000002 00000000 00010000 0005 01   412 /run/udev/control\n";
        assert_eq!(inodes(sockets), BTreeSet::from([412, 104_150]));
    }
}
