//! Creates a Debian root file system with systemd in the user's cache, from the mirrors that this machine's apt uses.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{kernels::packages::sources_of, workspace::run};

/// The oldest Debian release with a new enough C library for the package.
pub const SUITE: &str = "bookworm";

/// The packages that the checks need, including the dependencies of our package, so that installing it needs no
/// network.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,libgcc-s1,procps";

/// Written last, with a list of the installed packages.
const MARK: &str = "installed";

/// The root file system in this cache folder. Creating it takes a minute.
pub fn root_fs(cache: &Path) -> Result<PathBuf> {
    let folder = cache.join("service").join(SUITE);
    let root = folder.join("root");
    let mark = folder.join(MARK);
    if fs::read_to_string(&mark).is_ok_and(|found| found == PACKAGES) {
        return Ok(root);
    }
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let sources = folder.join("sources.list");
    fs::write(&sources, sources_of(SUITE)?)
        .with_context(|| format!("write {}", sources.display()))?;
    eprintln!("setup: making a root file system of {SUITE} (systemd runs the package in it)");
    run(Command::new("mmdebstrap")
        .args(["--variant=minbase", "--mode=root", "--quiet"])
        .arg(format!("--include={PACKAGES}"))
        .arg(SUITE)
        .args([&root, &sources]))?;
    fs::write(&mark, PACKAGES).with_context(|| format!("write {}", mark.display()))?;
    Ok(root)
}
