//! Properties that hold for any packets in any order: no packet is lost or reported twice, and every flow ends once.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::{sides::directions, *};

/// What the records so far report about a living flow.
#[derive(Default)]
struct Told {
    delta: [Counts; 2],
    last_seen_unix_ns: u64,
    /// Consumers match the records of one flow by the key and these.
    names: Option<(u8, Direction)>,
}

/// Receives the records and checks the replica's promises.
#[derive(Default)]
struct Listener {
    living: HashMap<FlowKey, Told>,
    all: Counts,
    has_no_closed_flows: bool,
    /// Records are put off, so a flow may have none before it ends.
    puts_off: bool,
}

impl Listener {
    /// Compares the replica's snapshot of all flows with the records so far.
    fn compare(&self, replica: &Replica) {
        let mut listed = 0;
        let slots = replica.slab.end();
        // In steps, as a snapshot is taken.
        for from in (0..=slots).step_by(3) {
            let is_more = replica.flows(from..from + 3, replica.clock, &mut |record| {
                listed += 1;
                assert_eq!(record.end_reason, None);
                let Some(told) = self.living.get(&record.key) else {
                    assert!(self.puts_off && record.delta() == [Counts::default(); 2]);
                    return;
                };
                // The next records have the rest of the total.
                assert_eq!(record.delta(), told.delta);
                assert!(self.puts_off || record.total() == told.delta);
                assert_eq!(told.names, Some((record.initiator, record.direction())));
            });
            assert_eq!(is_more, from + 3 < slots);
        }
        assert_eq!(listed, replica.len());
    }

    fn hear(&mut self, record: &Record) {
        let Some(reason) = record.end_reason else {
            let told = self.living.entry(record.key).or_default();
            for (sum, &delta) in told.delta.iter_mut().zip(&record.delta()) {
                *sum += delta;
                self.all += delta;
            }
            told.last_seen_unix_ns = record.last_seen_unix_ns;
            let names = (record.initiator, record.direction());
            assert_eq!(*told.names.get_or_insert(names), names);
            assert_eq!(record.total(), told.delta);
            return;
        };
        let told = self.living.remove(&record.key);
        let mut told = if self.puts_off {
            told.unwrap_or_default()
        } else {
            assert_eq!(record.delta(), [Counts::default(); 2]);
            told.expect("a flow ends only once")
        };
        for (sum, &delta) in told.delta.iter_mut().zip(&record.delta()) {
            *sum += delta;
            self.all += delta;
        }
        assert_eq!(record.total(), told.delta);
        if reason == EndReason::LackOfResources && self.has_no_closed_flows && !self.puts_off {
            let mut others = self.living.values();
            assert!(others.all(|other| other.last_seen_unix_ns >= record.last_seen_unix_ns));
        }
    }
}

/// Checks after a scan that no flow is left that should have ended.
fn nothing_is_due(replica: &Replica) {
    let now_ns = replica.clock.boot_ns;
    for slot in (0..replica.slab.end()).filter(|&slot| replica.slab.get(slot).is_some()) {
        assert!(replica.reason_to_end(slot).is_none());
        let report_ns = replica.reports.due_ns(slot);
        assert!(report_ns.is_none_or(|report_ns| report_ns > now_ns));
        assert!(replica.slab[slot].is_told && replica.slab[slot].waiting == waiting::NONE);
    }
}

/// Checks that a successor makes the records that this replica would make if it ended now. Returns their counts.
fn unreported_for_a_successor(replica: &Replica) -> Counts {
    let expected = replica.reports.all_unreported().map(|(slot, unreported)| {
        let reason = match replica.slab[slot].state {
            State::Closing => EndReason::EndOfFlow,
            State::Living | State::Free => EndReason::ForcedEnd,
        };
        format!(
            "{:?}",
            replica.record(slot, replica.clock, *unreported, Some(reason))
        )
    });
    let (mut found, mut sum) = (Vec::new(), Counts::default());
    read_unreported(&all_unreported(replica), replica.clock, &mut |record| {
        found.push(format!("{record:?}"));
        record.delta().into_iter().for_each(|delta| sum += delta);
    })
    .unwrap();
    assert_eq!(found, expected.collect::<Vec<_>>());
    assert_eq!(replica.waiting_flows(), found.len());
    sum
}

/// Key, seconds before the scan, flags in both directions, packets.
type Op = (u32, u64, [u8; 2], [u64; 2]);

/// Plays scans, and checks after each that the listener knows the same flows as the replica.
fn play(max_flows: usize, scans: &[Vec<Op>], report_seconds: u64) -> u64 {
    let mut replica = replica(max_flows);
    let puts_off = report_seconds != 0;
    replica.report_every(Duration::from_secs(report_seconds));
    let has_no_closed_flows = scans
        .iter()
        .flatten()
        .all(|(_, _, flags, _)| flags.iter().all(|flags| flags & (FIN | RST) == 0));
    let mut listener = Listener {
        has_no_closed_flows,
        puts_off,
        ..Listener::default()
    };
    let mut fed = Counts::default();
    for (second, ops) in (20..).step_by(7).zip(scans) {
        replica.begin_scan(clock(second));
        let mut page = (Vec::new(), Vec::new());
        for &(number, ago, [a_to_b, b_to_a], packets) in ops {
            let mut counted = counters(second - ago, &[a_to_b], &[b_to_a]);
            counted.packets = packets;
            counted.bytes = packets.map(|packets| packets * 100);
            counted.ip_bytes = packets.map(|packets| packets * 86);
            fed += Counts {
                packets: packets[0] + packets[1],
                bytes: (packets[0] + packets[1]) * 100,
                ip_bytes: (packets[0] + packets[1]) * 86,
            };
            page.0.push(key(number));
            page.1.push(counted);
        }
        replica.update(&page.0, &page.1, &mut |record| {
            listener.hear(record);
            assert!(listener.living.len() <= max_flows);
        });
        assert!(replica.len() <= max_flows);
        // As when the sample rate changes.
        let is_over = second % 3 == 0;
        if is_over {
            replica.report_all();
        }
        replica.end_scan(&BTreeSet::new(), &mut |record| listener.hear(record));
        nothing_is_due(&replica);
        assert!(puts_off || replica.len() == listener.living.len());
        assert!(!is_over && puts_off || listener.all == fed);
        listener.compare(&replica);
        let mut all = unreported_for_a_successor(&replica);
        all += listener.all;
        assert_eq!(all, fed);
    }
    let living: HashSet<FlowKey> = listener.living.keys().copied().collect();
    let mut forced = HashSet::new();
    replica.finish(&mut |record| {
        listener.hear(record);
        forced.insert(record.key);
    });
    assert!(forced == living || puts_off && forced.is_superset(&living));
    assert!(replica.is_empty() && listener.living.is_empty());
    assert_eq!(listener.all, fed);
    replica.evicted()
}

