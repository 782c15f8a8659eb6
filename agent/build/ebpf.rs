//! Compiles the eBPF crate: the name of one of its binaries comes in, the object goes out, as
//! `$OUT_DIR/NAME`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

#[path = "ebpf_toolchain.rs"]
pub mod ebpf_toolchain;

use ebpf_toolchain::Toolchain;

/// Settings that reach into the inner build though they were made for ours.
const OUTER_BUILD: &[&str] = &[
    "CARGO_BUILD_",
    "CARGO_PROFILE_",
    "CARGO_TARGET_",
    "CARGO_UNSTABLE_",
    "RUSTC",
    "RUSTFLAGS",
];

/// Cargo runs the build again where the crate, what it shares with us, or its compiler changes.
/// `more_rust_flags` and the eBPF crate's `features` are this object's alone.
pub fn build(object: &str, more_rust_flags: &[&str], features: &[&str]) -> Result<()> {
    let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let root = manifest_dir
        .parent()
        .context("a package's folder has a parent")?;
    let out_dir = PathBuf::from(variable("OUT_DIR")?);
    ensure!(
        variable("CARGO_CFG_TARGET_ENDIAN")? == "little",
        "the eBPF programs are built for little-endian machines only"
    );

    println!("cargo::rerun-if-changed=build.rs");
    for path in [
        "agent/build",
        "agent-ebpf/src",
        "agent-ebpf/Cargo.toml",
        "agent-ebpf/Cargo.lock",
        "agent-common/src",
        "agent-common/Cargo.toml",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    println!(
        "cargo::rerun-if-env-changed={}",
        ebpf_toolchain::RUSTC_OVERRIDE
    );

    let toolchain = ebpf_toolchain::find()?;
    println!(
        "cargo::rerun-if-changed={}",
        toolchain.compiler.rustc.display()
    );
    println!("cargo::rerun-if-changed={}", toolchain.linker.display());

    let package = root.join("agent-ebpf");
    let rust_flags = rust_flags(&toolchain.linker, more_rust_flags)?;
    let target_dir = shared_target_dir(&out_dir, features)?;
    let built = compile(
        &package,
        object,
        features,
        &toolchain,
        &rust_flags,
        &target_dir,
    )?;
    fs::copy(&built, out_dir.join(object))
        .with_context(|| format!("copy {} to {}", built.display(), out_dir.display()))?;
    Ok(())
}

/// `target/PROFILE/ebpf`: one for every object and every build script that asks, since what they are
/// made of is the same; not ours, which is locked meanwhile. Objects with features have one of their
/// own, since cargo gives them the same name.
fn shared_target_dir(out_dir: &Path, features: &[&str]) -> Result<PathBuf> {
    // $OUT_DIR is target/PROFILE/build/PACKAGE-HASH/out.
    let profile_dir = out_dir.ancestors().nth(3);
    let name = [&["ebpf"], features].concat().join("-");
    Ok(profile_dir
        .with_context(|| format!("{} lies in a target folder", out_dir.display()))?
        .join(name))
}

/// Runs cargo on the eBPF crate.
fn compile(
    package: &Path,
    object: &str,
    features: &[&str],
    toolchain: &Toolchain,
    rust_flags: &str,
    target_dir: &Path,
) -> Result<PathBuf> {
    let compiler = &toolchain.compiler;
    let cargo = match &compiler.cargo {
        Some(cargo) => cargo.clone(),
        None => variable("CARGO")?.into(),
    };
    let mut command = Command::new(cargo);
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if OUTER_BUILD.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&*name);
        }
    }
    command
        .current_dir(package)
        .args([
            "build",
            "--release",
            "--bin",
            object,
            "--target",
            ebpf_toolchain::TARGET,
            "--features",
            &features.join(","),
        ])
        .arg("--target-dir")
        .arg(target_dir)
        .env("RUSTC", &compiler.rustc)
        // An empty name also overrules a wrapper from a configuration file.
        .env("RUSTC_WRAPPER", "")
        .env("RUSTC_WORKSPACE_WRAPPER", "")
        // The BPF target and the crates for it use unstable features of the compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags);
    if compiler.build_std {
        command.args(["-Z", "build-std=core"]);
    }
    let status = command
        .status()
        .with_context(|| format!("start {command:?}"))?;
    ensure!(
        status.success(),
        "building the eBPF programs failed ({status}): {command:?}"
    );
    Ok(target_dir
        .join(ebpf_toolchain::TARGET)
        .join("release")
        .join(object))
}

/// The flags that a BPF object needs, in cargo's encoding: `core::ffi` and the layout of `pt_regs`
/// follow the machine's architecture, and without debug information there is no BTF.
fn rust_flags(linker: &Path, more: &[&str]) -> Result<String> {
    let linker = linker.to_str().context("the path of bpf-linker is UTF-8")?;
    let arch = variable("CARGO_CFG_TARGET_ARCH")?;
    let mut flags = vec![
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        format!("-Clinker={linker}"),
        "-Clink-arg=--btf".to_owned(),
        // Else every memset is a call to a loop over bytes: LLVM's BPFTargetLowering allows no
        // inline stores then.
        "-Clink-arg=--disable-expand-memcpy-in-order".to_owned(),
        "-Cdebuginfo=2".to_owned(),
    ];
    flags.extend(more.iter().map(|&flag| flag.to_owned()));
    Ok(flags.join("\x1f"))
}

fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("{name} is set by cargo for build scripts"))
}
