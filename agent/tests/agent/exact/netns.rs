//! Two network namespaces in one table.

use lab::{Lab, privilege::is_root_or_skip};

use crate::{
    lifecycle::{
        CLSACT, TCX, here,
        netns::{names, number, send, start, status, sum_in},
    },
    support::{NATIVE_XDP, attached::nothing_is_attached, count, pair, wait_until},
};

#[test]
fn two_namespaces_with_one_index_and_one_name_are_counted_apart_in_one_table() {
    if !is_root_or_skip(
        "agent::two_namespaces_with_one_index_and_one_name_are_counted_apart_in_one_table",
    ) {
        return;
    }
    for hooks in here([TCX, CLSACT, NATIVE_XDP]) {
        let (a, b) = (Lab::quiet().unwrap(), Lab::quiet().unwrap());
        assert_eq!(a.agent.ifindex, b.agent.ifindex);
        // The same flow in both.
        let frame = a.peer.frame_v4(&a.agent).udp(1, 2, &[0; 18]).unwrap();
        let answer = a.agent.frame_v4(&a.peer).udp(2, 1, &[0; 18]).unwrap();
        // A rule applies to this name in both.
        let rule = format!("exclude port 9 on {}", a.agent.interface);
        let settings = [hooks, &["--filter", &rule]].concat();
        let agent = start(&a, &names(&[&a, &b]), &a.agent.interface, &settings);
        let left_out = a.peer.frame_v4(&a.agent).udp(1, 9, &[0; 18]).unwrap();
        let before = [&a, &b].map(|lab| lab.agent.counters().unwrap());
        for (lab, [there, back]) in [(&a, [100, 7]), (&b, [250, 30])] {
            send(&lab.peer, &lab.agent, &frame, there);
            send(&lab.agent, &lab.peer, &answer, back);
        }
        let after = [&a, &b].map(|lab| lab.agent.counters().unwrap());
        for (lab, packets) in [(&a, 5), (&b, 8)] {
            send(&lab.peer, &lab.agent, &left_out, packets);
        }
        wait_until("the scans have them", || {
            let account = &status(&a, &agent)["account"];
            ["flows", "filtered"].map(|part| pair(&account[part]).packets) == [387, 13]
        });
        let audit = agent.asked(&a.peer, &["audit"]);
        let text = String::from_utf8(audit.stdout).unwrap();
        // A veth end with native XDP counts frames without their Ethernet header.
        let verdicts = ["): exact", "): explained"].map(|verdict| text.matches(verdict).count());
        assert_eq!(verdicts.iter().sum::<usize>(), 4, "{text}");
        assert!(audit.status.success(), "{text}");

        let report = agent.stop();
        let of = |lab: &Lab| sum_in(&report, number(&lab.agent));
        assert_eq!(of(&a), count(107, &frame), "{hooks:?}");
        assert_eq!(of(&b), count(280, &frame), "{hooks:?}");
        assert_eq!(report.seen(), count(387, &frame) + count(13, &left_out));
        for (lab, (before, after)) in [&a, &b].into_iter().zip(before.into_iter().zip(after)) {
            let growth = after - before;
            assert_eq!(of(lab).packets, growth.rx_packets + growth.tx_packets);
            assert!(nothing_is_attached(&lab.agent));
        }
        let ends = report
            .flows
            .iter()
            .filter(|flow| !flow["end_reason"].is_null());
        assert_eq!(ends.count(), 2);
    }
}
