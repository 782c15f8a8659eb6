//! The path of an encoded batch to a consumer, over real sockets. Needs no privilege.

use std::{
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_common::{Counts, FlowKey, HookAccount, L4Kind};
use exporters::Outputs;
use flows::encoder::{BatchEncoder, ScanHeader, ScanTrailer};
use hub::{DEFAULT_QUEUED_BYTES, Hub};
use proto::{
    AgentStatus, FlowBatch, Interface, SettingsInForce,
    batch::{Batch, Identity},
    flow_collector_server,
    record::Record,
};
use server::{
    ListenAddr, ListenError, Listeners, PassedSockets, Server, active_rules::FixedRules,
    scanner_requests::ScannerClient,
};
use tempfile::TempDir;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::timeout,
};
use view::client::{self, ClientError, Event, Observer, Reconnected, Target};

use crate::support::patience;

mod calls;
mod examples;

const DRAIN: Duration = Duration::from_secs(3);

/// An agent without kernel programs: a hub and a server.
struct Agent {
    hub: Hub,
    encoder: BatchEncoder,
    scan_id: u64,
    stop: oneshot::Sender<()>,
    served: JoinHandle<anyhow::Result<()>>,
}

impl Agent {
    async fn start(instance_id: &str, queue_batches: usize, addresses: &[ListenAddr]) -> Self {
        Self::start_draining(instance_id, queue_batches, addresses, DRAIN).await
    }

    /// At shutdown it waits this long for a consumer to take something.
    async fn start_draining(
        instance_id: &str,
        queue_batches: usize,
        addresses: &[ListenAddr],
        drain_timeout: Duration,
    ) -> Self {
        let listeners = Listeners::bind(addresses, PassedSockets::default())
            .await
            .unwrap();
        Self::serve_draining(instance_id, queue_batches, listeners, drain_timeout)
    }

    fn serve(instance_id: &str, queue_batches: usize, listeners: Listeners) -> Self {
        Self::serve_draining(instance_id, queue_batches, listeners, DRAIN)
    }

    fn serve_draining(
        instance_id: &str,
        queue_batches: usize,
        listeners: Listeners,
        drain_timeout: Duration,
    ) -> Self {
        let identity = Identity {
            instance_id: instance_id.into(),
            hostname: "here".into(),
            ..Identity::default()
        };
        let hub = Hub::new(queue_batches, DEFAULT_QUEUED_BYTES);
        let status = AgentStatus {
            agent: Some(identity.clone()),
            ..AgentStatus::default()
        };
        let (_, status) = watch::channel(Arc::new(status));
        let (stop, stopped) = oneshot::channel::<()>();
        let serving_hub = hub.clone();
        let served = tokio::spawn(async move {
            let shutdown = async { stopped.await.unwrap_or_default() };
            let server = Server {
                outputs: Outputs::start(&serving_hub, Vec::new()),
                hub: serving_hub,
                scanner: ScannerClient::channel().0,
                status,
                rules: Arc::new(FixedRules::new(&[])),
                settings: watch::channel(SettingsInForce::default()).1,
                limits: server::Limits::default().fixed(),
                drain_timeout,
                metrics: None,
                counting: watch::channel(true).1,
            };
            server.run(listeners, shutdown).await
        });
        Self {
            hub,
            encoder: BatchEncoder::new(Arc::new(identity)),
            scan_id: 0,
            stop,
            served,
        }
    }

    /// Publishes a scan of `flows` flows. Returns the number of batches.
    fn scan(&mut self, flows: u32) -> usize {
        self.scan_id += 1;
        let mut batches: Vec<Batch> = Vec::new();
        let mut sink = |batch| batches.push(batch);
        self.encoder.begin(&ScanHeader {
            scan_id: self.scan_id,
            window_start_unix_ns: 1,
            window_end_unix_ns: 2,
            capacity: 1000,
            refused_in_window: false,
            interfaces: [Interface {
                ifindex: 3,
                name: "eth0".into(),
                netns: 1,
                ..Interface::default()
            }]
            .into(),
        });
        for number in 0..flows {
            self.encoder.push(&record(number), &mut sink);
        }
        let account = HookAccount::default();
        let occupancy = flows.into();
        let trailer = ScanTrailer {
            occupancy,
            tracked: occupancy,
            account: &account,
            is_final: false,
        };
        self.encoder.finish(&trailer, &mut sink);
        for batch in &batches {
            self.hub.publish(batch);
        }
        batches.len()
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        timeout(patience(), self.served)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }

