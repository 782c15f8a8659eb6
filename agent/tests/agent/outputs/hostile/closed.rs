//! A receiver of IPFIX over TCP whose port is closed for a while.

use std::net::SocketAddr;

use super::{messages::Messages, *};
use crate::support::protocol_counter;

/// Outside the kernel's ephemeral ports: otherwise a connection could connect to itself.
const PORT: u16 = 4739;

/// The number of refused connections in the agent's network namespace.
fn refused_connections(lab: &Lab) -> u64 {
    protocol_counter(&lab.agent, "Tcp", "AttemptFails")
}

#[test]
fn flows_wait_for_a_closed_port_and_arrive_when_it_opens_and_another_output_has_them_at_once() {
    if !is_root_or_skip(
        "agent::flows_wait_for_a_closed_port_and_arrive_when_it_opens_and_another_output_has_them_at_once",
    ) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::quiet().unwrap();
    let address: SocketAddr = ([127, 0, 0, 1], PORT).into();
    let ipfix = format!("ipfix=tcp://{address}");
    let file = format!(
        r#"{{"kind": "jsonl", "address": "{}", "compression": "none"}}"#,
        folder.path().join("flows.jsonl").display()
    );
    let outputs = ["--output", "json", "--output", &ipfix, "--output", &file];
    let agent = Agent::start(&lab, &outputs);
    let mut sent = Pair::default();
    for _ in 0..2 {
        sent += send(&lab, 20, 1);
        wait_until_counted(&agent, &lab, sent.packets);
        wait_until("the file has them", || {
            fates(&output(&agent, &lab, "jsonl"), sent)["sent"] == sent
        });
        wait_until("they wait for the port", || {
            let output = output(&agent, &lab, "ipfix");
            let error = output["last_error"].as_str().unwrap();
            let waits = fates(&output, sent)["queued"] == sent;
            output["failing"] == true && waits && error.contains("refused")
        });
    }

    wait_until("it is tried again and again", || {
        refused_connections(&lab) >= 3
    });
    let listen = || Ok(TcpListener::bind(address)?);
    let listener = lab.agent.namespace.enter(listen).unwrap();
    let reader = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut messages = Messages::default();
        let mut bytes = vec![0; 1 << 16];
        loop {
            let len = stream.read(&mut bytes).unwrap();
            if len == 0 {
                return messages;
            }
            messages.take(&bytes[..len]);
        }
    });
    let arrive = |sent: Pair| {
        wait_until("they arrive", || {
            let output = output(&agent, &lab, "ipfix");
            output["failing"] == false && fates(&output, sent)["sent"] == sent
        });
    };
    arrive(sent);
    sent += send(&lab, 20, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    arrive(sent);
    let report = agent.stop();
    assert_eq!(report.seen(), sent);
    let messages = reader.join().unwrap();
    assert_eq!((messages.flows, messages.not_sent), (sent, Pair::default()));
    assert_eq!(sum(&lines(folder.path())), sent);
    let told = |what: &str| report.log.matches(what).count();
    assert_eq!(told("cannot deliver flows to"), 1, "{}", report.log);
    assert_eq!(told("delivering flows to"), 1, "{}", report.log);
}
