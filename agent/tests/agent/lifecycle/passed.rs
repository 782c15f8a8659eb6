//! Sockets that a service manager opened (`sd_listen_fds(3)`).

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, process::Command};

use lab::{Host, Lab, privilege::is_root_or_skip};

use super::refusals::{assert_says, refusal};
use crate::support::{Agent, BINARY, flow_agent};

/// Does what systemd does: opens the sockets of its first argument as the files 3, 4 and so on, says so in the
/// environment, and becomes the program that follows.
const MANAGER: &str = r#"
    # None is closed by exec.
    $^F = 99;
    my (@sockets, @other_ends);
    for (split / /, shift) {
        my ($kind, $where) = split /=/;
        my $socket;
        if ($kind eq "tcp" or $kind eq "open") {
            my $address = $kind eq "tcp" ? INADDR_LOOPBACK : INADDR_ANY;
            socket($socket, PF_INET, SOCK_STREAM, 0) or die $!;
            bind($socket, sockaddr_in($where, $address)) or die $!;
            listen($socket, 9) or die $!;
        } elsif ($kind eq "unix") {
            socket($socket, PF_UNIX, SOCK_STREAM, 0) or die $!;
            bind($socket, sockaddr_un($where)) or die $!;
            listen($socket, 9) or die $!;
        } elsif ($kind eq "udp") {
            socket($socket, PF_INET, SOCK_DGRAM, 0) or die $!;
        } else {
            socketpair($socket, my $end, PF_UNIX, SOCK_STREAM, 0) or die $!;
            push @other_ends, $end;
        }
        die "not the next file" unless fileno($socket) == 3 + @sockets;
        push @sockets, $socket;
    }
    $ENV{LISTEN_FDS} = @sockets;
    $ENV{LISTEN_PID} = $$;
    exec @ARGV or die $!;
"#;

fn with_sockets(host: &Host, sockets: &str) -> Command {
    let mut command = host.command("perl");
    command.args(["-MSocket", "-e", MANAGER, sockets, BINARY]);
    command
}

fn answers(host: &Host, address: &str) {
    let mut command = flow_agent(host);
    let status = command.args(["status", "--output", "json", "--connect", address]);
    let output = status.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{address}: {stderr}");
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

#[test]
fn sockets_of_the_service_manager_are_served_and_stay() {
    if !is_root_or_skip("agent::sockets_of_the_service_manager_are_served_and_stay") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("passed");
    let unix = format!("unix:{}", path.display());
    let sockets = format!("unix={} tcp=5001", path.display());
    let command = with_sockets(&lab.agent, &sockets);
    // Passed sockets are not opened again, and need no setting.
    let agent = Agent::start_by(
        command,
        &lab.agent.interface,
        &["--output", "none", "--listen", &unix],
    );
    let opened = inode(&path);
    let own = agent.address();
    for address in [&unix, "127.0.0.1:5001", &own] {
        answers(&lab.agent, address);
    }
    let log = agent.stop_silent();
    for address in [&unix, "127.0.0.1:5001"] {
        let line = format!("listening on a socket of the service manager address={address}");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
    assert_eq!(inode(&path), opened);
    let own = own.strip_prefix("unix:").unwrap();
    assert!(!Path::new(own).exists());
    assert!(!folder.path().join("passed.lock").exists());
}

#[test]
fn files_that_are_no_listening_sockets_are_refused_by_their_number() {
    if !is_root_or_skip("agent::files_that_are_no_listening_sockets_are_refused_by_their_number") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    for (sockets, parts) in [
        ("udp=0", ["file 3", "not a Unix or TCP stream socket"]),
        ("tcp=5001 connection=0", ["file 4", "Accept=no"]),
    ] {
        let mut command = with_sockets(&lab.agent, sockets);
        command.args(["run", "--interface", &lab.agent.interface]);
        command.args(["--listen", "127.0.0.1:0", "--duration", "1s"]);
        assert_says(&refusal(&mut command), &parts);
        assert_eq!(command.output().unwrap().status.code(), Some(2));
    }
}

/// Like the sockets of the settings.
#[test]
fn sockets_that_other_hosts_reach_take_tls_or_the_word_for_none() {
    if !is_root_or_skip("agent::sockets_that_other_hosts_reach_take_tls_or_the_word_for_none") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let start = |settings: &[&str]| {
        let mut command = with_sockets(&lab.agent, "tcp=5001 open=5002");
        command.args(["run", "--interface", &lab.agent.interface]);
        command.args(["--listen", "127.0.0.1:0", "--duration", "10ms"]);
        command
            .args(["--max-flows", "1000"])
            .args(settings)
            .output()
            .unwrap()
    };
    let refused = start(&[]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert_says(
        &error,
        &["other hosts may reach 0.0.0.0:5002", "--insecure-listen"],
    );
    let taken = start(&["--insecure-listen"]);
    let log = String::from_utf8(taken.stderr).unwrap();
    assert!(taken.status.success(), "{log}");
}

/// They are for the process that the service manager started, not for its children.
#[test]
fn sockets_for_another_process_are_left_alone() {
    if !is_root_or_skip("agent::sockets_for_another_process_are_left_alone") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut command = flow_agent(&lab.agent);
    command.env("LISTEN_FDS", "1").env("LISTEN_PID", "1");
    let agent = Agent::start_by(command, &lab.agent.interface, &["--output", "none"]);
    answers(&lab.agent, &agent.address());
    let log = agent.stop_silent();
    assert!(!log.contains("of the service manager"), "{log}");
}
