//! The switches that userspace sets: the page on which packets are counted and until when, and the set of filter rules.

use core::cell::UnsafeCell;

use agent_common::{PageSize, Switches};

use crate::{bounds::masked, clock};

/// To flip, userspace stores another value and waits until all running programs have ended.
#[unsafe(no_mangle)]
static SWITCHES: Shared = Shared(UnsafeCell::new(Switches {
    page: 0,
    rule_set: 0,
    count_until_jiffies: 0,
    sizes: [const {
        PageSize {
            windows: 0,
            mark_flows: 0,
            fill_step: 0,
            sample_below: 0,
        }
    }; 2],
}));

#[repr(transparent)]
struct Shared(UnsafeCell<Switches>);

// SAFETY: programs only read it, one aligned word at a time. Userspace writes it by a map update.
unsafe impl Sync for Shared {}

/// The page, or `None` if counting is off or its lease is over. A program calls this once a packet and uses the result
/// for both the table and the account.
#[inline(always)]
pub fn current() -> Option<u32> {
    let switches = SWITCHES.0.get();
    // SAFETY: the static lives as long as the program; volatile, since userspace changes it.
    let (page, until) = unsafe {
        (
            (&raw const (*switches).page).read_volatile(),
            (&raw const (*switches).count_until_jiffies).read_volatile(),
        )
    };
    (page < Switches::OFF && clock::jiffies() < until).then_some(page)
}

/// The slot of the rule set, or `None` without rules. A program calls this once a packet.
#[inline(always)]
pub fn rule_set() -> Option<u32> {
    // SAFETY: as above.
    let number = unsafe { (&raw const (*SWITCHES.0.get()).rule_set).read_volatile() };
    number.checked_sub(1)
}

/// How many windows a page has.
#[inline(always)]
pub fn windows(page: u32) -> u32 {
    let size = size(page);
    // SAFETY: as above.
    unsafe { (&raw const (*size).windows).read_volatile() }
}

/// The number of flows on a page at which the programs ask for a scan, and how many a CPU counts privately.
#[inline(always)]
pub fn mark_and_step(page: u32) -> (u32, u32) {
    let size = size(page);
    // SAFETY: as above.
    unsafe {
        let mark = (&raw const (*size).mark_flows).read_volatile();
        (mark, (&raw const (*size).fill_step).read_volatile())
    }
}

/// The sampling threshold of a page: see [`PageSize::sample_below`].
#[inline(always)]
pub fn sample_below(page: u32) -> u32 {
    let size = size(page);
    // SAFETY: as above.
    unsafe { (&raw const (*size).sample_below).read_volatile() }
}

#[inline(always)]
fn size(page: u32) -> *const PageSize {
    let first = (&raw const SWITCHES.0).cast::<Switches>();
    // SAFETY: there are two sizes.
    unsafe {
        (&raw const (*first).sizes)
            .cast::<PageSize>()
            .add(masked::<1>(page.into()))
    }
}
