//! The protocol in all orders of its steps with up to two preemptions, and how flows spread over the windows.

use core::cell::Cell;

use loom::{
    model::Builder,
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{AcqRel, Relaxed},
        },
    },
    thread,
};

use super::*;

const COUNT: usize = SLOTS as usize;

/// A window in memory that threads share. A key is a number, and a packet counts one.
struct Shared {
    states: [AtomicU32; COUNT],
    keys: [AtomicU64; COUNT],
    packets: [AtomicU64; COUNT],
}

/// One thread's search in the window.
struct View<'a> {
    shared: &'a Shared,
    key: u64,
}

// SAFETY: `take` is a compare-exchange.
unsafe impl Slots for View<'_> {
    /// Relaxed, like a processor that may show a slot's state before its key.
    fn state(&self, slot: u32) -> u32 {
        self.shared.states[slot as usize].load(Relaxed)
    }

    fn has_key(&self, slot: u32) -> bool {
        self.shared.keys[slot as usize].load(Relaxed) == self.key
    }

    fn take(&self, slot: u32) -> bool {
        let state = &self.shared.states[slot as usize];
        state
            .compare_exchange(EMPTY, TAKEN, AcqRel, Relaxed)
            .is_ok()
    }

    unsafe fn fill(&self, slot: u32) {
        self.shared.keys[slot as usize].store(self.key, Relaxed);
        // The slot was empty, and belongs to this thread only.
        self.shared.packets[slot as usize].store(1, Relaxed);
    }

    unsafe fn publish(&self, slot: u32, tag: u32) {
        self.shared.states[slot as usize].swap(tag, AcqRel);
    }
}

impl Shared {
    /// A window where other flows fill all but `empty` slots, counted from `start`.
    fn with_empty(empty: u32, start: u32) -> Self {
        let is_full = |slot: usize| (slot as u32 + SLOTS - start) % SLOTS >= empty;
        let state = |slot| AtomicU32::new(if is_full(slot) { 99 } else { EMPTY });
        Self {
            states: core::array::from_fn(state),
            keys: core::array::from_fn(|_| AtomicU64::new(0)),
            packets: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Counts a packet like a program. Returns whether it was counted.
    fn count(&self, walk: Walk, key: u64) -> bool {
        let window = View { shared: self, key };
        let add = |slot: u32| {
            self.packets[slot as usize].fetch_add(1, Relaxed);
            true
        };
        match find(&window, walk) {
            Found::Tag(slot) if window.has_key(slot) => return add(slot),
            Found::Full => return false,
            Found::Tag(_) | Found::Nothing => {}
        }
        match begin(&window, walk) {
            Begun::Has(slot) => add(slot),
            Begun::New(_) => true,
            Begun::Full => false,
        }
    }

    /// The packets that a scan would read for a key, once no thread runs.
    fn packets_of(&self, key: u64) -> u64 {
        let slots = 0..COUNT;
        let slots = slots.filter(|&slot| {
            let state = self.states[slot].load(Relaxed);
            assert_ne!(state, TAKEN, "a slot is taken and not published");
            state != EMPTY && self.keys[slot].load(Relaxed) == key
        });
        slots.map(|slot| self.packets[slot].load(Relaxed)).sum()
    }
}

/// Each thread counts a packet of each of its keys, in all orders with up to two preemptions. A scan reads exactly the
/// packets that were counted.
fn in_all_orders(empty: u32, threads: &'static [&'static [(u64, u32)]]) {
    const START: u32 = 6;
    let mut model = Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let shared = Arc::new(Shared::with_empty(empty, START));
        let run = |packets: &'static [(u64, u32)]| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let counted = packets.iter().filter(|&&(key, tag)| {
                    let walk = Walk {
                        window: 0,
                        start: START,
                        tag,
                    };
                    shared.count(walk, key)
                });
                counted.map(|&(key, _)| key).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = threads.iter().map(|&packets| run(packets)).collect();
        let counted: Vec<u64> = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a thread ends"))
            .collect();
        for key in [1, 2, 3] {
            let counted = counted.iter().filter(|&&other| other == key).count();
            assert_eq!(shared.packets_of(key), counted as u64, "key {key}");
        }
    });
}

#[test]
fn one_flow_of_three_programs_is_counted_to_the_packet() {
    in_all_orders(3, &[&[(1, 7)], &[(1, 7)], &[(1, 7)]]);
}

#[test]
fn one_flow_that_comes_again_is_counted_to_the_packet() {
    in_all_orders(2, &[&[(1, 7), (1, 7)], &[(1, 7), (1, 7)]]);
}

