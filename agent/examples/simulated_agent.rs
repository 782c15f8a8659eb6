//! An agent without a kernel: it makes up scans and sends them by a real output, so that a test can have dozens and kill
//! them. Before it hands over a scan, it writes into a ledger what is in it.
//!
//!     simulated_agent NAME LEDGER OUTPUT

#![allow(
    clippy::unwrap_used,
    reason = "it is part of a test, which looks at how it ends"
)]

use std::{
    env,
    fs::File,
    io::Write as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use agent_common::{Counts, FlowKey, HookAccount, L4Kind, Reason, protocol::UDP};
use exporters::{
    Outputs,
    settings::{OutputArg, OutputArgs},
};
use flows::encoder::{BatchEncoder, ScanHeader, ScanTrailer};
use hub::{DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES, Hub};
use proto::{batch::Identity, community_id::community_id, record::Record};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

const EVERY: Duration = Duration::from_millis(500);
const FLOWS: u16 = 20;
/// How long it waits at the end until all is acknowledged.
const PATIENCE: Duration = Duration::from_mins(5);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, ledger, output] = &arguments[..] else {
        panic!("simulated_agent NAME LEDGER OUTPUT");
    };
    let mut ledger = File::options()
        .append(true)
        .create(true)
        .open(ledger)
        .unwrap();
    let OutputArgs(args) = output.parse().unwrap();
    let [OutputArg::Output(output)] = &args[..] else {
        panic!("one output");
    };
    let hub = Hub::new(DEFAULT_QUEUE_BATCHES, DEFAULT_QUEUED_BYTES);
    let outputs = Outputs::start(&hub, vec![output.clone().prepare().unwrap()]);
    let identity = Identity {
        agent_id: name.clone(),
        hostname: name.clone(),
        boot_id: "simulated".to_owned(),
        // Another one for each start.
        instance_id: format!("{}-{}", std::process::id(), unix_ns()),
        ..Identity::default()
    };
    let mut scans = Scans {
        encoder: BatchEncoder::new(Arc::new(identity.clone())),
        scan_id: 0,
        window_start: unix_ns(),
        totals: vec![Counts::default(); FLOWS.into()],
        account: HookAccount::default(),
    };
    let mut end = signal(SignalKind::terminate()).unwrap();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_last = tokio::select! {
            _ = ticks.tick() => false,
            _ = end.recv() => true,
        };
        let instance = &identity.instance_id;
        scans.publish(&hub, is_last, |scan_id, packets| {
            // At once, since it may be killed at any time.
            let line = format!("{instance} {scan_id} {packets}\n");
            ledger.write_all(line.as_bytes()).unwrap();
        });
        if is_last {
            break;
        }
    }
    hub.close();
    outputs.end(PATIENCE).await;
}

struct Scans {
    encoder: BatchEncoder,
    scan_id: u64,
    window_start: u64,
    totals: Vec<Counts>,
    account: HookAccount,
}

impl Scans {
    /// `note` gets the number of the scan and its packets before it is handed over.
    fn publish(&mut self, hub: &Hub, is_final: bool, note: impl FnOnce(u64, u64)) {
        self.scan_id += 1;
        let window_end = unix_ns();
        let header = ScanHeader {
            scan_id: self.scan_id,
            window_start_unix_ns: self.window_start,
            window_end_unix_ns: window_end,
            capacity: u64::from(FLOWS),
            refused_in_window: false,
            interfaces: Vec::new().into(),
        };
        let mut batches = Vec::new();
        self.encoder.begin(&header);
        let mut sum = 0;
        for (port, total) in (0..FLOWS).zip(&mut self.totals) {
            // Another number for each flow and scan.
            let packets = 1 + (self.scan_id * 7 + u64::from(port) * 13) % 101;
            let delta = Counts {
                packets,
                bytes: packets * 100,
                ip_bytes: packets * 86,
            };
            *total = Counts {
                packets: total.packets + delta.packets,
                bytes: total.bytes + delta.bytes,
                ip_bytes: total.ip_bytes + delta.ip_bytes,
            };
            sum += packets;
            let record = record(port, delta, *total, [self.window_start, window_end]);
            self.encoder.push(&record, &mut |batch| batches.push(batch));
        }
        self.account.add(Reason::Seen, sum, sum * 100);
        self.account.add(Reason::Flows, sum, sum * 100);
        let trailer = ScanTrailer {
            occupancy: u64::from(FLOWS),
            tracked: u64::from(FLOWS),
            account: &self.account,
            is_final,
        };
        self.encoder
            .finish(&trailer, &mut |batch| batches.push(batch));
        note(self.scan_id, sum);
        for batch in &batches {
            hub.publish(batch);
        }
        self.window_start = window_end;
    }
}

fn record(port: u16, delta: Counts, total: Counts, [begin, end]: [u64; 2]) -> Record {
    let mut key = FlowKey {
        port_a: 1000 + port,
        port_b: 53,
        ip_version: 4,
        protocol: UDP,
        l4_kind: L4Kind::Ports as u8,
        ..FlowKey::default()
    };
    key.addr_a[..4].copy_from_slice(&[10, 0, 0, 1]);
    key.addr_b[..4].copy_from_slice(&[10, 0, 0, 2]);
    let mut record = Record::new(key, 0);
    record.src.direction = proto::Direction::Egress;
    record.dst.direction = proto::Direction::Ingress;
    record.src.set_counts(delta, total);
    record.delta_duration_ns = end - begin;
    (record.first_seen_unix_ns, record.last_seen_unix_ns) = (begin, end);
    record.community_id = community_id(&key, 0);
    record
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_nanos() as u64
}
