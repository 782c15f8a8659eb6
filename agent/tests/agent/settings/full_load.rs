//! SIGHUP while a sender never pauses.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use agent_common::Pair;
use lab::{AtEnd, Lab, Variety, kernel};

use super::reload::{Times, Watched};
use crate::{
    outputs,
    support::{count, flow_name, has_generator_or_skip, pair, wait_for_silence, wait_until},
};

const CHANGES: u64 = 12;
const FLOWS: u32 = 200;

fn times_of(change: u64) -> Times {
    Times {
        scan_interval: 50 + change % 3 * 50,
        idle_timeout: (2 + change) * 3_600_000,
        linger: 100 * (change + 1),
    }
}

/// All reloadable settings change again and again: interfaces, rules, times, outputs, the log. Every packet must be in
/// the flows or filtered, once; no flow may be forgotten or restarted; and the output that stays must have all of them.
#[test]
fn what_a_reload_changes_under_full_load_loses_no_packet() {
    if !has_generator_or_skip("agent::what_a_reload_changes_under_full_load_loses_no_packet") {
        return;
    }
    let at_once = kernel::packets(50_000, 500) as u32;
    let lab = Lab::quiet().unwrap();
    // A veth end takes generated frames only where it polls.
    lab.agent.set_offloads(&["gro"], true).unwrap();
    lab.agent
        .namespace
        .add_wire(["new0", "far0"])
        .expect("a second wire");
    let here = lab.agent.interface.clone();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [staying, leaving] = folders.each_ref().map(|folder| {
        let path = folder.path().join("flows.jsonl");
        format!(
            "{{ kind = 'jsonl', address = '{}', compression = 'none' }}",
            path.display()
        )
    });
    let settings = |change: u64, times: &Times| {
        // Each at its own pace.
        let every = |period: u64, what: &str| {
            let is_due = change.is_multiple_of(period);
            if is_due {
                what.to_owned()
            } else {
                String::new()
            }
        };
        format!(
            "max_flows = 50000\ninterface = ['{here}'{}]\nfilter = [{}]\nlog = 'info{}'\n\
             output = ['json', {staying}{}]\nmax_consumers = {}\nreport_interval = '{}s'\n\
             scan_interval = '{}ms'\nidle_timeout = '{}ms'\nlinger = '{}ms'\n",
            every(2, ", 'new*'"),
            every(3, "'exclude src net 0.0.0.0/1'"),
            every(5, ",h2=off"),
            every(4, &format!(", {leaving}")),
            64 + change,
            change % 2,
            times.scan_interval,
            times.idle_timeout,
            times.linger
        )
    };
    let watched = Watched::start_in(lab, "", &settings(0, &times_of(0)));
    let lab = &watched.lab;
    let before = lab.agent.counters().unwrap();
    let frame = lab.peer.frame_v4(&lab.agent);
    let frame = frame.udp(1000, 53, &[0; 18]).unwrap();
    let generator = lab.peer.generator_of(Variety::Sources(FLOWS)).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                generator.send(&frame, at_once, None).unwrap();
            }
        });
        let over = AtEnd(|| is_over.store(true, Ordering::Relaxed));
        for change in 1..=CHANGES {
            let times = times_of(change);
            watched.reload_to(&settings(change, &times));
            wait_until("the settings are in force", || {
                let again = watched.lines("read the settings again").len();
                again as u64 == change
            });
            assert_eq!(watched.times(), times);
            let rules = u64::from(change.is_multiple_of(3));
            assert_eq!(watched.setting("filter_rules"), rules);
            let status = watched.agent.status(&lab.agent);
            let interfaces = if change.is_multiple_of(2) { 2 } else { 1 };
            let outputs = if change.is_multiple_of(4) { 2 } else { 1 };
            let length = |list: &str| status[list].as_array().unwrap().len();
            assert_eq!(length("hooks"), 2 * interfaces, "{status}");
            assert_eq!(length("outputs"), outputs, "{status}");
            let scans = watched.scans();
            wait_until("it scans", || watched.scans() > scans);
        }
        drop(over);
    });
    let counted = wait_for_silence(&lab.agent);
    let report = watched.agent.stop();

    // The wire drops frames while its ring is full.
    let arrived = (counted - before).rx_packets;
    assert_eq!(report.seen(), count(arrived, &frame));
    let filtered = pair(&report.last()["filtered"]);
    let sums = report.sums();
    let flows: Pair = sums.values().flatten().copied().sum();
    assert_eq!(filtered + flows, report.seen());
    assert!(filtered.packets > 0 && flows.packets > 0);
    assert_eq!(sums.len(), FLOWS as usize);
    for (name, [forward, _]) in &sums {
        assert_eq!(report.end_reason(name), "forced_end", "{name}");
        let mut lines = report.flows.iter();
        let ended = lines.find(|line| !line["end_reason"].is_null() && flow_name(line) == *name);
        assert_eq!(ended.unwrap()["total_packets"], forward.packets, "{name}");
    }
    let [staying, leaving] = folders.map(|folder| outputs::sum(&outputs::lines(folder.path())));
    assert_eq!(staying, flows);
    assert!(leaving.packets > 0 && leaving.packets < flows.packets);
    eprintln!("{CHANGES} reloads under {arrived} packets");
}
