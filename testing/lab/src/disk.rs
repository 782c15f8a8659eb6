//! A disk that can be made to fail: `zram` with a memory limit.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::run;

const CONTROL: &str = "/sys/class/zram-control";

/// A disk with a file system (ext4 without a journal), mounted until it is dropped.
#[derive(Debug)]
pub struct Disk {
    number: u32,
    folder: tempfile::TempDir,
}

impl Disk {
    /// Fails if the kernel has no `zram`.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir().context("make a folder to mount on")?;
        let number = fs::read_to_string(Path::new(CONTROL).join("hot_add"));
        let number = number.context("make a zram disk")?.trim().parse();
        let number = number.context("read the number of a zram disk")?;
        let disk = Self { number, folder };
        disk.set("disksize", "32M")?;
        let options = ["-q", "-O", "^has_journal"];
        run(Command::new("mkfs.ext4").args(options).arg(disk.device()))?;
        disk.mount()?;
        Ok(disk)
    }

    /// The mount point.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// From here on, writes of incompressible data fail.
    pub fn fail(&self) -> Result<()> {
        self.set("mem_limit", "4K")
    }

    pub fn recover(&self) -> Result<()> {
        self.set("mem_limit", "0")
    }

    /// Drops the cached data that the disk has not stored. No file on the disk may be open.
    pub fn remount(&self) -> Result<()> {
        run(Command::new("umount").arg(self.folder()))?;
        self.mount()
    }

    fn mount(&self) -> Result<()> {
        let mut mount = Command::new("mount");
        mount.args(["-o", "errors=continue"]).arg(self.device());
        run(mount.arg(self.folder()))?;
        Ok(())
    }

    fn device(&self) -> PathBuf {
        format!("/dev/zram{}", self.number).into()
    }

    fn set(&self, what: &str, value: &str) -> Result<()> {
        let path = format!("/sys/block/zram{}/{what}", self.number);
        ensure!(Path::new(&path).exists(), "there is no {path}");
        fs::write(&path, value).with_context(|| format!("write {value} to {path}"))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(run(Command::new("umount").arg(self.folder())));
        drop(self.set("reset", "1"));
        let remove = Path::new(CONTROL).join("hot_remove");
        drop(fs::write(remove, self.number.to_string()));
    }
}
