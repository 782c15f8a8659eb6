//! Names of the ends of flows: fixed when the flow begins, for as long as it lives.

use enrich::dns::Dns;
use proto::NameSource;

use super::*;

const NET: u32 = 7;

/// The flow's end a is 10.0.0.N, and b 255.0.0.0.
fn named_key(number: u8) -> FlowKey {
    FlowKey {
        netns: NET,
        ..key(u32::from_be_bytes([10, 0, 0, number]))
    }
}

/// The destination's name and how it was learned, and whether the source has a name.
fn names(records: &[Record]) -> Vec<(Option<(u64, NameSource)>, bool)> {
    let of = |record: &Record| {
        let [source, destination] = record.names();
        let destination = destination;
        (destination, source.is_some())
    };
    records.iter().map(of).collect()
}

#[test]
fn a_flow_keeps_the_name_that_it_began_with_and_the_next_one_has_its_own() {
    let dns = Dns::of_these(NET, &[("a", "10.0.0.1", "255.0.0.0", 1)]);
    let mut replica = replica(8).naming(Some(dns.clone()));
    let flow = named_key(1);
    let ended = counters(2, &[FIN | ACK], &[FIN | ACK]);
    let mut at = |second, counters| names(&scan_keys(&mut replica, second, &[(flow, counters)]));
    let a = (Some((1, NameSource::Dns)), false);
    assert_eq!(at(1, counters(1, &[SYN], &[SYN | ACK])), [a]);
    dns.learn_these(NET, &[("b", "10.0.0.1", "255.0.0.0", 2 * SECOND)]);
    assert_eq!(at(2, ended), [a]);
    // The same ports again: the flow ends, and another begins.
    let b = (Some((2, NameSource::Dns)), false);
    assert_eq!(at(3, counters(3, &[SYN], &[])), [a, b]);
}

/// The batches of a scan are complete only when the scan is.
#[test]
fn the_name_of_a_flow_that_ends_can_be_told_until_the_scan_is_over() {
    let dns = Dns::of_these_at_most(2, NET, &[("a", "10.0.0.1", "255.0.0.0", 1)]);
    let mut replica = replica(1).naming(Some(dns.clone()));
    let mut at = |number, second| {
        let flow = (named_key(number), counters(second, &[ACK], &[ACK]));
        let records = names(&scan_keys(&mut replica, second, &[flow]));
        let ids = records.into_iter().filter_map(|(name, _)| Some(name?.0));
        let mut told = Vec::new();
        dns.tell(ids, |_, name| told.push(name.to_owned()));
        told
    };
    assert_eq!(at(1, 1), ["a"]);
    // No address has the name any more.
    for host in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        dns.learn_these(NET, &[("b", "10.0.0.1", host, 1)]);
    }
    // The flow is evicted for another one.
    assert_eq!(at(2, 2), ["a"]);
}

#[test]
fn a_flow_that_has_ended_holds_no_name() {
    let dns = Dns::of_these_at_most(2, NET, &[("a", "10.0.0.1", "255.0.0.0", 1)]);
    let mut replica = replica(8).naming(Some(dns.clone()));
    let flow = |number, second| (named_key(number), counters(second, &[ACK], &[ACK]));
    // A flow that stays, in a slot after it.
    scan_keys(&mut replica, 1, &[flow(1, 1), flow(2, 1)]);
    for host in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        dns.learn_these(NET, &[("b", "10.0.0.3", host, 1)]);
    }
    assert_eq!(dns.names_in_use(), 3);
    for second in [20, 40, 60, 61] {
        scan_keys(&mut replica, second, &[flow(3, second)]);
    }
    assert_eq!(replica.len(), 1);
    assert_eq!(dns.names_in_use(), 2);
}

#[test]
fn the_name_is_that_of_its_end_whoever_began() {
    let dns = Dns::of_these(NET, &[("a", "10.0.0.1", "255.0.0.0", 1)]);
    let mut replica = replica(8).naming(Some(dns));
    let mut answers = counters(1, &[], &[ACK]);
    began(&mut answers, 1, 0);
    let records = scan_keys(&mut replica, 1, &[(named_key(1), answers)]);
    let [source, destination] = records[0].names();
    assert_eq!(source.map(|(_, source)| source), Some(NameSource::Dns));
    assert_eq!(destination, None);
}

#[test]
fn a_slot_that_is_used_again_has_no_name_of_the_flow_before() {
    let dns = Dns::of_these(NET, &[("a", "10.0.0.1", "255.0.0.0", 1)]);
    let mut replica = replica(1).naming(Some(dns));
    let mut at = |number, second| {
        let flow = (named_key(number), counters(second, &[ACK], &[ACK]));
        names(&scan_keys(&mut replica, second, &[flow]))
    };
    let a = (Some((1, NameSource::Dns)), false);
    assert_eq!(at(1, 1), [a]);
    // The first flow is evicted.
    let of_another = (Some((1, NameSource::DnsOfAnother)), false);
    assert_eq!(at(2, 2), [a, of_another]);
    let elsewhere = FlowKey {
        netns: NET + 1,
        ..named_key(1)
    };
    let flow = (elsewhere, counters(3, &[ACK], &[ACK]));
    let records = names(&scan_keys(&mut replica, 3, &[flow]));
    assert_eq!(records, [of_another, (None, false)]);
}
