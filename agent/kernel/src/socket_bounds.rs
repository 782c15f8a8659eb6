//! Bounds the memory of values that the programs keep with sockets. That memory is charged to the agent, and any user
//! can make sockets.
//!
//! The programs count the values they add. They do not see when a socket is freed, or when an accepted connection
//! inherits its listener's value. So a thread runs an iterator in the kernel that recounts the values and drops those
//! beyond the bound.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use agent_common::process::{KeptWithSockets, SocketBound};
use anyhow::{Context as _, Result, bail};
use aya::{
    Ebpf,
    maps::{Map, MapData},
};
use sys::log_limit::LogLimit;

use super::{
    bpf, cgroup_limit,
    iterator::{self, run_to_the_end},
    mapped_array::MappedArray,
};

/// Most sockets of each kind, unless the memory limit requires fewer.
pub const MOST_SOCKETS: u64 = 1 << 17;
/// Memory for each value, including the kernel's own overhead.
pub const BYTES_PER_SOCKET: u64 = 300;
/// Each kind may take one eighth of the memory limit.
const PART_OF_LIMIT: u64 = 8;

/// The fields of a [`SocketBound`], as indexes of its numbers.
const KEPT: usize = 0;
const MOST: usize = 1;
const REFUSED: usize = 2;
const SEEN: usize = 3;
const LASTING: usize = 4;

/// Assumed rate of inherited values; connections cannot be accepted faster.
const INHERITED_PER_SECOND: u64 = 50_000;
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Shortest time between two searches for sockets that had found no room, however often someone fills the bound.
const LOOKS_AGAIN_AFTER: Duration = Duration::from_mins(1);

/// The iterator target of these programs (`bpf_iter__bpf_sk_storage_map`).
const KEPT_IN: &str = "bpf_sk_storage_map";

/// The program that counts the values of a kind, and the map that holds them.
fn counted(what: KeptWithSockets) -> (&'static str, &'static str) {
    match what {
        KeptWithSockets::Process => ("kept_makers", "SOCKETS"),
        KeptWithSockets::Flow => ("kept_flows", "FLOWS"),
    }
}

/// Loads the program that counts the values of a kind, without attaching it.
pub(super) fn load(programs: &mut Ebpf, what: KeptWithSockets) -> Result<()> {
    iterator::load(programs, counted(what).0, KEPT_IN).map(drop)
}

/// Clones share the same counts.
#[derive(Clone)]
pub struct SocketBounds {
    numbers: Arc<MappedArray>,
    /// Keeps the map open: programs that are loaded later refer to its descriptor.
    _map: Arc<MapData>,
    most: u64,
}

/// Keeps the counting thread running until it is dropped.
pub struct Counting {
    _ends: Sender<()>,
}

impl SocketBounds {
    /// Sets the bounds, within the memory limit of this process.
    pub fn new(map: MapData) -> Result<Self> {
        let limit = cgroup_limit::memory_of_this_process();
        let within = limit.map_or(u64::MAX, |limit| limit / PART_OF_LIMIT / BYTES_PER_SOCKET);
        let most = within.min(MOST_SOCKETS);
        let words = KeptWithSockets::COUNT * SocketBound::WORDS;
        let numbers = MappedArray::new(map.fd().as_fd(), words);
        let numbers = numbers.context("map the counts of sockets")?;
        for what in [KeptWithSockets::Process, KeptWithSockets::Flow] {
            numbers.store(place(what, MOST), most);
        }
        Ok(Self {
            numbers: Arc::new(numbers),
            _map: Arc::new(map),
            most,
        })
    }

    /// How often there was no room to keep who made a socket.
    pub fn without_process(&self) -> u64 {
        self.refused(KeptWithSockets::Process)
    }

    fn refused(&self, what: KeptWithSockets) -> u64 {
        self.numbers.load(place(what, REFUSED))
    }

    /// Starts a thread that recounts the values. It calls `look_again` when there is room again after some sockets
    /// found none. Returns `None` if the kernel does not allow that. Then the room of some closed sockets is never
    /// freed, and values that exceed the bound still count.
    pub fn count(
        &self,
        programs: &mut Ebpf,
        what: KeptWithSockets,
        look_again: impl Fn() + Send + 'static,
    ) -> Option<Counting> {
        self.try_count(programs, what, look_again)
            .inspect_err(|error| {
                tracing::warn!("closed sockets count against the limit until a restart: {error:#}");
            })
            .ok()
    }

