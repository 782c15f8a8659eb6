//! What a guest runs: names of test programs come in, the built programs and an archive with all that
//! they need go out.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    archive::Archive,
    guest::{BUSYBOX, Test},
};
use crate::workspace::{cargo, root};

/// The agent's test programs that ask something of the kernel, and how long each may take there.
const TESTS: &[(&str, u64)] = &[
    ("exact", 600),
    ("kinds", 300),
    ("super_frames", 300),
    // It loads every program twice, with and without opened tunnels.
    ("corpus", 900),
    ("devices", 900),
    ("filters", 900),
    ("fragments", 300),
    ("tunnels", 900),
    ("xdp", 600),
];

/// What all of them start, besides the agent.
pub const COMMANDS: &[&str] = &["ip", "tc", "ethtool", "ping", "wg"];

pub fn build(asked: &[String], commands: &[&str]) -> Result<(Vec<Test>, Archive)> {
    let known = |name: &String| TESTS.iter().any(|(test, _)| test == name);
    if let Some(unknown) = asked.iter().find(|name| !known(name)) {
        let names: Vec<&str> = TESTS.iter().map(|(name, _)| *name).collect();
        bail!("{unknown} is none of {}", names.join(", "));
    }
    let wanted: Vec<(&str, u64)> = TESTS
        .iter()
        .filter(|(name, _)| asked.is_empty() || asked.iter().any(|asked| asked == name))
        .copied()
        .collect();
    let built = executables(&wanted)?;
    let mut archive = Archive::default();
    let mut tests = Vec::new();
    for (name, path) in &built {
        archive.stripped_program(path)?;
        if let Some((_, seconds)) = wanted.iter().find(|(test, _)| test == name) {
            tests.push(Test {
                name: name.clone(),
                program: path.clone(),
                timeout: Duration::from_secs(*seconds),
            });
        }
    }
    ensure!(
        tests.len() == wanted.len(),
        "cargo built {built:?} of {wanted:?}"
    );
    for command in commands {
        archive.program(&find(command)?)?;
    }
    let busybox = find("busybox")?;
    archive.program(&busybox)?;
    archive.file(
        BUSYBOX,
        std::fs::read(&busybox).with_context(|| format!("read {}", busybox.display()))?,
    );
    // By the path that was compiled in.
    let frames = root().join("corpus/frames");
    for file in std::fs::read_dir(&frames).with_context(|| format!("list {}", frames.display()))? {
        archive.copy(&file.context("list the corpus")?.path())?;
    }
    for folder in ["proc", "sys", "tmp", "run"] {
        archive.folder(folder);
    }
    archive.character_device("/dev/console", 5, 1);
    Ok((tests, archive))
}

/// Builds the test programs and the agent: names and paths.
fn executables(tests: &[(&str, u64)]) -> Result<Vec<(String, PathBuf)>> {
    // Of the whole workspace, so that they are those that `cargo xtask test` has built.
    let mut build = cargo(&["test", "--workspace", "--no-run"]);
    for (test, _) in tests {
        build.args(["--test", test]);
    }
    let output = build
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo test")?;
    ensure!(output.status.success(), "the tests do not build");
    let mut found = Vec::new();
    for line in output.stdout.split(|&byte| byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<serde_json::Value>(line) else {
            continue;
        };
        let name = message["target"]["name"].as_str();
        if let (Some(name), Some(path)) = (name, message["executable"].as_str()) {
            found.push((name.to_owned(), PathBuf::from(path)));
        }
    }
    Ok(found)
}

fn find(command: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(command))
        .find(|path| Path::new(path).is_file())
        .with_context(|| format!("there is no {command}"))
}
