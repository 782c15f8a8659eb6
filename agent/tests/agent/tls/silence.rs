//! Clients that never finish their handshakes, and a listener without free places.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Stdio,
};

use lab::{Lab, Process, privilege::is_root_or_skip};

use super::{ADDRESS, Certificates, is_answered, refused, texts, trusting};
use crate::support::{Agent, flow_agent, wait_until};

const SILENT: usize = 1024;

/// The default of `--max-connections`.
const PLACES: u64 = 128;

/// The beginning of a handshake: a record of 200 bytes, of which a few come.
pub const BEGUN: [u8; 9] = [22, 3, 1, 0, 200, 1, 0, 0, 196];

#[test]
fn handshakes_that_never_finish_keep_nobody_out_and_lose_their_places() {
    const TEST: &str = "agent::handshakes_that_never_finish_keep_nobody_out_and_lose_their_places";
    if !is_root_or_skip(TEST) {
        return;
    }
    let (lab, certificates) = (Lab::quiet().unwrap(), Certificates::new());
    let agent = Agent::start(&lab, &texts(&certificates.settings()));
    let host = &lab.agent;
    let connect = |number: usize| {
        let mut stream = TcpStream::connect(ADDRESS)?;
        if number.is_multiple_of(2) {
            stream.write_all(&BEGUN)?;
        }
        Ok(stream)
    };
    let connect_all = || (0..SILENT).map(connect).collect::<anyhow::Result<Vec<_>>>();
    raise_open_files();
    let mut silent = host.namespace.enter(connect_all).unwrap();

    // The oldest give way, to the others and to a client that asks.
    let closed = || agent.status(host)["server"]["silent_connections"].as_u64();
    let options = trusting(&certificates.ca);
    assert!(is_answered(host, &options));
    assert!(closed() >= Some(SILENT as u64 - PLACES));
    wait_until("all have lost their places", || {
        closed() >= Some(SILENT as u64)
    });
    let server = agent.status(host)["server"].clone();
    assert_eq!(server["refused_connections"], 0, "{server}");
    assert_eq!(server["refused_handshakes"], 0, "{server}");
    // The agent has closed them all.
    for stream in &mut silent {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let log = agent.stop().log;
    assert!(log.contains("no request came on it for too long"), "{log}");
}

#[test]
fn a_client_that_finds_no_place_behind_tls_says_why() {
    if !is_root_or_skip("agent::a_client_that_finds_no_place_behind_tls_says_why") {
        return;
    }
    let (lab, certificates) = (Lab::quiet().unwrap(), Certificates::new());
    let mut settings = certificates.settings();
    settings.push("--max-connections=2".into());
    let agent = Agent::start(&lab, &texts(&settings));
    let (host, options) = (&lab.agent, trusting(&certificates.ca));
    let address = format!("https://{ADDRESS}");
    let watching = [(); 2].map(|()| {
        let mut command = flow_agent(host);
        command
            .args(["watch", "--output", "json", "--connect", &address])
            .args(&options);
        Process::spawn(command.stdout(Stdio::null())).unwrap()
    });
    wait_until("both observe", || {
        let status = agent.status(host);
        let consumers = status["consumers"].as_array().unwrap();
        let peers = consumers.iter().map(|consumer| consumer["peer"].as_str());
        let over_tcp = peers.filter(|peer| peer.is_some_and(|peer| peer.starts_with("127.0.0.1:")));
        over_tcp.count() == watching.len()
    });
    let error = refused(host, &address, &options);
    assert!(error.contains("--max-connections"), "{error}");
    // It tries five times, since it heard no answer.
    assert_eq!(agent.status(host)["server"]["refused_connections"], 5);
    drop(watching);
    agent.stop();
}

/// The test keeps all of its sockets open.
pub fn raise_open_files() {
    let resource = rustix::process::Resource::Nofile;
    let mut limit = rustix::process::getrlimit(resource);
    let wanted = 4 * SILENT as u64;
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
        rustix::process::setrlimit(resource, limit).unwrap();
    }
}
