//! Which of the two pages a packet is counted on, and which set of filter rules it has to pass.

use core::cell::UnsafeCell;

use agent_common::Switches;

/// Userspace stores another value to flip, then waits for running programs.
#[unsafe(no_mangle)]
static SWITCHES: Shared = Shared(UnsafeCell::new(Switches {
    page: 0,
    rule_set: 0,
}));

#[repr(transparent)]
struct Shared(UnsafeCell<Switches>);

// SAFETY: programs only read it, a field at a time, each an aligned word; userspace writes it by a
// map update.
unsafe impl Sync for Shared {}

/// The page, `None` where nothing is to be counted; a program calls this once a packet and uses the
/// answer for the table and the account.
#[inline(always)]
pub fn current() -> Option<u32> {
    // SAFETY: the static lives as long as the program; volatile, since userspace changes it.
    let page = unsafe { (&raw const (*SWITCHES.0.get()).page).read_volatile() };
    (page < Switches::OFF).then_some(page)
}

/// The slot of the rule set, `None` without rules; a program calls this once a packet.
#[inline(always)]
pub fn rule_set() -> Option<u32> {
    // SAFETY: as above.
    let number = unsafe { (&raw const (*SWITCHES.0.get()).rule_set).read_volatile() };
    number.checked_sub(1)
}
