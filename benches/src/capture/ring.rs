//! An `AF_PACKET` socket with a `TPACKET_V3` ring. It captures the frames of an interface and counts the ones it
//! dropped (`packet(7)`, `Documentation/networking/packet_mmap.rst`).

use std::{
    io,
    mem::{size_of, zeroed},
    os::fd::{AsRawFd as _, OwnedFd},
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
    net::{AddressFamily, SocketFlags, SocketType, netdevice::name_to_index, socket_with},
};

use super::block::{self, Captured, STATUS_OFFSET_BYTES};

/// After this time the kernel hands over a block even if it is not full.
pub const RETIRE_AFTER: Duration = Duration::from_millis(50);

const BLOCK_LEN_BYTES: usize = 1 << 20;
/// Only an upper bound: version 3 packs frames as closely as it can.
const FRAME_LEN_BYTES: usize = 2048;
/// As much of a frame as the parser may read: Ethernet, two tags, IPv6 with extensions, TCP.
const CUT_LEN_BYTES: u32 = 192;

pub struct Ring {
    socket: OwnedFd,
    memory: NonNull<u8>,
    blocks: usize,
    next: usize,
}

// SAFETY: only this value refers to the mapping, and any thread may access it.
unsafe impl Send for Ring {}

impl Ring {
    /// Captures what arrives at and leaves the interface, starting with this call.
    pub fn open(interface: &str, len_bytes: usize) -> Result<Self> {
        let blocks = len_bytes / BLOCK_LEN_BYTES;
        ensure!(blocks > 0, "a ring has at least {BLOCK_LEN_BYTES} bytes");
        // Protocol 0 receives nothing until the socket is bound.
        let (family, cloexec) = (AddressFamily::PACKET, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, cloexec, None)
            .context("open a packet socket (needs CAP_NET_RAW)")?;
        configure(&socket, blocks)?;
        let memory = map(&socket, blocks).context("map the ring")?;
        let ring = Self {
            socket,
            memory,
            blocks,
            next: 0,
        };
        bind(&ring.socket, interface).with_context(|| format!("capture on {interface}"))?;
        Ok(ring)
    }

    pub fn blocks(&self) -> usize {
        self.blocks
    }

    pub fn len_bytes(&self) -> usize {
        self.blocks * BLOCK_LEN_BYTES
    }

    /// Passes the frames of the next block to `sink` and returns the block to the kernel. Returns false if no block is
    /// ready.
    pub fn take(&mut self, mut sink: impl FnMut(Captured)) -> bool {
        let offset = self.next * BLOCK_LEN_BYTES;
        // SAFETY: `next` is a block of the mapping.
        let start = unsafe { self.memory.add(offset) };
        // SAFETY: the status lies within the block, aligned to four bytes.
        let status = unsafe { start.add(STATUS_OFFSET_BYTES) }.cast::<u32>();
        // SAFETY: the mapping lives as long as `self`; both sides use the status atomically.
        let status = unsafe { AtomicU32::from_ptr(status.as_ptr()) };
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return false;
        }
        // SAFETY: a whole block of the mapping, which the kernel leaves alone until it is given
        // back below; nobody reads the slice after that.
        let block = unsafe { slice::from_raw_parts(start.as_ptr(), BLOCK_LEN_BYTES) };
        for frame in block::frames(block) {
            sink(frame);
        }
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.blocks;
        true
    }

    /// Waits until a block is ready, for at most `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let mut block = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::ERR)];
        let timeout = Timespec::try_from(timeout).context("a time that the kernel can wait")?;
        match poll(&mut block, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("wait for packets"),
        }
    }

    /// Packets dropped since the last call because the ring was full.
    pub fn take_dropped(&self) -> Result<u64> {
        // SAFETY: the all-zero bit pattern is a valid value.
        let mut statistics: libc::tpacket_stats_v3 = unsafe { zeroed() };
        let mut len = size_of::<libc::tpacket_stats_v3>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes into the statistics, which outlive the call.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error()).context("read PACKET_STATISTICS");
        }
        Ok(statistics.tp_drops.into())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped at this length by `map`; no frame outlives `take`.
        let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), self.len_bytes()) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

fn configure(socket: &OwnedFd, blocks: usize) -> Result<()> {
    let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
    set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)
        .context("choose TPACKET_V3 (needs CAP_NET_RAW)")?;
    let blocks_count = u32::try_from(blocks).context("a ring's blocks have 32 bits")?;
    let request = libc::tpacket_req3 {
        tp_block_size: BLOCK_LEN_BYTES as u32,
        tp_block_nr: blocks_count,
        tp_frame_size: FRAME_LEN_BYTES as u32,
        tp_frame_nr: blocks_count * (BLOCK_LEN_BYTES / FRAME_LEN_BYTES) as u32,
        tp_retire_blk_tov: RETIRE_AFTER.as_millis() as u32,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
        .with_context(|| format!("make a ring of {blocks} blocks"))?;
    // `return CUT_LEN_BYTES`
    let mut cut = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: CUT_LEN_BYTES,
    };
    let filter = libc::sock_fprog {
        len: 1,
        filter: &raw mut cut,
    };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
        .context("attach the filter that cuts frames")
}

fn set<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the value outlives the call, and its size is given; pointers in it are the caller's.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn map(socket: &OwnedFd, blocks: usize) -> io::Result<NonNull<u8>> {
    let len_bytes = blocks * BLOCK_LEN_BYTES;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address = unsafe {
        mmap(
            std::ptr::null_mut(),
            len_bytes,
            access,
            MapFlags::SHARED,
            socket,
            0,
        )
    }?;
    NonNull::new(address.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

fn bind(socket: &OwnedFd, interface: &str) -> Result<()> {
    let ifindex = name_to_index(socket, interface).context("find the interface")?;
    // SAFETY: all zeros is a valid address, with no interface set.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = ifindex.cast_signed();
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a sockaddr_ll that outlives the call, and its length is given.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().into()),
    }
}
