//! Those who connect and never finish their handshakes.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use lab::{Lab, privilege::is_root_or_skip};

use super::{ADDRESS, Certificates, is_answered, refused, texts, trusting};
use crate::support::{Agent, wait_until};

const SILENT: usize = 1024;

/// The default of `--max-connections`.
const PLACES: u64 = 128;

/// The beginning of a handshake: a record of 200 bytes, of which a few come.
const BEGUN: [u8; 9] = [22, 3, 1, 0, 200, 1, 0, 0, 196];

#[test]
fn handshakes_that_never_finish_keep_their_places_no_longer_than_silence() {
    if !is_root_or_skip("agent::handshakes_that_never_finish_keep_their_places_no_longer") {
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

    // Others find no place and are told, but root has its own on the Unix socket.
    let options = trusting(&certificates.ca);
    wait_until("most are refused", || {
        let refused = agent.status(host)["server"]["refused_connections"].as_u64();
        refused.unwrap() >= SILENT as u64 - 2 * PLACES
    });
    let error = refused(host, &format!("https://{ADDRESS}"), &options);
    assert!(error.contains("--max-connections"), "{error}");

    wait_until("a client gets in", || is_answered(host, &options));
    wait_until("all have lost their places", || {
        agent.status(host)["server"]["silent_connections"].as_u64() >= Some(PLACES)
    });
    assert_eq!(agent.status(host)["server"]["refused_handshakes"], 0);
    // The agent has closed them all.
    for stream in &mut silent {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let log = agent.stop().log;
    assert!(log.contains("no request came on it for too long"), "{log}");
}

/// The test has as many sockets as it makes.
fn raise_open_files() {
    let resource = rustix::process::Resource::Nofile;
    let mut limit = rustix::process::getrlimit(resource);
    let wanted = 4 * SILENT as u64;
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
        rustix::process::setrlimit(resource, limit).unwrap();
    }
}
