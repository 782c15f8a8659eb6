//! Builds the release files: a Debian package and a tarball, with checksums.
//!
//! The binary links to this machine's C library and must not need symbols newer than [`FLOOR`]. Debian 12 is the newest
//! release that can build such a binary: we use no symbol that its library added in 2.35 or 2.36.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    setup::{Purpose, setup},
    workspace::{cargo, metadata, root, run, target_dir, tool},
};

const CARGO_DEB: &str = "3.8.0";
/// The GNU C library of Ubuntu 22.04, the oldest that the package promises to start with.
const FLOOR: Version = (2, 35);
/// The limit has little headroom: the binary has 15.4 MiB, since a flow's path is optimized for speed.
const MAX_BINARY_BYTES: u64 = 16 << 20;

type Version = (u32, u32);

/// How the binary of a package is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// The shipped binary.
    Packaged,
    /// The tests' binary, for checks that do not depend on speed and size.
    Dev,
}

/// The binary, with the manual pages and completions that it generates.
pub struct Built {
    profile: Profile,
    /// Contains `flow-agent`, `man/` and `completions/`.
    folder: PathBuf,
}

pub fn dist() -> Result<ExitCode> {
    setup(Purpose::Dist)?;
    let built = build(Profile::Packaged)?;
    let folder = target_dir()?.join("dist");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    let mut files = vec![
        built.debian_package(&folder, None)?,
        built.tarball(&folder)?,
    ];
    files.push(checksums(&folder, &files)?);
    for file in files {
        eprintln!("dist: {}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the binary and runs it to generate its manual pages and completions.
pub fn build(profile: Profile) -> Result<Built> {
    let build: &[&str] = match profile {
        Profile::Packaged => &[
            "build",
            "--locked",
            "--package",
            "agent",
            "--profile",
            "packaged",
        ],
        // The same build as `cargo xtask test`: only with the whole workspace do the dependencies get the same
        // features.
        Profile::Dev => &[
            "test",
            "--locked",
            "--workspace",
            "--no-run",
            "--test",
            "agent",
        ],
    };
    run(&mut cargo(build))?;
    let folder = target_dir()?.join(profile.folder());
    let binary = folder.join("flow-agent");
    check(&binary, profile)?;
    for made in ["man", "completions"] {
        let made = folder.join(made);
        if made.exists() {
            fs::remove_dir_all(&made).with_context(|| format!("remove {}", made.display()))?;
        }
        fs::create_dir_all(&made).with_context(|| format!("make {}", made.display()))?;
    }
    let man = folder.join("man");
    run(Command::new(&binary).arg("man").arg(&man))?;
    // Debian's policy requires it (12.1). Without a timestamp, equal pages give equal files.
    run(Command::new("gzip")
        .args(["-9", "--no-name", "--recursive"])
        .arg(&man))?;
    for shell in ["bash", "zsh", "fish"] {
        let file = folder.join("completions").join(shell);
        let output = Command::new(&binary).args(["completions", shell]).output();
        let output = output.with_context(|| format!("start {}", binary.display()))?;
        ensure!(
            output.status.success(),
            "flow-agent completions {shell} failed"
        );
        fs::write(&file, output.stdout).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(Built { profile, folder })
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Packaged => "packaged",
            Self::Dev => "dev",
        }
    }

    /// Relative to the target folder.
    fn folder(self) -> &'static str {
        match self {
            Self::Packaged => "packaged",
            Self::Dev => "debug",
        }
    }
}

impl Built {
    /// Builds the package that `agent/Cargo.toml` describes, optionally under another version.
    pub fn debian_package(&self, into: &Path, version: Option<&str>) -> Result<PathBuf> {
        fs::create_dir_all(into).with_context(|| format!("make {}", into.display()))?;
        let mut cargo_deb = Command::new(tool("deb", CARGO_DEB, "makes the Debian package")?);
        cargo_deb
            .args([
                "deb",
                "--package",
                "agent",
                "--profile",
                self.profile.name(),
            ])
            .args(["--no-build", "--quiet", "--output"])
            .arg(into)
            .args(match self.profile {
                // Already stripped. Ship exactly the binary that was checked.
                Profile::Packaged => &["--no-strip"][..],
                Profile::Dev => &["--strip", "--fast"],
            })
            .current_dir(root());
        if let Some(version) = version {
            cargo_deb.args(["--deb-version", version]);
        }
        let before = packages(into)?;
        run(&mut cargo_deb)?;
        let made = packages(into)?
            .into_iter()
            .find(|file| !before.contains(file));
        made.with_context(|| format!("cargo-deb made no package in {}", into.display()))
    }

    /// The path in the package of each file from the source tree or the build. cargo-deb adds the unit and the licence.
    pub fn declared(&self) -> Result<BTreeMap<PathBuf, PathBuf>> {
        declared(Some(&self.folder))
    }

    pub fn tarball(&self, into: &Path) -> Result<PathBuf> {
        let target = "x86_64-linux-gnu";
        ensure!(
            cfg!(target_arch = "x86_64"),
            "the tarball's name is for x86-64"
        );
        let name = format!("flow-agent-{}-{target}", env!("CARGO_PKG_VERSION"));
        let staged = into.join(&name);
        let copy = |from: &Path, to: &str| copy(from, &staged.join(to));
        copy(&self.folder.join("flow-agent"), "flow-agent")?;
        if self.profile == Profile::Dev {
            run(Command::new("strip").arg(staged.join("flow-agent")))?;
        }
        for made in ["man", "completions"] {
            copy(&self.folder.join(made), made)?;
        }
        for path in [
            "README.md",
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "DESIGN.md",
            "SECURITY.md",
            "LICENSE-APACHE",
            "LICENSE-MIT",
            "docs",
            "deploy",
        ] {
            copy(&root().join(path), path)?;
        }
        let file = into.join(format!("{name}.tar.gz"));
        run(Command::new("tar")
            .args([
                "--sort=name",
                "--owner=0",
                "--group=0",
                "--numeric-owner",
                "--mode=u+w,go-w",
            ])
            .arg("-czf")
            .args([&file, Path::new("-C"), into, Path::new(&name)]))?;
        fs::remove_dir_all(&staged).with_context(|| format!("remove {}", staged.display()))?;
        Ok(file)
    }
}

/// Fails if the binary exceeds the size limit or needs a newer C library.
fn check(binary: &Path, profile: Profile) -> Result<()> {
    let size = fs::metadata(binary)
        .with_context(|| format!("find {}", binary.display()))?
        .len();
    ensure!(
        size <= MAX_BINARY_BYTES || profile == Profile::Dev,
        "{} has {size} bytes, more than the promised {MAX_BINARY_BYTES}: check `[profile.{}]` and recent additions",
        binary.display(),
        profile.name()
    );
    let output = Command::new("objdump")
        .arg("-T")
        .arg(binary)
        .output()
        .context("start objdump")?;
    ensure!(
        output.status.success(),
        "objdump -T {} failed",
        binary.display()
    );
    let symbols = String::from_utf8_lossy(&output.stdout);
    let Some((needed, symbol)) = newest_needed(&symbols) else {
        bail!(
            "{} names no version of the C library: is it linked to another one?",
            binary.display()
        );
    };
    ensure!(
        needed <= FLOOR,
        "{symbol} is of glibc {}.{}, and the package promises to start with {}.{}: build on Debian 12 or \
         older, or avoid the symbol",
        needed.0,
        needed.1,
        FLOOR.0,
        FLOOR.1
    );
    eprintln!("dist: {size} bytes, needs glibc {}.{}", needed.0, needed.1);
    Ok(())
}

/// The newest C library version among the symbols that `objdump -T` lists, with its symbol.
fn newest_needed(symbols: &str) -> Option<(Version, &str)> {
    let lines = symbols.lines().filter(|line| line.contains("*UND*"));
    lines
        .filter_map(|line| {
            let (_, after) = line.split_once("GLIBC_")?;
            let (version, symbol) = after.split_once([')', ' '])?;
            let (major, minor) = version.split_once('.')?;
            // Ignore a third component, as in 2.2.5.
            let minor = minor.split('.').next()?;
            Some(((major.parse().ok()?, minor.parse().ok()?), symbol.trim()))
        })
        .max()
}

/// The path in the package of each file, from `agent/Cargo.toml`. Without the folder of built files, lists only the
/// files from the source tree.
fn declared(built: Option<&Path>) -> Result<BTreeMap<PathBuf, PathBuf>> {
    let metadata = metadata()?;
    let mut packages = metadata.packages.iter();
    let agent = packages.find(|package| *package.name == "agent");
    let agent = agent.context("no package is called agent")?;
    let tree = agent.manifest_path.parent();
    let tree = tree.context("a manifest lies in a folder")?.as_std_path();
    let assets = agent.metadata["deb"]["assets"].as_array();
    let mut files = BTreeMap::new();
    for asset in assets.context("agent/Cargo.toml has no assets")? {
        let [from, to] = [0, 1].map(|index| asset[index].as_str());
        let (from, to) = from.zip(to).context("an asset is no text")?;
        let from = match (from.strip_prefix("target/release/"), built) {
            (Some(made), Some(folder)) => folder.join(made),
            (Some(_), None) => continue,
            (None, _) => tree.join(from),
        };
        let sources = matching(&from)?;
        ensure!(!sources.is_empty(), "there is no {}", from.display());
        for source in sources {
            let to = match (to.strip_suffix('/'), source.file_name()) {
                (Some(folder), Some(name)) => Path::new("/").join(folder).join(name),
                (_, _) => Path::new("/").join(to),
            };
            files.insert(to, source);
        }
    }
    Ok(files)
}

/// A file, all files in a folder (`*`), or all with a suffix (`*.md`).
fn matching(path: &Path) -> Result<Vec<PathBuf>> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(end) = name.and_then(|name| name.strip_prefix('*')) else {
        return Ok(path
            .is_file()
            .then(|| path.to_owned())
            .into_iter()
            .collect());
    };
    let folder = path.parent().context("a file lies in a folder")?;
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths
        .filter(|path| path.is_file() && path.to_string_lossy().ends_with(end))
        .collect())
}

