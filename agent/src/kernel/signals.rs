//! Keeps signals from the calling thread while the kernel verifies a program.
//!
//! The verifier gives up with EAGAIN where a signal waits for the thread that asked (`do_check`); it is
//! repeated from the beginning, so that a signal every half second would keep a program out for ever.

use std::mem::MaybeUninit;

/// Until it is dropped, the calling thread handles no signal. What comes goes to another thread of the
/// process, or waits.
pub(super) struct Held {
    before: libc::sigset_t,
}

impl Held {
    pub(super) fn new() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the pointer is valid for the set that is written.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: sigfillset wrote the whole set; it fails for no valid pointer.
        let all = unsafe { all.assume_init() };
        Self { before: mask(all) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        mask(self.before);
    }
}

/// Sets the thread's mask; returns the one before.
fn mask(signals: libc::sigset_t) -> libc::sigset_t {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both pointers are valid, and the call reads the one and writes the other.
    let refused = unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const signals, before.as_mut_ptr())
    };
    assert_eq!(
        refused, 0,
        "pthread_sigmask refuses only an unknown command"
    );
    // SAFETY: the call succeeded, so it wrote the whole set.
    unsafe { before.assume_init() }
}
