//! Bounds what the programs keep with sockets. The memory is charged to the agent, and any user may make sockets.
//!
//! The programs count what they keep, and nobody tells them when a socket goes, or when an accepted connection inherits what its
//! listener has. So a thread has the kernel count now and then, and what is beyond the bound is forgotten.

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

/// Sockets of each kind, if the memory limit allows that.
pub const MOST_SOCKETS: u64 = 1 << 17;
/// With the kernel's own, for each.
pub const BYTES_PER_SOCKET: u64 = 300;
/// The part of the memory limit that each kind may take.
const PART_OF_LIMIT: u64 = 8;

/// The places of its numbers in a [`SocketBound`].
const KEPT: usize = 0;
const MOST: usize = 1;
const REFUSED: usize = 2;
const SEEN: usize = 3;
const LASTING: usize = 4;

/// Faster than connections can be accepted.
const INHERITED_PER_SECOND: u64 = 50_000;
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Whoever makes many sockets again and again does not have the agent look all the time.
const LOOKS_AGAIN_AFTER: Duration = Duration::from_mins(1);

/// What programs of this kind go over.
const KEPT_IN: &str = "bpf_sk_storage_map";

/// The program that counts what is kept of a kind, and the map in which it is.
fn counted(what: KeptWithSockets) -> (&'static str, &'static str) {
    match what {
        KeptWithSockets::Process => ("kept_makers", "SOCKETS"),
        KeptWithSockets::Flow => ("kept_flows", "FLOWS"),
    }
}

/// Loads the program that counts what is kept of a kind, and does not attach it.
pub(super) fn load(programs: &mut Ebpf, what: KeptWithSockets) -> Result<()> {
    iterator::load(programs, counted(what).0, KEPT_IN).map(drop)
}

/// Clones are the same.
#[derive(Clone)]
pub struct SocketBounds {
    numbers: Arc<MappedArray>,
    /// Programs that are loaded later name its descriptor.
    _map: Arc<MapData>,
    most: u64,
}

/// Has them counted until it is dropped.
pub struct Counting {
    _ends: Sender<()>,
}

impl SocketBounds {
    /// Sets the bounds.
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

    /// Has the programs count from now on what is kept. `look_again` is called when there is room again, after some found none. `None` if the kernel does not allow that: then room is taken and never given
    /// back for some, and what exceeds it is counted all the same.
    pub fn count(
        &self,
        programs: &mut Ebpf,
        what: KeptWithSockets,
        look_again: impl Fn() + Send + 'static,
    ) -> Option<Counting> {
        self.try_count(programs, what, look_again)
            .inspect_err(|error| {
                tracing::warn!(
                    "sockets that were closed keep their room until a restart: {error:#}"
                );
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
                tracing::warn!(%error, ?what, "what is kept with sockets cannot be counted");
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

    /// Not only for a few: looking for them goes through all files that are open.
    fn has_room_again(&self, what: KeptWithSockets) -> bool {
        self.kept(what) < self.most - self.most / 8
    }

    fn kept(&self, what: KeptWithSockets) -> u64 {
        SocketBound::held(self.numbers.load(place(what, KEPT)))
    }

    /// What comes meanwhile may count twice, until the next time.
    fn recount(&self, what: KeptWithSockets, link: &OwnedFd) -> io::Result<()> {
        let of = |number| place(what, number);
        let before = self.numbers.load(of(KEPT));
        // They take their room from the others.
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

/// When it was looked for sockets last that had found no room.
#[derive(Default)]
struct Looks {
    last: Option<Instant>,
    /// How many had found none by then.
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

/// So long that connections cannot take more than what is left.
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
