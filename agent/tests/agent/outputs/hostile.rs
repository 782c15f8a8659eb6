//! Receivers that misbehave, and changes at the wrong moment.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, UdpSocket},
    thread,
};

use super::*;

mod closed;
mod comings;
mod grpc;
mod hanging;
mod resets;

#[test]
fn a_receiver_that_never_stops_talking_holds_up_nothing() {
    if !is_root_or_skip("agent::a_receiver_that_never_stops_talking_holds_up_nothing") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let listen = || Ok(TcpListener::bind("127.0.0.1:0")?);
    let listener = lab.agent.namespace.enter(listen).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut talking = stream.try_clone().unwrap();
        thread::spawn(move || while talking.write_all(&vec![b'x'; 1 << 20]).is_ok() {});
        let mut reading = stream;
        while reading.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
    });
    let address = format!("ipfix=tcp://127.0.0.1:{port}");
    let agent = Agent::start(&lab, &["--output", "json", "--output", &address]);
    let sent = send(&lab, 20, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("all is sent", || {
        fates(&output(&agent, &lab, "ipfix"), sent)["sent"] == sent
    });
    assert_eq!(agent.stop().seen(), sent);
}

#[test]
fn a_way_that_takes_no_message_is_told_and_the_agent_ends() {
    if !is_root_or_skip("agent::a_way_that_takes_no_message_is_told_and_the_agent_ends") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    namespace.ip(&["link", "set", "lo", "mtu", "480"]).unwrap();
    let bind = || Ok(UdpSocket::bind("127.0.0.1:0")?);
    let receiver = namespace.enter(bind).unwrap();
    let address = format!("ipfix=udp://{}", receiver.local_addr().unwrap());
    let agent = Agent::start(&lab, &["--output", "json", "--output", &address]);
    // In one scan, so that they fill messages.
    let sent = send(&lab, 40, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("it is told", || {
        let output = output(&agent, &lab, "ipfix");
        fates(&output, sent);
        output["last_error"]
            .as_str()
            .unwrap()
            .contains("send over TCP")
    });
    assert_eq!(agent.stop().seen(), sent);
}

#[test]
fn a_name_that_does_not_resolve_is_told_and_holds_up_no_other_output() {
    if !is_root_or_skip("agent::a_name_that_does_not_resolve_is_told_and_holds_up_no_other_output")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let addresses = [
        "ipfix=tcp://collector.invalid:4739",
        "ipfix=udp://collector.invalid:4739",
        "pbflow=http://collector.invalid:9999",
        "otlp=http://collector.invalid:4318",
    ];
    let outputs = addresses.map(|address| ["--output", address]).concat();
    let agent = Agent::start(&lab, &[&["--output", "json"][..], &outputs].concat());
    let sent = send(&lab, 20, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    for kind in ["ipfix", "ipfix-2", "pbflow", "otlp"] {
        wait_until("it is told", || {
            let output = output(&agent, &lab, kind);
            let queued = fates(&output, sent)["queued"];
            let error = output["last_error"].as_str().unwrap();
            let is_about_the_name = ["looking up the host", "look up the host"]
                .iter()
                .any(|said| error.contains(said));
            output["failing"] == true && queued == sent && is_about_the_name
        });
    }
    agent.wait_for_scans(&lab.agent, 2);
    assert_eq!(agent.stop().seen(), sent);
}

#[test]
fn an_output_that_stays_goes_on_and_one_that_leaves_tells_what_it_lost() {
    if !is_root_or_skip(
        "agent::an_output_that_stays_goes_on_and_one_that_leaves_tells_what_it_lost",
    ) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::quiet().unwrap();
    let file = folder.path().join("config.toml");
    let flows = folder.path().join("flows.jsonl");
    let write = |first: &str| {
        let settings = format!(
            "interface = ['{}']\nmax_flows = 1000\nscan_interval = '100ms'\n\
             output = ['json', {first}'jsonl={}']\n",
            lab.agent.interface,
            flows.display()
        );
        fs::write(&file, settings).unwrap();
    };
    // Nobody listens there.
    write("{ kind = 'ipfix', address = 'tcp://127.0.0.1:9', name = 'jsonl' }, ");
    let mut agent = Agent::start_by_file(&lab.agent, "", &file);
    let sent = send(&lab, 10, 1);
    wait_until_counted(&agent, &lab, sent.packets);
    wait_until("the second one has them", || {
        fates(&output(&agent, &lab, "jsonl-2"), sent)["sent"] == sent
    });
    write("");
    agent.signal(libc::SIGHUP);
    agent.wait_until_logged("read the settings again");
    // It keeps its name, and what it has sent.
    assert_eq!(fates(&output(&agent, &lab, "jsonl-2"), sent)["sent"], sent);
    let status = agent.status(&lab.agent);
    let departed = &status["departed_outputs"];
    assert_eq!(departed["outputs"], 1, "{departed}");
    fates(departed, sent);
    // Shutdown waits for the output that is leaving.
    agent.signal(libc::SIGTERM);
    let report = agent.ended();
    assert_eq!(report.seen(), sent);
    let log = report.log;
    let lost = format!("lost_packets={}", sent.packets);
    assert!(log.contains(&lost), "{log}");
    assert_eq!(log.matches("flows go to this output").count(), 2, "{log}");
}
