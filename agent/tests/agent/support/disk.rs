//! File systems with little room.

use std::{path::Path, process::Command};

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
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Whoever still has a file of it open, since a test failed, does not keep it.
        run(Command::new("umount").arg("--lazy").arg(self.path()));
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}");
}
