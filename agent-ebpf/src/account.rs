//! The account's counters, per CPU for each page, interface and direction.

use agent_common::{
    HookAccount, Reason,
    direction::hook_number,
    interface::{self, Bucket},
};
use aya_ebpf::{
    Global,
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, PerCpuArray},
    macros::btf_map,
};

/// `ACCOUNTS_PER_PAGE` accounts for each page: two (ingress, egress) for each interface slot, and a
/// last one for interfaces that userspace did not register. Userspace sets the size.
#[btf_map]
static ACCOUNT: PerCpuArray<HookAccount, 6> = PerCpuArray::new();

/// Each interface stands in one of its two [`interface::buckets`]. Userspace sets the size, and maps it into its own
/// memory to write an entry at once.
#[btf_map]
static INTERFACES: Array<Bucket, 4, { BPF_F_MMAPABLE as usize }> = Array::new();

/// [`interface::buckets`] takes these; they are constant once the programs are loaded.
#[unsafe(no_mangle)]
static INTERFACE_SEED: Global<u64> = Global::new(1);
#[unsafe(no_mangle)]
static INTERFACE_BITS: Global<u32> = Global::new(2);

#[unsafe(no_mangle)]
static ACCOUNTS_PER_PAGE: Global<u32> = Global::new(3);

/// The number of a hook, `None` for an interface that userspace did not register.
#[inline(always)]
pub fn hook(ifindex: u32, direction: u32) -> Option<u32> {
    let [first, second] = interface::buckets(ifindex, INTERFACE_SEED.load(), INTERFACE_BITS.load());
    // The first bucket comes again last, since an interface may move there meanwhile from the second one.
    for bucket in [first, second, first] {
        let bucket = INTERFACES.get_ptr(bucket)?.cast::<u64>();
        for place in 0..Bucket::LEN {
            // The whole entry at once, as userspace writes it.
            // SAFETY: the pointer comes from an array lookup and stays valid for the program's run; a bucket's
            // entries have the size and alignment of the number (asserted in agent-common).
            let entry = unsafe { bucket.add(place).read_volatile() };
            if entry as u32 == ifindex {
                return Some(hook_number((entry >> 32) as u32, direction));
            }
        }
    }
    None
}

/// This CPU's account for one hook on one page.
pub struct Account(*mut HookAccount);

impl Account {
    /// The account of a [`hook`], or that of unknown interfaces. `None` would mean a map shorter than
    /// `ACCOUNTS_PER_PAGE` says, which userspace rules out.
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

    /// Like [`add`](Self::add), with the [`Reason`] as a number.
    #[inline(always)]
    pub fn add_numbered(&self, reason: u32, packets: u64, bytes: u64) {
        // SAFETY: as above.
        unsafe { (*self.0).add_numbered(reason, packets, bytes) }
    }
}
