//! The prototype of a flow table of our own, in an array that userspace maps into its memory. Each flow has
//! a slot of two cache lines.
//!
//! The hash of a flow's key chooses a few windows of neighbouring slots, and the flow's slot is in one of
//! them. A slot's state is the last word of its key: empty, then taken by a compare-and-swap, then
//! published. The upper half of a published word holds bits of the hash, in the place of a tunnel's number,
//! which the prototype ignores. The state never goes back while programs run, since userspace only empties
//! a page that no program uses.
//!
//! A program that finds a slot taken but not yet published goes on to the next one. So a key may stand in
//! two slots, and a reader has to add them up. Every packet is in exactly one slot, or in [`UNPLACED`].

mod hash;
mod word;

use core::{hint::black_box, mem::transmute};

use agent_common::{FlowCounters, FlowKey, Packet};
use aya_ebpf::{
    btf_maps::{Array, PerCpuArray},
    macros::btf_map,
};

use crate::{atomic, clock};

#[repr(C)]
struct Slot {
    key: [u64; 6],
    state: u64,
    counters: FlowCounters,
}

const _: () = assert!(size_of::<Slot>() == 128);

/// Userspace zeroes it with the slot.
const EMPTY: u64 = 0;
/// No key ends with this word: its IP version is 4 or 6.
const TAKEN: u64 = u64::MAX;

const WINDOW_SLOTS: u32 = 8;
const MAX_WINDOWS: u32 = 3;

const BPF_F_MMAPABLE: usize = 1 << 10;

/// Userspace sets the size: [`WINDOW_STARTS`] plus the rest of the last window.
#[btf_map]
static SLOTS: Array<Slot, 1, BPF_F_MMAPABLE> = Array::new();

/// Packets and bytes that found their windows full.
#[btf_map]
static UNPLACED: PerCpuArray<[u64; 2], 1> = PerCpuArray::new();

/// At how many slots a window may begin. Set when the programs are loaded, like those below.
#[unsafe(no_mangle)]
static WINDOW_STARTS: u32 = 1;

/// How many windows a flow may be in, at most [`MAX_WINDOWS`].
#[unsafe(no_mangle)]
static WINDOWS: u32 = 1;

/// Adds a packet to its flow.
#[inline(always)]
pub fn add(packet: &Packet, bytes: u64) {
    // Otherwise the compiler splits the key into bytes and builds the words from them.
    let key = black_box(&packet.key);
    // SAFETY: a key has the size and the alignment of its words, and no padding.
    let words = unsafe { transmute::<FlowKey, [u64; 7]>(*key) };
    let hash = hash::of(&words);
    let state = words[6] | hash & !u64::from(u32::MAX);
    let (starts, windows) = (loaded(&WINDOW_STARTS), loaded(&WINDOWS));
    let mut bits = hash;
    for window in 0..MAX_WINDOWS {
        if window == windows {
            break;
        }
        // Scales 32 bits to the number of starts, which need not be a power of two.
        let start = ((bits & u64::from(u32::MAX)) * u64::from(starts)) >> 32;
        for index in 0..WINDOW_SLOTS {
            let Some(slot) = SLOTS.get_ptr_mut(start as u32 + index) else {
                break;
            };
            if add_to(slot, &words, state, packet, bytes) {
                return;
            }
        }
        bits = hash::again(bits);
    }
    if let Some(unplaced) = UNPLACED.get_ptr_mut(0) {
        // SAFETY: the look-up's value is this CPU's own and lives as long as the program; atomic
        // since a program may be interrupted by another.
        unsafe {
            atomic::add(&raw mut (*unplaced)[0], 1);
            atomic::add(&raw mut (*unplaced)[1], bytes);
        }
    }
}

/// Adds the packet if the slot is the flow's, or free. Returns whether it did.
#[inline(always)]
fn add_to(slot: *mut Slot, words: &[u64; 7], state: u64, packet: &Packet, bytes: u64) -> bool {
    // SAFETY: `slot` comes from a look-up in this program run, and elements of an array stay where
    // they are; volatile, since other CPUs change the state.
    let (current, seen) = unsafe {
        let current = &raw mut (*slot).state;
        (current, current.read_volatile())
    };
    if seen == state {
        // SAFETY: the key does not change once its state is published.
        if unsafe { is_same(&(*slot).key, words) } {
            // SAFETY: as above.
            grow(unsafe { &raw mut (*slot).counters }, packet, bytes);
            return true;
        }
        return false;
    }
    // SAFETY: the state is in the slot.
    if seen != EMPTY || !unsafe { word::swap_if(current, EMPTY, TAKEN) } {
        return false;
    }
    // SAFETY: this program took the slot; others leave it alone until its state is published.
    unsafe {
        fill(slot, words, packet, bytes);
        word::publish(current, state);
    }
    true
}

#[inline(always)]
fn is_same(key: &[u64; 6], words: &[u64; 7]) -> bool {
    let mut difference = 0;
    for index in 0..key.len() {
        difference |= key[index] ^ words[index];
    }
    difference == 0
}

/// # Safety
///
/// `slot` points to a slot that this program took.
#[inline(always)]
unsafe fn fill(slot: *mut Slot, words: &[u64; 7], packet: &Packet, bytes: u64) {
    let direction = usize::from(packet.direction & 1);
    let mut first = FlowCounters {
        last_seen_jiffies: clock::jiffies(),
        ..FlowCounters::default()
    };
    first.packets[direction] = 1;
    first.bytes[direction] = bytes;
    // SAFETY: the caller's promise.
    unsafe {
        for (index, word) in words.iter().take(6).enumerate() {
            (*slot).key[index] = *word;
        }
        (*slot).counters = first;
    }
}

#[inline(always)]
fn grow(flow: *mut FlowCounters, packet: &Packet, bytes: u64) {
    let direction = usize::from(packet.direction & 1);
    // SAFETY: `flow` is in a slot whose state is published, and the index is 0 or 1.
    unsafe {
        atomic::add(&raw mut (*flow).packets[direction], 1);
        atomic::add(&raw mut (*flow).bytes[direction], bytes);
        (*flow).last_seen_jiffies = clock::jiffies();
    }
}

/// A static that is set when the programs are loaded.
#[inline(always)]
fn loaded(number: &'static u32) -> u32 {
    // SAFETY: a static lives as long as the program; volatile, since its value here is not the one
    // that the compiler sees.
    unsafe { (&raw const *number).read_volatile() }
}
