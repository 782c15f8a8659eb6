//! Holds RTNL, the lock under which the kernel changes interfaces and answers most netlink requests, for as long as a
//! test wants.
//!
//! `__tun_chr_ioctl` takes RTNL before it reads its argument. The argument is on a page that the test has not filled
//! yet (userfaultfd), so the kernel waits for it while it holds the lock.

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

/// The longest time that any test, even one that fails, may block the machine.
const MOST: Duration = Duration::from_mins(2);

/// Keeps everything on this machine from changing interfaces until it is dropped, for at most two minutes.
#[derive(Debug)]
pub struct RtnlHold {
    release: Sender<()>,
    /// The thread's result: whether it was asked to release the lock, rather than timing out.
    releaser: Option<JoinHandle<bool>>,
}

impl RtnlHold {
    /// Returns once the lock is held. Fails if the kernel lacks userfaultfd or tun, or denies them to this process.
    pub fn take() -> Result<Self> {
        let tun = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun");
        let tun = tun.context("open /dev/net/tun")?;
        let faults = userfaultfd().context("open a userfaultfd")?;
        let page = missing_page(&faults).context("make a page whose content is yet to come")?;
        let holder = thread::spawn(move || hold(&tun, page));
        // The kernel reports the fault once the holder has the lock.
        wait_for_fault(&faults, &holder)?;
        let (release, asked) = mpsc::channel();
        let releaser = thread::spawn(move || {
            let is_asked = asked.recv_timeout(MOST).is_ok();
            let mut zeros = [page as u64, PAGE_LEN_BYTES as u64, 0, 0];
            // On failure, the kernel would release the lock only when the process ends.
            ioctl(&faults, UFFDIO_ZEROPAGE, &mut zeros).expect("the page gets its content");
            holder.join().expect("the holder does not panic");
            is_asked
        });
        Ok(Self {
            release,
            releaser: Some(releaser),
        })
    }

    /// Releases the lock. Returns whether it was held until this call.
    pub fn release(mut self) -> bool {
        self.let_go()
    }

    fn let_go(&mut self) -> bool {
        // After the timeout, no thread receives this.
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

/// Blocks in the kernel until the page is filled. Its content is a request that changes nothing.
fn hold(tun: &File, page: usize) {
    // SAFETY: the page is mapped for as long as the process lives.
    unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFINDEX, page) };
}

fn userfaultfd() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel returned a new descriptor, which nothing else owns.
    let faults = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    ioctl(&faults, UFFDIO_API, &mut [UFFD_API, 0, 0])?;
    Ok(faults)
}

fn wait_for_fault(faults: &OwnedFd, holder: &JoinHandle<()>) -> Result<()> {
    // `struct uffd_msg`.
    let mut message = [0_u8; 32];
    loop {
        // SAFETY: the buffer has the given length and outlives the call.
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

/// Maps a page without content and returns its address. The page stays mapped.
fn missing_page(faults: &OwnedFd) -> io::Result<usize> {
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping, to which no reference exists yet.
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
    // SAFETY: the argument has the length that the request encodes, and outlives the call.
    match unsafe { libc::ioctl(faults.as_raw_fd(), request, argument.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
