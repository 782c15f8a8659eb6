//! Fetches the newest kernel of another Debian release and unpacks it in the user's cache, without installing anything
//! on this machine.
//!
//! apt downloads it from the mirrors that it already uses, with package lists of its own in that cache.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    apt::{self, Apt},
    ebpf_toolchain,
    workspace::run,
};

/// The kernel without hardware drivers: a third of the size, with every virtual device.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// The prefix of the kernel's own package, a dependency of [`PACKAGE`].
const IMAGE: &str = "linux-image-";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A bootable kernel.
pub struct KernelPackage {
    /// The release as `uname -r` prints it.
    pub release: String,
    pub image: PathBuf,
    /// The folder that contains its modules.
    pub modules: PathBuf,
}

/// The kernel of a Debian release, from the cache unless `renew` is set.
pub fn kernel(suite: &str, renew: bool) -> Result<KernelPackage> {
    let cache = ebpf_toolchain::cache_root().context("neither HOME nor XDG_CACHE_HOME is set")?;
    let folder = cache.join("kernels").join(suite);
    let root = folder.join("root");
    if !renew && let Ok(kernel) = unpacked(&root) {
        return Ok(kernel);
    }
    let lists = Lists::fetch(suite, &folder.join("apt"))?;
    let package = lists.kernel()?;
    eprintln!("setup: fetching {package} (the kernel of {suite}, for a virtual machine)");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    }
    for part in lists.parts(package)? {
        let archive = apt::download(&mut lists.command("apt-get"), &part, &folder)?;
        run(Command::new("dpkg-deb").arg("-x").args([&archive, &root]))?;
        fs::remove_file(&archive).with_context(|| format!("remove {}", archive.display()))?;
    }
    unpacked(&root)
}

/// The kernel in an unpacked package.
fn unpacked(root: &Path) -> Result<KernelPackage> {
    for library in ["usr/lib", "lib"] {
        let modules = root.join(library).join("modules");
        let Some(entry) = fs::read_dir(&modules).ok().and_then(|mut dir| dir.next()) else {
            continue;
        };
        let entry = entry.with_context(|| format!("list {}", modules.display()))?;
        let release = entry.file_name().to_string_lossy().into_owned();
        let places = [
            root.join("boot").join(format!("vmlinuz-{release}")),
            // In the modules' folder from 7.3 on.
            entry.path().join("vmlinuz"),
        ];
        let image = places.into_iter().find(|place| place.is_file());
        let image = image.with_context(|| format!("{} has no kernel {release}", root.display()))?;
        return Ok(KernelPackage {
            release,
            image,
            modules: entry.path(),
        });
    }
    bail!("{} has no kernel modules", root.display())
}

/// The package lists of one release, separate from this machine's own.
struct Lists {
    options: Vec<String>,
}

impl Lists {
    fn fetch(suite: &str, state: &Path) -> Result<Self> {
        for folder in ["lists/partial", "archives/partial"] {
            let folder = state.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        }
        let sources = state.join("sources.list");
        fs::write(&sources, sources_of(suite)?)
            .with_context(|| format!("write {}", sources.display()))?;
        let state = state.display();
        let options = [
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State={state}"),
            format!("Dir::State::lists={state}/lists"),
            "Dir::State::status=/var/lib/dpkg/status".to_owned(),
            format!("Dir::Cache={state}"),
            format!("Dir::Cache::archives={state}/archives"),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            // apt's own user cannot write to the folder, which belongs to us.
            format!("APT::Sandbox::User={}", user()),
        ];
        let lists = Self {
            options: options
                .into_iter()
                .flat_map(|option| ["-o".to_owned(), option])
                .collect(),
        };
        eprintln!("setup: fetching apt's package lists of {suite} (for its kernel)");
        // By default apt only warns about a failing mirror.
        run(lists
            .command("apt-get")
            .args(["update", "-qq", "--error-on=any"]))?;
        Ok(lists)
    }

    /// The package with the release's current kernel.
    fn kernel(&self) -> Result<String> {
        let depends = self.depends(PACKAGE)?;
        let package = depends
            .into_iter()
            .find(|package| package.starts_with(IMAGE));
        package.with_context(|| format!("apt has no {PACKAGE} there"))
    }

    /// The package, and the packages with the kernel, its modules and their list if it lacks them. Debian splits them
    /// off from 7.3 on.
    fn parts(&self, package: String) -> Result<Vec<String>> {
        let release = package.strip_prefix(IMAGE).unwrap_or_default();
        let apart = ["base", "binary", "modules"].map(|part| format!("linux-{part}-{release}"));
        let mut parts = self.depends(&package)?;
        parts.retain(|part| apart.contains(part));
        parts.insert(0, package);
        Ok(parts)
    }

    fn depends(&self, package: &str) -> Result<Vec<String>> {
        let output = self
            .command("apt-cache")
            .args(["depends", package])
            .output()
            .context("start apt-cache")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let depends = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(depends.map(str::to_owned).collect())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options).env("LC_ALL", "C");
        command
    }
}

/// The sources of a release, from the mirrors of this machine's own release.
pub fn sources_of(suite: &str) -> Result<String> {
    let own = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .context("/etc/os-release names no release")?
        .trim_matches('"');
    let mut targets = own_sources()?;
    if targets.is_empty() {
        // apt only knows the lists that it has fetched.
        let apt = Apt::find().context("there is no apt, or no way to be root for it")?;
        apt.update()?;
        targets = own_sources()?;
    }
    let keys = if Path::new(KEYRING).is_file() {
        format!("[signed-by={KEYRING}] ")
    } else {
        String::new()
    };
    let source = |suffix: &str| {
        let (_, mirror) = targets
            .lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(release, _)| *release == format!("{own}{suffix}"))?;
        Some(format!("deb {keys}{mirror} {suite}{suffix} main\n"))
    };
    // Backports share the mirror of the release and have no security list.
    let lists: &[&str] = if suite.ends_with("-backports") {
        &[""]
    } else {
        &["", "-security"]
    };
    let sources: String = lists.iter().copied().filter_map(source).collect();
    ensure!(
        !sources.is_empty(),
        "apt has no source of {own}: this is no Debian, or a mixed one"
    );
    Ok(sources)
}

/// The release and mirror of each of this machine's package lists, one per line.
fn own_sources() -> Result<String> {
    let targets = Command::new("apt-get")
        .args(["indextargets", "--format", "$(RELEASE) $(REPO_URI)"])
        .arg("Created-By: Packages")
        .output()
        .context("start apt-get")?;
    Ok(String::from_utf8_lossy(&targets.stdout).into_owned())
}

fn user() -> String {
    env::var("USER")
        .ok()
        .filter(|_| !lab::privilege::is_root())
        .unwrap_or_else(|| "root".to_owned())
}
