//! The clocks: `CLOCK_BOOTTIME`, which the programs stamp packets with, and its offset to Unix time.

use std::time::Duration;

use crate::replica::ScanClock;

/// Both clocks at one moment; the offset is taken anew at every scan, since Unix time is adjusted.
pub fn now() -> ScanClock {
    let boot_ns = read_ns(libc::CLOCK_BOOTTIME);
    let unix_ns = read_ns(libc::CLOCK_REALTIME);
    ScanClock {
        boot_ns,
        boot_to_unix_ns: unix_ns.wrapping_sub(boot_ns).cast_signed(),
    }
}

/// Unix time of a scan's clock.
pub fn unix_ns(clock: ScanClock) -> u64 {
    clock.boot_ns.wrapping_add_signed(clock.boot_to_unix_ns)
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
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
