//! The clocks of a scan: the kernel's tick counter and `CLOCK_BOOTTIME`, with which the programs stamp
//! packets, and the offset to Unix time.
//!
//! In a time namespace a process reads these clocks with an offset that the programs do not have. It
//! is taken off wherever a clock is read.

use std::{fs, sync::LazyLock, time::Duration};

use agent_common::{Clocks, FlowCounters};
use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};

#[derive(Clone, Copy, Debug, Default)]
pub struct ScanClock {
    /// `CLOCK_BOOTTIME` at the scan.
    pub boot_ns: u64,
    /// The kernel's tick counter at the same moment.
    pub jiffies: u64,
    pub tick_ns: u64,
    /// Boot time plus this is Unix time.
    pub boot_to_unix_ns: i64,
    /// How long the machine slept since the previous scan. Ticks stood still meanwhile.
    pub slept_ns: u64,
}

impl ScanClock {
    #[inline]
    pub fn unix_ns(self, boot_ns: u64) -> u64 {
        boot_ns.saturating_add_signed(self.boot_to_unix_ns)
    }

    /// The boot time that has this Unix time.
    #[inline]
    pub fn boot_of_unix_ns(self, unix_ns: u64) -> u64 {
        unix_ns.saturating_sub_signed(self.boot_to_unix_ns)
    }

    /// When the flow's last packet came, precise to a tick (1 to 10 ms) and never before the first packet.
    ///
    /// If the machine slept since the previous scan, a tick may lie before or after the sleep. It lies after
    /// the sleep if the first packet did, whose time comes from a clock that counts sleep. Otherwise it is
    /// taken to lie before the sleep. So the result is never too late, but may be too early by the sleep.
    #[inline]
    pub fn last_seen_boot_ns(self, counters: &FlowCounters) -> u64 {
        // A page holds what came since the last scan, so half of the counter is enough.
        let ticks = (self.jiffies as u32)
            .wrapping_sub(counters.last_seen_jiffies)
            .cast_signed();
        let ticks = i64::from(ticks);
        let tick_ns = self.tick_ns.cast_signed();
        let awake_ns = self
            .boot_ns
            .saturating_add_signed(ticks.saturating_mul(tick_ns).saturating_neg());
        let before_sleep_ns = awake_ns.saturating_sub(self.slept_ns);
        let last_seen_ns = if before_sleep_ns.saturating_add(self.tick_ns) < counters.first_seen_ns
        {
            awake_ns
        } else {
            before_sleep_ns
        };
        last_seen_ns.max(counters.first_seen_ns)
    }
}

/// By how many nanoseconds Unix time was set between two scans, or 0. A clock that is steered (NTP) goes wrong by
/// less.
pub fn set_by_ns(before: ScanClock, after: ScanClock) -> i64 {
    const SHORTEST_NS: u64 = 1_000_000_000;
    /// The kernel steers by at most one in 2,000, or while it makes good a difference by adjtime(3) one in 1,000.
    const STEERED: u64 = 1000;
    let by_ns = after.boot_to_unix_ns.wrapping_sub(before.boot_to_unix_ns);
    let elapsed_ns = after.boot_ns.saturating_sub(before.boot_ns);
    // Nothing steers while the machine sleeps.
    let awake_ns = elapsed_ns.saturating_sub(after.slept_ns);
    if by_ns.unsigned_abs() < SHORTEST_NS + awake_ns / STEERED {
        0
    } else {
        by_ns
    }
}

/// How long the machine has slept since it started: the difference between the clocks that do and do not
/// count sleep.
#[derive(Clone, Copy, Debug)]
pub struct Sleep {
    slept_ns: u64,
}

impl Sleep {
    /// A shorter difference only shows that the two clocks were not read at the same moment.
    const SHORTEST_NS: u64 = 50_000_000;

    pub fn so_far() -> Self {
        // The thread may wait for a CPU between the two reads, which looks like a sleep. The shortest of
        // several differences is the true one.
        let difference = || {
            let monotonic_ns = read_ns(ClockId::Monotonic);
            read_ns(ClockId::Boottime).saturating_sub(monotonic_ns)
        };
        let slept_ns = (0..4).map(|_| difference()).min().unwrap_or_default();
        Self { slept_ns }
    }