    fn try_count(
        &self,
        programs: &mut Ebpf,
        what: KeptWithSockets,
        look_again: impl Fn() + Send + 'static,
    ) -> Result<Counting> {
        let (name, map) = counted(what);
        let program = iterator::load(programs, name, KEPT_IN)?;
        let program = program.fd().context("a loaded program has a descriptor")?;
        let program = program.as_fd().try_clone_to_owned();
        let program = program.context("duplicate a program's descriptor")?;
        let sockets = programs.map(map);
        let sockets = sockets.with_context(|| format!("the object has no map {map}"))?;
        let Map::SkStorage(sockets) = sockets else {
            bail!("{map} is of another kind");
        };
        let link = bpf::create_map_iterator(program.as_fd(), sockets.fd().as_fd());
        let link = link.context("attach the program that counts sockets")?;
        let bounds = self.clone();
        let (ends, ended) = channel();
        thread::Builder::new()
            .name("sockets".to_owned())
            .spawn(move || bounds.follow(what, &link, &look_again, &ended))
            .context("start a thread that counts sockets")?;
        Ok(Counting { _ends: ends })
    }

    fn follow(
        &self,
        what: KeptWithSockets,
        link: &OwnedFd,
        look_again: &impl Fn(),
        ended: &Receiver<()>,
    ) {
        let (mut refusals, mut faults) = (LogLimit::default(), LogLimit::default());
        let mut told = 0;
        let mut looks = Looks::default();
        loop {
            if let Err(error) = self.recount(what, link)
                && faults.event().is_some()
            {
                tracing::warn!(%error, ?what, "cannot count the data kept with sockets");
            }
            let so_far = self.refused(what);
            if so_far != told && refusals.event().is_some() {
                told = so_far;
                tracing::warn!(
                    so_far,
                    most = self.most,
                    "too many sockets: the {} of some is unknown",
                    match what {
                        KeptWithSockets::Process => "process",
                        KeptWithSockets::Flow => "final TCP state",
                    }
                );
            }
            if looks.is_due(Instant::now(), so_far, self.has_room_again(what)) {
                look_again();
            }
            let pause = pause(self.most.saturating_sub(self.kept(what)));
            if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Whether there is room for many sockets. The search goes through all open files, so a little room is not worth
    /// it.
    fn has_room_again(&self, what: KeptWithSockets) -> bool {
        self.kept(what) < self.most - self.most / 8
    }

    fn kept(&self, what: KeptWithSockets) -> u64 {
        SocketBound::held(self.numbers.load(place(what, KEPT)))
    }

    /// Recounts the values of a kind. A value added during the count may count twice until the next one.
    fn recount(&self, what: KeptWithSockets, link: &OwnedFd) -> io::Result<()> {
        let of = |number| place(what, number);
        let before = self.numbers.load(of(KEPT));
        // Values that lasted through the previous count reduce the room for the others.
        let lasted = self.numbers.load(of(LASTING));
        self.numbers.store(of(SEEN), lasted);
        self.numbers.store(of(LASTING), 0);
        run_to_the_end(File::from(bpf::open_iterator(link.as_fd())?))?;
        let seen = self.numbers.load(of(SEEN)).saturating_sub(lasted);
        let kept = seen + self.numbers.load(of(LASTING));
        self.numbers.add(of(KEPT), kept.wrapping_sub(before));
        Ok(())
    }
}

/// The last search for sockets that had found no room.
#[derive(Default)]
struct Looks {
    last: Option<Instant>,
    /// How many had found no room by then.
    refused: u64,
}

impl Looks {
    fn is_due(&mut self, now: Instant, refused: u64, has_room: bool) -> bool {
        let is_soon = self
            .last
            .is_some_and(|last| now.duration_since(last) < LOOKS_AGAIN_AFTER);
        if refused == self.refused || !has_room || is_soon {
            return false;
        }
        *self = Self {
            last: Some(now),
            refused,
        };
        true
    }
}

fn place(what: KeptWithSockets, number: usize) -> usize {
    what as usize * SocketBound::WORDS + number
}

/// A pause so short that inherited values cannot use up the `left` room before it ends.
fn pause(left: u64) -> Duration {
    let pause = Duration::from_millis(left * 1000 / INHERITED_PER_SECOND);
    pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_without_room_are_looked_for_when_there_is_some_and_not_all_the_time() {
        let mut looks = Looks::default();
        let start = Instant::now();
        assert!(!looks.is_due(start, 0, true), "all had room");
        assert!(!looks.is_due(start, 5, false));
        assert!(looks.is_due(start, 5, true));
        assert!(!looks.is_due(start + LOOKS_AGAIN_AFTER, 5, true));
        assert!(!looks.is_due(start, 6, true));
        assert!(looks.is_due(start + LOOKS_AGAIN_AFTER, 6, true));
    }

    #[test]
    fn the_fewer_are_left_the_sooner_they_are_counted() {
        assert_eq!(pause(0), SHORTEST_PAUSE);
        assert_eq!(pause(25_000), Duration::from_millis(500));
        assert_eq!(pause(MOST_SOCKETS), LONGEST_PAUSE);
    }
}
