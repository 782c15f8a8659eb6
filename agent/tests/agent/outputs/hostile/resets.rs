//! A receiver of IPFIX over TCP that resets its connections: unacknowledged flows are lost, to the packet.

use std::{
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use socket2::SockRef;
use view::client;

use super::{messages::Messages, *};
use crate::support::wait_for_packets;

/// Resets each connection once it has read flows, until the test ends that.
struct Resetting {
    port: u16,
    behaves: Arc<Mutex<bool>>,
    resets: Arc<AtomicUsize>,
    /// One of each connection.
    read: Arc<Mutex<Vec<Messages>>>,
    thread: JoinHandle<()>,
}

impl Resetting {
    fn start(lab: &Lab) -> Self {
        let listen = || Ok(TcpListener::bind("127.0.0.1:0")?);
        let listener = lab.agent.namespace.enter(listen).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (behaves, resets, read) = <(Arc<Mutex<bool>>, Arc<AtomicUsize>, Arc<_>)>::default();
        let shared = (Arc::clone(&behaves), Arc::clone(&resets), Arc::clone(&read));
        let thread = thread::spawn(move || {
            let (behaves, resets, read) = shared;
            loop {
                let (stream, _) = listener.accept().unwrap();
                if is_read_to_its_end(stream, &behaves, &resets, &read) {
                    return;
                }
            }
        });
        Self {
            port,
            behaves,
            resets,
            read,
            thread,
        }
    }

    fn read(&self) -> Pair {
        let read = self.read.lock().unwrap();
        read.iter().map(|messages| messages.flows).sum()
    }
}

/// Each connection begins with its own templates, so its messages can be read alone.
fn is_read_to_its_end(
    mut stream: TcpStream,
    behaves: &Mutex<bool>,
    resets: &AtomicUsize,
    read: &Mutex<Vec<Messages>>,
) -> bool {
    read.lock().unwrap().push(Messages::default());
    let mut bytes = vec![0; 1 << 16];
    while stream.peek(&mut [0]).unwrap() > 0 {
        let has_flows = {
            // Under the lock, the sum includes everything read from the kernel.
            let mut read = read.lock().unwrap();
            let messages = read.last_mut().unwrap();
            let len = stream.read(&mut bytes).unwrap();
            messages.take(&bytes[..len]);
            messages.flows.packets > 0
        };
        let behaves = behaves.lock().unwrap();
        if has_flows && !*behaves {
            reset(stream);
            // Before anybody can have it behave.
            resets.fetch_add(1, Relaxed);
            return false;
        }
    }
    true
}

fn reset(stream: TcpStream) {
    let socket = SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
}

#[test]
fn a_receiver_that_resets_again_and_again_has_readable_streams_and_sums_that_close() {
    if !is_root_or_skip(
        "agent::a_receiver_that_resets_again_and_again_has_readable_streams_and_sums_that_close",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let receiver = Resetting::start(&lab);
    let address = format!("ipfix=tcp://127.0.0.1:{}", receiver.port);
    let agent = Agent::start(&lab, &["--output", "json", "--output", &address]);
    let mut sent = Pair::default();
    // Nothing is under way when it returns.
    let mut round = || {
        sent += send(&lab, 100, 1);
        wait_until_counted(&agent, &lab, sent.packets);
        wait_until("nothing waits", || {
            fates(&output(&agent, &lab, "ipfix"), sent)["queued"] == Pair::default()
        });
        sent
    };
    while receiver.resets.load(Relaxed) < 5 {
        round();
    }
    *receiver.behaves.lock().unwrap() = true;
    // Until flows have come on a connection that stays.
    let has_flows = || {
        let read = receiver.read.lock().unwrap();
        let stays = read.get(receiver.resets.load(Relaxed));
        stays.is_some_and(|messages| messages.flows.packets > 0)
    };
    while !has_flows() {
        round();
    }
    let all_before = round();
    wait_until("it has read all", || unread_bytes(&lab, receiver.port) == 0);
    let read_before = receiver.read();
    let fates_before = fates(&output(&agent, &lab, "ipfix"), all_before);
    let sent = round();
    let more = Pair {
        packets: sent.packets - all_before.packets,
        bytes: sent.bytes - all_before.bytes,
    };
    let fates_after = fates(&output(&agent, &lab, "ipfix"), sent);
    assert_eq!(fates_after["sent"], fates_before["sent"] + more);
    assert_eq!(fates_after["lost"], fates_before["lost"]);
    // Acknowledged, and perhaps not read yet.
    wait_until("it has read them", || receiver.read() == read_before + more);
    assert!(receiver.read().packets <= sent.packets);
    let report = agent.stop();
    assert_eq!(report.seen(), sent);
    receiver.thread.join().unwrap();
}

/// The bytes that one end of the connection to this port holds, from `/proc/net/tcp`: the column of its address, and
/// the column of its two queues.
fn queued_bytes(lab: &Lab, port: u16, address: usize, queue: usize) -> u64 {
    const ESTABLISHED: &str = "01";
    let table = lab
        .agent
        .namespace
        .enter(|| Ok(fs::read_to_string("/proc/thread-self/net/tcp")?));
    let port = format!(":{port:04X}");
    let table = table.unwrap();
    let mut lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|line| line[address].ends_with(&port) && line[3] == ESTABLISHED);
    let queues = line.expect("the connection is there")[4];
    let bytes = queues.split(':').nth(queue).unwrap();
    u64::from_str_radix(bytes, 16).unwrap()
}

/// Bytes that the agent wrote and the receiver's kernel has not acknowledged.
fn unacknowledged_bytes(lab: &Lab, port: u16) -> u64 {
    queued_bytes(lab, port, 2, 0)
}

/// Bytes that wait for the receiver.
fn unread_bytes(lab: &Lab, port: u16) -> u64 {
    queued_bytes(lab, port, 1, 1)
}

#[test]
fn what_was_under_way_to_a_receiver_that_resets_is_lost_and_not_sent() {
    /// Longer than the receiver's buffer.
    const UNDER_WAY_BYTES: u64 = 32 << 10;
    /// The buffer has room for fewer records.
    const MOST_UNREAD: u64 = 100;
    if !is_root_or_skip("agent::what_was_under_way_to_a_receiver_that_resets_is_lost_and_not_sent")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let listen = || Ok(TcpListener::bind("127.0.0.1:0")?);
    let listener = lab.agent.namespace.enter(listen).unwrap();
    let buffer = SockRef::from(&listener);
    buffer.set_recv_buffer_size(4096).unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = format!("ipfix=tcp://127.0.0.1:{port}");
    let agent = Agent::start(&lab, &["--output", "json", "--output", &address]);
    let (silent, _) = listener.accept().unwrap();
    let sent = send(&lab, 800, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("they are under way", || {
        unacknowledged_bytes(&lab, port) >= UNDER_WAY_BYTES
    });
    reset(silent);
    let reading = thread::spawn(move || {
        let mut messages = Messages::default();
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; 1 << 16];
        while let Ok(len) = stream.read(&mut bytes)
            && len > 0
        {
            messages.take(&bytes[..len]);
        }
        messages
    });
    wait_until("nothing waits", || {
        fates(&output(&agent, &lab, "ipfix"), sent)["queued"] == Pair::default()
    });
    let fates = fates(&output(&agent, &lab, "ipfix"), sent);
    // The next account goes to the new connection.
    agent.wait_for_scans(&lab.agent, 2);
    let log = agent.stop().log;
    let Messages {
        flows: read,
        not_sent,
        ..
    } = reading.join().unwrap();
    assert!(fates["lost"].packets > 0, "{fates:?}");
    assert_eq!(not_sent, fates["lost"]);
    // The silent one's kernel has acknowledged what nobody read.
    let unread = fates["sent"].packets.checked_sub(read.packets);
    assert!(
        unread.is_some_and(|unread| unread < MOST_UNREAD),
        "{fates:?}, {read:?}"
    );
    assert_eq!(log.matches("cannot deliver flows to").count(), 1, "{log}");
    let lost = format!(
        "lost_packets={} lost_bytes={}",
        fates["lost"].packets, fates["lost"].bytes
    );
    assert!(log.contains(&lost), "{log}");
}

/// Between two scans, when the next message would take long to come.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_noticed_while_there_is_nothing_to_send() {
    if !is_root_or_skip("agent::a_reset_is_noticed_while_there_is_nothing_to_send") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let listen = || Ok(TcpListener::bind("127.0.0.1:0")?);
    let listener = lab.agent.namespace.enter(listen).unwrap();
    let buffer = SockRef::from(&listener);
    buffer.set_recv_buffer_size(4096).unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = format!("ipfix=tcp://127.0.0.1:{port}");
    let settings = [
        "--scan-interval",
        "1h",
        "--output",
        "json",
        "--output",
        &address,
    ];
    let agent = Agent::start(&lab, &settings);
    let before = lab.agent.counters().unwrap();
    let sent = send(&lab, 800, 1);
    wait_for_packets(&lab.agent, before, sent.packets);
    let target = agent.address().parse().unwrap();
    client::scan_now(&target).await.unwrap();
    // The first message brings it.
    let (silent, _) = listener.accept().unwrap();
    drop(listener);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("all is written", || unacknowledged_bytes(&lab, port) > 0);
    reset(silent);
    wait_until("it is told", || {
        let output = output(&agent, &lab, "ipfix");
        let fates = fates(&output, sent);
        output["failing"] == true && fates["lost"].packets > 0 && fates["queued"] == Pair::default()
    });
    assert_eq!(agent.stop().seen(), sent);
}

