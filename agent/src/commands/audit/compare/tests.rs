use agent_common::HookAccount;
use proto::{Count, Interface};

use super::*;

/// An interface that counted `rx` and `tx` since an attachment at non-zero counters.
fn hook(hook: Hook, account: &HookAccount, rx: (u64, u64), tx: (u64, u64)) -> HookStatus {
    let attached = InterfaceCounters {
        rx_packets: 1000,
        rx_bytes: 2000,
        tx_packets: 3000,
        tx_bytes: 4000,
        ..InterfaceCounters::default()
    };
    let flipped = InterfaceCounters {
        rx_packets: 1000 + rx.0,
        rx_bytes: 2000 + rx.1,
        tx_packets: 3000 + tx.0,
        tx_bytes: 4000 + tx.1,
        ..attached
    };
    HookStatus {
        interface: Some(Interface {
            ifindex: 2,
            name: "eth0".into(),
            netns: 5,
            ..Interface::default()
        }),
        hook: hook.into(),
        account: Some(Account::from_hook(account, false)),
        before_attach: Some(attached),
        after_attach: Some(attached),
        before_flip: Some(flipped),
        after_flip: Some(flipped),
        ..HookStatus::default()
    }
}

fn account(counts: &[(Reason, u64, u64)]) -> HookAccount {
    let mut account = HookAccount::default();
    for &(reason, packets, bytes) in counts {
        account.add(reason, packets, bytes);
    }
    account
}

#[test]
fn equal_counts_are_exact() {
    let account = account(&[(Reason::Seen, 10, 1000), (Reason::Short, 4, 72)]);
    for (kind, direction) in [
        (Hook::TcIngress, "ingress"),
        (Hook::TcEgress, "egress"),
        (Hook::Xdp, "ingress"),
    ] {
        let comparison = compare(&hook(kind, &account, (10, 1000), (10, 1000)));
        assert_eq!(
            (comparison.verdict, comparison.direction),
            (Verdict::Exact, direction)
        );
        assert_eq!(comparison.difference, Some(Figures::default()));
        assert!(comparison.explanations.is_empty());
    }
}

#[test]
fn packets_that_pass_while_counters_are_read_do_not_matter() {
    let mut status = hook(
        Hook::TcIngress,
        &account(&[(Reason::Seen, 12, 1200)]),
        (10, 1000),
        (0, 0),
    );
    let after = status.after_flip.as_mut().unwrap();
    after.rx_packets += 5;
    after.rx_bytes += 500;
    let comparison = compare(&status);
    assert_eq!(comparison.verdict, Verdict::Exact);
    assert_eq!(
        comparison.explanations,
        ["up to 5 packets passed while the counters were read"]
    );
}

#[test]
fn super_frames_counted_once_are_explained() {
    let account = account(&[
        (Reason::Seen, 45, 45 * 1514 + 66),
        (Reason::SuperFrames, 1, 44 * 1448 + 66),
        (Reason::SuperFrameSegments, 44, 44 * 1514),
    ]);
    let bytes = 45 * 1514 + 66 - 43 * 66;
    let comparison = compare(&hook(Hook::TcEgress, &account, (0, 0), (2, bytes)));
    assert_eq!(comparison.verdict, Verdict::Explained, "{comparison:?}");
    assert_eq!(
        comparison.difference,
        Some(Figures {
            packets: 43,
            bytes: 43 * 66
        })
    );
    assert!(comparison.explanations[0].contains("1 super-frames once each"));
    // A driver that counts frames as on the wire needs no explanation.
    let comparison = compare(&hook(
        Hook::TcEgress,
        &account,
        (0, 0),
        (45, 45 * 1514 + 66),
    ));
    assert_eq!(comparison.verdict, Verdict::Exact);
}

#[test]
fn tags_padding_and_fcs_are_told_apart() {
    let account = account(&[
        (Reason::Seen, 100, 20_000),
        (Reason::OffloadedTags, 30, 120),
        (Reason::Short, 10, 140),
    ]);
    let explained = |bytes: u64| {
        let comparison = compare(&hook(Hook::TcIngress, &account, (100, bytes), (0, 0)));
        assert_eq!(comparison.verdict, Verdict::Explained, "{comparison:?}");
        comparison.explanations.join("; ")
    };
    assert!(explained(20_000 - 120).contains("30 packets"));
    assert!(explained(20_000 + 140).contains("10 short frames"));
    assert!(explained(20_000 + 400).contains("FCS"));
    assert!(explained(20_000 - 1400).contains("without their Ethernet header"));
    let all = explained(20_000 + 400 + 140 - 120);
    assert!(
        all.contains("FCS") && all.contains("short") && all.contains("VLAN"),
        "{all}"
    );
}

