//! Detects that a packet's interface has left the network namespace that the agent watches. Such an interface takes our
//! program along, and another interface here may have the same index.

use agent_common::interface::DeviceLayout;
use aya_ebpf::Global;

use crate::kernel_memory::field;

/// The inode number of the watched namespace.
#[unsafe(no_mangle)]
static NETNS: Global<u32> = Global::new(0);

/// Set when the programs are loaded. If it is unknown, the verifier removes the reads, which the kernel might refuse.
#[unsafe(no_mangle)]
static DEVICE_LAYOUT: Global<DeviceLayout> = Global::new(DeviceLayout::UNKNOWN);

#[inline(always)]
pub fn number() -> u32 {
    NETNS.load()
}

/// `context` is the address of a program's context. The verifier presents it as `__sk_buff` or `xdp_md`, but
/// it really is the `sk_buff` in TC and the `xdp_buff` in XDP.
///
/// Checked only for a packet that begins a flow, since three or four reads cost as much as counting a packet. `false`
/// if the layout is unknown or a read failed.
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
    // 0 if one of the reads failed.
    inode != 0 && inode != NETNS.load()
}
