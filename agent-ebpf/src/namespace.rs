//! Whether the interface at which a packet is has left the network namespace that the agent watches: it takes
//! our program along, and its index may be that of another interface here.

use agent_common::interface::DeviceLayout;
use aya_ebpf::Global;

use crate::kernel_memory::field;

/// The namespace of the interfaces, by inode number.
#[unsafe(no_mangle)]
static NETNS: Global<u32> = Global::new(0);

/// Fixed when the programs are loaded. Where it is unknown the verifier takes the reads away, which the
/// kernel might refuse.
#[unsafe(no_mangle)]
static DEVICE_LAYOUT: Global<DeviceLayout> = Global::new(DeviceLayout::UNKNOWN);

#[inline(always)]
pub fn number() -> u32 {
    NETNS.load()
}

/// By the address of a program's context, which the verifier shows as `__sk_buff` or `xdp_md`: to TC it is
/// the `sk_buff`, to XDP the `xdp_buff`.
///
/// Asked for a packet that begins a flow, since three or four reads cost as much as counting a packet does.
/// `false` where it cannot be known.
#[inline(never)]
pub fn has_left(context: usize, is_xdp: u32) -> bool {
    let layout = DEVICE_LAYOUT.load();
    if layout.netns_inode == 0 {
        return false;
    }
    let device: usize = if is_xdp == 0 {
        field(context, layout.skb_device)
    } else {
        let queue: usize = field(context, layout.xdp_queue);
        field(queue, layout.queue_device)
    };
    let netns: usize = field(device, layout.device_netns);
    let inode: u32 = field(netns, layout.netns_inode);
    // 0 where one of them could not be read.
    inode != 0 && inode != NETNS.load()
}
