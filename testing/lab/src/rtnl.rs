//! Holds RTNL, the lock under which the kernel changes interfaces and answers most of netlink, for as long as
//! a test wants.
//!
//! `__tun_chr_ioctl` takes RTNL before it reads its argument. The argument lies on a page that the test has
//! not filled yet (userfaultfd), so the kernel waits for it with the lock held.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr,
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

// linux/userfaultfd.h, linux/if_tun.h.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
const UFFDIO_ZEROPAGE: libc::Ioctl = 0xc020_aa04_u32 as libc::Ioctl;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
const TUNSETIFINDEX: libc::Ioctl = 0x4004_54da;

const PAGE_LEN_BYTES: usize = 4096;

/// The longest time for which any test, even one that fails, may stop the machine.
const MOST: Duration = Duration::from_mins(2);

/// Until it is dropped, nobody on this machine can change an interface. It holds for two minutes at most.
#[derive(Debug)]
pub struct RtnlHold {
    release: Sender<()>,
    /// Returns whether it was asked to let go.
    releaser: Option<JoinHandle<bool>>,
}

impl RtnlHold {
    /// Returns when it is held. Fails if the kernel has no userfaultfd or tun, or does not let this process use them.
    pub fn take() -> Result<Self> {
        let tun = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun");
        let tun = tun.context("open /dev/net/tun")?;
        let faults = userfaultfd().context("open a userfaultfd")?;
        let page = missing_page(&faults).context("make a page whose content is yet to come")?;
        let holder = thread::spawn(move || hold(&tun, page));
        // The kernel tells of the fault when the holder has the lock.
        wait_for_fault(&faults, &holder)?;
        let (release, asked) = mpsc::channel();
        let releaser = thread::spawn(move || {
            let is_asked = asked.recv_timeout(MOST).is_ok();
            let mut zeros = [page as u64, PAGE_LEN_BYTES as u64, 0, 0];
            // If this failed, the kernel would let go only when the process ends.
            ioctl(&faults, UFFDIO_ZEROPAGE, &mut zeros).expect("the page gets its content");
            holder.join().expect("the holder does not panic");
            is_asked
        });
        Ok(Self {
            release,
            releaser: Some(releaser),
        })
    }

    /// Lets go. Returns whether the lock was held until here.
    pub fn release(mut self) -> bool {
        self.let_go()
    }

    fn let_go(&mut self) -> bool {
        // Nobody listens if the time is over.
        let _ = self.release.send(());
        let released = self.releaser.take().map(JoinHandle::join);
        matches!(released, Some(Ok(true)))
    }
}

impl Drop for RtnlHold {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Waits in the kernel until the page has content. That content is a request that changes nothing.
fn hold(tun: &File, page: usize) {
    // SAFETY: the page is mapped for as long as the process lives.
    unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFINDEX, page) };
}

fn userfaultfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel answered with a descriptor that nobody else owns.
    let faults = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    ioctl(&faults, UFFDIO_API, &mut [UFFD_API, 0, 0])?;
    Ok(faults)
}

fn wait_for_fault(faults: &OwnedFd, holder: &JoinHandle<()>) -> Result<()> {
    // `struct uffd_msg`.
    let mut message = [0_u8; 32];
    loop {
        // SAFETY: the buffer is as long as the call says, and outlives it.
        let read = unsafe {
            libc::read(
                faults.as_raw_fd(),
                message.as_mut_ptr().cast(),
                message.len(),
            )
        };
        if read > 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error).context("wait until the lock is held");
        }
        ensure!(!holder.is_finished(), "the kernel did not take the lock");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Maps a page without content and returns its address. It stays mapped.
fn missing_page(faults: &OwnedFd) -> io::Result<usize> {
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping, of which nobody has the address yet.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_LEN_BYTES, access, kind, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut range = [
        page as u64,
        PAGE_LEN_BYTES as u64,
        UFFDIO_REGISTER_MODE_MISSING,
        0,
    ];
    ioctl(faults, UFFDIO_REGISTER, &mut range)?;
    Ok(page as usize)
}

fn ioctl<const N: usize>(
    faults: &OwnedFd,
    request: libc::Ioctl,
    argument: &mut [u64; N],
) -> io::Result<()> {
    // SAFETY: the argument is as long as the request says, and outlives the call.
    match unsafe { libc::ioctl(faults.as_raw_fd(), request, argument.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
