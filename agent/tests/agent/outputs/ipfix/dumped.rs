//! Files of IPFIX, read by ipfixDump and by tshark.

use std::{path::Path, process::Command};

use super::Sums;

/// The value behind a field's name in ipfixDump's lines.
fn value(line: &str) -> u64 {
    let (_, value) = line.rsplit_once(" : ").unwrap();
    value.parse().unwrap()
}

pub fn has_every_flow(file: &Path, sent: Sums, records: usize) {
    ipfix_dump(file, sent, records);
    tshark(file, sent);
}

fn ipfix_dump(file: &Path, sent: Sums, records: usize) {
    let dump = Command::new("ipfixDump")
        .arg("--data")
        .arg("--in")
        .arg(file)
        .output()
        .unwrap();
    let told = String::from_utf8(dump.stderr).unwrap();
    assert!(dump.status.success() && told.is_empty(), "{told}");
    let text = String::from_utf8(dump.stdout).unwrap();
    let sum = |elements: [&str; 2]| -> u64 {
        let is_one = |line: &&str| {
            elements
                .iter()
                .any(|element| line.trim_start().starts_with(element))
        };
        text.lines().filter(is_one).map(value).sum()
    };
    let read = Sums {
        packets: sum(["(2) ", "(29305/2) "]),
        layer2: sum(["(352) ", "(29305/352) "]),
        octets: sum(["(1) ", "(29305/1) "]),
    };
    assert_eq!(read, sent);
    let flows = text
        .lines()
        .filter(|line| line.contains(" flowEndReason :"));
    assert_eq!(flows.count(), records);
    for name in [
        "interfaceName",
        "ignoredPacketTotalCount",
        "notSentPacketTotalCount",
    ] {
        assert!(text.lines().any(|line| line.contains(name)), "{name}");
    }
}

fn tshark(file: &Path, sent: Sums) {
    let run = |arguments: &[&str]| {
        let mut tshark = Command::new("tshark");
        let output = tshark.arg("-r").arg(file).args(arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{told}");
        String::from_utf8(output.stdout).unwrap()
    };
    // Malformed sets, gaps in the sequence and whatever else it finds strange.
    assert_eq!(run(&["-Y", "_ws.expert || _ws.malformed"]), "");
    let sum = |field: &str| -> u64 {
        let text = run(&["-T", "fields", "-e", field]);
        let values = text.split([',', '\n']).filter(|value| !value.is_empty());
        values.map(|value| value.parse::<u64>().unwrap()).sum()
    };
    let read = Sums {
        packets: sum("cflow.packets"),
        layer2: sum("cflow.layer2_octet_delta_count"),
        octets: sum("cflow.octets"),
    };
    assert_eq!(read, sent);
}
