//! Sends captures over a wire and compares the agent's flows with tshark's: flow by flow the packets and
//! bytes must be equal, or differ for a stated reason.

mod flow;
mod pcap;
mod tshark;

use std::{
    collections::HashMap,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use agent_common::Pair;
use lab::{
    Lab,
    privilege::{is_root_or_skip, skip},
};
use tempfile::TempDir;

use crate::support::{Agent, NATIVE_XDP, Report, count, pair, wait_for_packets};
use flow::{Flow, Selector, Sums, of_records};
use tshark::Headers;

/// The folder of all captures, or why there is none.
static CAPTURES: LazyLock<Result<TempDir, String>> = LazyLock::new(|| {
    let folder = TempDir::new().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/corpus/captures/make.py");
    // The interpreter for which the distribution's packages are installed.
    let output = Command::new("/usr/bin/python3")
        .arg(script)
        .arg(folder.path())
        .output()
        .map_err(|error| format!("python3: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("No module named 'scapy'") {
        return Err("scapy is not installed".to_owned());
    }
    assert!(output.status.success(), "{errors}");
    Command::new("tshark")
        .arg("--version")
        .output()
        .map_err(|_| "tshark is not installed".to_owned())?;
    Ok(folder)
});

/// Why tshark and we may read the same frame differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// A flow's key has room for two tags. A frame with more is counted by that reason, in no flow.
    TagDepth,
    /// tshark reads on behind an Authentication header that gives its length as eight bytes, which RFC 4302
    /// does not allow.
    AuthenticationOfEightBytes,
}

impl Difference {
    /// Why tshark sees a flow in a frame and we do not.
    fn of(flow: Option<&Flow>, bytes: &[u8]) -> Option<Self> {
        if flow.is_some_and(|flow| flow.vlan_ids.len() > 2) {
            return Some(Self::TagDepth);
        }
        let is_authenticated = bytes[12..14] == [0x86, 0xdd] && bytes.get(20) == Some(&51);
        (is_authenticated && bytes.get(BEHIND_IPV6 + 1) == Some(&0))
            .then_some(Self::AuthenticationOfEightBytes)
    }
}

/// The offset behind an Ethernet header and an IPv6 header.
const BEHIND_IPV6: usize = 14 + 40;

/// The differences that each capture shows.
const DIFFERENCES: &[(&str, &[Difference])] = &[
    ("ordinary", &[]),
    ("ipv6_extensions", &[]),
    ("fragments", &[]),
    ("vlans", &[]),
    ("encapsulations", &[]),
    ("tunnels", &[]),
    ("icmp_errors", &[]),
    ("truncated", &[]),
    (
        "malformed",
        &[Difference::AuthenticationOfEightBytes, Difference::TagDepth],
    ),
];

/// The expected result of a capture: flows, and packets in no flow.
#[derive(Debug, Default, PartialEq, Eq)]
struct Expected {
    flows: Sums,
    unparsed: Pair,
    differences: Vec<Difference>,
}

fn expected(frames: &[(tshark::Frame, Vec<u8>)]) -> Expected {
    let mut expected = Expected::default();
    let mut firsts = HashMap::new();
    for (frame, bytes) in frames {
        let mut flow = frame.flow();
        if let Some(difference) = Difference::of(flow.as_ref(), bytes) {
            if !expected.differences.contains(&difference) {
                expected.differences.push(difference);
            }
            flow = None;
        }
        let one = Pair {
            packets: 1,
            bytes: frame.len_bytes(),
        };
        match flow.map(|flow| joined(flow, frame, &mut firsts)) {
            Some(flow) => *expected.flows.entry(flow).or_default() += one,
            None => expected.unparsed += one,
        }
    }
    expected
}

/// Puts a later fragment into the flow of its first one if that came before it. Otherwise it is in a flow of
/// its own without ports, since the agent holds nothing back. tshark itself would give the ports only at the
/// last fragment, for the whole datagram.
fn joined(flow: Flow, frame: &tshark::Frame, firsts: &mut Firsts) -> Flow {
    let Some(id) = frame.datagram() else {
        return flow;
    };
    let datagram = (flow.src, flow.dst, id);
    if flow.selector == Selector::LaterFragment {
        return firsts.get(&datagram).cloned().unwrap_or(flow);
    }
    firsts.insert(datagram, flow.clone());
    flow
}

/// The flows of first fragments, by sender, receiver and identification.
type Firsts = HashMap<(IpAddr, IpAddr, u64), Flow>;

/// Where the agent sees the frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hook {
    TcIngress,
    TcEgress,
    NativeXdp,
}

