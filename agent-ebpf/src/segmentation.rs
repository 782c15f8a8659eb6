//! Reads how the kernel will cut a super-frame, from fields of the skb that `__sk_buff` does not show.

use agent_common::{
    Frame as _, Header as _, Packet,
    segmentation::{Repeats, SkbLayout},
};
use aya_ebpf::{Global, bindings::__sk_buff};

use crate::{kernel_memory::field, packet::Paged};

/// Set when the programs are loaded. If it is unknown, the verifier removes the reads, which the kernel might refuse.
#[unsafe(no_mangle)]
static SKB_LAYOUT: Global<SkbLayout> = Global::new(SkbLayout::UNKNOWN);

/// Sets the length of the headers that each segment of `packet` repeats, 0 if unknown. Returns the length of the
/// headers that each segment has and the skb lacks.
///
/// A field that cannot be read gives 0, which means unknown: no super-frame has the type 0, and no inner header begins
/// where the frame does.
///
/// A global function for the verifier's sake, like the functions in [`crate::steps`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn read_segmentation(
    skb: *mut __sk_buff,
    packet: *mut Packet,
    is_opened: u32,
) -> u32 {
    // SAFETY: the verifier makes sure that every caller passes a packet or null.
    let Some(packet) = (unsafe { packet.as_mut() }) else {
        return 0;
    };
    let paged = Paged(skb);
    let layout = SKB_LAYOUT.load();
    if layout.head == 0 {
        packet.segment_header_len_bytes = 0;
        return 0;
    }
    // The context of a TC program is really the `sk_buff`, which the verifier presents as `__sk_buff`.
    let skb = skb as usize;
    let head: usize = field(skb, layout.head);
    let end: u32 = field(skb, layout.end);
    let gso_type = field(head + end as usize, layout.gso_type);
    let inner_transport = || {
        let in_head: u16 = field(skb, layout.inner_transport_header);
        let data: usize = field(skb, layout.data);
        (head + usize::from(in_head)).wrapping_sub(data) as u32
    };
    let Repeats {
        header_len_bytes,
        lacking_len_bytes,
    } = packet.repeats(is_opened != 0, gso_type, &layout, inner_transport, |at| {
        tcp_header_len(paged, at)
    });
    packet.segment_header_len_bytes = header_len_bytes;
    lacking_len_bytes
}

#[inline(always)]
fn tcp_header_len(skb: Paged, offset_bytes: u32) -> u32 {
    match skb.header::<20>(offset_bytes) {
        Some(header) => u32::from(header.u8::<12>() >> 4) * 4,
        None => 0,
    }
}
