//! Closes the links when the agent ends. Detaching a link takes a grace period under RTNL (`tcx_link_release`). If
//! there are many, the process leaves that to the kernel instead of waiting.
//!
//! A descriptor in the queue of a Unix socket belongs to the kernel. If that queue also holds the socket's own last
//! descriptor, the kernel's garbage collector closes both in a worker of its own (`unix_gc`, 6.9; in earlier kernels,
//! whoever closes the socket waits).

use std::{
    io,
    mem::{size_of, zeroed},
    os::{
        fd::{AsRawFd, RawFd},
        unix::net::UnixDatagram,
    },
    sync::Arc,
};

use super::held::HeldLink;

/// Up to this many links are closed by this process, so they are gone when it ends.
pub(super) const FEW: usize = 16;

/// Descriptors in a message: `SCM_MAX_FD` is 253.
const FDS_A_MESSAGE: usize = 250;

pub(super) fn release(links: Vec<Arc<HeldLink>>) {
    // XDP allows one program per interface, so these places must be free for the next agent.
    let (exclusive, shared): (Vec<_>, Vec<_>) =
        links.into_iter().partition(|link| link.is_exclusive());
    drop(exclusive);
    let mut in_flight = None;
    if shared.len() > FEW {
        let fds: Vec<RawFd> = shared.iter().map(|link| link.as_raw_fd()).collect();
        match hand_over(&fds) {
            Ok(sockets) => {
                for link in &shared {
                    link.leave_to_kernel();
                }
                in_flight = Some(sockets);
                tracing::info!(
                    links = fds.len(),
                    "the programs are off, and the kernel detaches them one after the other"
                );
            }
            Err(error) => tracing::warn!(
                links = fds.len(),
                %error,
                "detaching the programs one after the other, since the kernel does not take them"
            ),
        }
    }
    drop(shared);
    // Drop it only after our last descriptor is closed; otherwise closing ours would detach.
    drop(in_flight);
}

/// Sends the descriptors to a socket in its own queue. Once the caller has closed the descriptors and then the sockets,
/// only the kernel has them.
fn hand_over(fds: &[RawFd]) -> io::Result<[UnixDatagram; 2]> {
    let (sender, receiver) = UnixDatagram::pair()?;
    sender.set_nonblocking(true)?;
    for some in fds.chunks(FDS_A_MESSAGE) {
        send(&sender, some)?;
    }
    send(&sender, &[receiver.as_raw_fd()])?;
    Ok([sender, receiver])
}

fn send(socket: &UnixDatagram, fds: &[RawFd]) -> io::Result<()> {
    let fds_len = size_of_val(fds);
    // SAFETY: pure arithmetic on a length.
    let control_len = unsafe { libc::CMSG_SPACE(fds_len as u32) } as usize;
    // Aligned like `struct cmsghdr`.
    let mut control = vec![0_u64; control_len.div_ceil(size_of::<u64>())];
    let mut byte = 0_u8;
    let mut data = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: `struct msghdr` is plain data, and all zeros are a valid value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control_len as _;
    // SAFETY: the control buffer has room for a header and the descriptors.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: pure arithmetic on a length.
    let header_len = unsafe { libc::CMSG_LEN(fds_len as u32) };
    // SAFETY: the pointer is to the aligned start of `control`.
    let header = unsafe { &mut *header };
    header.cmsg_level = libc::SOL_SOCKET;
    header.cmsg_type = libc::SCM_RIGHTS;
    header.cmsg_len = header_len as _;
    // SAFETY: the header is within `control`.
    let to = unsafe { libc::CMSG_DATA(&raw const *header) };
    // SAFETY: `control_len` leaves room for the descriptors after the header.
    unsafe { std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), to, fds_len) };
    // SAFETY: the message and all that it points to outlive the call.
    match unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// A reader sees the end of a pipe when the kernel has closed its other end.
    #[test]
    fn what_was_handed_over_is_closed_by_the_kernel() {
        let pipes: Vec<_> = (0..600).map(|_| io::pipe().unwrap()).collect();
        let (readers, writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
        let fds: Vec<RawFd> = writers.iter().map(AsRawFd::as_raw_fd).collect();
        let in_flight = hand_over(&fds).unwrap();
        drop(writers);
        drop(in_flight);
        for mut reader in readers {
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
    }
}
