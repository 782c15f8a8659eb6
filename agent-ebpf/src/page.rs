//! Which of the two pages a packet is counted on.

use core::cell::UnsafeCell;

/// 0 or 1. Userspace stores the other number to flip, then waits for running programs.
#[unsafe(no_mangle)]
static PAGE: Page = Page(UnsafeCell::new(0));

#[repr(transparent)]
struct Page(UnsafeCell<u32>);

// SAFETY: programs only read it, as one aligned word; userspace writes it by a map update.
unsafe impl Sync for Page {}

/// The page; a program calls this once a packet and uses the answer for the table and the account.
#[inline(always)]
pub fn current() -> u32 {
    // SAFETY: the static lives as long as the program; volatile, since userspace changes it.
    unsafe { PAGE.0.get().read_volatile() & 1 }
}
