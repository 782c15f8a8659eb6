//! Two agents of one host that send to one collector, which knows both by the same address.

use super::*;

/// Settings that change the fields of templates, or the meaning of a field.
const OTHER: &str = r#", "uniflow": true, "octets": "layer2", "enterprise_number": 64123"#;
const DOMAIN: &str = r#", "observation_domain": 7"#;

#[test]
fn nfdump_tells_two_agents_of_one_host_apart() {
    const TEST: &str = "agent::nfdump_tells_two_agents_of_one_host_apart";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some([nfcapd, _]) = install::nfdump_or_skip(TEST) else {
        return;
    };
    for (domain, other) in [("", OTHER), ("", ""), (DOMAIN, OTHER)] {
        let lab = Lab::quiet().unwrap();
        let folder = TempDir::new().unwrap();
        let (mut nfcapd, _) = start_nfcapd(&nfcapd, &lab, folder.path());
        let outputs = ["", other].map(|more| udp(&format!("{domain}{more}")));
        let agents = outputs.each_ref().map(|output| {
            let outputs = ["--output", "json", "--output", output];
            Agent::start(&lab, &outputs)
        });
        let sent = send(&lab);
        let [first, second] = agents.map(Agent::stop);
        wait_until_read(&lab);
        nfcapd.terminate(patience()).unwrap();

        let (records, bytes) = if other.is_empty() {
            (biflow_records(&second), sent.octets)
        } else {
            (uniflow_records(&second), sent.layer2)
        };
        // With one domain for both there are two sequences in it.
        let errors = if domain.is_empty() { "0," } else { "" };
        let told = format!(
            "Flows: {}, Packets: {}, Bytes: {}, Sequence Errors: {errors}",
            biflow_records(&first) + records,
            2 * sent.packets,
            sent.octets + bytes,
        );
        let log = log_of(folder.path());
        assert!(log.contains(&told), "{domain}{other}: {told}: {log}");
    }
}
