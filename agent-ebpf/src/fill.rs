//! Counts how full the pages are, and wakes userspace when one passes the mark at which it should be scanned before the
//! interval is over.

use agent_common::PageFill;
use aya_ebpf::{
    btf_maps::{Array, PerCpuArray, RingBuf},
    macros::btf_map,
};

use crate::{atomic, switches};

/// Flows that this CPU has ever put into each page. An atomic add for each flow would have to wait until
/// the flow's entry has left the store buffer, which costs a tenth of an insert.
#[btf_map]
static INSERTED: PerCpuArray<u64, 2> = PerCpuArray::new();

/// By page, for all CPUs together. A map, because userspace overwrites all statics at each flip.
#[btf_map]
static FILL: Array<PageFill, 2> = Array::new();

/// The numbers of pages that passed the mark. Userspace sets the size to that of a memory page.
#[btf_map]
static FILLED: RingBuf<u64, 4096> = RingBuf::new();

const BPF_RB_FORCE_WAKEUP: u64 = 1 << 1;

/// Counts a flow that was put into the page.
#[inline(always)]
pub fn note_new_flow(page: u32) {
    let (mark, step) = switches::mark_and_step(page);
    if mark == 0 {
        return;
    }
    let Some(inserted) = INSERTED.get_ptr_mut(page) else {
        return;
    };
    let step = u64::from(step);
    // SAFETY: the pointer comes from a per-CPU array look-up in this program run, and only this CPU
    // writes to it, with bottom halves off.
    let inserted = unsafe {
        *inserted += 1;
        *inserted
    };
    if inserted & (step - 1) == 0 {
        add(page, step, mark);
    }
}

/// Counts a flow that found no slot.
#[inline(always)]
pub fn note_behind(page: u32) {
    if let Some(fill) = FILL.get_ptr_mut(page) {
        // SAFETY: see `add`.
        unsafe { atomic::add(&raw mut (*fill).behind, 1) };
    }
}

/// Reports that the page refused a flow. A page may be full below the mark, since each CPU counts some of its flows
/// privately.
#[inline(always)]
pub fn note_full(page: u32) {
    if switches::mark_and_step(page).0 == 0 {
        return;
    }
    if let Some(fill) = FILL.get_ptr_mut(page) {
        tell(fill, page);
    }
}

#[inline(always)]
fn add(page: u32, flows: u64, mark: u32) {
    let Some(fill) = FILL.get_ptr_mut(page) else {
        return;
    };
    // SAFETY: `fill` comes from a look-up in this program run, and elements of an array stay where
    // they are. Userspace writes to it only while no program uses the page (DESIGN: page flip).
    // Volatile, since other CPUs write it too.
    let inserted = unsafe {
        atomic::add(&raw mut (*fill).inserted, flows);
        (&raw const (*fill).inserted).read_volatile()
    };
    if inserted >= u64::from(mark) {
        tell(fill, page);
    }
}

/// Wakes userspace, once per filling of the page. CPUs that get here at the same moment may all wake it.
#[inline(always)]
fn tell(fill: *mut PageFill, page: u32) {
    // SAFETY: as above.
    unsafe {
        let told = &raw mut (*fill).told;
        if told.read_volatile() != 0 {
            return;
        }
        told.write_volatile(1);
        let said = FILLED.output(u64::from(page), BPF_RB_FORCE_WAKEUP);
        if said.is_err() {
            // No room in the ring: a later call tries again.
            told.write_volatile(0);
        }
    }
}