#[test]
fn packets_of_an_interface_that_has_left_are_not_this_ones() {
    let account = account(&[(Reason::Seen, 13, 1300), (Reason::UnknownInterface, 9, 900)]);
    let comparison = compare(&hook(Hook::TcIngress, &account, (4, 400), (0, 0)));
    assert_eq!(comparison.verdict, Verdict::Explained, "{comparison:?}");
    assert!(comparison.explanations[0].starts_with("9 packets came from an interface that went"));
}

#[test]
fn ipsec_explains_no_more_than_could_carry_what_it_decrypts() {
    let account = account(&[(Reason::Seen, 10, 1000), (Reason::Flows, 10, 1000)]);
    let traffic = |counts: [(&str, u64); 2]| {
        let counts = counts.into_iter().map(|(protocol, packets)| {
            let bytes = 100 * packets;
            (protocol.to_owned(), Count { packets, bytes })
        });
        counts.collect()
    };
    for (traffic, counted, expected) in [
        (traffic([("esp", 4), ("tcp", 6)]), 6, Verdict::Explained),
        (traffic([("esp", 4), ("tcp", 6)]), 5, Verdict::Unexplained),
        (traffic([("tcp", 9), ("icmp", 1)]), 9, Verdict::Unexplained),
    ] {
        let status = HookStatus {
            opens_ipsec_tunnels: true,
            traffic,
            ..hook(Hook::TcIngress, &account, (counted, 100 * counted), (0, 0))
        };
        assert_eq!(compare(&status).verdict, expected, "{counted}");
    }
}

#[test]
fn drops_behind_the_egress_hook_explain_what_was_not_sent() {
    let account = account(&[(Reason::Seen, 100, 100_000)]);
    let mut status = hook(Hook::TcEgress, &account, (0, 0), (90, 90_000));
    assert_eq!(compare(&status).verdict, Verdict::Unexplained);
    status.qdisc_drops = Some(10);
    let comparison = compare(&status);
    assert_eq!(comparison.verdict, Verdict::Explained, "{comparison:?}");
    assert!(comparison.explanations[0].contains("qdiscs dropped 10"));
    // A difference larger than the drops can explain stays unexplained.
    status.qdisc_drops = Some(4);
    let comparison = compare(&status);
    assert_eq!(comparison.verdict, Verdict::Unexplained);
    assert_eq!(comparison.unexplained.unwrap().packets, 6);
}

#[test]
fn packets_that_never_came_to_us_are_explained_by_drops_only() {
    let account = account(&[(Reason::Seen, 100, 10_000)]);
    let mut status = hook(Hook::TcIngress, &account, (103, 10_300), (0, 0));
    let comparison = compare(&status);
    assert_eq!(
        (comparison.verdict, comparison.unexplained.unwrap().packets),
        (Verdict::Unexplained, -3)
    );
    let flipped = status.before_flip.as_mut().unwrap();
    flipped.rx_dropped = 3;
    status.after_flip = status.before_flip;
    assert_eq!(compare(&status).verdict, Verdict::Explained);
}

#[test]
fn nothing_is_claimed_before_the_first_scan() {
    let mut status = hook(Hook::TcIngress, &account(&[]), (0, 0), (0, 0));
    (status.before_flip, status.after_flip) = (None, None);
    let comparison = compare(&status);
    assert_eq!(
        (comparison.verdict, comparison.difference),
        (Verdict::NotScanned, None)
    );
    status.interface_gone = true;
    assert_eq!(compare(&status).verdict, Verdict::Unknown);
}

#[test]
fn without_counters_nothing_is_claimed() {
    let mut status = hook(
        Hook::TcIngress,
        &account(&[(Reason::Seen, 1, 60)]),
        (0, 0),
        (0, 0),
    );
    status.before_flip = None;
    let comparison = compare(&status);
    assert_eq!(
        (comparison.verdict, comparison.difference),
        (Verdict::Unknown, None)
    );
}
