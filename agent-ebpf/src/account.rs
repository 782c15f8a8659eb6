//! The account's counters for each page, interface and direction. The counters that every packet adds to are per CPU;
//! all CPUs share the others.

use agent_common::{
    Pair, Reason,
    account::{
        AllPending, COMMON_REASONS, Common, NO_ROW, PENDING_PLACES, PENDING_REASONS, PENDING_ROWS,
        Pending, RARE_REASONS, Rare,
    },
    direction::hook_number,
    interface::{self, Bucket},
};
use aya_ebpf::{
    Global, bindings::BPF_F_MMAPABLE, btf_maps::Array,
    helpers::generated::bpf_get_smp_processor_id, macros::btf_map,
};

use crate::{atomic, bounds::at_most};

/// The counters that every packet adds to. Each CPU has `ACCOUNTS_PER_PAGE` accounts per page: two (ingress, egress)
/// for each interface slot, and a last one for interfaces that userspace did not register. Userspace sets the size and
/// maps the array to read it. Not a per-CPU map, which userspace would read by one system call per hook.
#[btf_map]
static COMMON: Array<Common, 6, { BPF_F_MMAPABLE as usize }> = Array::new();

/// The other counters of each account, shared by all CPUs: `ACCOUNTS_PER_PAGE` accounts per page.
#[btf_map]
static RARE: Array<Rare, 6, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Counts that a CPU has not added to [`RARE`] yet, per CPU and page. Without it the CPUs would contend for the
/// counters of an interface where most packets are super-frames or filtered. Userspace adds the counts when the page is
/// idle. Initially it has counts of 0 for account 0, which the first packet of another account adds to that account.
#[btf_map]
static PENDING: Array<AllPending, 4, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Each interface is in one of its two [`interface::buckets`]. Userspace sets the size and maps the array, so that it
/// can write an entry in one store.
#[btf_map]
static INTERFACES: Array<Bucket, 4, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Arguments of [`interface::buckets`]; constant once the programs are loaded.
#[unsafe(no_mangle)]
static INTERFACE_SEED: Global<u64> = Global::new(1);
#[unsafe(no_mangle)]
static INTERFACE_BITS: Global<u32> = Global::new(2);

#[unsafe(no_mangle)]
static ACCOUNTS_PER_PAGE: Global<u32> = Global::new(3);

/// The number of a hook. `None` for an interface that userspace did not register.
#[inline(always)]
pub fn hook(ifindex: u32, direction: u32) -> Option<u32> {
    let [first, second] = interface::buckets(ifindex, INTERFACE_SEED.load(), INTERFACE_BITS.load());
    // Check the first bucket once more at the end: userspace may have moved the interface there from the second one.
    for bucket in [first, second, first] {
        let bucket = INTERFACES.get_ptr(bucket)?.cast::<u64>();
        for place in 0..Bucket::LEN {
            // Read the whole entry at once, since userspace replaces it at once.
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
pub struct Account {
    common: *mut Common,
    /// The number of the account in [`RARE`].
    rare: u32,
}

impl Account {
    /// The account of a [`hook`], or the account of unknown interfaces. `None` would mean that a map has fewer elements
    /// than `ACCOUNTS_PER_PAGE` and the number of possible CPUs require, which userspace rules out.
    #[inline(always)]
    pub fn of(page: u32, hook: Option<u32>) -> Option<Self> {
        let per_page = ACCOUNTS_PER_PAGE.load();
        let number = page * per_page + hook.unwrap_or(per_page - 1);
        let common = COMMON.get_ptr_mut(cpu() * (2 * per_page) + number)?;
        Some(Self {
            common,
            rare: number,
        })
    }

    /// Counts a packet in `seen`, before any branch.
    #[inline(always)]
    pub fn see(&self, packets: u64, bytes: u64) {
        // SAFETY: the pointer comes from an array lookup and stays valid for the program's run.
        add(unsafe { &raw mut (*self.common).seen }, packets, bytes);
    }

    /// Counts a packet under its outcome: a [`Reason`] as a number.
    #[inline(always)]
    pub fn place(&self, reason: u32, packets: u64, bytes: u64) {
        if reason == Reason::Flows as u32 {
            // SAFETY: as above.
            add(unsafe { &raw mut (*self.common).flows }, packets, bytes);
        } else {
            add_rare(self.rare, reason, packets, bytes);
        }
    }

    /// Counts a fact about packets, beside the sum.
    #[inline(always)]
    pub fn note(&self, fact: Reason, packets: u64, bytes: u64) {
        add_rare(self.rare, fact as u32, packets, bytes);
    }
}

/// The row of each reason in [`AllPending`].
static ROWS: [u8; RARE_REASONS] = PENDING_ROWS;

/// Adds to [`PENDING`], or to [`RARE`]. If the pending counter belongs to another account, that moves to [`RARE`]
/// first. A function of its own, since most packets do not need it. The verifier requires it to return a number.
#[inline(never)]
fn add_rare(account: u32, reason: u32, packets: u64, bytes: u64) -> u32 {
    const LAST_REASON: u64 = RARE_REASONS as u64 - 1;
    const LAST_ROW: u64 = PENDING_REASONS.len() as u64 - 1;
    let reason = at_most::<LAST_REASON>(u64::from(reason) - COMMON_REASONS as u64);
    // SAFETY: the index is in bounds.
    let row = unsafe { *ROWS.get_unchecked(reason) };
    if row == NO_ROW {
        share(account, reason, packets, bytes);
        return 0;
    }
    let page = u32::from(account >= ACCOUNTS_PER_PAGE.load());
    let Some(pending) = PENDING.get_ptr_mut(cpu() * 2 + page) else {
        return 0;
    };
    let place = account as usize % PENDING_PLACES;
    let index = at_most::<LAST_ROW>(row.into()) * PENDING_PLACES + place;
    // SAFETY: the pointer comes from an array lookup and stays valid for the program's run; the index is in bounds.
    let pending = unsafe { pending.cast::<Pending>().add(index) };
    // SAFETY: as above, and nothing else on this CPU touches it meanwhile.
    unsafe {
        let before = (*pending).account;
        if before != u64::from(account) {
            let Pair { packets, bytes } = (*pending).counter;
            share(before as u32, reason, packets, bytes);
            *pending = Pending {
                counter: Pair::default(),
                account: account.into(),
            };
        }
        add(&raw mut (*pending).counter, packets, bytes);
    }
    0
}

/// Adds to the counters that all CPUs share.
#[inline(always)]
fn share(account: u32, reason: usize, packets: u64, bytes: u64) {
    let Some(rare) = RARE.get_ptr_mut(account) else {
        return;
    };
    // SAFETY: the pointer comes from an array lookup and stays valid for the program's run; the caller bounds the index.
    unsafe {
        let counter = rare.cast::<Pair>().add(reason);
        atomic::add(&raw mut (*counter).packets, packets);
        atomic::add(&raw mut (*counter).bytes, bytes);
    }
}

/// The number of this CPU. A program stays on its CPU while it runs.
#[inline(always)]
fn cpu() -> u32 {
    // SAFETY: the helper takes nothing.
    unsafe { bpf_get_smp_processor_id() }
}

/// Plain adds: bottom halves are off while a TC or XDP program runs, so nothing else on this CPU touches the counter
/// meanwhile, and no other CPU uses it.
#[inline(always)]
fn add(counter: *mut Pair, packets: u64, bytes: u64) {
    // SAFETY: callers pass a live counter of this CPU.
    unsafe {
        (*counter).packets += packets;
        (*counter).bytes += bytes;
    }
}
