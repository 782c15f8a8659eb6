//! Small file systems, and one that loses its power.

use std::{
    fs::File,
    io::Write as _,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// A file system in memory. It is unmounted when this is dropped.
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// `limit` is an option of the mount, as `size=1m`.
    pub fn mount(limit: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mount = ["-t", "tmpfs", "-o", limit, "tmpfs"];
        run(Command::new("mount").args(mount).arg(folder.path()));
        Self(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all the room that is left. Returns the file that has it.
    pub fn fill(&self) -> PathBuf {
        let path = self.path().join("rest");
        let mut file = File::create(&path).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A process that still has a file open, because a test failed, does not keep it mounted.
        run(Command::new("umount").arg("--lazy").arg(self.path()));
    }
}

/// A file system (ext4) on a device of its own, which can lose its power.
pub struct PowerlessDisk {
    folder: TempDir,
    /// How often it has lost its power.
    losses: usize,
}

/// `EXT4_IOC_SHUTDOWN`, which is `_IOR('X', 125, __u32)`, and its argument: drop everything that is only in memory,
/// including the journal.
const SHUTDOWN: libc::Ioctl = 0x8004_587D;
const WITHOUT_LOG: u32 = 2;

impl PowerlessDisk {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Self { folder, losses: 0 };
        File::create(disk.image())
            .and_then(|image| image.set_len(64 << 20))
            .unwrap();
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F"])
            .arg(disk.image()));
        std::fs::create_dir(disk.path()).unwrap();
        disk.mount();
        disk
    }

    fn image(&self) -> PathBuf {
        let name = format!("image-{}", self.losses);
        self.folder.path().join(name)
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    /// Nothing reaches the device before a sync.
    fn mount(&self) {
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", "loop,commit=3600"]);
        run(mount.args([self.image(), self.path()]));
    }

    /// Like a disk on which the file system found an error. Files stay open.
    pub fn becomes_read_only(&self) {
        let mut mount = Command::new("mount");
        mount.args(["-o", "remount,errors=remount-ro"]);
        run(mount.arg(self.path()));
        let device = std::fs::metadata(self.path()).unwrap().dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let device = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).unwrap();
        let name = device.file_name().unwrap();
        let trigger = Path::new("/sys/fs/ext4")
            .join(name)
            .join("trigger_fs_error");
        std::fs::write(trigger, "a test").unwrap();
    }

    /// Everything that was not synced is gone.
    pub fn loses_power(&mut self) {
        let root = File::open(self.path()).unwrap();
        // SAFETY: The number that it takes outlives the call.
        let done = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &WITHOUT_LOG) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        drop(root);
        run(Command::new("umount").arg("--lazy").arg(self.path()));
        // Other tests' processes in mount namespaces of their own may have what was mounted for a while, and with it the device.
        let before = self.image();
        self.losses += 1;
        std::fs::copy(&before, self.image()).unwrap();
        std::fs::remove_file(before).unwrap();
        self.mount();
    }
}

impl Drop for PowerlessDisk {
    fn drop(&mut self) {
        // It may not be mounted, since a test failed.
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(self.path())
            .status();
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}");
}
