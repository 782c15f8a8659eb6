//! Checks that an interrupted live bench cleans up after itself.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use benches::live::{
    cost::{process_tree, program_ids},
    fdinfo,
};
use lab::{Process, privilege::is_root_or_skip};

const PATIENCE: Duration = Duration::from_mins(2);

#[test]
fn an_interrupted_bench_leaves_no_process_program_or_namespace() {
    let name = "interrupted::an_interrupted_bench_leaves_no_process_program_or_namespace";
    if !is_root_or_skip(name) {
        return;
    }
    let bench = Path::new(env!("CARGO_BIN_EXE_live-bench"));
    // Cargo puts the binaries of all packages into one folder.
    let agent = bench.with_file_name("flow-agent");
    assert!(agent.exists(), "build the workspace: {}", agent.display());
    let results = std::env::temp_dir().join(format!("interrupted-{}", std::process::id()));
    let mut bench = Process::spawn(
        Command::new(bench)
            .args(["ladder", "--quick", "--duration", "30s", "--agent"])
            .arg(&agent)
            .arg("--results")
            .arg(&results)
            .stdout(Stdio::null())
            .stderr(Stdio::piped()),
    )
    .unwrap();
    let pid = bench.child().id();
    let stderr = bench.child().stderr.take().unwrap();
    let mut lines = BufReader::new(stderr).lines();
    let progress = lines.next().unwrap().unwrap();
    assert!(progress.contains("round 1"), "{progress}");

    // By this time the agents, their consumers and their programs are running.
    let tree = process_tree(pid).unwrap();
    assert!(tree.len() > 5, "{tree:?}");
    let namespaces = namespaces_of(pid);
    assert!(!namespaces.is_empty());
    let programs = programs_of(&tree);
    assert!(!programs.is_empty());

    bench.signal(2).unwrap();
    let status = bench.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(1));
    let last = lines.map_while(Result::ok).last().unwrap();
    assert!(last.contains("interrupted"), "{last}");
    for pid in tree {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid}");
    }
    assert_eq!(namespaces_of(pid), Vec::<PathBuf>::new());
    // The kernel frees a program a moment after its last descriptor is closed.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all = program_ids().unwrap();
        let left: Vec<&u32> = all.intersection(&programs).collect();
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "{left:?}");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(!results.exists());
}

/// The namespaces whose names contain the process id.
fn namespaces_of(pid: u32) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/run/netns") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.to_string_lossy().into_owned();
            name.split('-').any(|part| part == pid.to_string())
        })
        .collect()
}

fn programs_of(tree: &std::collections::BTreeSet<u32>) -> std::collections::BTreeSet<u32> {
    tree.iter()
        .flat_map(|&pid| fdinfo::program_ids(pid).unwrap_or_default())
        .collect()
}
