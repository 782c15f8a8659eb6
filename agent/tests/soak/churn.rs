//! Everything at once: traffic and scans, interfaces that go down and up or come and go, consumers that come
//! and go, one that stalls, and rules that change.

use std::{
    process::Stdio,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lab::{AtEnd, Host, Lab, Process, privilege::is_root_or_skip};

use crate::{
    memory::Samples,
    objects::Objects,
    seconds_from,
    support::{Agent, flow_agent, patience, wait_for_packets, wait_until},
};

const SETTINGS: [&str; 10] = [
    "--max-flows",
    "4096",
    "--max-tracked-flows",
    "20000",
    "--scan-interval",
    "10ms",
    "--idle-timeout",
    "1s",
    "--output",
    "none",
];
/// The memory for these settings and a consumer that does not read, with room to spare.
const RESIDENT_BYTES: u64 = 128 << 20;
const KERNEL_BYTES: u64 = 12 << 20;

/// The state that the actors share.
struct Stage<'a> {
    lab: &'a Lab,
    address: &'a str,
    is_over: AtomicBool,
    /// Held while frames are sent and while interfaces change, so that no frame is on the wire when one goes
    /// down.
    wire: Mutex<()>,
    sent: AtomicU64,
    turns: AtomicU64,
    changes: AtomicU64,
}

