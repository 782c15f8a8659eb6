//! A tun device, through which a test makes bare IP packets arrive.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    mem::zeroed,
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
};

use anyhow::{Context as _, Result, ensure};

use crate::{Counters, Namespace, super_frame::virtio_header};

// linux/if_tun.h.
const TUNSETLINK: libc::Ioctl = 0x4004_54cd;

/// A tun device in a namespace, up and without addresses. Dropping it removes it.
#[derive(Debug)]
pub struct Tun {
    file: File,
    pub interface: String,
    pub ifindex: u32,
}

impl Tun {
    pub fn new(namespace: &Namespace, interface: &str) -> Result<Self> {
        Self::of_kind(namespace, interface, libc::IFF_TUN)
    }

    /// A tap device like a virtual machine's: it carries Ethernet frames and super-frames.
    pub fn tap(namespace: &Namespace, interface: &str) -> Result<Self> {
        Self::of_kind(namespace, interface, libc::IFF_TAP | libc::IFF_VNET_HDR)
    }

    fn of_kind(namespace: &Namespace, interface: &str, flags: libc::c_int) -> Result<Self> {
        let file = namespace.enter(|| {
            open(interface, flags).with_context(|| format!("make the device {interface}"))
        })?;
        namespace.ip(&["link", "set", "dev", interface, "addrgenmode", "none", "up"])?;
        Ok(Self {
            file,
            interface: interface.to_owned(),
            ifindex: namespace.ifindex(interface)?,
        })
    }

    /// Makes one IP packet arrive at the interface.
    pub fn send(&self, packet: &[u8]) -> Result<()> {
        let written = (&self.file)
            .write(packet)
            .with_context(|| format!("write to {}", self.interface))?;
        ensure!(
            written == packet.len(),
            "{} took {written} of {} bytes",
            self.interface,
            packet.len()
        );
        Ok(())
    }

    /// Makes a super-frame of TCP or UDP arrive at a tap. Takes the arguments of [`SuperFrameSocket::send`].
    ///
    /// [`SuperFrameSocket::send`]: crate::SuperFrameSocket::send
    pub fn send_super_frame(&self, frame: &[u8], gso_size: u16) -> Result<()> {
        self.send(&[&virtio_header(frame, gso_size)?, frame].concat())
    }

    /// The next packet that left through the interface, or `None` if there is none yet.
    pub fn receive(&self) -> Result<Option<Vec<u8>>> {
        let mut packet = vec![0; 1 << 16];
        match (&self.file).read(&mut packet) {
            Ok(len_bytes) => {
                packet.truncate(len_bytes);
                Ok(Some(packet))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read from {}", self.interface)),
        }
    }

    /// Changes the device's hardware type (`ARPHRD_*`), which determines the first header of its frames. The device
    /// must be down.
    pub fn set_link_type(&self, hardware_type: libc::c_ulong) -> Result<()> {
        // SAFETY: TUNSETLINK takes a number and no pointer.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETLINK, hardware_type) };
        ensure!(result == 0, "TUNSETLINK: {}", io::Error::last_os_error());
        Ok(())
    }

    pub fn counters(&self, namespace: &Namespace) -> Result<Counters> {
        Counters::read(namespace, &self.interface)
    }
}

fn open(interface: &str, flags: libc::c_int) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .context("open /dev/net/tun")?;
    // SAFETY: all zeros is a valid request, without name and flags.
    let mut request: libc::ifreq = unsafe { zeroed() };
    ensure!(
        interface.len() < request.ifr_name.len(),
        "the name {interface} is too long"
    );
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = (flags | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    ensure!(result == 0, "TUNSETIFF: {}", io::Error::last_os_error());
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{Frame, privilege::is_root_or_skip};

    #[test]
    fn bare_packets_arrive_at_the_device() {
        if !is_root_or_skip("lab::bare_packets_arrive_at_the_device") {
            return;
        }
        let namespace = Namespace::new("tun").unwrap();
        namespace
            .set_sysctl("net/ipv6/conf/default/disable_ipv6", "1")
            .unwrap();
        let tun = Tun::new(&namespace, "tun0").unwrap();
        let packet = Frame::bare(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))
            .udp(1, 2, b"x")
            .unwrap();
        for _ in 0..10 {
            tun.send(&packet).unwrap();
        }
        let counters = tun.counters(&namespace).unwrap();
        assert_eq!((counters.rx_packets, counters.rx_bytes), (10, 290));
        assert_eq!(tun.receive().unwrap(), None);
    }
}