fn agrees_with_tshark(test: &str, hook: Hook) {
    let test = format!("agent::{test}");
    if !is_root_or_skip(&test) {
        return;
    }
    let captures = match &*CAPTURES {
        Ok(folder) => folder.path(),
        Err(reason) => return skip(&test, reason),
    };
    for (name, differences) in DIFFERENCES {
        let frames = frames(captures, name, hook, Headers::Outermost);
        let expected = expected(&frames);
        assert_eq!(expected.differences, *differences, "{name}");
        counts(name, hook, &[], &frames, &expected);
    }
}

/// The frames that pass the hook, with what tshark says about them.
fn frames(
    captures: &Path,
    name: &str,
    hook: Hook,
    headers: Headers,
) -> Vec<(tshark::Frame, Vec<u8>)> {
    let capture: PathBuf = captures.join(name).with_extension("pcap");
    let frames = pcap::frames(&capture).unwrap();
    let dissected = tshark::dissect(&capture, headers).unwrap();
    assert_eq!(dissected.len(), frames.len());
    dissected
        .into_iter()
        .zip(frames)
        .filter(|(_, bytes)| hook != Hook::TcIngress || !has_cut_tag(bytes))
        .collect()
}

/// Whether the frame ends within its tag or the EtherType behind it. The kernel drops it before TC ingress
/// (`skb_vlan_untag`).
fn has_cut_tag(frame: &[u8]) -> bool {
    matches!(frame[12..14], [0x81, 0x00] | [0x88, 0xa8]) && frame.len() < 14 + 4 + 2
}

/// Asserts that the agent has exactly the flows expected of the frames.
fn counts(
    name: &str,
    hook: Hook,
    settings: &[&str],
    frames: &[(tshark::Frame, Vec<u8>)],
    expected: &Expected,
) -> Report {
    let frames: Vec<&[u8]> = frames.iter().map(|(_, bytes)| &**bytes).collect();
    let lab = Lab::quiet().unwrap();
    let mut settings = settings.to_vec();
    if hook == Hook::NativeXdp {
        settings.extend(NATIVE_XDP);
    }
    let agent = Agent::start(&lab, &settings);
    let (from, to) = match hook {
        Hook::TcEgress => (&lab.agent, &lab.peer),
        Hook::TcIngress | Hook::NativeXdp => (&lab.peer, &lab.agent),
    };
    let before = to.counters().unwrap();
    from.frame_socket().unwrap().send_many(&frames).unwrap();
    wait_for_packets(to, before, frames.len() as u64);
    let report = agent.stop();

    let all: Pair = frames.iter().map(|frame| count(1, frame)).sum();
    assert_eq!(report.seen(), all, "{name}");
    let unparsed = report.last()["unparsed"].as_object().unwrap();
    let unparsed: Pair = unparsed.values().map(pair).sum();
    assert_eq!(of_records(&report.flows), expected.flows, "{name}");
    assert_eq!(unparsed, expected.unparsed, "{name}: {}", report.last());
    report
}

#[test]
fn captures_at_tc_ingress_count_as_tshark_counts_them() {
    agrees_with_tshark(
        "captures_at_tc_ingress_count_as_tshark_counts_them",
        Hook::TcIngress,
    );
}

#[test]
fn captures_at_tc_egress_count_as_tshark_counts_them() {
    agrees_with_tshark(
        "captures_at_tc_egress_count_as_tshark_counts_them",
        Hook::TcEgress,
    );
}

#[test]
fn captures_at_native_xdp_count_as_tshark_counts_them() {
    agrees_with_tshark(
        "captures_at_native_xdp_count_as_tshark_counts_them",
        Hook::NativeXdp,
    );
}

/// Every frame of the capture is a tunnel's, and none lies deeper than the agent opens.
#[test]
fn what_tunnels_carry_counts_as_tshark_counts_it() {
    let test = "agent::what_tunnels_carry_counts_as_tshark_counts_it";
    if !is_root_or_skip(test) {
        return;
    }
    let captures = match &*CAPTURES {
        Ok(folder) => folder.path(),
        Err(reason) => return skip(test, reason),
    };
    for hook in [Hook::TcIngress, Hook::TcEgress, Hook::NativeXdp] {
        let frames = frames(captures, "tunnels", hook, Headers::Innermost);
        let expected = expected(&frames);
        assert_eq!(expected.differences, []);
        assert_eq!(expected.unparsed, Pair::default());
        let report = counts("tunnels", hook, &["--decapsulate"], &frames, &expected);
        let beside = |fact: &str| pair(&report.last()["beside"][fact]);
        assert_eq!(beside("decapsulated"), report.seen());
        assert_eq!(beside("tunnels_unopened"), Pair::default());
        assert_eq!(beside("tunnel_depth"), Pair::default());
    }
}
