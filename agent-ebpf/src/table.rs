//! The flow table: adds packets to the flows of the current page, and inserts flows. See [`agent_common::slots`].

mod behind;
mod window;

use agent_common::{
    FlowCounters, Packet, Reason,
    flow::{Classes, FlowBits},
    senders::Question,
    slots::{self, Found, Hash, SLOTS, Slot, Slots as _, TRIES, WINDOWS_A_BITMAP, Window},
};
use aya_ebpf::{
    bindings::{BPF_F_INNER_MAP, BPF_F_MMAPABLE},
    btf_maps::{Array, ArrayOfMaps},
    macros::btf_map,
};

use self::window::Visit;
use crate::{atomic, bounds::masked, clock, fill, pause, round_trips, senders, switches};

type Page = Array<Window, 1, { (BPF_F_MMAPABLE | BPF_F_INNER_MAP) as usize }>;

/// The two pages. Userspace puts an array of windows, with bitmaps behind them, into each slot.
#[btf_map]
static PAGES: ArrayOfMaps<Page, 2> = ArrayOfMaps::new();

/// The factors of [`Hash::of`], which userspace chooses when it loads the programs.
#[unsafe(no_mangle)]
static HASH_FACTORS: [u64; Hash::FACTORS] = [0; Hash::FACTORS];

/// The packets and bytes that a packet adds to its flow.
#[derive(Clone, Copy)]
pub struct Counted {
    pub packets: u64,
    pub bytes: u64,
    pub ip_bytes: u64,
}

/// The flow of a packet, whose key is complete.
pub struct Sought<'a> {
    packet: &'a Packet,
    /// The bits for the sender's look-up that the packet sets in its flow.
    asked: FlowBits,
    hash: Hash,
    page: u32,
}

impl<'a> Sought<'a> {
    #[inline(always)]
    pub fn new(page: u32, packet: &'a Packet, asked: FlowBits) -> Self {
        Self {
            hash: Hash::of(&packet.key, factor),
            packet,
            asked,
            page,
        }
    }

    /// Completes a question for a flow in a slot.
    #[inline(always)]
    fn in_slot(&self, asked: Question, window: u32, slot: u32) -> Question {
        if asked == Question::NONE {
            asked
        } else {
            asked.in_slot(self.page, window, slot, self.packet.direction)
        }
    }

    /// The same for a flow in the map behind the slots.
    #[inline(always)]
    fn behind(&self, asked: Question) -> Question {
        if asked == Question::NONE {
            asked
        } else {
            asked.behind(self.page, self.packet.direction)
        }
    }

    /// The question of a packet that begins a flow.
    #[inline(always)]
    fn first_question(&self) -> Question {
        self.question(FlowBits::NONE, self.begun(0))
    }

    /// The question of a packet: for its sender, if a bit of `asked` is new or every packet asks; for round trips, if
    /// the packet may start or end a sample. `before` are the flow's bits before the packet, `begun` is as in
    /// [`Self::begun`].
    #[inline(always)]
    fn question(&self, before: FlowBits, begun: FlowBits) -> Question {
        let mut asked = Question::NONE;
        if senders::asks_each(self.packet) || !before.has(self.asked) {
            asked = Question::SENDER;
        }
        if round_trips::are_wanted() && (before.is_measuring() || !before.has(begun)) {
            asked = asked.and(Question::ROUND_TRIP);
        }
        asked
    }

    /// The bit that the packet sets if it may start a sample; `answers` is the number of the other direction's packets.
    #[inline(always)]
    fn begun(&self, answers: u64) -> FlowBits {
        round_trips::begun(self.packet, answers)
    }

    /// The bits of a flow that the packet begins.
    #[inline(always)]
    fn first_bits(&self) -> FlowBits {
        FlowBits::first(self.packet.initiator)
            .and(self.bits())
            .and(self.begun(0))
    }

    /// The DSCP of a flow that the packet begins.
    #[inline(always)]
    fn first_class(&self) -> Classes {
        Classes::first(self.packet.direction, self.packet.dscp)
    }

    /// The bits that every packet sets in its flow.
    #[inline(always)]
    fn bits(&self) -> FlowBits {
        FlowBits::segment(self.packet.direction, self.packet.tcp_flags).and(self.asked)
    }
}

/// The low half of the kernel's tick counter.
#[inline(always)]
fn tick() -> u32 {
    clock::jiffies() as u32
}

#[inline(always)]
fn factor(index: usize) -> u64 {
    // SAFETY: a static lives as long as the program. Volatile, since userspace replaces the value that the compiler
    // sees.
    unsafe { (&raw const HASH_FACTORS[index]).read_volatile() }
}

/// Adds a packet to its flow. Returns the flow's question, or `None` if the flow was not found; then [`begin`] searches
/// again.
#[inline(always)]
pub fn grow(sought: &Sought<'_>, size: Counted) -> Option<Question> {
    let page = PAGES.get(sought.page)?;
    let (mut hash, windows) = (sought.hash, switches::windows(sought.page));
    let mut tries = 0;
    while tries < TRIES {
        let walk = hash.walk(windows);
        let window = page.get_ptr_mut(walk.window)?;
        let visit = Visit::new(window, sought, size);
        match slots::find(&visit, walk) {
            Found::Tag(slot) if visit.has_key(slot) => {
                let asked = add(visit.counters(slot), sought, size);
                return Some(sought.in_slot(asked, walk.window, slot));
            }
            Found::Tag(_) | Found::Nothing => return None,
            Found::Full => hash = hash.again(),
        }
        tries = Visit::after(tries);
    }
    behind::grow(sought, size)
}

/// The outcome for a packet whose flow was not found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// It began the flow.
    Here(Question),
    /// Another CPU began the flow first.
    Elsewhere(Question),
    Not(Reason),
}

