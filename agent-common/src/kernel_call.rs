//! Calls of kernel functions (kfuncs). The loader fills in their numbers.

/// The programs call `bpf_xdp_metadata_rx_vlan_tag` (kernel 6.8) by this helper number, which no kernel has. The loader
/// replaces it with the function's number in the running kernel's BTF.
pub const RX_VLAN_TAG: i32 = 0x7461_6773;
