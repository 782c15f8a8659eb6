//! Connections whose addresses or ports the kernel translates (NAT).

/// An endpoint of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// As in a [`FlowKey`](crate::FlowKey): an IPv4 address takes the first four bytes.
    pub addr: [u8; 16],
    /// Host byte order. ICMP queries have their identifier at both ends instead.
    pub port: u16,
}

/// A connection with both of its forms, the initiator first: as it was opened, and as the kernel translates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// 4 or 6.
    pub ip_version: u8,
    pub protocol: u8,
    pub original: [End; 2],
    pub translated: [End; 2],
}
