//! The least that a flow table in a kernel hash map needs to count a packet.

use core::hint::black_box;

use agent_common::{FlowCounters, FlowKey, LinkType, Packet, parse};
use aya_ebpf::{btf_maps::HashMap, macros::btf_map, programs::TcContext};

use crate::{atomic, clock, packet::Linear};

/// Userspace sets the size.
#[btf_map]
static BARE: HashMap<FlowKey, FlowCounters, 1> = HashMap::new();

/// Userspace sets the size.
#[btf_map]
static SHORT_KEYS: HashMap<u64, FlowCounters, 1> = HashMap::new();

pub const BPF_ANY: u64 = 0;
pub const BPF_NOEXIST: u64 = 1;

/// How one variant differs from another.
pub struct Settings<N, A> {
    pub now: N,
    pub add: A,
    pub insert_flags: u64,
}

/// The linear part of the skb, and the length of the whole frame.
#[inline(always)]
pub fn linear(ctx: &TcContext) -> (Linear, u32) {
    // SAFETY: the context pointer is valid for the program's run; the verifier checks the fields.
    let skb = unsafe { &*ctx.skb.skb };
    let linear = Linear {
        data: skb.data as usize,
        data_end: skb.data_end as usize,
    };
    (linear, skb.len)
}

/// Settings whose type can be named as a return type.
pub type FixedSettings = Settings<fn() -> u64, fn(*mut u64, u64)>;

/// Only the parse, the first step of every variant.
#[inline(always)]
pub fn parse_only(ctx: &TcContext) {
    let mut packet = Packet::default();
    let parsed = parse(&linear(ctx).0, LinkType::Ethernet, None, &mut packet);
    black_box((&packet, parsed.is_ok()));
}

/// Adds a packet to its flow. A packet that the parser refuses is not counted.
#[inline(always)]
pub fn count<N: FnOnce() -> u64, A: Fn(*mut u64, u64)>(
    linear: &Linear,
    len_bytes: u32,
    settings: Settings<N, A>,
) {
    let mut packet = Packet::default();
    if parse(linear, LinkType::Ethernet, None, &mut packet).is_ok() {
        add(&BARE, &packet.key, &packet, len_bytes, settings);
    }
}

/// Uses an eight-byte flow key, which is cheaper to hash and compare.
#[inline(always)]
pub fn count_by_short_key(linear: &Linear, len_bytes: u32) {
    let mut packet = Packet::default();
    if parse(linear, LinkType::Ethernet, None, &mut packet).is_ok() {
        let [a, b] = [packet.key.addr_a, packet.key.addr_b];
        let key = u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]);
        add(&SHORT_KEYS, &key, &packet, len_bytes, timeless());
    }
}

/// The usual variant, with the tick counter instead of a clock.
pub fn timeless() -> FixedSettings {
    Settings {
        now: clock::jiffies,
        add: atomic_add,
        insert_flags: BPF_ANY,
    }
}

/// `counter` must be in an entry that this program run has looked up.
#[inline(always)]
pub fn atomic_add(counter: *mut u64, value: u64) {
    // SAFETY: the only callers are below, and they pass a live entry.
    unsafe { atomic::add(counter, value) }
}

/// Loses counts if another CPU adds to the same counter at the same time.
#[inline(always)]
pub fn plain_add(counter: *mut u64, value: u64) {
    // SAFETY: as above.
    unsafe { *counter += value }
}

/// Adds a packet to its flow in any kind of table.
#[inline(always)]
pub fn add<K, N: FnOnce() -> u64, A: Fn(*mut u64, u64), const FLAGS: usize>(
    table: &HashMap<K, FlowCounters, 1, FLAGS>,
    key: &K,
    packet: &Packet,
    len_bytes: u32,
    settings: Settings<N, A>,
) {
    let now = (settings.now)();
    let direction = usize::from(packet.direction & 1);
    if let Some(flow) = table.get_ptr_mut(key) {
        // SAFETY: `flow` comes from a look-up in this program run, and the index is 0 or 1.
        let (packets, bytes) = unsafe {
            (*flow).last_seen_jiffies = now as u32;
            (
                &raw mut (*flow).packets[direction],
                &raw mut (*flow).bytes[direction],
            )
        };
        (settings.add)(packets, 1);
        (settings.add)(bytes, u64::from(len_bytes));
        return;
    }
    let mut first = FlowCounters {
        last_seen_jiffies: now as u32,
        ..FlowCounters::default()
    };
    first.packets[direction] = 1;
    first.bytes[direction] = u64::from(len_bytes);
    // The bench sets the size, so a full table would be its own bug.
    let _ = table.insert(key, &first, settings.insert_flags);
}
