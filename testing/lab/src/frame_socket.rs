//! A socket that sends whole frames on an interface, in order.

use std::{
    ffi::CString,
    io,
    mem::{size_of_val, zeroed},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    thread,
};

use anyhow::{Context as _, Result};

use crate::Namespace;

/// Frames per system call.
const BATCH: usize = 256;

/// An `AF_PACKET` socket bound to an interface. It receives nothing.
///
/// The interface limits the frame length to between 14 bytes and MTU plus header.
#[derive(Debug)]
pub struct FrameSocket {
    fd: OwnedFd,
    interface: String,
}

impl FrameSocket {
    pub fn new(namespace: &Namespace, interface: &str) -> Result<Self> {
        Self::with_protocol(namespace, interface, 0)
    }

    /// The same, with the protocol (an EtherType) to pass to the kernel, whatever the frames contain. With 0 the kernel
    /// reads it from the frame.
    pub fn with_protocol(namespace: &Namespace, interface: &str, protocol: u16) -> Result<Self> {
        let fd = open_packet_socket(namespace, interface, protocol)?;
        Ok(Self {
            fd,
            interface: interface.to_owned(),
        })
    }

    /// Makes later frames bypass the queueing discipline, and with it the TC egress hook.
    pub fn bypass_qdisc(&self) -> Result<()> {
        set_packet_option(&self.fd, libc::PACKET_QDISC_BYPASS).context("set PACKET_QDISC_BYPASS")
    }

    /// Sends one frame.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.send_many([frame]).map(drop)
    }

    /// Sends the frames in order and returns their number. If the receiver has no room for a frame, sends it again, so
    /// none is lost. Such a frame passes a TC egress hook on this end once per attempt.
    pub fn send_many<F: AsRef<[u8]>>(&self, frames: impl IntoIterator<Item = F>) -> Result<usize> {
        let mut frames = frames.into_iter();
        let mut sent = 0;
        loop {
            let batch: Vec<F> = frames.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(sent);
            }
            let mut rest = &batch[..];
            while !rest.is_empty() {
                match self.send_batch(rest) {
                    Ok(count) => rest = &rest[count..],
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                        thread::yield_now();
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        let len_bytes = rest[0].as_ref().len();
                        return Err(error).with_context(|| {
                            format!("send a frame of {len_bytes} bytes to {}", self.interface)
                        });
                    }
                }
            }
            sent += batch.len();
        }
    }

    /// Sends frames in one call and returns how many were sent, at least one.
    fn send_batch<F: AsRef<[u8]>>(&self, frames: &[F]) -> io::Result<usize> {
        let mut pieces: Vec<libc::iovec> = frames
            .iter()
            .map(|frame| {
                let frame = frame.as_ref();
                libc::iovec {
                    iov_base: frame.as_ptr().cast_mut().cast(),
                    iov_len: frame.len(),
                }
            })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = pieces
            .iter_mut()
            .map(|piece| {
                // SAFETY: the all-zero message is valid: no address, no data and no control data.
                let mut message: libc::mmsghdr = unsafe { zeroed() };
                message.msg_hdr.msg_iov = piece;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        let count = messages.len() as libc::c_uint;
        // SAFETY: there are `count` messages, each with one slice of a frame that outlives the call. The kernel only
        // reads the frames.
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// A socket in the namespace that sends raw frames on the interface. With protocol 0 it receives nothing.
pub(crate) fn open_packet_socket(
    namespace: &Namespace,
    interface: &str,
    protocol: u16,
) -> Result<OwnedFd> {
    let name = CString::new(interface).context("an interface name has no zero byte")?;
    namespace.enter(|| {
        open_bound(&name, protocol).with_context(|| format!("open a packet socket on {interface}"))
    })
}

/// Turns on an option of a packet socket.
pub(crate) fn set_packet_option(socket: &OwnedFd, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the value is an int that outlives the call, and the length is its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw const on).cast(),
            len,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn open_bound(interface: &CString, protocol: u16) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers. Protocol 0 receives nothing.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the name is a C string that outlives the call.
    let ifindex = unsafe { libc::if_nametoindex(interface.as_ptr()) };
    if ifindex == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros is a valid address, with no interface set.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex.cast_signed();
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is a sockaddr_ll that outlives the call, and the length is its size.
    match unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(fd),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Lab, privilege::is_root_or_skip};

    #[test]
    fn every_frame_arrives_and_is_counted() {
        if !is_root_or_skip("lab::every_frame_arrives_and_is_counted") {
            return;
        }
        let lab = Lab::quiet().unwrap();
        let socket = lab.peer.frame_socket().unwrap();
        let frame = lab.peer.frame_v4(&lab.agent);
        let frames = (0..100_000_u32).map(|n| frame.udp(n as u16, 53, &[0; 18]).unwrap());
        assert_eq!(socket.send_many(frames).unwrap(), 100_000);
        let received = lab.agent.counters().unwrap();
        assert_eq!(
            (received.rx_packets, received.rx_bytes),
            (100_000, 6_000_000)
        );
        let sent = lab.peer.counters().unwrap();
        assert_eq!((sent.tx_packets, sent.tx_bytes), (100_000, 6_000_000));
    }

    #[test]
    fn a_frame_that_is_too_long_is_an_error_that_says_so() {
        if !is_root_or_skip("lab::a_frame_that_is_too_long_is_an_error_that_says_so") {
            return;
        }
        let lab = Lab::quiet().unwrap();
        let error = lab
            .peer
            .frame_socket()
            .unwrap()
            .send(&[0; 2000])
            .unwrap_err();
        assert!(
            format!("{error:#}").contains("2000 bytes to peer0"),
            "{error:#}"
        );
    }
}
