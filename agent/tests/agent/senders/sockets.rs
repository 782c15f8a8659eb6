//! The processes of this test's own sockets, for virtual machines that have only the tests.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    thread,
};

use lab::{Lab, privilege::is_root_or_skip};
use serde_json::Value;

use super::processes::{PROCESS, asked_for};
use crate::support::{Agent, wait_until};

const OLDER: u16 = 5001;
const NEWER: u16 = 5002;
const LISTENING: u16 = 7000;
const DISCARD: u16 = 9;

fn is_this_process(pid: &Value) -> bool {
    *pid == std::process::id()
}

#[test]
fn this_process_is_known_by_old_and_new_and_accepted_sockets() {
    if !is_root_or_skip("agent::this_process_is_known_by_old_and_new_and_accepted_sockets") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let here = lab.agent.ipv4;
    let there = (lab.peer.ipv4, DISCARD);
    // Where nobody listens, repeated datagrams may be refused.
    let listen = || Ok(UdpSocket::bind(there)?);
    let _listening = lab.peer.namespace.enter(listen).unwrap();
    let socket = |port| {
        let bind = || Ok(UdpSocket::bind((here, port))?);
        let socket = lab.agent.namespace.enter(bind).unwrap();
        socket.connect(there).unwrap();
        socket
    };
    let older = socket(OLDER);
    let agent = Agent::start(&lab, PROCESS);
    let newer = socket(NEWER);
    newer.send(b"hello").unwrap();
    let bind = || Ok(TcpListener::bind((here, LISTENING))?);
    let listener = lab.agent.namespace.enter(bind).unwrap();
    let connect = || Ok(TcpStream::connect((here, LISTENING))?);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut accepted, _) = listener.accept().unwrap();
            accepted.write_all(b"hello").unwrap();
        });
        let mut stream = lab.peer.namespace.enter(connect).unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
    });
    wait_until("the older socket is found", || {
        older.send(b"hello").unwrap();
        let flow = asked_for(&agent, &lab, "src_port", OLDER);
        flow.is_some_and(|flow| is_this_process(&flow["src_pid"]))
    });
    let report = agent.stop();
    for (port, end) in [(OLDER, "src"), (NEWER, "src"), (LISTENING, "dst")] {
        let is_of_it = |line: &&Value| line[format!("{end}_port")] == port;
        let last = report.flows.iter().rfind(is_of_it).unwrap();
        assert!(is_this_process(&last[format!("{end}_pid")]), "{last}");
        assert!(last[format!("{end}_process")].is_string(), "{last}");
    }
}
