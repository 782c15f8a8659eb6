//! Puts together what a guest runs: the tests that were asked for, and an archive with the built programs and
//! all that they need.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    archive::Archive,
    guest::{BUSYBOX, Test},
};
use crate::workspace::{built, cargo, root, tests_among};

/// The modules of the agent's tests that depend on the kernel, in the order in which a guest runs them, and how many
/// seconds each may take there on an idle machine. They leave room for work that begins beside them after the guest
/// has measured its speed.
const MODULES: &[(&str, u64)] = &[
    ("exact", 2_700),
    ("accounts", 900),
    ("kinds", 900),
    ("super_frames", 900),
    // They load every program twice, with and without opened tunnels.
    ("corpus", 2_700),
    ("closing", 900),
    ("devices", 2_700),
    ("directions", 900),
    ("filters", 2_700),
    ("fragments", 900),
    ("lifecycle::gone", 1_800),
    ("lifecycle::indexes", 900),
    ("lifecycle::leftovers", 900),
    ("lifecycle::neighbours", 1_800),
    ("lifecycle::netns", 1_800),
    ("lifecycle::signals", 900),
    ("drops", 900),
    ("failures", 900),
    ("initiator", 900),
    ("names", 900),
    ("round_trips", 900),
    ("senders::connections", 900),
    ("senders::sockets", 900),
    ("table", 1_800),
    ("tunnels", 2_700),
    ("xdp", 1_800),
    ("looped_back", 900),
    ("link_headers", 900),
    ("hardened", 900),
    // Locks the kernel down for good.
    ("lockdown", 900),
];

/// The commands that the tests start, besides the agent.
pub const COMMANDS: &[&str] = &[
    "ip", "tc", "ethtool", "ping", "ss", "wg", "prlimit", "dnsmasq", "unshare", "mount",
];

/// Those with which a test starts any other.
const STARTING: [&str; 2] = ["nsenter", "setpriv"];

/// The tests of the modules that were `asked` for, or of all modules. `arguments` are those of the test
/// program, and may name tests.
pub fn build(
    asked: &[String],
    arguments: &[String],
    commands: &[&str],
) -> Result<(Vec<Test>, Archive)> {
    let known = |name: &String| MODULES.iter().any(|(module, _)| module == name);
    if let Some(unknown) = asked.iter().find(|name| !known(name)) {
        let names: Vec<&str> = MODULES.iter().map(|(name, _)| *name).collect();
        bail!("{unknown} is none of {}", names.join(", "));
    }
    let mut archive = Archive::default();
    // The whole workspace, so that they are those that `cargo xtask test` has built.
    let tests = ["test", "--workspace", "--no-run", "--test", "agent"];
    let built = built(cargo(&tests))?;
    for path in &built {
        archive.stripped_program(path)?;
    }
    let program = tests_among(&built)?;
    let wanted = names(program, arguments)?;
    let mut tests = Vec::new();
    for &(module, seconds) in MODULES {
        if !asked.is_empty() && !asked.iter().any(|asked| asked == module) {
            continue;
        }
        let prefix = format!("{module}::");
        let names = wanted.iter().filter(|name| name.starts_with(&prefix));
        let names: Vec<String> = names.cloned().collect();
        if !names.is_empty() {
            tests.push(Test {
                module,
                program: program.to_owned(),
                names,
                timeout: Duration::from_secs(seconds),
            });
        }
    }
    ensure!(
        !tests.is_empty(),
        "no test of these modules has such a name: {}",
        arguments.join(" ")
    );
    for command in commands.iter().chain(&STARTING) {
        archive.program(&find(command)?)?;
    }
    let busybox = find("busybox")?;
    archive.program(&busybox)?;
    archive.file(
        BUSYBOX,
        std::fs::read(&busybox).with_context(|| format!("read {}", busybox.display()))?,
    );
    // Under the path that was compiled into the tests.
    let frames = root().join("testing/corpus/frames");
    for file in std::fs::read_dir(&frames).with_context(|| format!("list {}", frames.display()))? {
        archive.copy(&file.context("list the corpus")?.path())?;
    }
    for folder in ["proc", "sys", "tmp", "run"] {
        archive.folder(folder);
    }
    archive.character_device("/dev/console", 5, 1);
    Ok((tests, archive))
}

/// The tests that a test program would run with these arguments.
fn names(program: &Path, arguments: &[String]) -> Result<Vec<String>> {
    let output = Command::new(program)
        .args(["--list", "--format", "terse"])
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("start {}", program.display()))?;
    ensure!(
        output.status.success(),
        "the tests do not take {}",
        arguments.join(" ")
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

fn find(command: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(command))
        .find(|path| Path::new(path).is_file())
        .with_context(|| format!("there is no {command}"))
}
