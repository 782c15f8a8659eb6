//! Captures over a wire, counted by the agent and by tshark: flow by flow the same packets and bytes,
//! or a difference for a reason that is stated.

#![expect(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

mod flow;
mod pcap;
#[path = "../support/mod.rs"]
mod support;
mod tshark;

use std::{
    collections::HashMap,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use agent_common::Pair;
use flow::{Flow, Selector, Sums, of_records};
use lab::{
    Lab,
    privilege::{is_root_or_skip, skip},
};
use support::{Agent, NATIVE_XDP, count, pair, wait_for_packets};
use tempfile::TempDir;

/// The folder of all captures, or why there is none.
static CAPTURES: LazyLock<Result<TempDir, String>> = LazyLock::new(|| {
    let folder = TempDir::new().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/captures/make.py");
    // The interpreter that distributions' packages are for.
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

/// Why tshark and we may say two things of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// Two tags are in a flow's key; a frame with more is counted as such, not as a flow.
    TagDepth,
    /// tshark gives up at a UDP length that cannot be; the ports stand before it.
    UdpLength,
    /// No payload length: to us the packet goes on to the end of the frame, as where the kernel hands
    /// over more than 64 KiB (BIG TCP); to tshark it is empty.
    PayloadLengthZero,
}

impl Difference {
    /// What we make of a frame that tshark reads as it does.
    fn of(frame: &tshark::Frame, bytes: &[u8]) -> Option<(Self, Option<Flow>)> {
        let flow = frame.flow();
        if flow.as_ref().is_some_and(|flow| flow.vlan_ids.len() > 2) {
            return Some((Self::TagDepth, None));
        }
        if flow.is_some() {
            return None;
        }
        let ports_at = |at: usize| {
            let port = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
            Some(Selector::Ports(port(at)?, port(at + 2)?))
        };
        let is_plain_ipv4 = bytes[12..].starts_with(&[0x08, 0x00, 0x45]);
        if is_plain_ipv4
            && frame.has("udp.length")
            && bytes.len() >= UDP_IN_IPV4 + 8
            && bytes[17] >= 28
        {
            let ports = ports_at(UDP_IN_IPV4)?;
            return Some((Self::UdpLength, frame.flow_of(17, ports)));
        }
        if bytes[12..14] == [0x86, 0xdd] && bytes.get(18..20) == Some(&[0, 0]) {
            let ports = ports_at(TCP_IN_IPV6)?;
            return Some((Self::PayloadLengthZero, frame.flow_of(6, ports)));
        }
        None
    }
}

/// Where the transport begins behind an Ethernet header and an IP header without options.
const UDP_IN_IPV4: usize = 14 + 20;
const TCP_IN_IPV6: usize = 14 + 40;

/// Which differences each capture shows.
const DIFFERENCES: &[(&str, &[Difference])] = &[
    ("ordinary", &[]),
    ("ipv6_extensions", &[]),
    ("fragments", &[]),
    ("vlans", &[]),
    ("tunnels", &[]),
    ("icmp_errors", &[]),
    ("truncated", &[]),
    (
        "malformed",
        &[
            Difference::PayloadLengthZero,
            Difference::UdpLength,
            Difference::TagDepth,
        ],
    ),
];

/// What a capture is to give: flows, and what is in none.
#[derive(Debug, Default, PartialEq, Eq)]
struct Expected {
    flows: Sums,
    unparsed: Pair,
    differences: Vec<Difference>,
}

fn expected(capture: &Path, frames: &[Vec<u8>]) -> Expected {
    let dissected = tshark::dissect(capture).unwrap();
    assert_eq!(dissected.len(), frames.len());
    let mut expected = Expected::default();
    let mut firsts = HashMap::new();
    for (frame, bytes) in dissected.iter().zip(frames) {
        let flow = match Difference::of(frame, bytes) {
            Some((difference, flow)) => {
                if !expected.differences.contains(&difference) {
                    expected.differences.push(difference);
                }
                flow
            }
            None => frame.flow(),
        };
        let one = count(1, bytes);
        match flow.map(|flow| joined(flow, frame, &mut firsts)) {
            Some(flow) => *expected.flows.entry(flow).or_default() += one,
            None => expected.unparsed += one,
        }
    }
    expected
}

/// A later fragment is in the flow of its first one, which every capture has before it. tshark would
/// tell the ports at the last fragment alone, of the datagram as a whole.
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

/// By the sender, the receiver and the identification.
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
        // The kernel drops frames whose tag is cut ahead of TC ingress (`skb_vlan_untag`).
        if hook == Hook::TcIngress && *name == "truncated" {
            continue;
        }
        let capture: PathBuf = captures.join(name).with_extension("pcap");
        let frames = pcap::frames(&capture).unwrap();
        let expected = expected(&capture, &frames);
        assert_eq!(expected.differences, *differences, "{name}");

        let lab = Lab::quiet().unwrap();
        let settings = if hook == Hook::NativeXdp {
            NATIVE_XDP
        } else {
            &[]
        };
        let agent = Agent::start(&lab, settings);
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
    }
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
