//! Keeps signals away from the calling thread while the kernel verifies a program.
//!
//! If a signal is pending for the calling thread, the verifier gives up with EAGAIN (`do_check`), and loading starts
//! from the beginning. A signal every half second would prevent a program from ever loading.

use std::mem::MaybeUninit;

/// Until it is dropped, the calling thread handles no signal. A signal goes to another thread of the process or stays
/// pending.
pub(super) struct Held {
    before: libc::sigset_t,
}

impl Held {
    pub(super) fn new() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the pointer is valid for the set that is written.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: sigfillset wrote the whole set. It cannot fail for a valid pointer.
        let all = unsafe { all.assume_init() };
        Self { before: mask(all) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        mask(self.before);
    }
}

/// Sets the thread's mask and returns the previous one.
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
