//! Files of IPFIX, read by ipfixDump and by tshark.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use agent_common::Pair;

use super::Sums;

/// The value behind a field's name in ipfixDump's lines.
fn value(line: &str) -> u64 {
    let (_, value) = line.rsplit_once(" : ").unwrap();
    value.parse().unwrap()
}

pub fn has_every_flow(file: &Path, sent: Sums, records: usize) {
    have_every_flow(&[file.to_owned()], sent, records);
}

/// Reads each file by itself.
pub fn have_every_flow(files: &[PathBuf], sent: Sums, records: usize) {
    let dumps: Vec<String> = files.iter().map(|file| ipfix_dump(file)).collect();
    assert_eq!(dumps.iter().map(|dump| sums(dump)).sum::<Sums>(), sent);
    let has = |dump: &String, name: &str| dump.lines().any(|line| line.contains(name));
    let lines = dumps.iter().flat_map(|dump| dump.lines());
    let flows = lines.filter(|line| line.contains(" flowEndReason :"));
    assert_eq!(flows.count(), records);
    assert!(dumps.iter().all(|dump| has(dump, "interfaceName")));
    for name in ["ignoredPacketTotalCount", "notSentPacketTotalCount"] {
        assert!(dumps.iter().any(|dump| has(dump, name)), "{name}");
    }
    assert_eq!(files.iter().map(|file| tshark(file)).sum::<Sums>(), sent);
}

fn ipfix_dump(file: &Path) -> String {
    let dump = Command::new("ipfixDump")
        .arg("--data")
        .arg("--in")
        .arg(file)
        .output()
        .unwrap();
    let told = String::from_utf8(dump.stderr).unwrap();
    assert!(dump.status.success() && told.is_empty(), "{told}");
    String::from_utf8(dump.stdout).unwrap()
}

/// The packets in no flow, from the last record about them.
pub fn ignored(file: &Path) -> Pair {
    let dump = ipfix_dump(file);
    let last = |element: &str| {
        let mut lines = dump.lines().map(str::trim_start);
        value(lines.rfind(|line| line.starts_with(element)).unwrap())
    };
    Pair {
        packets: last("(164) "),
        bytes: last("(165) "),
    }
}

fn sums(dump: &str) -> Sums {
    let sum = |elements: [&str; 2]| -> u64 {
        let is_one = |line: &&str| {
            elements
                .iter()
                .any(|element| line.trim_start().starts_with(element))
        };
        dump.lines().filter(is_one).map(value).sum()
    };
    Sums {
        packets: sum(["(2) ", "(29305/2) "]),
        layer2: sum(["(352) ", "(29305/352) "]),
        octets: sum(["(1) ", "(29305/1) "]),
    }
}

/// The records that it reads. Asserts that it reports nothing strange.
fn tshark(file: &Path) -> Sums {
    let run = |arguments: &[&str]| {
        let mut tshark = Command::new("tshark");
        // By default it takes templates of 60 elements.
        tshark.args(["-o", "cflow.max_template_fields:100"]);
        let output = tshark.arg("-r").arg(file).args(arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{told}");
        String::from_utf8(output.stdout).unwrap()
    };
    // Malformed sets, gaps in the sequence and other complaints.
    let strange = ["-Y", "_ws.expert || _ws.malformed", "-T", "fields"];
    let told = ["-e", "frame.number", "-e", "_ws.expert.message"];
    assert_eq!(run(&[&strange[..], &told].concat()), "");
    let sum = |field: &str| -> u64 {
        let text = run(&["-T", "fields", "-e", field]);
        let values = text.split([',', '\n']).filter(|value| !value.is_empty());
        values.map(|value| value.parse::<u64>().unwrap()).sum()
    };
    Sums {
        packets: sum("cflow.packets"),
        layer2: sum("cflow.layer2_octet_delta_count"),
        octets: sum("cflow.octets"),
    }
}