fn packages(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths
        .filter(|path| path.extension().is_some_and(|end| end == "deb"))
        .collect())
}

/// Copies a file or a folder, following links.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a file lies in a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    run(Command::new("cp").args(["-r", "-L"]).args([from, to]))
}

/// Writes `SHA256SUMS`, for `sha256sum --check` in that folder.
pub fn checksums(folder: &Path, files: &[PathBuf]) -> Result<PathBuf> {
    let names = files.iter().filter_map(|file| file.file_name());
    let output = Command::new("sha256sum")
        .args(names)
        .current_dir(folder)
        .output();
    let output = output.context("start sha256sum")?;
    ensure!(output.status.success(), "sha256sum failed");
    let file = folder.join("SHA256SUMS");
    fs::write(&file, output.stdout).with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::path::Component;

    use super::*;

    #[test]
    fn the_newest_symbol_of_the_c_library_is_found() {
        let symbols = "\
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.2.5) free
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.34) __libc_start_main
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.9)  pipe2
0000000000000000      DF *UND*\t0000000000000000 (GCC_3.0)    _Unwind_Resume
0000000000000000  w   D  *UND*\t0000000000000000  Base        __gmon_start__
0000000000000000 g    DF .text\t0000000000000000 (GLIBC_2.99) ours
";
        assert_eq!(newest_needed(symbols), Some(((2, 34), "__libc_start_main")));
        assert_eq!(newest_needed(""), None);
    }

    /// Only these documents are in the package.
    #[test]
    fn every_link_of_the_packages_documents_leads_to_a_file_of_the_package() {
        let files = declared(None).unwrap();
        let mut links = 0;
        for (installed, source) in &files {
            if source.extension().is_none_or(|end| end != "md") {
                continue;
            }
            let text = fs::read_to_string(source).unwrap();
            let targets = text.split("](").skip(1);
            let targets = targets.filter_map(|rest| rest.split([')', '#', ' ']).next());
            for target in targets.filter(|target| !target.is_empty() && !target.contains("://")) {
                let to = normal(&installed.parent().unwrap().join(target));
                let shown = source.display();
                assert!(
                    files.contains_key(&to),
                    "{shown}: {target} is not in the package"
                );
                links += 1;
            }
        }
        assert!(links > 20, "{links} links");
    }

    /// Resolves `..`.
    fn normal(path: &Path) -> PathBuf {
        let mut normal = PathBuf::new();
        for part in path.components() {
            if part == Component::ParentDir {
                normal.pop();
            } else {
                normal.push(part);
            }
        }
        normal
    }
}
