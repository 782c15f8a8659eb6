//! A collector whose name gets another address.

use std::net::Ipv4Addr;

use super::*;
use crate::support::BINARY;

/// Sets of templates and of options templates.
const TEMPLATES: [u8; 2] = [2, 3];

/// An agent to which this file is `/etc/hosts`.
fn start(lab: &Lab, hosts: &Path, output: &str) -> Agent {
    let mut command = lab.agent.command("unshare");
    let script = r#"mount --bind "$0" /etc/hosts && exec "$@""#;
    command.args(["--mount", "sh", "-c", script]);
    command.arg(hosts).arg(BINARY);
    let outputs = ["--output", "json", "--output", output];
    Agent::start_by(command, &lab.agent.interface, &outputs)
}

fn listen(lab: &Lab, last: u8) -> UdpSocket {
    let address = Ipv4Addr::new(127, 0, 0, last);
    let bind = || Ok(UdpSocket::bind((address, PORT))?);
    let socket = lab.agent.namespace.enter(bind).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// The datagrams that have come.
fn datagrams(socket: &UdpSocket) -> Vec<Vec<u8>> {
    let mut datagram = vec![0; 1 << 16];
    let next = || {
        let len = socket.recv(&mut datagram).ok()?;
        Some(datagram[..len].to_vec())
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn datagrams_follow_the_name_of_their_receiver() {
    const TEST: &str = "agent::datagrams_follow_the_name_of_their_receiver";
    if !is_root_or_skip(TEST) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, "127.0.0.2 collector.test\n").unwrap();
    // The old collector stays, so nothing reports undelivered datagrams.
    let [old, new] = [2, 3].map(|last| listen(&lab, last));
    let output = format!(
        r#"{{"kind": "ipfix", "address": "udp://collector.test:{PORT}", "template_refresh": "1s"}}"#
    );
    let agent = start(&lab, &hosts, &output);
    wait_until("the first address gets datagrams", || {
        !datagrams(&old).is_empty()
    });
    fs::write(&hosts, "127.0.0.3 collector.test\n").unwrap();
    let mut first = Vec::new();
    wait_until("the second address gets datagrams", || {
        first = datagrams(&new);
        !first.is_empty()
    });
    // Version 10, and behind the header of 16 bytes a set.
    let [_, version, .., set_high, set_low] = first[0][..18] else {
        panic!("{first:?}")
    };
    assert_eq!((version, set_high), (10, 0));
    assert!(TEMPLATES.contains(&set_low), "{set_low}");
    datagrams(&old);

    // A name that does not resolve for a while changes nothing.
    fs::write(&hosts, "").unwrap();
    let mut count = 0;
    wait_until("the second address gets more", || {
        count += datagrams(&new).len();
        count > 40
    });
    assert_eq!(datagrams(&old).len(), 0);
    let output = crate::outputs::output(&agent, &lab, "ipfix");
    assert_eq!(output["failures"], 0, "{output}");
    agent.stop();
}
