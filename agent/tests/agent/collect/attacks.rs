//! Attackers with several credentials and many addresses, against a collector with the memory of the packaged unit and
//! against other agents.

mod memory;
mod pairs;
mod rate;
mod storage;
mod time;

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr},
};

use lab::{ControlGroup, privilege::skip};
use proto::{FlowBatch, flow_collector_client::FlowCollectorClient};
use tokio::net::TcpSocket;
use tonic::{
    Request, Status,
    metadata::MetadataValue,
    transport::{Channel, Endpoint},
};

use super::{
    calls::{batch, exchange, runtime},
    tokens::new_token,
    *,
};
use crate::{
    admission::{client::Client, memory::Memory},
    support::{flow_agent_in, memory_limit},
};

/// The hosts whose credentials the attackers have.
const ATTACKERS: [&str; 8] = [
    ATTACKER, "mallory2", "mallory3", "mallory4", "mallory5", "mallory6", "mallory7", "mallory8",
];
/// A host that attacks alone.
const ATTACKER: &str = "mallory";
/// An honest host, which sends in between.
const OTHER: &str = "there";
/// The host to which it has flows.
const PEER: &str = "peer";

/// The packaged unit's limit on memory, in bytes.
fn memory_of_the_unit() -> u64 {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples/flow-agent-collect.service");
    let unit = fs::read_to_string(path).unwrap();
    let limit = unit
        .lines()
        .find_map(|line| line.strip_prefix("MemoryMax="));
    let limit = limit.unwrap().strip_suffix('G').expect("gibibytes");
    limit.parse::<u64>().unwrap() << 30
}

/// In version 2 of control groups.
const SWAP_LIMIT: &str = "memory.swap.max";

/// One of the addresses of the loopback interface.
fn address(number: usize) -> IpAddr {
    let [.., high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 1, high, low).into()
}

/// A collector with that limit.
struct Confined {
    collector: Collector,
    pid: u32,
    lab: Lab,
    tokens: BTreeMap<&'static str, String>,
    folder: TempDir,
    _group: ControlGroup,
}

impl Confined {
    /// `None` if control groups cannot limit memory.
    fn start(test: &str, settings: &[&str]) -> Option<Self> {
        if !is_root_or_skip(test) {
            return None;
        }
        let group = match ControlGroup::of("memory", memory_limit) {
            Ok(group) => group,
            Err(error) => {
                skip(test, &format!("{error:#}"));
                return None;
            }
        };
        let limit = memory_of_the_unit().to_string();
        group.write(memory_limit(group.version()), &limit).unwrap();
        if group.path().join(SWAP_LIMIT).exists() {
            group.write(SWAP_LIMIT, "0").unwrap();
        }
        let lab = Lab::quiet().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        let names = ATTACKERS.into_iter().chain([OTHER, PEER]);
        let tokens = names.map(|name| (name, new_token(&file, name, "send,status")));
        let tokens = tokens.collect();
        let socket = format!("unix:{}", folder.path().join("socket").display());
        let wants = ["--token-file", file.to_str().unwrap(), "--listen", &socket];
        let command = flow_agent_in(&group, &lab.agent);
        let mut collector = Collector::start_by(command, 0, &[&wants, settings].concat());
        Some(Self {
            pid: collector.process.child().id(),
            collector,
            lab,
            tokens,
            folder,
            _group: group,
        })
    }

    /// Runs in the collector's network namespace.
    fn run<T: Send>(&self, work: impl Future<Output = T> + Send) -> T {
        let host = &self.lab.agent.namespace;
        host.enter(|| Ok(runtime().block_on(work))).unwrap()
    }

    async fn channel(&self, from: IpAddr) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.collector.address));
        let endpoint = endpoint.unwrap().local_address(Some(from));
        endpoint.connect().await.unwrap()
    }

    /// A connection with an attacker's credential. `window_bytes` is the size of each stream's window.
    async fn client(&self, name: &str, from: IpAddr, window_bytes: u32) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let stream = socket.connect(self.collector.address).await.unwrap();
        let client = Client::new(stream, window_bytes).await.unwrap();
        client.with_token(&self.tokens[name])
    }

    /// Sends batches with this host's credential in one call.
    async fn send(&self, channel: &Channel, name: &str, batches: Vec<FlowBatch>) {
        let last = batches.last().map(|batch| batch.stream_seq);
        let acks = self.try_send(channel, name, batches).await.unwrap();
        assert_eq!(acks.last().copied(), last);
    }

    /// The acknowledgements of such a call, or how it failed.
    async fn try_send(
        &self,
        channel: &Channel,
        name: &str,
        mut batches: Vec<FlowBatch>,
    ) -> Result<Vec<u64>, Status> {
        for batch in &mut batches {
            let agent = batch.agent.get_or_insert_default();
            name.clone_into(&mut agent.hostname);
        }
        let mut request = Request::new(futures_util::stream::iter(batches));
        let bearer = MetadataValue::try_from(format!("Bearer {}", self.tokens[name]));
        let metadata = request.metadata_mut();
        metadata.insert("authorization", bearer.unwrap());
        let mut client = FlowCollectorClient::new(channel.clone());
        let (acks, ended) = exchange(&mut client, request).await;
        ended.map(|()| acks)
    }

    /// Sends this many batches from another host, each after the previous one is acknowledged.
    async fn others_are_served(&self, first_seq: u64, batches: u64) {
        let channel = self.channel(address(0)).await;
        for seq in first_seq..first_seq + batches {
            self.send(&channel, OTHER, vec![batch(seq, 10)]).await;
        }
    }

    fn status(&self) -> Value {
        let socket = self.folder.path().join("socket");
        let output = answered(|| {
            let mut command = flow_agent(&self.lab.agent);
            command.args(["status", "--output", "json", "--connect"]);
            command.arg(format!("unix:{}", socket.display()));
            command
        });
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Asserts that the collector lives. Returns the most that it had in memory, in bytes.
    fn peak(&mut self) -> u64 {
        let ended = self.collector.process.exited().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", self.collector.log());
        let peak = self.memory_peak();
        assert!(peak < memory_of_the_unit(), "{peak}");
        peak
    }

    fn memory_peak(&self) -> u64 {
        Memory::of(self.pid).peak
    }
}