    /// How long the machine slept between this moment and that of `later`.
    pub fn until(self, later: Self) -> u64 {
        let slept_ns = later.slept_ns.saturating_sub(self.slept_ns);
        if slept_ns < Self::SHORTEST_NS {
            0
        } else {
            slept_ns
        }
    }
}

/// All clocks at one moment; `clocks` are the programs' own. Taken at every scan, since Unix time is adjusted
/// and ticks stand still while the machine sleeps.
pub fn at(clocks: Clocks, slept_ns: u64) -> ScanClock {
    ScanClock {
        slept_ns,
        boot_ns: clocks.boot_ns,
        jiffies: clocks.jiffies,
        tick_ns: tick_ns(),
        boot_to_unix_ns: boot_to_unix_ns(),
    }
}

/// Unix time of a scan's clock.
pub fn unix_ns(clock: ScanClock) -> u64 {
    clock.boot_ns.wrapping_add_signed(clock.boot_to_unix_ns)
}

/// `CLOCK_BOOTTIME`, which counts sleep and cannot be set.
pub fn boot_now_ns() -> u64 {
    read_ns(ClockId::Boottime)
}

/// Unix time of a moment of boot time, by the clock as it is set now.
pub fn unix_of_boot_ns(boot_ns: u64) -> u64 {
    boot_ns.saturating_add_signed(boot_to_unix_ns())
}

fn boot_to_unix_ns() -> i64 {
    read_ns(ClockId::Realtime)
        .wrapping_sub(read_ns(ClockId::Boottime))
        .cast_signed()
}

/// The length of a kernel tick: the coarse clocks advance once a tick.
fn tick_ns() -> u64 {
    nanoseconds(clock_getres(ClockId::MonotonicCoarse))
}

/// `CLOCK_MONOTONIC`, which `std::time::Instant` does not tell as a number.
pub fn monotonic() -> Duration {
    Duration::from_nanos(read_ns(ClockId::Monotonic))
}

/// CPU time of the process.
pub fn process_cpu() -> Duration {
    Duration::from_nanos(read_ns(ClockId::ProcessCPUTime))
}

/// CPU time of the calling thread.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(read_ns(ClockId::ThreadCPUTime))
}

/// A time as the protocol and the statistics have it.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn read_ns(clock: ClockId) -> u64 {
    let time_ns = nanoseconds(clock_gettime(clock));
    let name = if clock == ClockId::Monotonic {
        "monotonic"
    } else if clock == ClockId::Boottime {
        "boottime"
    } else {
        return time_ns;
    };
    time_ns.saturating_sub_signed(TIME_NAMESPACE.offset_ns(name))
}

static TIME_NAMESPACE: LazyLock<TimeNamespace> = LazyLock::new(TimeNamespace::of_this_process);

/// What this process's time namespace adds to clocks: a line with name, seconds and nanoseconds for each. Empty in a kernel
/// that has none (`CONFIG_TIME_NS`).
struct TimeNamespace(String);

impl TimeNamespace {
    fn of_this_process() -> Self {
        Self(fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default())
    }

    fn offset_ns(&self, clock: &str) -> i64 {
        let mut lines = self.0.lines().map(str::split_whitespace);
        let offset = lines.find_map(|mut words| {
            let is_its = words.next()? == clock;
            let mut number = || words.next()?.parse::<i64>().ok();
            is_its.then(|| Some(number()? * 1_000_000_000 + number()?))?
        });
        offset.unwrap_or_default()
    }
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const TICK_NS: u64 = 4_000_000;
    const TICKS_A_SECOND: u64 = SECOND / TICK_NS;
    const HOURS_NS: u64 = 8 * 3600 * SECOND;

    /// The clocks of a scan that comes 10 s of ticks after the previous one, with a sleep in between.
    fn clock(slept_ns: u64) -> ScanClock {
        ScanClock {
            boot_ns: 1000 * SECOND + slept_ns,
            jiffies: 1_000_000,
            tick_ns: TICK_NS,
            boot_to_unix_ns: 0,
            slept_ns,
        }
    }

    /// Counters whose last packet came this many seconds of ticks before the scan.
    fn counters(first_seen_ns: u64, last_seconds_ago: u64) -> FlowCounters {
        FlowCounters {
            first_seen_ns,
            last_seen_jiffies: (1_000_000 - last_seconds_ago * TICKS_A_SECOND) as u32,
            ..FlowCounters::default()
        }
    }