fn any_flags() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(ACK), 1 => Just(SYN), 1 => Just(FIN), 1 => Just(RST)]
}

fn scans<F: Strategy<Value = u8>>(
    keys: u32,
    ops: usize,
    flags: impl Fn() -> F,
) -> impl Strategy<Value = Vec<Vec<Op>>> {
    let op = (
        0..keys,
        0u64..20,
        [flags(), flags()],
        [0u64..1000, 0u64..1000],
    );
    prop::collection::vec(prop::collection::vec(op, 0..ops), 1..12)
}

proptest! {
    #[test]
    fn no_packet_is_lost_or_told_twice_and_every_flow_ends_once(
        max_flows in 1usize..8, scans in scans(10, 12, any_flags),
    ) {
        play(max_flows, &scans, 0);
    }

    #[test]
    fn what_is_put_off_is_told_once_later_or_with_the_end(
        max_flows in 1usize..8, scans in scans(10, 12, any_flags), report_seconds in 1u64..40,
    ) {
        play(max_flows, &scans, report_seconds);
    }

    #[test]
    fn the_oldest_leaves_whatever_came_between(
        max_flows in 128usize..400, scans in scans(600, 300, || Just(ACK)),
    ) {
        play(max_flows, &scans, 0);
    }
}

/// Flow, side, seconds before the scan, flags and packets in both directions.
type SidedOp = (u32, u8, u64, [u8; 2], [u64; 2]);

/// Packets by flow, direction of the key and hook.
type Sums = HashMap<(FlowKey, u8, Direction), u64>;

fn add_to(sums: &mut Sums, key: &FlowKey, direction: u8, hook: Direction, packets: u64) {
    if packets != 0 {
        *sums.entry((key.with_side(0), direction, hook)).or_default() += packets;
    }
}

/// Plays scans, and checks for each hook that the records report the packets seen there.
fn play_sides(max_flows: usize, scans: &[Vec<SidedOp>], report_seconds: u64) {
    let mut replica = replica(max_flows);
    replica.report_every(Duration::from_secs(report_seconds));
    let mut listener = Listener {
        puts_off: report_seconds != 0,
        ..Listener::default()
    };
    let (mut fed, mut told) = (Sums::new(), Sums::new());
    let mut hear = |record: &Record| {
        listener.hear(record);
        let initiator = record.initiator;
        let halves = [initiator, 1 - initiator]
            .into_iter()
            .zip(directions(record));
        for ((direction, hook), delta) in halves.zip(record.delta()) {
            add_to(&mut told, &record.key, direction, hook, delta.packets);
        }
    };
    for (second, ops) in (20..).step_by(7).zip(scans) {
        replica.begin_scan(clock(second));
        let mut page = (Vec::new(), Vec::new());
        for &(number, side, ago, [a_to_b, b_to_a], packets) in ops {
            let mut counted = counters(second - ago, &[], &[]);
            counted.packets = packets;
            counted.bytes = packets.map(|packets| packets * 100);
            for (direction, segment) in [a_to_b, b_to_a].into_iter().enumerate() {
                if packets[direction] != 0 {
                    let segment = FlowBits::segment(direction as u8, segment);
                    counted.bits = counted.bits.and(segment);
                }
            }
            began(&mut counted, u8::from(packets[0] == 0), 0);
            for direction in [0, 1] {
                let hook = Direction::from_bit(direction ^ side);
                let seen = packets[usize::from(direction)];
                add_to(&mut fed, &key(number), direction, hook, seen);
            }
            page.0.push(key(number).with_side(side));
            page.1.push(counted);
        }
        replica.update(&page.0, &page.1, &mut hear);
        assert!(replica.len() <= max_flows);
        replica.end_scan(&BTreeSet::new(), &mut hear);
        nothing_is_due(&replica);
    }
    replica.finish(&mut hear);
    assert!(replica.is_empty() && listener.living.is_empty());
    assert_eq!(told, fed);
}

proptest! {
    #[test]
    fn every_packet_is_told_once_at_its_side_whatever_comes_when(
        max_flows in 1usize..6,
        report_seconds in prop_oneof![Just(0), 1u64..40],
        scans in {
            let packets = prop_oneof![
                3 => (1u64..100).prop_map(|packets| [packets, 0]),
                3 => (1u64..100).prop_map(|packets| [0, packets]),
                1 => [1u64..100, 1u64..100],
            ];
            let op = (0..4u32, 0..2u8, 0..20u64, [any_flags(), any_flags()], packets);
            prop::collection::vec(prop::collection::vec(op, 0..10), 1..12)
        },
    ) {
        play_sides(max_flows, &scans, report_seconds);
    }
}
