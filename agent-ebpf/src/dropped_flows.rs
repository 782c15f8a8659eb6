//! Counts what the kernel drops of the flows that it belongs to. See [`agent_common::drops`].
//!
//! At the tracepoint a packet has no more than the kernel's own structure, whose device may be stale by then. So a packet counts if it came by an
//! interface, and the device still is that one.

use core::mem::MaybeUninit;

use agent_common::{
    FlowKey, Frame, LinkType, Packet,
    drops::{DropLayout, beside},
    parse,
};
use aya_ebpf::{
    Global,
    btf_maps::{Array, HashMap},
    helpers::generated::bpf_probe_read_kernel,
    macros::btf_map,
};

use crate::{atomic, kernel_memory::field, switches};

/// Fixed when the programs are loaded. If it is unknown, the verifier removes the reads.
#[unsafe(no_mangle)]
static DROP_LAYOUT: Global<DropLayout> = Global::new(DropLayout::UNKNOWN);

/// By page, with the flow's key in the table. Userspace sets their size, and takes out what is in that of the idle page.
#[btf_map]
static DROPPED_0: HashMap<FlowKey, u64, 1> = HashMap::new();
#[btf_map]
static DROPPED_1: HashMap<FlowKey, u64, 1> = HashMap::new();

/// By kind of [`beside`].
#[btf_map]
static DROPPED_BESIDE: Array<u64, { beside::KINDS as usize }> = Array::new();

const BPF_NOEXIST: u64 = 1;

/// `skb` is the address of a `struct sk_buff`.
#[inline(always)]
pub fn note(skb: usize, reason: u32) {
    let layout = DROP_LAYOUT.load();
    if !layout.is_known() {
        return;
    }
    let Some(page) = switches::current() else {
        return;
    };
    if reason == layout.other_host || reason == layout.packet_socket {
        note_beside(beside::NOT_FOR_US);
        return;
    }
    let interface: u32 = field(skb, layout.arrived_by);
    let device: usize = field(skb, layout.device);
    let ifindex: u32 = field(device, layout.device_ifindex);
    if interface == 0 || ifindex != interface {
        note_beside(beside::ELSEWHERE);
        return;
    }
    let netns: usize = field(device, layout.device_netns);
    count(skb, page, ifindex, field(netns, layout.netns_inode));
}

/// A function of its own: parser and key take stack.
#[inline(never)]
fn count(skb: usize, page: u32, ifindex: u32, netns: u32) -> u32 {
    let layout = DROP_LAYOUT.load();
    let head: usize = field(skb, layout.head);
    let start: u16 = field(skb, layout.network_header);
    let tail: u32 = field(skb, layout.tail);
    let headers = Headers {
        start: head + usize::from(start),
        len_bytes: tail.wrapping_sub(start.into()),
    };
    let mut packet = Packet::default();
    if parse(&headers, LinkType::Ip, None, &mut packet).is_err() || packet.part.is_later() {
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
    if dropped.get_ptr_mut(key).is_none() {
        // A constant would be in a map of its own.
        let none = core::hint::black_box(0);
        // Another CPU may be first.
        let _ = dropped.insert(key, &none, BPF_NOEXIST);
    }
    match dropped.get_ptr_mut(key) {
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

/// What lies in the first buffer from the IP header on.
struct Headers {
    start: usize,
    len_bytes: u32,
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

    /// A length of 0 may be that of one.
    #[inline(always)]
    fn is_super_frame(&self) -> bool {
        true
    }
}