    #[test]
    fn half_of_the_tick_counter_is_enough_when_it_wraps() {
        let later = ScanClock {
            jiffies: (1 << 32) + 2 * TICKS_A_SECOND,
            ..clock(0)
        };
        let before = FlowCounters {
            last_seen_jiffies: u32::MAX - (TICKS_A_SECOND as u32 - 1),
            ..FlowCounters::default()
        };
        assert_eq!(later.last_seen_boot_ns(&before), 997 * SECOND);
    }

    #[test]
    fn a_tick_is_as_long_ago_as_it_says_while_the_machine_is_awake() {
        let awake = clock(0);
        assert_eq!(
            awake.last_seen_boot_ns(&counters(990 * SECOND, 7)),
            993 * SECOND
        );
        assert_eq!(
            awake.last_seen_boot_ns(&counters(995 * SECOND, 7)),
            995 * SECOND
        );
    }

    #[test]
    fn a_last_packet_before_a_sleep_is_not_after_it() {
        let woken = clock(HOURS_NS);
        let before = counters(991 * SECOND, 7);
        assert_eq!(woken.last_seen_boot_ns(&before), 993 * SECOND);
        let alone = counters(993 * SECOND + TICK_NS / 2, 7);
        assert_eq!(
            woken.last_seen_boot_ns(&alone),
            993 * SECOND + TICK_NS / 2,
            "the only packet's own clock"
        );
    }

    #[test]
    fn a_flow_that_began_after_the_sleep_was_last_seen_after_it() {
        let woken = clock(HOURS_NS);
        let after = counters(997 * SECOND + HOURS_NS, 2);
        assert_eq!(woken.last_seen_boot_ns(&after), 998 * SECOND + HOURS_NS);
    }

    #[test]
    fn a_flow_on_both_sides_of_the_sleep_was_not_seen_before_it_began() {
        let woken = clock(HOURS_NS);
        let both = counters(991 * SECOND, 2);
        assert_eq!(woken.last_seen_boot_ns(&both), 998 * SECOND);
    }

    #[test]
    fn a_clock_is_set_if_it_moved_further_than_it_can_be_steered() {
        let at = |seconds: u64, boot_to_unix_ns| ScanClock {
            boot_ns: seconds * SECOND,
            boot_to_unix_ns,
            ..ScanClock::default()
        };
        let second = SECOND.cast_signed();
        let earlier = at(1000, 50 * second);
        assert_eq!(set_by_ns(earlier, at(1010, 50 * second)), 0);
        assert_eq!(set_by_ns(earlier, at(1010, 52 * second)), 2 * second);
        assert_eq!(set_by_ns(earlier, at(1010, 48 * second)), -2 * second);
        // Two seconds in an hour may have been steered.
        assert_eq!(set_by_ns(earlier, at(4600, 52 * second)), 0);
        assert_eq!(set_by_ns(earlier, at(4600, 55 * second)), 5 * second);
        let woken = ScanClock {
            slept_ns: 3590 * SECOND,
            ..at(4600, 52 * second)
        };
        assert_eq!(set_by_ns(earlier, woken), 2 * second);
    }

    #[test]
    fn a_time_namespace_has_an_offset_for_each_clock() {
        let offsets = "monotonic   0         0\nboottime  -12 500000000\n";
        let namespace = TimeNamespace(offsets.to_owned());
        let of = ["monotonic", "boottime", "other"].map(|clock| namespace.offset_ns(clock));
        assert_eq!(of, [0, -11_500_000_000, 0]);
        assert_eq!(TimeNamespace(String::new()).offset_ns("boottime"), 0);
    }

    #[test]
    fn a_sleep_is_what_the_clocks_grew_apart() {
        let at = |slept_ns| Sleep { slept_ns };
        assert_eq!(at(5).until(at(HOURS_NS)), HOURS_NS - 5);
        assert_eq!(at(HOURS_NS).until(at(HOURS_NS + SECOND / 100)), 0);
        assert_eq!(at(HOURS_NS).until(at(5)), 0);
        assert_eq!(Sleep::so_far().until(Sleep::so_far()), 0);
    }
}
