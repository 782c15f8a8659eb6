//! The data kept with TCP sockets is recounted, and flows whose sockets found no room do not wait for them.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

use agent_common::process::{KeptWithSockets, SocketBound};
use aya::maps::{Array, Map, MapData};
use lab::{Host, Lab, privilege::is_root_or_skip};

use super::connections::abort;
use crate::support::{Agent, wait_until};

const PORT: u16 = 7000;
/// Nobody listens there.
const CLOSED: u16 = 7001;
/// A flow that waits for its socket does so for longer than the test.
const SETTINGS: &[&str] = &[
    "--enrich",
    "tcp",
    "--scan-interval",
    "100ms",
    "--idle-timeout",
    "1h",
    "--linger",
    "1s",
];
/// The places of the numbers: kept, most, refused, seen, lasting.
pub const KEPT: usize = 0;
pub const MOST: usize = 1;

/// The counts of what the programs of an agent keep with sockets, of one kind.
pub struct Bounds {
    map: Array<MapData, [u64; SocketBound::WORDS]>,
    at: u32,
}

impl Bounds {
    pub fn of(agent: &mut Agent, what: KeptWithSockets) -> Self {
        let folder = format!("/proc/{}/fdinfo", agent.pid());
        let files = fs::read_dir(folder).unwrap().flatten();
        let infos = files.filter_map(|file| fs::read_to_string(file.path()).ok());
        let maps = infos.filter_map(|info| {
            let id = info.lines().find_map(|line| line.strip_prefix("map_id:"))?;
            MapData::from_id(id.trim().parse().unwrap()).ok()
        });
        let is_it = |map: &MapData| map.info().unwrap().name_as_str() == Some("SOCKET_BOUNDS");
        let map = maps.into_iter().find(is_it).unwrap();
        Self {
            map: Array::try_from(Map::Array(map)).unwrap(),
            at: what as u32,
        }
    }

    pub fn get(&self, number: usize) -> u64 {
        self.map.get(&self.at, 0).unwrap()[number]
    }

    fn set(&mut self, number: usize, value: u64) {
        let mut bound = self.map.get(&self.at, 0).unwrap();
        bound[number] = value;
        self.map.set(self.at, bound, 0).unwrap();
    }
}

fn connected(lab: &Lab, listener: &TcpListener) -> [TcpStream; 2] {
    let mut client = connect(&lab.agent, listener).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    [client, server]
}

fn connect(host: &Host, listener: &TcpListener) -> std::io::Result<TcpStream> {
    let to = listener.local_addr().unwrap();
    let connected = host.namespace.enter(|| Ok(TcpStream::connect(to)));
    connected.unwrap()
}

fn listen(host: &Host) -> TcpListener {
    let bound = host
        .namespace
        .enter(|| Ok(TcpListener::bind((host.ipv4, PORT))?));
    bound.unwrap()
}

fn has_flow(agent: &Agent, host: &Host, name: &str, port: u16) -> bool {
    agent.flows(host).iter().any(|flow| flow[name] == port)
}

#[test]
fn room_whose_socket_is_gone_unseen_is_given_back() {
    if !is_root_or_skip("agent::room_whose_socket_is_gone_unseen_is_given_back") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let listener = listen(&lab.peer);
    let mut agent = Agent::start(&lab, SETTINGS);
    let mut bounds = Bounds::of(&mut agent, KeptWithSockets::Flow);
    let connections: Vec<_> = (0..3).map(|_| connected(&lab, &listener)).collect();
    // Sockets of the other end are seen, too, if the kernel keeps them with their packets.
    let expected = 3..=6;
    wait_until("all are counted", || expected.contains(&bounds.get(KEPT)));
    for wrong in [u64::MAX, bounds.get(MOST), 0] {
        bounds.set(KEPT, wrong);
        wait_until("they are counted again", || {
            expected.contains(&bounds.get(KEPT))
        });
    }
    drop(connections);
    wait_until("none is kept", || bounds.get(KEPT) == 0);
    agent.stop();
}

#[test]
fn the_flow_of_a_socket_that_found_no_room_ends_with_an_rst() {
    if !is_root_or_skip("agent::the_flow_of_a_socket_that_found_no_room_ends_with_an_rst") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let listener = listen(&lab.peer);
    let mut agent = Agent::start(&lab, SETTINGS);
    Bounds::of(&mut agent, KeptWithSockets::Flow).set(MOST, 0);
    let [client, server] = connected(&lab, &listener);
    let port = client.local_addr().unwrap().port();
    wait_until("its flow is there", || {
        has_flow(&agent, &lab.agent, "src_port", port)
    });
    abort(server);
    wait_until("its flow has ended", || {
        !has_flow(&agent, &lab.agent, "src_port", port)
    });
    // Until then its socket was there.
    drop(client);
    agent.stop();
}

#[test]
fn the_flow_of_a_refused_connection_ends_with_the_rst() {
    if !is_root_or_skip("agent::the_flow_of_a_refused_connection_ends_with_the_rst") {
        return;
    }
    let lab = Lab::addressed().unwrap();
    let agent = Agent::start(&lab, SETTINGS);
    let to = (lab.peer.ipv4, CLOSED);
    let refused = lab
        .agent
        .namespace
        .enter(|| Ok(TcpStream::connect(to).is_err()));
    assert!(refused.unwrap());
    wait_until("its flow has ended", || {
        let status = agent.status(&lab.agent);
        status["replica"]["failed_flows"]["refused"] == 1
    });
    agent.stop();
}
