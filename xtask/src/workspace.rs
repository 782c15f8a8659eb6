//! Paths in the workspace, and ways to call cargo and other programs.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::{Message, Metadata, MetadataCommand, Target};

use crate::ebpf_toolchain::cache_root;

/// The root folder of the project.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root folder")
}

/// The folder of one of the workspace's packages.
#[cfg(test)]
pub fn package_folder(package: &str) -> PathBuf {
    let places = ["", "agent", "testing"].map(|place| root().join(place).join(package));
    let mut places = places.into_iter();
    let found = places.find(|place| place.join("Cargo.toml").is_file());
    found.unwrap_or_else(|| panic!("no package {package}"))
}

/// The cargo that started this program, with the root folder as working directory.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).current_dir(root());
    cargo
}

/// Runs a command to the end on the terminal. The error names the command that failed.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("start {}", words(command)))?;
    ensure!(status.success(), "{} failed ({status})", words(command));
    Ok(())
}

/// Builds the agent and returns its path.
pub fn build_agent(profile: &str) -> Result<PathBuf> {
    run(&mut cargo(&[
        "build",
        "--profile",
        profile,
        "--package",
        "agent",
    ]))?;
    // cargo's own name for this profile's folder is another one.
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(target_dir()?.join(folder).join("flow-agent"))
}

pub fn target_dir() -> Result<PathBuf> {
    Ok(metadata()?.target_directory.into())
}

/// The names of all test programs beside those of the crates' own sources.
pub fn test_programs() -> Result<Vec<String>> {
    let packages = metadata()?.packages.into_iter();
    let targets = packages.flat_map(|package| package.targets);
    let tests = targets.filter(Target::is_test);
    Ok(tests.map(|target| target.name).collect())
}

pub fn metadata() -> Result<Metadata> {
    MetadataCommand::new()
        .current_dir(root())
        .no_deps()
        .exec()
        .context("ask cargo for the workspace")
}

/// Runs a cargo build command and returns the programs that it built.
pub fn built(mut build: Command) -> Result<Vec<PathBuf>> {
    let output = build
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("start {}", words(&build)))?;
    ensure!(output.status.success(), "{} failed", words(&build));
    let mut programs = Vec::new();
    for message in Message::parse_stream(&*output.stdout) {
        if let Message::CompilerArtifact(artifact) = message.context("read what cargo says")? {
            programs.extend(artifact.executable.map(PathBuf::from));
        }
    }
    Ok(programs)
}

/// The test program among the programs that cargo built, which also include the agent that it starts.
pub fn tests_among(built: &[PathBuf]) -> Result<&Path> {
    let is_test = |path: &&PathBuf| path.parent().is_some_and(|folder| folder.ends_with("deps"));
    let test = built.iter().find(is_test);
    Ok(test.with_context(|| format!("cargo built {built:?}, and no tests"))?)
}

/// A cargo subcommand in this version: `cargo-NAME` from the PATH or from the user's cache. Installs it there if it is
/// missing.
pub fn tool(name: &str, version: &str, purpose: &str) -> Result<PathBuf> {
    let binary = format!("cargo-{name}");
    let works = |program: &Path| {
        let mut asked = Command::new(program);
        asked.args([name, "--version"]).stderr(Stdio::null());
        asked
            .output()
            .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(version))
    };
    let on_path = PathBuf::from(&binary);
    if works(&on_path) {
        return Ok(on_path);
    }
    let cache = cache_root().context("neither HOME nor XDG_CACHE_HOME is set")?;
    let ours = cache.join("bin").join(&binary);
    if !works(&ours) {
        eprintln!("setup: installing {binary} {version} ({purpose})");
        let mut install = cargo(&["install", &binary, "--locked", "--version", version]);
        run(install.arg("--root").arg(&cache))?;
    }
    Ok(ours)
}

/// A command that runs the program as root: directly if we are root, otherwise through `sudo` with our settings.
pub fn as_root(program: &Path) -> Command {
    if lab::privilege::is_root() {
        return Command::new(program);
    }
    let mut sudo = Command::new("sudo");
    sudo.arg("env");
    for (name, value) in env::vars_os() {
        if name.to_string_lossy().starts_with("FLOW_AGENT_") {
            let mut assignment = name;
            assignment.push("=");
            assignment.push(value);
            sudo.arg(assignment);
        }
    }
    sudo.arg(program);
    sudo
}

/// Parses a time such as 30s or 5m to whole seconds, at least one.
pub fn seconds(text: &str) -> Result<Duration> {
    let time = humantime::parse_duration(text)?;
    ensure!(
        time.as_secs() > 0 && time.subsec_nanos() == 0,
        "whole seconds, at least one, such as 30s or 5m"
    );
    Ok(time)
}

/// Whether a program is on the PATH, or in a folder that only root's PATH contains.
pub fn has_command(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(sbin)
        .any(|folder| folder.join(name).is_file())
}

fn words(command: &Command) -> String {
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;

    #[test]
    fn a_time_is_in_whole_seconds_and_at_least_one() {
        let read = |text| seconds(text).ok().map(|time| time.as_secs());
        assert_eq!([read("30s"), read("5m")], [Some(30), Some(300)]);
        assert_eq!(
            [read("0s"), read("500ms"), read("1.5s"), read("")],
            [None; 4]
        );
    }

    /// The folders under `agent/` that are crates.
    fn crates() -> Vec<String> {
        let entries = fs::read_dir(root().join("agent")).unwrap();
        let folders = entries.map(|entry| entry.unwrap().path());
        let crates = folders.filter(|folder| folder.join("Cargo.toml").is_file());
        crates
            .map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn the_map_in_contributing_has_every_folder_and_no_other() {
        let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
        let rows = text.lines().filter_map(|line| {
            let (folder, _) = line.strip_prefix("| `")?.split_once("/` |")?;
            Some(folder.to_owned())
        });
        let rows: BTreeSet<String> = rows.collect();
        for row in &rows {
            assert!(root().join(row).is_dir(), "there is no folder {row}/");
        }
        let top = [
            "agent-ebpf",
            "agent-common",
            "agent",
            "xtask",
            "benches",
            "deploy",
            "docs",
        ];
        let expected = top.map(str::to_owned).into_iter();
        for folder in expected.chain(crates().iter().map(|one| format!("agent/{one}"))) {
            assert!(
                rows.contains(&folder),
                "CONTRIBUTING.md does not describe {folder}/"
            );
        }
    }

    #[test]
    fn a_crate_depends_on_those_that_its_documentation_names() {
        let crates = crates();
        for name in &crates {
            let folder = root().join("agent").join(name);
            let text = fs::read_to_string(folder.join("src/lib.rs")).unwrap();
            let mut lines = text.lines();
            let may = lines.find_map(|line| line.strip_prefix("//! May depend on: "));
            let (may, _) = may.unwrap().split_once('.').unwrap();
            let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
            let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
            let dependencies = dependencies
                .lines()
                .take_while(|line| !line.starts_with('['));
            let named = dependencies.filter_map(|line| line.split(['.', ' ']).next());
            for dependency in named.filter(|named| crates.iter().any(|one| one == named)) {
                assert!(
                    may.contains(&format!("`{dependency}`")),
                    "{name} depends on {dependency}"
                );
            }
        }
    }
}