/// Inserts a flow with a packet.
#[inline(always)]
pub fn begin(sought: &Sought<'_>, size: Counted) -> Begun {
    pause::before_the_insert();
    let answer = take_slot(sought, size.packets, size.bytes, size.ip_bytes);
    let question = Question(answer & ((1 << Question::BITS) - 1));
    match answer >> Question::BITS {
        TOOK => Begun::Here(question),
        HAD => Begun::Elsewhere(question),
        FULL => behind::begin(sought, size),
        _ => Begun::Not(Reason::Vanished),
    }
}

/// The results of [`take_slot`].
const TOOK: u64 = 0;
const HAD: u64 = 1;
const FULL: u64 = 2;
const NO_PAGE: u64 = 3;

/// A function of its own, since most packets find their flow. Returns the result in the bits above those of a
/// [`Question`].
#[inline(never)]
fn take_slot(sought: &Sought<'_>, packets: u64, bytes: u64, ip_bytes: u64) -> u64 {
    let did = |what: u64, question: Question| what << Question::BITS | question.0;
    let size = Counted {
        packets,
        bytes,
        ip_bytes,
    };
    let Some(page) = PAGES.get(sought.page) else {
        return did(NO_PAGE, Question::NONE);
    };
    let (mut hash, windows) = (sought.hash, switches::windows(sought.page));
    let mut tries = 0;
    while tries < TRIES {
        let walk = hash.walk(windows);
        let Some(window) = page.get_ptr_mut(walk.window) else {
            return did(NO_PAGE, Question::NONE);
        };
        let visit = Visit::new(window, sought, size);
        match slots::begin(&visit, walk) {
            slots::Begun::Has(slot) => {
                let asked = add(visit.counters(slot), sought, size);
                return did(HAD, sought.in_slot(asked, walk.window, slot));
            }
            slots::Begun::New(slot) => {
                note_window(page, windows, walk.window);
                fill::note_new_flow(sought.page);
                let asked = sought.first_question();
                return did(TOOK, sought.in_slot(asked, walk.window, slot));
            }
            slots::Begun::Full => hash = hash.again(),
        }
        tries = Visit::after(tries);
    }
    did(FULL, Question::NONE)
}

/// Sets the bit of a window with a flow, so that a scan reads the window.
#[inline(always)]
fn note_window(page: &Page, windows: u32, window: u32) {
    let element = windows + window / WINDOWS_A_BITMAP;
    let Some(bitmap) = page.get_ptr_mut(element) else {
        return;
    };
    let word = (window % WINDOWS_A_BITMAP) / u64::BITS;
    let bit = 1 << (window % u64::BITS);
    // SAFETY: an element of bitmaps has `WINDOWS_A_BITMAP` bits, so the word lies in it; other CPUs change it
    // atomically.
    unsafe {
        let word = bitmap.cast::<u64>().add(word as usize);
        if word.read_volatile() & bit == 0 {
            atomic::or(word, bit);
        }
    }
}

/// Marks a round trip's sample as ended.
#[inline(always)]
pub fn settle(question: Question, packet: &Packet, settled: FlowBits) {
    let bits = FlowCounters::word(settled, 0);
    let page = question.page();
    let Some((window, slot)) = question.place() else {
        behind::note(page, packet, bits);
        return;
    };
    let window = PAGES.get(page).and_then(|page| page.get_ptr_mut(window));
    let Some(window) = window else {
        return;
    };
    let slot = masked::<{ SLOTS as u64 - 1 }>(slot.into());
    // SAFETY: the mask keeps the slot in the window, and elements of an array stay where they are.
    unsafe {
        let slot = window.cast::<Slot>().add(slot);
        atomic::or((&raw mut (*slot).counters).cast(), bits);
    }
}

/// Adds to an entry. Several CPUs may write it, so counters grow by atomic adds, and flags by an atomic OR. Returns the
/// packet's question.
#[inline(always)]
fn add(flow: *mut FlowCounters, sought: &Sought<'_>, size: Counted) -> Question {
    let packet = sought.packet;
    let now_jiffies = tick();
    let direction = usize::from(packet.direction & 1);
    // SAFETY: `flow` comes from a lookup in this program run, entries are not deleted while a
    // program may hold them (DESIGN: page flip with a grace period), and the index is 0 or 1.
    unsafe {
        atomic::add(&raw mut (*flow).packets[direction], size.packets);
        atomic::add(&raw mut (*flow).bytes[direction], size.bytes);
        atomic::add(&raw mut (*flow).ip_bytes[direction], size.ip_bytes);
        // Usually the tick is the same and needs no write.
        if FlowCounters::is_later((*flow).last_seen_jiffies, now_jiffies) {
            (*flow).last_seen_jiffies = now_jiffies;
        }
        // Usually the DSCP is the same.
        let news = (&raw const (*flow).classes)
            .read_volatile()
            .news(packet.direction, packet.dscp);
        if news != Classes::NONE {
            let word = (&raw mut (*flow).last_seen_jiffies).cast();
            atomic::or(word, FlowCounters::last_word(0, news));
        }
        // Usually all bits are set already.
        let begun = sought.begun((*flow).packets[1 - direction]);
        let bits = sought.bits().and(begun);
        let before = (&raw const (*flow).bits).read_volatile();
        if before.has(bits) && !(round_trips::are_wanted() && before.is_measuring()) {
            return if senders::asks_each(sought.packet) {
                Question::SENDER
            } else {
                Question::NONE
            };
        }
        if !before.has(bits) {
            atomic::or(flow.cast(), FlowCounters::word(bits, 0));
        }
        sought.question(before, begun)
    }
}