/// It reads again after the agent has given up, and gets the sent flows, not the lost ones.
#[test]
fn what_is_lost_to_a_receiver_that_paused_does_not_arrive_after_all() {
    if !is_root_or_skip("agent::what_is_lost_to_a_receiver_that_paused_does_not_arrive_after_all") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let listen = || Ok(TcpListener::bind("127.0.0.1:0")?);
    let listener = lab.agent.namespace.enter(listen).unwrap();
    let buffer = SockRef::from(&listener);
    buffer.set_recv_buffer_size(4096).unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = format!("ipfix=tcp://127.0.0.1:{port}");
    let agent = Agent::start(&lab, &["--output", "json", "--output", &address]);
    let (mut paused, _) = listener.accept().unwrap();
    drop(listener);
    let mut sent = Pair::default();
    // Until the kernel has no more room, and then ten seconds.
    wait_until("it gives up", || {
        sent += send(&lab, 800, 1);
        wait_until_counted(&agent, &lab, sent.packets);
        fates(&output(&agent, &lab, "ipfix"), sent)["lost"].packets > 0
    });
    let fates = fates(&output(&agent, &lab, "ipfix"), sent);
    let mut messages = Messages::default();
    let mut bytes = vec![0; 1 << 16];
    while let Ok(len) = paused.read(&mut bytes)
        && len > 0
    {
        messages.take(&bytes[..len]);
    }
    assert_eq!(messages.flows, fates["sent"], "{fates:?}");
    assert_eq!(agent.stop().seen(), sent);
}
