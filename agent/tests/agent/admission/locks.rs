//! Several agents on the path of one socket: one listens, and the others report that.

use std::{
    fs::{self, File},
    os::unix::{
        fs::{PermissionsExt as _, chown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use lab::{Lab, Process, privilege::is_root_or_skip};
use tempfile::TempDir;

use crate::support::{Agent, flow_agent, wait_until};

const ROUNDS: usize = 6;
const AGENTS: usize = 3;

struct Contender {
    process: Process,
    stderr: PathBuf,
}

impl Contender {
    fn start(lab: &Lab, socket: &Path, stderr: PathBuf) -> Self {
        let mut command = flow_agent(&lab.agent);
        command
            .args(["run", "--interface", &lab.agent.interface])
            .args(["--max-flows", "1000", "--listen"])
            .arg(format!("unix:{}", socket.display()))
            .stderr(File::create(&stderr).unwrap());
        Self {
            process: Process::spawn(&mut command).unwrap(),
            stderr,
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    fn counts(&self) -> bool {
        self.log().contains("counting max_flows=")
    }

    fn has_ended(&mut self) -> bool {
        self.process.exited().unwrap().is_some()
    }
}

fn lock_of(socket: &Path) -> PathBuf {
    socket.with_extension("sock.lock")
}

#[test]
fn of_agents_that_start_at_once_on_a_stale_socket_one_runs_and_can_be_reached() {
    if !is_root_or_skip(
        "agent::of_agents_that_start_at_once_on_a_stale_socket_one_runs_and_can_be_reached",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    for round in 0..ROUNDS {
        let directory = TempDir::new().unwrap();
        let socket = directory.path().join("x.sock");
        drop(UnixListener::bind(&socket).unwrap());
        let mut agents: Vec<Contender> = (0..AGENTS)
            .map(|number| {
                let stderr = directory.path().join(format!("stderr{number}"));
                Contender::start(&lab, &socket, stderr)
            })
            .collect();
        wait_until("each agent counts or has ended", || {
            agents
                .iter_mut()
                .all(|agent| agent.counts() || agent.has_ended())
        });
        let (mut running, ended): (Vec<_>, Vec<_>) =
            agents.into_iter().partition(Contender::counts);
        assert_eq!(running.len(), 1, "agents that run in round {round}");
        for agent in &ended {
            let log = agent.log();
            assert!(log.contains("another agent listens on"), "{log}");
        }
        let mut status = flow_agent(&lab.agent);
        status.args(["status", "--connect"]);
        status.arg(format!("unix:{}", socket.display()));
        let status = status.output().unwrap();
        assert!(status.status.success(), "{status:?}");

        let end = running[0].process.terminate(super::patience()).unwrap();
        assert!(end.success(), "{}", running[0].log());
        assert!(!socket.exists() && !lock_of(&socket).exists());
    }
}

#[test]
fn a_lock_is_for_its_agent_alone_and_one_that_was_left_behind_is_no_obstacle() {
    if !is_root_or_skip(
        "agent::a_lock_is_for_its_agent_alone_and_one_that_was_left_behind_is_no_obstacle",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("x.sock");
    let address = format!("unix:{}", socket.display());
    let agent = Agent::start(&lab, &["--listen", &address]);
    let lock = lock_of(&socket).metadata().unwrap();
    assert_eq!(lock.permissions().mode() & 0o777, 0o600);
    agent.kill();
    assert!(socket.exists() && lock_of(&socket).exists());
    Agent::start(&lab, &["--listen", &address]).stop();
    assert!(!socket.exists() && !lock_of(&socket).exists());
}

#[test]
fn a_lock_that_others_hold_or_made_is_refused_with_what_to_do() {
    const NOBODY: u32 = 65534;
    if !is_root_or_skip("agent::a_lock_that_others_hold_or_made_is_refused_with_what_to_do") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let refused = |prepare: &dyn Fn(&Path) -> Option<File>| {
        let directory = TempDir::new().unwrap();
        let socket = directory.path().join("x.sock");
        let held = prepare(&lock_of(&socket));
        let mut agent = Contender::start(&lab, &socket, directory.path().join("stderr"));
        wait_until("the agent ends", || agent.has_ended());
        drop(held);
        assert!(!socket.exists() && lock_of(&socket).symlink_metadata().is_ok());
        agent.log()
    };
    let held = refused(&|lock| {
        let file = File::create(lock).unwrap();
        file.try_lock().unwrap();
        Some(file)
    });
    assert!(held.contains("another agent listens on"), "{held}");

    // Another user could hold a lock on their own file for ever.
    let theirs = refused(&|lock| {
        let file = File::create(lock).unwrap();
        chown(lock, Some(NOBODY), Some(NOBODY)).unwrap();
        Some(file)
    });
    assert!(
        theirs.contains("the file of uid 65534: remove it"),
        "{theirs}"
    );
    let link = refused(&|lock| {
        let target = lock.with_extension("target");
        symlink(&target, lock).unwrap();
        assert!(!target.exists());
        None
    });
    assert!(link.contains("no regular file: remove it"), "{link}");
    let directory = refused(&|lock| {
        fs::create_dir(lock).unwrap();
        None
    });
    assert!(
        directory.contains("no regular file: remove it"),
        "{directory}"
    );
}
