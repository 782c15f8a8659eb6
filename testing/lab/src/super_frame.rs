//! Sends super-frames: single skbs that stand for many frames on the wire.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, bail, ensure};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use crate::{
    Namespace,
    frame_socket::{open_packet_socket, set_packet_option},
};

/// From `include/uapi/linux/virtio_net.h`.
const VIRTIO_NET_HDR_F_NEEDS_CSUM: u8 = 1;
const VIRTIO_NET_HDR_GSO_TCPV4: u8 = 1;
const VIRTIO_NET_HDR_GSO_UDP: u8 = 3;
const VIRTIO_NET_HDR_GSO_TCPV6: u8 = 4;
const VIRTIO_NET_HDR_GSO_UDP_L4: u8 = 5;

/// An `AF_PACKET` socket with `PACKET_VNET_HDR`.
///
/// Its skbs have `gso_size` set and `gso_segs` 0, as with virtio and tap (`virtio_net_hdr_to_skb`). An interface with
/// `tso` (for UDP `tx-udp-segmentation`) on passes them on whole. Otherwise the kernel segments them after the TC
/// egress hook.
#[derive(Debug)]
pub struct SuperFrameSocket {
    fd: OwnedFd,
    interface: String,
}

impl SuperFrameSocket {
    pub fn new(namespace: &Namespace, interface: &str) -> Result<Self> {
        let fd = open_packet_socket(namespace, interface, 0)?;
        set_packet_option(&fd, libc::PACKET_VNET_HDR).context("set PACKET_VNET_HDR")?;
        Ok(Self {
            fd,
            interface: interface.to_owned(),
        })
    }

    /// Sends an Ethernet frame with TCP or UDP whose payload is longer than `gso_size`. Each frame on the wire gets
    /// `gso_size` bytes of payload.
    pub fn send(&self, frame: &[u8], gso_size: u16) -> Result<()> {
        self.send_with(virtio_header(frame, gso_size)?, frame)
    }

    /// Sends an Ethernet frame with one UDP datagram that is longer than `gso_size`, a multiple of eight. Each fragment
    /// on the wire gets `gso_size` bytes of the datagram, including the UDP header.
    pub fn send_datagram(&self, frame: &[u8], gso_size: u16) -> Result<()> {
        let mut header = virtio_header(frame, gso_size)?;
        header[1] = VIRTIO_NET_HDR_GSO_UDP;
        self.send_with(header, frame)
    }

    fn send_with(&self, header: [u8; 10], frame: &[u8]) -> Result<()> {
        let message = [&header, frame].concat();
        // SAFETY: the message outlives the call, and the length is its own.
        let sent = unsafe {
            libc::send(
                self.fd.as_raw_fd(),
                message.as_ptr().cast(),
                message.len(),
                0,
            )
        };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error());
        let sent = sent.with_context(|| {
            format!(
                "send a super-frame of {} bytes to {}",
                frame.len(),
                self.interface
            )
        })?;
        ensure!(
            sent == message.len(),
            "{sent} of {} bytes of a super-frame were sent",
            message.len()
        );
        Ok(())
    }
}

/// `struct virtio_net_hdr`, in the machine's byte order.
pub(crate) fn virtio_header(frame: &[u8], gso_size: u16) -> Result<[u8; 10]> {
    let packet = SlicedPacket::from_ethernet(frame).context("parse a super-frame")?;
    let is_ipv4 = matches!(packet.net, Some(NetSlice::Ipv4(_)));
    let (gso_type, checksum_offset, header, segment) = match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let gso_type = if is_ipv4 {
                VIRTIO_NET_HDR_GSO_TCPV4
            } else {
                VIRTIO_NET_HDR_GSO_TCPV6
            };
            (gso_type, 16_u16, tcp.header_len(), tcp.slice())
        }
        Some(TransportSlice::Udp(udp)) => (VIRTIO_NET_HDR_GSO_UDP_L4, 6, 8, udp.slice()),
        Some(TransportSlice::Icmpv4(_) | TransportSlice::Icmpv6(_) | TransportSlice::Igmp(_))
        | None => {
            bail!("a super-frame carries TCP or UDP")
        }
    };
    let start = segment.as_ptr() as usize - frame.as_ptr() as usize;
    let header_len = u16::try_from(start + header).context("headers of a super-frame")?;
    let start = u16::try_from(start).context("headers of a super-frame")?;
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&[VIRTIO_NET_HDR_F_NEEDS_CSUM, gso_type]);
    for (field, value) in
        bytes[2..]
            .chunks_exact_mut(2)
            .zip([header_len, gso_size, start, checksum_offset])
    {
        field.copy_from_slice(&value.to_ne_bytes());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use crate::{Lab, privilege::is_root_or_skip};

    #[test]
    fn a_super_frame_becomes_its_segments_on_the_wire() {
        if !is_root_or_skip("lab::a_super_frame_becomes_its_segments_on_the_wire") {
            return;
        }
        let lab = Lab::quiet().unwrap();
        let socket = lab.peer.super_frame_socket().unwrap();
        let payload = [0; 2500];
        let tcp_v4 = lab
            .peer
            .frame_v4(&lab.agent)
            .tcp(1, 2, 0x10, &payload)
            .unwrap();
        let tcp_v6 = lab
            .peer
            .frame_v6(&lab.agent)
            .tcp_options(&[1; 12])
            .tcp(1, 2, 0x10, &payload)
            .unwrap();
        let udp = lab.peer.frame_v4(&lab.agent).udp(1, 2, &payload).unwrap();
        for (frame, headers) in [(tcp_v4, 54), (tcp_v6, 86), (udp, 42)] {
            let before = lab.agent.counters().unwrap();
            socket.send(&frame, 1000).unwrap();
            let seen = lab.agent.counters().unwrap() - before;
            assert_eq!((seen.rx_packets, seen.rx_bytes), (3, 3 * headers + 2500));
        }
    }
}