#[test]
fn flows_with_the_same_tag_are_counted_to_the_packet() {
    in_all_orders(3, &[&[(1, 7), (2, 7)], &[(2, 7), (1, 7)]]);
}

#[test]
fn flows_that_fill_a_window_are_counted_to_the_packet() {
    in_all_orders(1, &[&[(1, 7), (2, 8)], &[(2, 8), (3, 9)]]);
    in_all_orders(1, &[&[(1, 7)], &[(2, 8)], &[(1, 7)]]);
}

/// A page filled by one thread.
struct Filled {
    windows: Vec<[Cell<u32>; COUNT]>,
    behind: u32,
}

struct Filling<'a>(&'a [Cell<u32>; COUNT]);

// SAFETY: there is one thread, and a slot that it has taken is no longer empty.
unsafe impl Slots for Filling<'_> {
    fn state(&self, slot: u32) -> u32 {
        self.0[slot as usize].get()
    }

    /// Each flow is inserted once.
    fn has_key(&self, _: u32) -> bool {
        false
    }

    fn take(&self, slot: u32) -> bool {
        self.0[slot as usize].set(TAKEN);
        true
    }

    unsafe fn fill(&self, _: u32) {}

    unsafe fn publish(&self, slot: u32, tag: u32) {
        self.0[slot as usize].set(tag);
    }
}

fn filled(windows: u32, flows: u32) -> Filled {
    let mut page = Filled {
        windows: (0..windows).map(|_| Default::default()).collect(),
        behind: 0,
    };
    let factors = |index: usize| (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    'flows: for flow in 0..flows {
        let mut key = FlowKey {
            port_a: 443,
            ip_version: 4,
            ..FlowKey::default()
        };
        key.addr_a[..4].copy_from_slice(&flow.to_be_bytes());
        let mut hash = Hash::of(&key, factors);
        for _ in 0..TRIES {
            let walk = hash.walk(windows);
            let window = &page.windows[walk.window as usize];
            if let Begun::New(_) = begin(&Filling(window), walk) {
                continue 'flows;
            }
            hash = hash.again();
        }
        page.behind += 1;
    }
    page
}

#[test]
fn few_flows_find_no_slot_where_three_of_four_are_in_use() {
    for windows in [1024, 10_000, 83_334] {
        let flows = windows * SLOTS / 4 * 3;
        let behind = filled(windows, flows).behind;
        assert!(behind <= flows / 50, "{behind} of {flows}");
    }
}

#[test]
fn every_part_of_a_page_is_used() {
    let page = filled(1000, 6000);
    let used = |slot: usize| {
        let windows = page.windows.iter();
        windows.filter(|window| window[slot].get() != EMPTY).count()
    };
    for slot in 0..COUNT {
        assert!((650..850).contains(&used(slot)), "{slot}: {}", used(slot));
    }
    for part in page.windows.chunks(100) {
        let slots = part.iter().flatten();
        let used = slots.filter(|slot| slot.get() != EMPTY).count();
        assert!((500..700).contains(&used), "{used}");
    }
}

#[test]
fn a_flow_keeps_its_place_among_the_others_when_the_page_changes_its_size() {
    let place = |windows| {
        move |flow: u32| {
            let key = FlowKey {
                addr_a: [flow as u8; 16],
                tunnel_id: flow * 77,
                ..FlowKey::default()
            };
            let hash = Hash::of(&key, |index| (index as u64 + 1) << 32 | 0x1234_5677);
            (hash.walk(windows).window, flow)
        }
    };
    let in_order = |windows: u32| {
        let mut flows: Vec<_> = (0..100).map(place(windows)).collect();
        flows.sort_unstable();
        flows
    };
    let (small, large) = (in_order(1 << 20), in_order(1 << 21));
    let flows =
        |places: Vec<(u32, u32)>| places.into_iter().map(|(_, flow)| flow).collect::<Vec<_>>();
    assert_eq!(flows(small), flows(large));
}

#[test]
fn no_tag_is_a_state() {
    for low in [0, 1, u64::from(u32::MAX), 0xffff_fffe] {
        for windows in [1, 7, u32::MAX] {
            let walk = Hash(0xffff_ffff << 32 | low).walk(windows);
            assert!(walk.tag != EMPTY && walk.tag != TAKEN);
            assert!(walk.window < windows && walk.start < SLOTS);
        }
    }
}

#[test]
fn there_is_a_bit_for_each_window() {
    for (windows, expected) in [(1, 2), (8192, 8193), (8193, 8195)] {
        assert_eq!(elements(windows), expected);
    }
}
