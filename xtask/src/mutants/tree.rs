//! Copies the sources to a folder where faults can be inserted.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::faults::Fault;
use crate::workspace::root;

pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Copies the files. Leaves identical files alone, so that little is rebuilt.
    pub fn copy(to: &Path) -> Result<Self> {
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others"])
            .arg("--exclude-standard")
            .current_dir(root())
            .output()
            .context("start git")?;
        ensure!(output.status.success(), "git does not list the files here");
        for file in String::from_utf8_lossy(&output.stdout).split_terminator('\0') {
            let (from, to) = (root().join(file), to.join(file));
            // The file is deleted but still in git's index.
            let Ok(bytes) = fs::read(&from) else { continue };
            write_changed(&to, &bytes)?;
        }
        Ok(Self {
            root: to.to_owned(),
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Inserts the fault. Dropping the result removes it.
    pub fn replace(&self, fault: &Fault) -> Result<PutBack> {
        let path = self.root.join(fault.file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", fault.file))?;
        let faulty = fault.put_into(&text)?;
        write_changed(&path, faulty.as_bytes())?;
        Ok(PutBack { path, text })
    }
}

/// Restores a file when dropped.
pub struct PutBack {
    path: PathBuf,
    text: String,
}

impl Drop for PutBack {
    fn drop(&mut self) {
        if let Err(error) = write_changed(&self.path, self.text.as_bytes()) {
            eprintln!("error: a fault stays in the copy: {error:#}");
        }
    }
}

fn write_changed(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
}
