//! Assembles the input of a guest: the requested tests, and an archive with the built programs and their dependencies.

use std::{
    env, iter,
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

/// A module of the agent's tests that depends on the kernel.
struct Module {
    name: &'static str,
    /// Time limit in seconds for all of its tests, in a guest on an idle machine. It has room for work on the host that
    /// starts after the guest has measured its speed.
    seconds: u64,
    without_all: Share,
}

/// The tests of a module that run by default.
enum Share {
    Everything,
    /// Tests whose names contain one of these parts. The first text says why the others are left out.
    Only(&'static str, &'static [&'static str]),
    Nothing(&'static str),
}

use Share::{Everything, Nothing, Only};

const fn module(name: &'static str, seconds: u64, without_all: Share) -> Module {
    Module {
        name,
        seconds,
        without_all,
    }
}

/// In the order in which a guest runs them. They cover the differences between kernels: which programs load (`exact`,
/// `corpus`, `hardened`, `lockdown`), the hooks, devices, maps and clocks, and the kernel structures that programs
/// read. A program that loads parses a packet's bytes the same way on every kernel, and `cargo xtask test` covers that.
const MODULES: &[Module] = &[
    module("exact", 2_700, Everything),
    module("accounts", 900, Everything),
    module("kinds", 900, Nothing("`corpus` has the same packets")),
    module("super_frames", 900, Everything),
    // They load every program twice, with and without decapsulation.
    module("corpus", 2_700, Everything),
    module(
        "closing",
        900,
        Nothing("it is decided by flags of TCP alone"),
    ),
    module("devices", 2_700, Everything),
    module("directions", 900, Everything),
    module(
        "filters",
        2_700,
        Only(
            "rules depend only on bytes",
            &[
                "a_thousand_networks",
                "rules_leave_out_what_they_say_over_tc_ingress",
                "rules_change_under_traffic_without_a_gap_over_xdp",
            ],
        ),
    ),
    module(
        "fragments",
        900,
        Only(
            "joining depends only on bytes",
            &["second_fragment_joins_its_flow", "a_full_memory"],
        ),
    ),
    module(
        "carry_over",
        2_700,
        Only(
            "what is left and taken over is decided by the agent",
            &[
                "ten_kills_lose_no_packet",
                "kills_lose_no_packet_of_either_direction",
            ],
        ),
    ),
    module("lifecycle::gone", 1_800, Everything),
    module("lifecycle::indexes", 900, Everything),
    module("lifecycle::leftovers", 900, Everything),
    module("lifecycle::neighbours", 1_800, Everything),
    module("lifecycle::netns", 1_800, Everything),
    module("lifecycle::signals", 900, Everything),
    module("drops", 900, Everything),
    module(
        "failures",
        900,
        Nothing("they are read from bytes, and told by the agent"),
    ),
    module(
        "initiator",
        1_800,
        Only(
            "who initiated is decided by bytes and times",
            &["a_socket_of_the_host", "flow_on_lo"],
        ),
    ),
    module(
        "names",
        900,
        Only(
            "names are read from bytes, and kept by the agent",
            &["a_flow_is_to_the_name"],
        ),
    ),
    module(
        "round_trips",
        900,
        Only(
            "the measurements depend only on bytes",
            &["a_connection_that_passes", "two_cpus"],
        ),
    ),
    module("senders::connections", 900, Everything),
    module("senders::sockets", 900, Everything),
    module(
        "table",
        1_800,
        Only("places in a page are no matter of the kernel", &["grow"]),
    ),
    module(
        "tunnels",
        2_700,
        Only(
            "tunnels are opened by bytes, and `corpus` has such packets",
            &[
                "tunnels::device",
                "a_flow_is_what_the_tunnel_carries_over_native_xdp",
                "a_flow_is_what_the_tunnel_carries_over_tc_ingress",
            ],
        ),
    ),
    module("xdp", 1_800, Everything),
    module("looped_back", 900, Everything),
    module("link_headers", 900, Everything),
    module("hardened", 900, Everything),
    // Locks the kernel down until the guest ends.
    module("lockdown", 900, Everything),
];

impl Share {
    fn has(&self, test: &str) -> bool {
        match self {
            Everything => true,
            Only(_, parts) => parts.iter().any(|part| test.contains(part)),
            Nothing(_) => false,
        }
    }
}

/// The modules that only run with `--all`, for the help text.
pub fn left_out() -> String {
    let first = "What depends on no kernel (storage, outputs, settings, `query`, `top`, clients) is left to `cargo xtask \
                 test`. Without --all, --test and names of tests, so is:";
    let modules = MODULES.iter().filter_map(|module| {
        let name = module.name;
        match module.without_all {
            Everything => None,
            Only(why, _) => Some(format!("  most of {name}: {why}")),
            Nothing(why) => Some(format!("  {name}: {why}")),
        }
    });
    let lines: Vec<String> = iter::once(first.to_owned()).chain(modules).collect();
    lines.join("\n")
}

/// The commands that the tests start, besides the agent.
pub const COMMANDS: &[&str] = &[
    "ip", "tc", "ethtool", "ping", "ss", "wg", "prlimit", "dnsmasq", "unshare", "mount", "nft",
];

/// The commands with which tests start all others.
const STARTING: [&str; 2] = ["nsenter", "setpriv"];

/// Builds the tests of the modules in `asked`, or of all modules. `arguments` are passed to the test program and may
/// name tests. Tests that [`Share`] leaves out run only if `all` is set, or if modules or tests are named.
pub fn build(
    all: bool,
    asked: &[String],
    arguments: &[String],
    commands: &[&str],
) -> Result<(Vec<Test>, Archive)> {
    let known = |name: &String| MODULES.iter().any(|module| module.name == name);
    if let Some(unknown) = asked.iter().find(|name| !known(name)) {
        let names: Vec<&str> = MODULES.iter().map(|module| module.name).collect();
        bail!("{unknown} is none of {}", names.join(", "));
    }
    let mut archive = Archive::default();
    // Build the whole workspace, so that for a few tests cargo reuses what `cargo xtask test` has built.
    let names_some = arguments.iter().any(|argument| !argument.starts_with('-'));
    let is_chosen = !asked.is_empty() || names_some;
    let mut tests = vec!["test", "--workspace", "--no-run", "--test", "agent"];
    if !is_chosen {
        tests.extend(["--profile", "guest"]);
    }
    let built = built(cargo(&tests))?;
    for path in &built {
        archive.stripped_program(path)?;
    }
    let program = tests_among(&built)?;
    let wanted = names(program, arguments)?;
    let is_whole = all || is_chosen;
    let mut tests = Vec::new();
    for module in MODULES {
        if !asked.is_empty() && !asked.iter().any(|asked| asked == module.name) {
            continue;
        }
        let names = chosen(module, &wanted, is_whole);
        if !names.is_empty() {
            tests.push(Test {
                module: module.name,
                program: program.to_owned(),
                names,
                timeout: Duration::from_secs(module.seconds),
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
    // Under the same path as on this machine, which is compiled into the tests.
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

/// The tests of one module to run.
fn chosen(module: &Module, names: &[String], is_whole: bool) -> Vec<String> {
    let prefix = format!("{}::", module.name);
    let names = names.iter().filter(|name| name.starts_with(&prefix));
    let names = names.filter(|name| is_whole || module.without_all.has(name));
    names.cloned().collect()
}

/// The names of the tests that a test program would run with these arguments.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_name_that_stays_is_in_the_sources() {
        let folder = root().join("agent/tests/agent");
        for module in MODULES {
            let Only(_, parts) = module.without_all else {
                continue;
            };
            let path = folder.join(module.name);
            let mut files = vec![path.with_extension("rs")];
            for file in std::fs::read_dir(&path).into_iter().flatten() {
                files.push(file.unwrap().path());
            }
            let mut sources = String::new();
            for file in files {
                sources += &std::fs::read_to_string(file).unwrap();
            }
            for part in parts {
                let (folder, function) = part.rsplit_once("::").unwrap_or(("", part));
                let is_there = if folder == module.name {
                    sources.contains(&format!("mod {function};"))
                } else {
                    sources.contains(function)
                };
                assert!(is_there, "{part} is in no test of {}", module.name);
            }
        }
    }

    #[test]
    fn without_all_a_module_runs_what_its_share_says() {
        let names = [
            "filters::a_thousand_networks_more",
            "filters::b",
            "xdp::c",
            "kinds::d",
        ];
        let names = names.map(str::to_owned);
        let number = |module: &str, is_whole| {
            let module = MODULES.iter().find(|one| one.name == module).unwrap();
            chosen(module, &names, is_whole).len()
        };
        assert_eq!((number("filters", false), number("filters", true)), (1, 2));
        assert_eq!((number("xdp", false), number("xdp", true)), (1, 1));
        assert_eq!((number("kinds", false), number("kinds", true)), (0, 1));
        assert!(left_out().contains("most of filters") && left_out().contains("  kinds"));
        assert!(!left_out().contains("xdp"));
    }
}
