//! Compiles the kernel's programs: each binary of an eBPF crate becomes an object, `$OUT_DIR/NAME`.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use object::{
    build::elf::{Builder, SectionData},
    elf,
};

#[path = "ebpf_toolchain.rs"]
pub mod ebpf_toolchain;

use ebpf_toolchain::Toolchain;

/// Prefixes of variables that are meant for the outer build and would also affect the inner one.
const OUTER_BUILD: &[&str] = &[
    "CARGO_BUILD_",
    "CARGO_PROFILE_",
    "CARGO_TARGET_",
    "CARGO_UNSTABLE_",
    "RUSTC",
    "RUSTFLAGS",
];

/// An object and how it is built.
pub struct Object {
    /// The folder of its crate, relative to the project's root.
    pub package: &'static str,
    /// The binary of that crate.
    pub name: &'static str,
    pub features: &'static [&'static str],
}

/// The agent's programs.
pub const AGENT: Object = Object {
    package: "agent-ebpf",
    name: "flow-agent-ebpf",
    features: &[],
};

/// Reports an error to cargo, line by line.
pub fn exit_code(built: Result<()>) -> ExitCode {
    let Err(error) = built else {
        return ExitCode::SUCCESS;
    };
    for line in format!("{error:#}").lines() {
        println!("cargo::error={line}");
    }
    ExitCode::FAILURE
}

/// Builds an object. Cargo reruns the build script when the crate, the code it shares with the agent, or its compiler
/// changes.
pub fn build(object: &Object) -> Result<()> {
    let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let root = manifest_dir
        .ancestors()
        .find(|folder| folder.join(AGENT.package).is_dir())
        .context("the package lies in the project")?;
    let out_dir = PathBuf::from(variable("OUT_DIR")?);
    ensure!(
        variable("CARGO_CFG_TARGET_ENDIAN")? == "little",
        "the eBPF programs are built for little-endian machines only"
    );

    println!("cargo::rerun-if-changed=build.rs");
    let package = root.join(object.package);
    let parts = ["src", "Cargo.toml", "Cargo.lock"].map(|part| package.join(part));
    // The crates of the benches include these files of the agent.
    let shared = [
        "agent/kernel/build",
        "agent-ebpf/src",
        "agent-common/src",
        "agent-common/Cargo.toml",
    ];
    for path in parts.into_iter().chain(shared.map(|path| root.join(path))) {
        println!("cargo::rerun-if-changed={}", path.display());
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

    let rust_flags = rust_flags(&toolchain.linker)?;
    let target_dir = shared_target_dir(&out_dir)?;
    let _alone = alone_in(&target_dir)?;
    let built = compile(object, &package, &toolchain, &rust_flags, &target_dir)?;
    let whole = fs::read(&built).with_context(|| format!("read {}", built.display()))?;
    let small = without_dwarf(&whole).with_context(|| format!("strip {}", built.display()))?;
    let path = out_dir.join(object.name);
    fs::write(&path, small).with_context(|| format!("write {}", path.display()))
}

/// The object without DWARF, which is three quarters of it. The linker has already made BTF from it, and nothing else
/// reads it.
fn without_dwarf(object: &[u8]) -> object::build::Result<Vec<u8>> {
    let mut builder = Builder::read(object)?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        let name = name.strip_prefix(b".rel").unwrap_or(name);
        section.delete = name.starts_with(b".debug_");
    }
    builder.delete_orphans();
    // LLVM keeps section names and symbol names in one section; here they become two.
    let names = builder.sections.add();
    names.name = b".shstrtab".as_slice().into();
    names.sh_type = elf::SHT_STRTAB;
    names.data = SectionData::SectionString;
    let mut small = Vec::new();
    builder.write(&mut small)?;
    Ok(small)
}

/// `target/PROFILE/ebpf`, shared by all objects and build scripts because they have the same sources. It cannot be the
/// outer build's folder, which cargo locks during the build.
fn shared_target_dir(out_dir: &Path) -> Result<PathBuf> {
    // $OUT_DIR is target/PROFILE/build/PACKAGE-HASH/out.
    let profile_dir = out_dir.ancestors().nth(3);
    Ok(profile_dir
        .with_context(|| format!("{} lies in a target folder", out_dir.display()))?
        .join("ebpf"))
}

/// Locks out other build scripts until the file is closed: cargo gives an object the same name with and without its
/// features.
fn alone_in(target_dir: &Path) -> Result<File> {
    let path = target_dir.join("build-script.lock");
    fs::create_dir_all(target_dir).with_context(|| format!("make {}", target_dir.display()))?;
    let file = File::create(&path).with_context(|| format!("make {}", path.display()))?;
    file.lock()
        .with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}

/// Runs cargo on the object's crate.
fn compile(
    object: &Object,
    package: &Path,
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
            object.name,
            "--target",
            ebpf_toolchain::TARGET,
            "--features",
            &object.features.join(","),
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
        .join(object.name))
}

/// The flags that a BPF object needs, in cargo's encoding. `core::ffi` and the layout of `pt_regs` follow the machine's
/// architecture, and BTF is made from debug information.
fn rust_flags(linker: &Path) -> Result<String> {
    let linker = linker.to_str().context("the path of bpf-linker is UTF-8")?;
    let arch = variable("CARGO_CFG_TARGET_ARCH")?;
    let flags = [
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        format!("-Clinker={linker}"),
        "-Clink-arg=--btf".to_owned(),
        // Without this flag every memset is a call to a loop over bytes: LLVM's BPFTargetLowering allows no
        // inline stores by default.
        "-Clink-arg=--disable-expand-memcpy-in-order".to_owned(),
        "-Cdebuginfo=2".to_owned(),
    ];
    Ok(flags.join("\x1f"))
}

fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("{name} is set by cargo for build scripts"))
}
