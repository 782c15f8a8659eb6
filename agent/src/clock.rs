//! The clocks: the kernel's tick counter and `CLOCK_BOOTTIME`, which the programs stamp packets with,
//! and the offset to Unix time.

use std::time::Duration;

use agent_common::{Clocks, FlowCounters};

#[derive(Clone, Copy, Debug, Default)]
pub struct ScanClock {
    /// `CLOCK_BOOTTIME` at the scan.
    pub boot_ns: u64,
    /// The kernel's tick counter at the same moment.
    pub jiffies: u64,
    pub tick_ns: u64,
    /// What to add to boot time to get Unix time.
    pub boot_to_unix_ns: i64,
}

impl ScanClock {
    pub fn unix_ns(self, boot_ns: u64) -> u64 {
        boot_ns.saturating_add_signed(self.boot_to_unix_ns)
    }

    /// To the tick, which is 1 to 10 ms, and not before the first packet.
    pub fn last_seen_boot_ns(self, counters: &FlowCounters) -> u64 {
        let ticks = self
            .jiffies
            .wrapping_sub(counters.last_seen_jiffies)
            .cast_signed();
        let tick_ns = self.tick_ns.cast_signed();
        self.boot_ns
            .saturating_add_signed(ticks.saturating_mul(tick_ns).saturating_neg())
            .max(counters.first_seen_ns)
    }
}

/// All clocks at one moment, `clocks` being the programs' own; taken anew at every scan, since Unix
/// time is adjusted and ticks stand still while the machine sleeps.
pub fn at(clocks: Clocks) -> ScanClock {
    ScanClock {
        boot_ns: clocks.boot_ns,
        jiffies: clocks.jiffies,
        tick_ns: tick_ns(),
        boot_to_unix_ns: read_ns(libc::CLOCK_REALTIME)
            .wrapping_sub(read_ns(libc::CLOCK_BOOTTIME))
            .cast_signed(),
    }
}

/// Unix time of a scan's clock.
pub fn unix_ns(clock: ScanClock) -> u64 {
    clock.boot_ns.wrapping_add_signed(clock.boot_to_unix_ns)
}

/// Unix time.
pub fn unix_now_ns() -> u64 {
    read_ns(libc::CLOCK_REALTIME)
}

/// How long a tick of the kernel is: the coarse clocks move once a tick.
fn tick_ns() -> u64 {
    let mut resolution = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `resolution` outlives the call; the clock exists on every kernel since 2.6.32.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut resolution) };
    nanoseconds(resolution)
}

/// CPU time of the calling thread.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(read_ns(libc::CLOCK_THREAD_CPUTIME_ID))
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call; the clocks used here exist on every kernel since 2.6.39.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    nanoseconds(time)
}

fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
