//! Asks the driver for the VLAN tag that it removed from a frame.

use agent_common::kernel_call::RX_VLAN_TAG;
use aya_ebpf::bindings::xdp_md;

/// The driver's answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The tag's control information.
    Taken(u16),
    /// The frame had no tag, or still has it (`ENODATA`).
    Nothing,
    /// The driver does not report it.
    Unknown,
}

impl Answer {
    #[inline(always)]
    pub fn tci(self) -> Option<u16> {
        match self {
            Self::Taken(tci) => Some(tci),
            Self::Nothing | Self::Unknown => None,
        }
    }
}

/// Asks for the tag of a frame.
#[inline(always)]
pub fn of(frame: *mut xdp_md) -> Answer {
    const ENODATA: i32 = 61;
    // Initialized, since the kernel assumes that the function may read both.
    let (mut protocol, mut tci) = (0, 0);
    match rx_vlan_tag(frame, &mut protocol, &mut tci) {
        0 => Answer::Taken(tci),
        error if error == -ENODATA => Answer::Nothing,
        _ => Answer::Unknown,
    }
}

/// Calls the kernel function `bpf_xdp_metadata_rx_vlan_tag`. aya does not support the compiler's way to call one, so
/// this calls a helper that no kernel has, and the loader patches the instruction.
#[inline(always)]
fn rx_vlan_tag(frame: *mut xdp_md, protocol: &mut u16, tci: &mut u16) -> i32 {
    #[cfg(target_arch = "bpf")]
    {
        let answer: i64;
        // SAFETY: the function writes to its two pointers only, and changes the registers that any call changes.
        unsafe {
            core::arch::asm!(
                "call {function}",
                function = const RX_VLAN_TAG,
                inlateout("r1") frame => _,
                inlateout("r2") &raw mut *protocol => _,
                inlateout("r3") &raw mut *tci => _,
                lateout("r4") _,
                lateout("r5") _,
                lateout("r0") answer,
            );
        }
        // The function returns an `int`, so the upper half of the register is undefined.
        answer as i32
    }
    // Never run.
    #[cfg(not(target_arch = "bpf"))]
    {
        let _ = (frame, protocol, tci);
        RX_VLAN_TAG
    }
}
