//! Sampling of fragments: all fragments of a datagram are counted, or none.

use std::collections::BTreeMap;

use agent_common::Pair;
use lab::privilege::is_root_or_skip;

use crate::support::{
    Both, count,
    hook::{Hook, report_of},
    name, pair,
};

/// Datagrams of each IP version. Each is a flow.
const DATAGRAMS: u16 = 500;
const RATE: u64 = 2;

fn fragments_are_sampled_together(hook: Hook) {
    let mut whole = BTreeMap::<String, Both>::new();
    let report = report_of(hook, &["--sample", "2"], |from, to| {
        let mut datagrams = Vec::new();
        for (frame, ends) in [
            (
                from.frame_v4(to),
                [from.ipv4.to_string(), to.ipv4.to_string()],
            ),
            (
                from.frame_v6(to),
                [from.ipv6.to_string(), to.ipv6.to_string()],
            ),
        ] {
            for number in 1..=DATAGRAMS {
                let fragment = |offset, more| frame.clone().fragment(number, offset, more);
                let port = 1000 + number;
                let first = fragment(0, true).udp(port, 53, &[0; 32]).unwrap();
                let later = fragment(40, false).ip(17, &[0; 24]).unwrap();
                let flow = name("[]", 17, (&ends[0], port.into()), (&ends[1], 53));
                let sum = count(1, &first) + count(1, &later);
                whole.insert(flow, [sum, Pair::default()]);
                datagrams.push([first, later]);
            }
        }
        // All first fragments come before all later ones, so the decision has to be found again.
        let frames = (0..2).flat_map(|part| datagrams.iter().map(move |it| &it[part]));
        from.frame_socket().unwrap().send_many(frames).unwrap() as u64
    });
    let sums = report.sums();
    let mut left_out = Pair::default();
    for (flow, sum) in &whole {
        match sums.get(flow) {
            Some(counted) => assert_eq!(counted, sum, "{flow}"),
            None => left_out += sum[0],
        }
    }
    assert!(sums.values().all(|[forward, _]| forward.packets == 2));
    assert!(sums.keys().all(|flow| whole.contains_key(flow)));
    assert_eq!(pair(&report.last()["sampled_out"]), left_out);
    let expected = whole.len() as u64 / RATE;
    assert!(expected.abs_diff(sums.len() as u64) < 100, "{}", sums.len());
}

#[test]
fn fragments_are_sampled_with_their_datagram_over_tc_ingress() {
    if is_root_or_skip("agent::fragments_are_sampled_with_their_datagram_over_tc_ingress") {
        fragments_are_sampled_together(Hook::TcIngress);
    }
}

#[test]
fn fragments_are_sampled_with_their_datagram_over_native_xdp() {
    if is_root_or_skip("agent::fragments_are_sampled_with_their_datagram_over_native_xdp") {
        fragments_are_sampled_together(Hook::NativeXdp);
    }
}