    async fn has_consumers(&self, count: usize) {
        let wait = async {
            while self.hub.status().len() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(patience(), wait).await.unwrap();
    }
}

fn record(number: u32) -> Record {
    let mut key = FlowKey {
        ip_version: 4,
        protocol: 17,
        l4_kind: L4Kind::Ports as u8,
        port_b: 53,
        ifindex: 3,
        ..FlowKey::default()
    };
    key.addr_a[..4].copy_from_slice(&number.to_be_bytes());
    let counts = Counts {
        packets: 1,
        bytes: 60,
        ip_bytes: 46,
    };
    let mut record = Record::new(key, 0);
    record.src.direction = proto::Direction::Ingress;
    record.dst.direction = proto::Direction::Egress;
    record.src.set_counts(counts, counts);
    record.dst.set_counts(counts, counts);
    record.delta_duration_ns = 1;
    (record.first_seen_unix_ns, record.last_seen_unix_ns) = (1, 2);
    record.community_id = [1; 20];
    record
}

fn socket(directory: &TempDir) -> (ListenAddr, Target) {
    let path = directory.path().join("agent.sock");
    let target = format!("unix:{}", path.display());
    (ListenAddr::Unix(path), target.parse().unwrap())
}

fn on_tcp(address: SocketAddr) -> Target {
    address.to_string().parse().unwrap()
}

async fn event(observer: &mut Observer) -> Event {
    timeout(patience(), observer.next()).await.unwrap().unwrap()
}

async fn batch(observer: &mut Observer) -> FlowBatch {
    match event(observer).await {
        Event::Batch(batch) => *batch,
        other @ (Event::Gap { .. } | Event::Disconnected { .. } | Event::Reconnected(_)) => {
            panic!("{other:?} instead of a batch")
        }
    }
}

#[tokio::test]
async fn two_consumers_see_the_same_scans() {
    let directory = tempfile::tempdir().unwrap();
    let (unix, target) = socket(&directory);
    let listeners = Listeners::bind(
        &[unix, "127.0.0.1:0".parse().unwrap()],
        PassedSockets::default(),
    )
    .await
    .unwrap();
    let tcp = on_tcp(listeners.tcp_addresses()[0]);
    let mut agent = Agent::serve("one", 1024, listeners);
    let mut observers = [
        Observer::connect(target.clone(), "first").await.unwrap(),
        Observer::connect(tcp, "second").await.unwrap(),
    ];
    let flows = 5000;
    let batches = agent.scan(flows) + agent.scan(0);
    assert!(batches > 2);
    for observer in &mut observers {
        let mut sources = Vec::new();
        for number in 1..=batches {
            let batch = batch(observer).await;
            assert_eq!((batch.stream_seq, batch.lost_batches), (number as u64, 0));
            sources.extend(batch.records.iter().map(|record| record.src().addr.clone()));
        }
        assert_eq!(sources.len(), flows as usize);
        for (number, source) in (0..flows).zip(sources) {
            assert_eq!(source[..], number.to_be_bytes());
        }
    }

    let status = client::status(&target).await.unwrap();
    assert_eq!(status.agent.unwrap().instance_id, "one");
    let names: Vec<&str> = status
        .consumers
        .iter()
        .map(|consumer| consumer.name.as_str())
        .collect();
    assert_eq!(names, ["first", "second"]);
    assert!(
        status.consumers[0].peer.starts_with("unix pid="),
        "{}",
        status.consumers[0].peer
    );
    assert!(status.consumers[1].peer.starts_with("127.0.0.1:"));
    assert_eq!(status.consumers[1].delivered_records, u64::from(flows));
    agent.stop().await;
    assert!(matches!(
        event(&mut observers[0]).await,
        Event::Disconnected { .. }
    ));
}

#[tokio::test]
async fn a_stalled_consumer_loses_its_own_batches_and_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let (unix, target) = socket(&directory);
    // At the end it reads again, but may get no CPU for long.
    let mut agent = Agent::start_draining("one", 4, &[unix], patience()).await;
    let mut fast = Observer::connect(target.clone(), "fast").await.unwrap();
    let mut stalled = Observer::connect(target, "stalled").await.unwrap();

    // More than the connection's windows and buffers take.
    let (mut published, mut records) = (0, 0);
    for _ in 0..60 {
        let batches = agent.scan(4000);
        published += batches as u64;
        records += 4000;
        for _ in 0..batches {
            assert_eq!(batch(&mut fast).await.lost_batches, 0);
        }
    }
    let lost = agent.hub.status()[1].lost_batches;
    assert!(lost > 0 && agent.hub.status()[0].lost_batches == 0);

