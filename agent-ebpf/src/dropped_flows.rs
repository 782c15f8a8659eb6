//! Counts the packets that the kernel drops, by flow. See [`agent_common::drops`].
//!
//! The tracepoint passes only the kernel's `sk_buff`, whose device may be stale by then. So a packet counts only if it
//! arrived by an interface and its device still is that interface.

use core::{ffi::c_void, mem::MaybeUninit};

use agent_common::{
    FlowKey, Frame, LinkType, Packet,
    drops::{DropLayout, beside, watched},
    parse,
};
use aya_ebpf::{
    bindings::BPF_NOEXIST,
    btf_maps::{Array, HashMap},
    helpers::generated::bpf_probe_read_kernel,
    macros::btf_map,
};

use crate::{
    atomic,
    errno::EEXIST,
    kernel_memory::field,
    kernel_types::{at, fixed},
    looped_back, switches,
};

/// Set when the programs are loaded. If it is unknown, the verifier removes the reads.
#[unsafe(no_mangle)]
static DROP_LAYOUT: DropLayout = DropLayout::UNKNOWN;

/// By page, by the flow's key in the table. Userspace sets the size, and empties the idle page's map.
#[btf_map]
static DROPPED_0: HashMap<FlowKey, u64, 1> = HashMap::new();
#[btf_map]
static DROPPED_1: HashMap<FlowKey, u64, 1> = HashMap::new();

/// The watched interfaces by [`watched`], in all network namespaces. Userspace sets the size.
#[btf_map]
static WATCHED: HashMap<u64, u32, 1> = HashMap::new();

/// By kind of [`beside`].
#[btf_map]
static DROPPED_BESIDE: Array<u64, { beside::KINDS as usize }> = Array::new();

/// `skb` is a pointer that the verifier knows as a `struct sk_buff`.
#[inline(always)]
pub fn note(skb: *mut c_void, reason: u32) {
    if fixed(&DROP_LAYOUT.head) == 0 {
        return;
    }
    let Some(page) = switches::current() else {
        return;
    };
    if reason == fixed(&DROP_LAYOUT.other_host) || reason == fixed(&DROP_LAYOUT.packet_socket) {
        note_beside(beside::NOT_FOR_US);
        return;
    }
    // SAFETY: the kernel reads its own structures for the program.
    let packet_type: u8 = unsafe { at(skb, &DROP_LAYOUT.packet_type) };
    if looped_back::is_copy_by_byte(packet_type) {
        note_beside(beside::LOOPED_BACK);
        return;
    }
    // SAFETY: as above.
    let interface: u32 = unsafe { at(skb, &DROP_LAYOUT.arrived_by) };
    if interface == 0 {
        note_beside(beside::ELSEWHERE);
        return;
    }
    // SAFETY: as above.
    let device: *mut c_void = unsafe { at(skb, &DROP_LAYOUT.device) };
    // UDP and TCP reuse this field for other data. The helper refuses an invalid address; a plain load would follow it.
    let ifindex: u32 = field(device as usize, fixed(&DROP_LAYOUT.device_ifindex));
    if ifindex != interface {
        note_beside(beside::ELSEWHERE);
        return;
    }
    // SAFETY: as above.
    let netns: u32 = unsafe {
        let netns: *mut c_void = at(device, &DROP_LAYOUT.device_netns);
        at(netns, &DROP_LAYOUT.netns_inode)
    };
    if WATCHED.get_ptr(&watched(ifindex, netns)).is_none() {
        note_beside(beside::UNWATCHED);
        return;
    }
    count(skb, page, ifindex, netns);
}

/// A function of its own, since the parser and the key take stack.
#[inline(never)]
fn count(skb: *mut c_void, page: u32, ifindex: u32, netns: u32) -> u32 {
    let mut packet = Packet::default();
    let is_parsed = parse(&Headers::of(skb), LinkType::Ip, None, &mut packet).is_ok();
    if !is_parsed || packet.part.is_later() {
        note_beside(beside::UNPARSED);
        return 0;
    }
    packet.key.ifindex = ifindex;
    packet.key.netns = netns;
    packet.key.set_side(packet.direction, 0);
    let key = packet.key;
    if page == 0 {
        add(&DROPPED_0, &key);
    } else {
        add(&DROPPED_1, &key);
    }
    0
}

#[inline(always)]
fn add(dropped: &HashMap<FlowKey, u64, 1>, key: &FlowKey) {
    let mut known = dropped.get_ptr_mut(key);
    if known.is_none() {
        // A constant would go into a map of its own.
        let first = core::hint::black_box(1);
        match dropped.insert(key, &first, BPF_NOEXIST.into()) {
            Ok(()) => return,
            // Another CPU inserted the flow first.
            Err(EEXIST) => known = dropped.get_ptr_mut(key),
            Err(_) => {}
        }
    }
    match known {
        // SAFETY: it comes from a look-up in this program run.
        Some(count) => unsafe { atomic::add(count, 1) },
        None => note_beside(beside::NO_ROOM),
    }
}

#[inline(always)]
fn note_beside(kind: u32) {
    if let Some(count) = DROPPED_BESIDE.get_ptr_mut(kind) {
        // SAFETY: elements of an array stay where they are.
        unsafe { atomic::add(count, 1) };
    }
}

/// The bytes of the first buffer from the IP header on.
struct Headers {
    start: usize,
    len_bytes: u32,
}

impl Headers {
    #[inline(always)]
    fn of(skb: *mut c_void) -> Self {
        // SAFETY: the kernel reads its own structures for the program.
        let (head, start, tail): (usize, u16, u32) = unsafe {
            (
                at(skb, &DROP_LAYOUT.head),
                at(skb, &DROP_LAYOUT.network_header),
                at(skb, &DROP_LAYOUT.tail),
            )
        };
        Self {
            start: head + usize::from(start),
            len_bytes: tail.wrapping_sub(start.into()),
        }
    }
}

impl Frame for Headers {
    type Header<const N: usize> = [u8; N];

    #[inline(always)]
    fn header<const N: usize>(&self, offset_bytes: u32) -> Option<[u8; N]> {
        if offset_bytes + N as u32 > self.len_bytes {
            return None;
        }
        let mut bytes = MaybeUninit::<[u8; N]>::uninit();
        // SAFETY: the helper accepts any address, and writes zeros if it cannot be read.
        let refused = unsafe {
            bpf_probe_read_kernel(
                bytes.as_mut_ptr().cast(),
                N as u32,
                (self.start + offset_bytes as usize) as *const _,
            )
        };
        // SAFETY: the helper wrote all of it.
        (refused == 0).then(|| unsafe { bytes.assume_init() })
    }

    #[inline(always)]
    fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    /// Always true: a packet whose IP length is 0 may be a super-frame.
    #[inline(always)]
    fn is_super_frame(&self) -> bool {
        true
    }
}
