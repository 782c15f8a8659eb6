//! Installs packages with Debian's package manager.

use std::{
    cell::OnceCell,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, anyhow};

use crate::workspace::{has_command, run};

/// How this user may run apt.
pub struct Apt {
    with_sudo: bool,
    /// Set once this run has fetched the package lists.
    updated: OnceCell<()>,
}

impl Apt {
    /// `None` if apt is missing or this user may not run it.
    pub fn find() -> Option<Self> {
        let root = lab::privilege::is_root();
        let usable = has_command("apt-get") && (root || has_command("sudo"));
        usable.then(|| Self {
            with_sudo: !root,
            updated: OnceCell::new(),
        })
    }

    /// The version that `install` would choose, or `None` if apt does not know the package.
    pub fn candidate(&self, package: &str) -> Result<Option<String>> {
        self.update()?;
        let output = Command::new("apt-cache")
            .args(["policy", package])
            .env("LC_ALL", "C")
            .output()
            .context("start apt-cache")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let candidate = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: "));
        Ok(candidate
            .filter(|version| *version != "(none)")
            .map(str::to_owned))
    }

    /// Installs the packages and prints why. Never removes a package: conflicts are for the user to resolve.
    pub fn install(&self, packages: &[&str], why: &str) -> Result<()> {
        eprintln!("setup: installing {} ({why})", packages.join(" "));
        self.update()?;
        let mut install = self.apt_get();
        install
            .args([
                "install",
                "-y",
                "-qq",
                "-o",
                "Dpkg::Use-Pty=0",
                "--no-install-recommends",
                "--no-remove",
            ])
            .args(packages);
        run(&mut install)
    }

    /// Installs the dependencies of a package file, without the package itself.
    pub fn install_what_needs(&self, archive: &Path) -> Result<()> {
        let field = Command::new("dpkg-deb")
            .arg("--field")
            .arg(archive)
            .arg("Depends")
            .output()
            .context("start dpkg-deb")?;
        let depends = String::from_utf8_lossy(&field.stdout);
        self.update()?;
        let mut satisfy = self.apt_get();
        satisfy
            .args(["satisfy", "-y", "-qq", "-o", "Dpkg::Use-Pty=0"])
            .args(["--no-install-recommends", "--no-remove", depends.trim()]);
        run(&mut satisfy)
    }

    /// Fetches the package lists, once.
    pub fn update(&self) -> Result<()> {
        if self.updated.get().is_none() {
            eprintln!("setup: fetching apt's package lists");
            run(self.apt_get().args(["update", "-qq"]))?;
            self.updated.get_or_init(|| ());
        }
        Ok(())
    }

    fn apt_get(&self) -> Command {
        let mut command = Command::new(if self.with_sudo { "sudo" } else { "env" });
        if self.with_sudo {
            command.arg("env");
        }
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        command
    }
}

/// Downloads a package into a folder with `apt_get`, which may already have options. Returns the file.
pub fn download(apt_get: &mut Command, package: &str, into: &Path) -> Result<PathBuf> {
    run(apt_get.args(["download", "-qq", package]).current_dir(into))?;
    let (name, _) = package.split_once('=').unwrap_or((package, ""));
    let prefix = format!("{name}_");
    let files = fs::read_dir(into).with_context(|| format!("list {}", into.display()))?;
    files
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        })
        .with_context(|| format!("apt-get download {package} left no file"))
}

/// Installs a Rust compiler with `core` for BPF. Debian 12 and 13 ship it in the compiler packages that they maintain
/// for browsers, later releases in the plainly named ones.
pub fn install_compiler(apt: &Apt) -> Result<()> {
    const WHY: &str = "a Rust compiler with `core` for BPF";
    let mut outcome = Err(anyhow!("apt has no package with `core` for BPF"));
    if apt.candidate("libstd-rust-web-dev-bpf")?.is_some() {
        outcome = apt.install(&["rustc-web", "libstd-rust-web-dev-bpf"], WHY);
    }
    if outcome.is_err()
        && let Some(version) = apt.candidate("libstd-rust-dev-bpf")?
    {
        // Name the version: if it comes from backports, apt would choose an older compiler by default.
        let packages = ["rustc", "libstd-rust-dev", "libstd-rust-dev-bpf"];
        let packages = packages.map(|package| format!("{package}={version}"));
        outcome = apt.install(&packages.each_ref().map(String::as_str), WHY);
    }
    outcome
}