    let reader = tokio::spawn(async move {
        let (mut got, mut got_records, mut told) = (0, 0, (0, 0));
        while let Event::Batch(batch) = event(&mut stalled).await {
            // The last batch only reports losses and belongs to no scan.
            got += u64::from(batch.scan_id > 0);
            got_records += batch.records.len() as u64;
            told = (batch.lost_batches, batch.lost_records);
        }
        (got + told.0, got_records + told.1, told.0)
    });
    agent.stop().await;
    let (batches_in_sum, records_in_sum, told) = reader.await.unwrap();
    assert_eq!((batches_in_sum, records_in_sum), (published, records));
    assert_eq!(told, lost);
}

#[tokio::test]
async fn a_stop_delivers_what_is_queued_and_waits_no_longer_than_told() {
    let mut drain = DRAIN;
    while !stop_delivers_what_is_queued(drain).await {
        drain *= 2;
        assert!(drain < patience(), "the consumer never gets all");
    }
}

/// Returns false if a consumer did not get everything queued, which happens if it gets no CPU for as long as the server
/// waits.
async fn stop_delivers_what_is_queued(drain: Duration) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let (unix, target) = socket(&directory);
    let mut agent = Agent::start_draining("one", 1024, &[unix], drain).await;
    let mut reading = Observer::connect(target.clone(), "reading").await.unwrap();
    let stalled = Observer::connect(target, "stalled").await.unwrap();
    let batches = (0..40).map(|_| agent.scan(4000)).sum::<usize>();

    let reader = tokio::spawn(async move {
        let mut got = 0;
        while let Event::Batch(_) = event(&mut reading).await {
            got += 1;
        }
        got
    });
    let hub = agent.hub.clone();
    agent.stop().await;
    let left = hub.undelivered();
    let got = reader.await.unwrap();
    drop(stalled);
    let is_given_up = left.iter().any(|left| left.name == "reading");
    assert!(is_given_up || got == batches, "{got} of {batches}");
    got == batches
}

#[tokio::test]
async fn a_stop_waits_for_a_consumer_that_is_slow() {
    let mut drain = DRAIN;
    while !stop_waits_for_a_slow_one(drain).await {
        drain *= 2;
        assert!(drain < patience(), "the consumer never gets a CPU");
    }
}

/// Returns false if the slow consumer or the server got no CPU for about as long as the server waits: then the test
/// proves nothing.
async fn stop_waits_for_a_slow_one(drain: Duration) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let (unix, target) = socket(&directory);
    let mut agent = Agent::start_draining("one", 1024, &[unix], drain).await;
    let mut slow = Observer::connect(target.clone(), "slow").await.unwrap();
    let stalled = Observer::connect(target, "stalled").await.unwrap();
    let batches = (0..40).map(|_| agent.scan(4000)).sum::<usize>();

    let pause = drain * 2 / batches as u32;
    let reader = tokio::spawn(async move {
        let (mut got, began) = (0, Instant::now());
        // Between two batches, of which the pause is a small part.
        let (mut longest, mut before) = (Duration::ZERO, began);
        while let Event::Batch(_) = event(&mut slow).await {
            got += 1;
            tokio::time::sleep(pause).await;
            longest = longest.max(before.elapsed());
            before = Instant::now();
        }
        (got, began.elapsed(), longest)
    });
    let hub = agent.hub.clone();
    agent.stop().await;
    // Batches that the server leaves are lost when the process ends.
    let left = hub.undelivered();
    let (got, took, longest) = reader.await.unwrap();
    drop(stalled);
    if longest > drain / 2 {
        return false;
    }
    let names: Vec<&str> = left.iter().map(|left| left.name.as_str()).collect();
    assert_eq!(names, ["stalled"]);
    assert_eq!(got, batches);
    assert!(took > drain);
    true
}

