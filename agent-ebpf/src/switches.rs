//! The switches that userspace sets: on which of the two pages packets are counted, and which set of filter
//! rules applies.

use core::cell::UnsafeCell;

use agent_common::Switches;

/// To flip, userspace stores another value and waits until the running programs have ended.
#[unsafe(no_mangle)]
static SWITCHES: Shared = Shared(UnsafeCell::new(Switches {
    page: 0,
    rule_set: 0,
}));

#[repr(transparent)]
struct Shared(UnsafeCell<Switches>);

// SAFETY: programs only read it, one aligned word at a time. Userspace writes it by a map update.
unsafe impl Sync for Shared {}

/// The page, or `None` if nothing is to be counted. A program calls this once a packet and uses the answer
/// for both the table and the account.
#[inline(always)]
pub fn current() -> Option<u32> {
    // SAFETY: the static lives as long as the program; volatile, since userspace changes it.
    let page = unsafe { (&raw const (*SWITCHES.0.get()).page).read_volatile() };
    (page < Switches::OFF).then_some(page)
}

/// The slot of the rule set, or `None` without rules. A program calls this once a packet.
#[inline(always)]
pub fn rule_set() -> Option<u32> {
    // SAFETY: as above.
    let number = unsafe { (&raw const (*SWITCHES.0.get()).rule_set).read_volatile() };
    number.checked_sub(1)
}
