//! Determines the link type of a packet whose first bytes leave it in doubt. See [`agent_common::link_header`].

use core::mem::MaybeUninit;

use agent_common::{
    Frame as _, LinkType,
    link_header::{COMPARED, is_doubtful},
};
use aya_ebpf::{
    bindings::{__sk_buff, bpf_hdr_start_off::BPF_HDR_START_NET},
    helpers::generated::{bpf_skb_load_bytes, bpf_skb_load_bytes_relative},
};

use crate::packet::Paged;

/// 1 if a packet has the link header of the other link type, else 0. A global function, which the verifier walks once:
/// each path through it would double the paths through the parser.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn begins_otherwise(skb: *mut __sk_buff, is_ip: u32) -> u32 {
    let link_type = if is_ip == 0 {
        LinkType::Ethernet
    } else {
        LinkType::Ip
    };
    let front = Paged(skb).front();
    let Some(start) = front.linear.header::<14>(0) else {
        return 0;
    };
    // SAFETY: the context pointer is valid for the program's run; the verifier checks the fields.
    let (protocol, len_bytes) = unsafe { ((*skb).protocol, (*skb).len) };
    let protocol = u16::from_be(protocol as u16);
    if !is_doubtful(&start, protocol, len_bytes, link_type) {
        return 0;
    }
    let as_promised = link_type == LinkType::Ip;
    let is_other = is_at_network_header(skb).is_some_and(|is_bare| is_bare != as_promised);
    u32::from(is_other)
}

/// Whether the packet begins at the kernel's network header: the bytes there are the same. `None` if they cannot be
/// read, since the packet is too short or they are not in its first buffer.
#[inline(always)]
fn is_at_network_header(skb: *mut __sk_buff) -> Option<bool> {
    let mut start = MaybeUninit::<[u64; COMPARED / 8]>::uninit();
    let mut network = MaybeUninit::<[u64; COMPARED / 8]>::uninit();
    // SAFETY: the helper writes as many bytes as there is room for, or fails.
    let is_read = unsafe {
        bpf_skb_load_bytes(skb.cast(), 0, start.as_mut_ptr().cast(), COMPARED as u32) == 0
    };
    // SAFETY: as above.
    let is_read = is_read
        && unsafe {
            bpf_skb_load_bytes_relative(
                skb.cast(),
                0,
                network.as_mut_ptr().cast(),
                COMPARED as u32,
                BPF_HDR_START_NET,
            ) == 0
        };
    if !is_read {
        return None;
    }
    // SAFETY: both helpers returned 0, so they have written all bytes.
    let (start, network) = unsafe { (start.assume_init(), network.assume_init()) };
    Some(start == network)
}
