//! The account's counters: per CPU, by page, interface and direction.

use agent_common::{HookAccount, Reason};
use aya_ebpf::{
    Global,
    btf_maps::{Array, PerCpuArray},
    macros::btf_map,
};

/// `ACCOUNTS_PER_PAGE` accounts for each page: two (ingress, egress) for each interface slot, and the
/// last one for interfaces that userspace did not register. Userspace sizes it.
#[btf_map]
static ACCOUNT: PerCpuArray<HookAccount, 6> = PerCpuArray::new();

/// Interface index → interface slot + 1; 0 where the interface is not ours. Userspace sizes it.
#[btf_map]
static INTERFACES: Array<u32, 64> = Array::new();

#[unsafe(no_mangle)]
static ACCOUNTS_PER_PAGE: Global<u32> = Global::new(3);

/// Interface slot × 2 + direction, `None` for an interface that userspace did not register.
#[inline(always)]
pub fn hook(ifindex: u32, direction: u32) -> Option<u32> {
    let slot = *INTERFACES.get(ifindex)?;
    if slot == 0 {
        return None;
    }
    Some((slot - 1) * 2 + direction)
}

/// This CPU's account of one hook on one page.
pub struct Account(*mut HookAccount);

impl Account {
    /// The account of a [`hook`], or that of unknown interfaces. `None` where the map is shorter than
    /// userspace says, which it makes sure of.
    #[inline(always)]
    pub fn of(page: u32, hook: Option<u32>) -> Option<Self> {
        let per_page = ACCOUNTS_PER_PAGE.load();
        let index = page * per_page + hook.unwrap_or(per_page - 1);
        ACCOUNT.get_ptr_mut(index).map(Self)
    }

    /// Plain adds: bottom halves are off while a TC or XDP program runs, so nothing else on this
    /// CPU touches the counter meanwhile.
    #[inline(always)]
    pub fn add(&self, reason: Reason, packets: u64, bytes: u64) {
        // SAFETY: the pointer comes from a per-CPU array lookup and stays valid for the program's
        // run; only this CPU writes to it (see above).
        unsafe { (*self.0).add(reason, packets, bytes) }
    }
}