#[tokio::test]
async fn an_observer_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (unix, target) = socket(&directory);
    let mut agent = Agent::start("one", 16, std::slice::from_ref(&unix)).await;
    let mut observer = Observer::connect(target, "").await.unwrap();
    agent.scan(1);
    assert_eq!(batch(&mut observer).await.scan_id, 1);
    agent.stop().await;
    assert!(matches!(
        event(&mut observer).await,
        Event::Disconnected { .. }
    ));

    let mut agent = Agent::start("two", 16, &[unix]).await;
    let publish = async {
        agent.has_consumers(1).await;
        agent.scan(1);
    };
    let ((), first) = tokio::join!(publish, event(&mut observer));
    assert!(
        matches!(first, Event::Reconnected(Reconnected::ToAnother)),
        "{first:?}"
    );
    let batch = batch(&mut observer).await;
    assert_eq!((batch.scan_id, batch.stream_seq), (1, 1));
    agent.stop().await;
}

#[tokio::test]
async fn the_socket_is_for_owner_and_group_and_goes_with_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let (unix, _) = socket(&directory);
    let ListenAddr::Unix(path) = unix.clone() else {
        unreachable!()
    };
    let agent = Agent::start("one", 1, &[unix]).await;
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o660);
    agent.stop().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn a_socket_in_use_is_left_alone_and_a_stale_one_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (unix, target) = socket(&directory);
    let agent = Agent::start("one", 1, std::slice::from_ref(&unix)).await;
    let error = Listeners::bind(std::slice::from_ref(&unix), PassedSockets::default())
        .await
        .err()
        .unwrap();
    assert!(matches!(error, ListenError::AnotherAgent { .. }), "{error}");
    client::status(&target).await.unwrap();
    agent.stop().await;

    let ListenAddr::Unix(path) = &unix else {
        unreachable!()
    };
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    assert!(path.exists());
    Agent::start("two", 1, std::slice::from_ref(&unix))
        .await
        .stop()
        .await;

    std::fs::write(path, "not ours").unwrap();
    let error = Listeners::bind(&[unix], PassedSockets::default())
        .await
        .err()
        .unwrap();
    assert!(matches!(error, ListenError::NotASocket { .. }), "{error}");
}

#[tokio::test]
async fn what_cannot_be_listened_on_is_said_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("no such directory");
    let address = ListenAddr::Unix(missing.join("agent.sock"));
    let error = Listeners::bind(&[address], PassedSockets::default())
        .await
        .err()
        .unwrap()
        .to_string();
    let told = format!("{} does not exist: create it", missing.display());
    assert!(error.contains(&told), "{error}");
    assert!(!missing.exists());

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Listeners::bind(&[ListenAddr::Tcp(address)], PassedSockets::default())
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains(&format!("{address} is in use")), "{error}");
}

#[tokio::test]
async fn nobody_there_is_said_with_how_to_start_one() {
    let directory = tempfile::tempdir().unwrap();
    let (_, target) = socket(&directory);
    let error = Observer::connect(target.clone(), "").await.err().unwrap();
    assert!(
        matches!(error, ClientError::NobodyListens { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("flow-agent run"));
    assert!(matches!(
        client::status(&target).await,
        Err(ClientError::NobodyListens { .. })
    ));
}

#[tokio::test]
async fn an_old_peer_is_told_from_a_stranger() {
    // A gRPC server without the service answers like an agent without the call.
    struct Collector;
    #[tonic::async_trait]
    impl flow_collector_server::FlowCollector for Collector {
        type ExportStream = std::pin::Pin<
            Box<dyn futures_util::Stream<Item = Result<proto::ExportAck, tonic::Status>> + Send>,
        >;

        async fn export(
            &self,
            _: tonic::Request<tonic::Streaming<FlowBatch>>,
        ) -> Result<tonic::Response<Self::ExportStream>, tonic::Status> {
            Err(tonic::Status::unavailable("not here"))
        }
    }
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let collector = flow_collector_server::FlowCollectorServer::new(Collector);
    tokio::spawn(tonic::transport::Server::builder().serve(free, collector));
    let target = on_tcp(free);
    let ask = async {
        loop {
            match client::status(&target).await {
                Err(ClientError::NobodyListens { .. }) => tokio::task::yield_now().await,
                other => break other,
            }
        }
    };
    let error = timeout(patience(), ask).await.unwrap().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("does not know flow.v1.FlowAgent/GetStatus"),
        "{error:?}"
    );

    // An HTTP/1 server.
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = on_tcp(stranger.local_addr().unwrap());
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        while let Ok((mut stream, _)) = stranger.accept() {
            let _ = stream.read(&mut [0; 64]);
            let _ = stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\nHTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = timeout(patience(), client::status(&target))
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(
            error,
            ClientError::NotAnAgent { .. }
                | ClientError::BrokenOff { .. }
                | ClientError::Broken { .. }
        ),
        "{error:?}"
    );
}
