//! Compiles the eBPF crate: its sources and ours that it shares come in, the object that the agent
//! embeds goes out, as `$OUT_DIR/flow-agent-ebpf`. The gRPC code is generated beside it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};

#[path = "build/ebpf_toolchain.rs"]
mod ebpf_toolchain;
#[path = "build/proto.rs"]
mod proto;

use ebpf_toolchain::Toolchain;

/// The binary target of the eBPF crate.
const OBJECT: &str = "flow-agent-ebpf";

/// Settings that reach into the inner build though they were made for ours.
const OUTER_BUILD: &[&str] = &[
    "CARGO_BUILD_",
    "CARGO_PROFILE_",
    "CARGO_TARGET_",
    "CARGO_UNSTABLE_",
    "RUSTC",
    "RUSTFLAGS",
];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in format!("{error:#}").lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<()> {
    let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let root = manifest_dir
        .parent()
        .context("the agent's folder has a parent")?;
    let out_dir = PathBuf::from(variable("OUT_DIR")?);
    ensure!(
        variable("CARGO_CFG_TARGET_ENDIAN")? == "little",
        "the eBPF programs are built for little-endian machines only"
    );

    println!("cargo::rerun-if-changed=build.rs");
    for path in ["src", "Cargo.toml", "Cargo.lock"] {
        println!(
            "cargo::rerun-if-changed={}",
            root.join("agent-ebpf").join(path).display()
        );
    }
    for path in ["src", "Cargo.toml"] {
        println!(
            "cargo::rerun-if-changed={}",
            root.join("agent-common").join(path).display()
        );
    }
    println!(
        "cargo::rerun-if-env-changed={}",
        ebpf_toolchain::RUSTC_OVERRIDE
    );

    proto::generate(&manifest_dir)?;
    let toolchain = ebpf_toolchain::find()?;
    println!(
        "cargo::rerun-if-changed={}",
        toolchain.compiler.rustc.display()
    );
    println!("cargo::rerun-if-changed={}", toolchain.linker.display());

    let object = compile(&root.join("agent-ebpf"), &toolchain, &out_dir.join("ebpf"))?;
    fs::copy(&object, out_dir.join(OBJECT))
        .with_context(|| format!("copy {} to {}", object.display(), out_dir.display()))?;
    Ok(())
}

/// Runs cargo on the eBPF crate, in a target folder of its own since ours is locked meanwhile.
fn compile(package: &Path, toolchain: &Toolchain, target_dir: &Path) -> Result<PathBuf> {
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
            OBJECT,
            "--target",
            ebpf_toolchain::TARGET,
        ])
        .arg("--target-dir")
        .arg(target_dir)
        .env("RUSTC", &compiler.rustc)
        // An empty name also overrules a wrapper from a configuration file.
        .env("RUSTC_WRAPPER", "")
        .env("RUSTC_WORKSPACE_WRAPPER", "")
        // The BPF target and the crates for it use unstable features of the compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags(&toolchain.linker)?);
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
        .join(OBJECT))
}

/// The flags that a BPF object needs, in cargo's encoding: `core::ffi` and the layout of `pt_regs`
/// follow the machine's architecture, and without debug information there is no BTF.
fn rust_flags(linker: &Path) -> Result<String> {
    let linker = linker.to_str().context("the path of bpf-linker is UTF-8")?;
    let arch = variable("CARGO_CFG_TARGET_ARCH")?;
    Ok([
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        format!("-Clinker={linker}"),
        "-Clink-arg=--btf".to_owned(),
        // Else every memset is a call to a loop over bytes: LLVM's BPFTargetLowering allows no
        // inline stores then.
        "-Clink-arg=--disable-expand-memcpy-in-order".to_owned(),
        "-Cdebuginfo=2".to_owned(),
    ]
    .join("\x1f"))
}

fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("{name} is set by cargo for build scripts"))
}