impl Stage<'_> {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Sends some hundred flows at a time, most of them new.
    fn traffic(&self) {
        const AT_ONCE: u64 = 100;
        let socket = self.lab.peer.frame_socket().unwrap();
        let frame = self.lab.peer.frame_v4(&self.lab.agent);
        let mut port = 0_u16;
        while self.goes_on() {
            let frames = (0..AT_ONCE).map(|_| {
                port = port.wrapping_add(1);
                frame.udp(port, 53, &[0; 18]).unwrap()
            });
            let frames: Vec<_> = frames.collect();
            {
                let _quiet = self.wire.lock().unwrap();
                socket.send_many(&frames).unwrap();
                self.sent.fetch_add(AT_ONCE, Ordering::Relaxed);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Takes both ends of the wire down and up, and adds and removes another wire.
    fn interfaces(&self) {
        let (agent, peer) = (&self.lab.agent, &self.lab.peer);
        let set = |host: &Host, state| {
            let set = ["link", "set", "dev", &host.interface, state];
            host.namespace.ip(&set).unwrap();
        };
        while self.goes_on() {
            for host in [agent, peer] {
                let _quiet = self.wire.lock().unwrap();
                // Frames in a queue of the receiving end would be dropped when it goes down.
                thread::sleep(Duration::from_millis(50));
                set(host, "down");
                set(host, "up");
                wait_until("the wire carries", || {
                    has_carrier(agent) && has_carrier(peer)
                });
            }
            let add = "link add passing0 type veth peer name passing1";
            let add: Vec<_> = add.split(' ').collect();
            agent.namespace.ip(&add).unwrap();
            thread::sleep(Duration::from_millis(200));
            agent.namespace.ip(&["link", "del", "passing0"]).unwrap();
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn consumers(&self) {
        while self.goes_on() {
            let mut watch = self.watch();
            thread::sleep(Duration::from_millis(700));
            // By turns an operator ends it, and it dies.
            if self.turns.load(Ordering::Relaxed).is_multiple_of(2) {
                watch.signal(libc::SIGINT).unwrap();
                watch.wait(Duration::from_secs(10)).unwrap();
            }
        }
    }

    /// Changes rules that match none of the traffic. In the end there are none.
    fn rules(&self) {
        let filter = |words: &[&str]| {
            let mut command = flow_agent(&self.lab.agent);
            command.arg("filter").args(words);
            command.args(["--connect", self.address]);
            let silent = command.stdout(Stdio::null()).stderr(Stdio::null());
            assert!(silent.status().unwrap().success());
        };
        while self.goes_on() {
            filter(&["set", "exclude net 198.51.100.0/24; exclude port 9"]);
            thread::sleep(Duration::from_millis(100));
            filter(&["set", "exclude net 2001:db8::/32"]);
            filter(&["clear"]);
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn watch(&self) -> Process {
        let mut command = flow_agent(&self.lab.agent);
        command
            .args(["watch", "--output", "json", "--connect", self.address])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Process::spawn(&mut command).unwrap()
    }
}

fn has_carrier(host: &Host) -> bool {
    let show = ["-j", "link", "show", "dev", &host.interface];
    let links = host.namespace.ip(&show).unwrap();
    let links: serde_json::Value = serde_json::from_slice(&links).unwrap();
    links[0]["operstate"] == "UP"
}

#[test]
fn nothing_grows_and_nothing_is_left_behind() {
    if !is_root_or_skip("agent::nothing_grows_and_nothing_is_left_behind") {
        return;
    }
    let time = seconds_from("FLOW_AGENT_SOAK_SECONDS", 25);
    let lab = Lab::quiet().unwrap();
    let mut agent = Agent::start(&lab, &SETTINGS);
    let (pid, address) = (agent.pid(), agent.address());
    let held = Objects::held_by(pid);
    assert_eq!(held.alive(), held);
    let before = lab.agent.counters().unwrap();
    let stage = Stage {
        lab: &lab,
        address: &address,
        is_over: AtomicBool::new(false),
        wire: Mutex::new(()),
        sent: AtomicU64::new(0),
        turns: AtomicU64::new(0),
        changes: AtomicU64::new(0),
    };
    let stalled = stage.watch();
    thread::sleep(Duration::from_millis(300));
    stalled.signal(libc::SIGSTOP).unwrap();

    let mut samples = Samples::default();
    let mut full_since = None;
    thread::scope(|scope| {
        let over = AtEnd(|| stage.is_over.store(true, Ordering::Relaxed));
        let actors = [
            Stage::traffic,
            Stage::interfaces,
            Stage::consumers,
            Stage::rules,
        ];
        let stage = &stage;
        let actors = actors.map(|act| scope.spawn(move || act(stage)));
        let start = Instant::now();
        // Goes on for a third of the time after the stalled consumer's queue is full.
        let is_over = |full_since: Option<Instant>| {
            start.elapsed() >= time && full_since.is_some_and(|full| full.elapsed() >= time / 3)
        };
        while !is_over(full_since) && actors.iter().all(|actor| !actor.is_finished()) {
            thread::sleep(Duration::from_millis(500));
            samples.add(&agent.status(&lab.agent));
            if full_since.is_none() && agent.stderr().contains("loses its oldest queued batches") {
                full_since = Some(Instant::now());
            }
            assert!(start.elapsed() < time + patience(), "the queue never fills");
        }
        drop(over);
    });
    assert_eq!(
        Objects::held_by(pid),
        held,
        "what the agent holds has changed"
    );
    let sent = stage.sent.load(Ordering::Relaxed);
    wait_for_packets(&lab.agent, before, sent);
    stalled.signal(libc::SIGCONT).unwrap();
    drop(stalled);
    let log = agent.stop_silent();

    let turns = stage.turns.load(Ordering::Relaxed);
    let (resident, kernel) = (samples.peak_mib(), samples.kernel_mib());
    let changes = stage.changes.load(Ordering::Relaxed);
    println!("{sent} packets, {turns} turns of the interfaces, {changes} of the rules in {time:?}");
    println!("memory: {resident} MiB resident at most, {kernel} MiB of kernel maps");
    assert!(turns > 1 && sent > 1000 && changes > 1);
    assert!(log.contains(&format!("seen={sent} ")), "{sent} sent: {log}");
    samples.assert_bounded(RESIDENT_BYTES, KERNEL_BYTES);
    samples.assert_flat_since(full_since.expect("the loop saw it"));
    wait_until("the kernel has none of its objects", || {
        held.alive() == Objects::default()
    });
}
