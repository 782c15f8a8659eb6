//! Calls of kernel functions (kfuncs), which the loader completes.

/// Stands in the programs where `bpf_xdp_metadata_rx_vlan_tag` (kernel 6.8) is called: as the number of a helper, which
/// no kernel has. The loader puts in the number that the running kernel gave to the function (its BTF).
pub const RX_VLAN_TAG: i32 = 0x7461_6773;
