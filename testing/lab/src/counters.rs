//! An interface's own counters, read from the kernel.

use std::ops::Sub;

use anyhow::{Context as _, Result};

use crate::Namespace;

/// The kernel's counts for an interface since its creation.
///
/// A veth counts `rx_bytes` like the sender's `tx_bytes`, with one exception: an end that polls (`gro` on, or a native
/// XDP program) counts frames that arrived as skbs without their 14-byte Ethernet header (`veth_xdp_rcv_skb`, seen on
/// 6.18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_dropped: u64,
    pub rx_errors: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_dropped: u64,
    pub tx_errors: u64,
}

impl Counters {
    /// Reads `rtnl_link_stats64` through `ip`.
    pub fn read(namespace: &Namespace, interface: &str) -> Result<Self> {
        let output = namespace.ip(&["-s", "-j", "link", "show", "dev", interface])?;
        let links: serde_json::Value =
            serde_json::from_slice(&output).context("parse the JSON of ip link")?;
        let counter = |direction: &str, name: &str| {
            links[0]["stats64"][direction][name]
                .as_u64()
                .with_context(|| format!("ip shows no {direction} {name} of {interface}"))
        };
        Ok(Self {
            rx_packets: counter("rx", "packets")?,
            rx_bytes: counter("rx", "bytes")?,
            rx_dropped: counter("rx", "dropped")?,
            rx_errors: counter("rx", "errors")?,
            tx_packets: counter("tx", "packets")?,
            tx_bytes: counter("tx", "bytes")?,
            tx_dropped: counter("tx", "dropped")?,
            tx_errors: counter("tx", "errors")?,
        })
    }
}

impl Sub for Counters {
    type Output = Self;

    /// The counts since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            rx_packets: self.rx_packets - earlier.rx_packets,
            rx_bytes: self.rx_bytes - earlier.rx_bytes,
            rx_dropped: self.rx_dropped - earlier.rx_dropped,
            rx_errors: self.rx_errors - earlier.rx_errors,
            tx_packets: self.tx_packets - earlier.tx_packets,
            tx_bytes: self.tx_bytes - earlier.tx_bytes,
            tx_dropped: self.tx_dropped - earlier.tx_dropped,
            tx_errors: self.tx_errors - earlier.tx_errors,
        }
    }
}
