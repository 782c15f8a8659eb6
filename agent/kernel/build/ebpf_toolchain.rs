//! Finds a compiler that has `core` for the BPF target, and a linker for it.
//!
//! The agent's build script and `cargo xtask setup` both include this file, so the build finds the tools that the setup
//! installs.

use std::{
    env, fmt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

pub const TARGET: &str = "bpfel-unknown-none";

/// The variable that names a `rustc` to use instead of the ones that [`find_compiler`] tries.
pub const RUSTC_OVERRIDE: &str = "FLOW_AGENT_EBPF_RUSTC";

/// Debian packages `core` for BPF with its compiler; rustup has none for stable.
const DISTRIBUTION_RUSTC: &str = "/usr/bin/rustc";

const HOW_TO_INSTALL: &str = "\
`cargo xtask setup` installs what is missing where apt is at hand. By hand, a compiler:
  Debian 12, 13:  apt-get install rustc-web libstd-rust-web-dev-bpf
  later Debians:  apt-get install rustc libstd-rust-dev-bpf
  anywhere else:  rustup toolchain install nightly --profile minimal --component rust-src
and bpf-linker, whose LLVM must be at least the compiler's:
  Debian:         apt-get install g++ llvm-22-dev libpolly-22-dev zlib1g-dev libzstd-dev
                  LLVM_PREFIX=/usr/lib/llvm-22 LLVM_SYS_221_PREFIX=/usr/lib/llvm-22 \\
                  cargo install bpf-linker --locked --no-default-features --features llvm-22
  anywhere else:  the distribution's package, or a binary of the bpf-linker project, on the PATH";

/// A compiler for the BPF target.
#[derive(Clone, Debug)]
pub struct Compiler {
    pub rustc: PathBuf,
    /// The cargo that belongs to `rustc`; `None` if any cargo will do.
    pub cargo: Option<PathBuf>,
    /// Whether `core` comes as source and is compiled together with the programs.
    pub build_std: bool,
}

#[derive(Clone, Debug)]
pub struct Toolchain {
    pub compiler: Compiler,
    pub linker: PathBuf,
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Compiler {
            rustc,
            cargo,
            build_std,
        } = &self.compiler;
        write!(f, "{}", rustc.display())?;
        if let Some(cargo) = cargo {
            write!(f, ", {}", cargo.display())?;
        }
        if *build_std {
            write!(f, ", `core` from source")?;
        }
        write!(f, ", {}", self.linker.display())
    }
}

/// Finds compiler and linker, or fails with a list of what to install.
pub fn find() -> Result<Toolchain> {
    match (find_compiler()?, find_linker()) {
        (Some(compiler), Some(linker)) => Ok(Toolchain { compiler, linker }),
        (None, Some(_)) => {
            bail!("no Rust compiler here has `core` for {TARGET}.\n{HOW_TO_INSTALL}")
        }
        (Some(_), None) => bail!("there is no bpf-linker here.\n{HOW_TO_INSTALL}"),
        (None, None) => bail!(
            "no Rust compiler here has `core` for {TARGET}, and there is no bpf-linker.\n{HOW_TO_INSTALL}"
        ),
    }
}

/// The first compiler that has `core` for BPF: the override, the distribution's, rustup's nightly, the one on
/// the PATH. Fails only if the override does not fit.
pub fn find_compiler() -> Result<Option<Compiler>> {
    if let Some(rustc) = env::var_os(RUSTC_OVERRIDE).filter(|value| !value.is_empty()) {
        let compiler = examine(Path::new(&rustc)).with_context(|| {
            format!(
                "{RUSTC_OVERRIDE}={} has no `core` for {TARGET}",
                rustc.display()
            )
        })?;
        return Ok(Some(compiler));
    }
    Ok(examine(Path::new(DISTRIBUTION_RUSTC))
        .or_else(|| examine(&rustup_nightly()?))
        .or_else(|| examine(&find_on_path("rustc")?)))
}

/// The `bpf-linker` that `cargo xtask setup` installs, or the one on the PATH.
pub fn find_linker() -> Option<PathBuf> {
    let ours = cache_root().map(|root| root.join("bin/bpf-linker"));
    ours.filter(|linker| linker.is_file())
        .or_else(|| find_on_path("bpf-linker"))
}

/// The folder for tools that the setup installs for this user alone: `$XDG_CACHE_HOME/flow-agent`.
pub fn cache_root() -> Option<PathBuf> {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("flow-agent"))
}

/// How to compile for BPF with `rustc`, judged by its sysroot; `None` if it cannot.
fn examine(rustc: &Path) -> Option<Compiler> {
    let rustlib =
        Path::new(&output(Command::new(rustc).args(["--print", "sysroot"]))?).join("lib/rustlib");
    let rustc = rustc.to_path_buf();
    if rustlib.join(TARGET).join("lib").is_dir() {
        return Some(Compiler {
            rustc,
            cargo: None,
            build_std: false,
        });
    }
    let has_source = rustlib.join("src/rust/library/core/src/lib.rs").is_file();
    let nightly = output(Command::new(&rustc).arg("--version"))?.contains("-nightly");
    let cargo = rustc.with_file_name("cargo");
    (has_source && nightly && cargo.is_file()).then_some(Compiler {
        rustc,
        cargo: Some(cargo),
        build_std: true,
    })
}

fn rustup_nightly() -> Option<PathBuf> {
    // Without this variable, asking rustup about a toolchain may install it.
    let mut rustup = Command::new("rustup");
    rustup
        .args(["which", "--toolchain", "nightly", "rustc"])
        .env("RUSTUP_AUTO_INSTALL", "0");
    output(&mut rustup).map(PathBuf::from)
}

fn find_on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// The command's standard output without trailing white space; `None` if it cannot run or fails.
fn output(command: &mut Command) -> Option<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = output
        .status
        .success()
        .then(|| String::from_utf8(output.stdout).ok())??;
    Some(text.trim_end().to_owned())
}
