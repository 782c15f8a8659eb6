//! Builds a bpf-linker in the user's cache, with an LLVM at least as new as the compiler's.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt::Apt,
    ebpf_toolchain::{self, Compiler},
    workspace::run,
};

const VERSION: &str = "0.13.0";

/// The LLVM versions that this bpf-linker supports, with the environment variable in which the crate `llvm-sys` expects
/// the path of each.
const LLVM_VERSIONS: &[(u32, &str)] = &[
    (21, "LLVM_SYS_211_PREFIX"),
    (22, "LLVM_SYS_221_PREFIX"),
    (23, "LLVM_SYS_231_PREFIX"),
];

/// Whether a linker runs. One that we built must also be the version that we would install.
pub fn is_ready(compiler: &Compiler) -> Result<bool> {
    let Some(linker) = ebpf_toolchain::find_linker() else {
        return Ok(false);
    };
    let Some(version) = stdout(Command::new(&linker).arg("--version")) else {
        return Ok(false);
    };
    if !linker.starts_with(cache_root()?) {
        return Ok(true);
    }
    let installed = fs::read_to_string(cache_root()?.join(".crates2.json")).unwrap_or_default();
    let wanted = llvm_major(compiler)?;
    let llvm_fits = (wanted..100).any(|major| installed.contains(&format!("\"llvm-{major}\"")));
    Ok(version.contains(VERSION) && llvm_fits)
}

/// Installs LLVM's development files and compiles the linker.
pub fn install(apt: &Apt, compiler: &Compiler) -> Result<()> {
    let wanted = llvm_major(compiler)?;
    let mut usable = LLVM_VERSIONS.iter().filter(|(major, _)| *major >= wanted);
    let (major, variable) = loop {
        let Some((major, variable)) = usable.next() else {
            bail!("apt has no llvm-N-dev with N from {wanted}, the compiler's LLVM, to 23");
        };
        if apt.candidate(&format!("llvm-{major}-dev"))?.is_some() {
            break (major, variable);
        }
    };
    let (llvm, polly) = (format!("llvm-{major}-dev"), format!("libpolly-{major}-dev"));
    let why = format!("bpf-linker is built on LLVM {major}");
    apt.install(&["g++", &llvm, &polly, "zlib1g-dev", "libzstd-dev"], &why)?;

    let root = cache_root()?;
    eprintln!(
        "setup: compiling bpf-linker {VERSION} into {} (it links the eBPF programs)",
        root.display()
    );
    let prefix = format!("/usr/lib/llvm-{major}");
    let feature = format!("llvm-{major}");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args([
            "install",
            "bpf-linker",
            "--version",
            VERSION,
            "--locked",
            "--force",
        ])
        .args(["--no-default-features", "--features", &feature, "--root"])
        .arg(&root)
        // Linking spends its time in LLVM. An optimized linker takes three times as long to compile and links no
        // faster.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("LLVM_PREFIX", &prefix)
        .env(variable, &prefix);
    run(&mut cargo)
}

/// The major version of a Rust compiler's LLVM.
fn llvm_major(compiler: &Compiler) -> Result<u32> {
    let rustc = Path::new(&compiler.rustc);
    let version = stdout(Command::new(rustc).arg("-vV")).unwrap_or_default();
    let llvm = version
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "));
    let major = llvm.and_then(|llvm| llvm.split('.').next()?.parse().ok());
    major.with_context(|| format!("{} does not tell its LLVM version", rustc.display()))
}

fn cache_root() -> Result<PathBuf> {
    ebpf_toolchain::cache_root().context("neither HOME nor XDG_CACHE_HOME is set")
}

fn stdout(command: &mut Command) -> Option<String> {
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}
