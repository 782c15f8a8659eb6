//! Names of the ends of flows: fixed when the flow begins, for as long as it lives.

use std::sync::{
    Mutex, Weak,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use proto::NameSource;

use super::*;
use crate::names::{Directory, EndName, HostName};

const NET: u32 = 7;
const CLIENT: [u8; 4] = [10, 0, 0, 1];

/// Knows the names of 255.0.0.0 that [`CLIENT`] asked for.
#[derive(Default)]
struct OneHost {
    /// With the time from which it has this name.
    names: Mutex<Vec<(u64, Arc<HostName>)>>,
    issued: Mutex<Vec<Weak<HostName>>>,
    in_use: Arc<AtomicUsize>,
}

impl OneHost {
    fn called(name: &str) -> Arc<Self> {
        let host = Self::default();
        host.learn(name, 1);
        Arc::new(host)
    }

    fn learn(&self, name: &str, at_ns: u64) {
        let mut issued = self.issued.lock().unwrap();
        let name = Arc::new(HostName::new(issued.len() as u64 + 1, name, &self.in_use));
        issued.push(Arc::downgrade(&name));
        self.names.lock().unwrap().push((at_ns, name));
    }

    fn forget(&self) {
        self.names.lock().unwrap().clear();
    }

    fn in_use(&self) -> usize {
        self.in_use.load(Relaxed)
    }
}

impl Hosts for OneHost {
    fn ends(&self, key: &FlowKey, began_ns: u64) -> [Option<EndName>; 2] {
        let names = self.names.lock().unwrap();
        let known = names.iter().rfind(|(from_ns, _)| *from_ns <= began_ns);
        let source = if key.addr_a.starts_with(&CLIENT) {
            NameSource::Dns
        } else {
            NameSource::DnsOfAnother
        };
        let name = known.filter(|_| key.netns == NET);
        [None, name.map(|(_, name)| EndName::new(name, source))]
    }
}

/// It knows nothing about a name that nobody holds.
impl Directory<proto::HostName> for OneHost {
    fn lookup(&self, ids: &[u64], each: &mut dyn FnMut(&proto::HostName)) {
        let issued = self.issued.lock().unwrap();
        for name in ids
            .iter()
            .filter_map(|id| issued[*id as usize - 1].upgrade())
        {
            each(&proto::HostName {
                id: name.id,
                name: name.text.to_string(),
            });
        }
    }
}

/// Room for this many flows, whose ends `host` names.
fn naming(max_flows: usize, host: &Arc<OneHost>) -> Replica {
    let mut replica = replica(max_flows);
    replica.name_hosts(Arc::clone(host) as Arc<dyn Hosts>);
    replica
}

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
        (destination, source.is_some())
    };
    records.iter().map(of).collect()
}

#[test]
fn a_flow_keeps_the_name_that_it_began_with_and_the_next_one_has_its_own() {
    let host = OneHost::called("a");
    let mut replica = naming(8, &host);
    let flow = named_key(1);
    let ended = counters(2, &[FIN | ACK], &[FIN | ACK]);
    let mut at = |second, counters| names(&scan_keys(&mut replica, second, &[(flow, counters)]));
    let a = (Some((1, NameSource::Dns)), false);
    assert_eq!(at(1, counters(1, &[SYN], &[SYN | ACK])), [a]);
    host.learn("b", 2 * SECOND);
    assert_eq!(at(2, ended), [a]);
    // The same ports again: the flow ends, and another begins.
    let b = (Some((2, NameSource::Dns)), false);
    assert_eq!(at(3, counters(3, &[SYN], &[])), [a, b]);
}

/// The batches of a scan are complete only when the scan is.
#[test]
fn the_name_of_a_flow_that_ends_can_be_told_until_the_scan_is_over() {
    let host = OneHost::called("a");
    let mut replica = naming(1, &host);
    let mut at = |number, second| {
        let flow = (named_key(number), counters(second, &[ACK], &[ACK]));
        let records = names(&scan_keys(&mut replica, second, &[flow]));
        let ids = records.into_iter().filter_map(|(name, _)| Some(name?.0));
        let mut told = Vec::new();
        host.lookup(&ids.collect::<Vec<_>>(), &mut |host| {
            told.push(host.name.clone());
        });
        told
    };
    assert_eq!(at(1, 1), ["a"]);
    host.forget();
    // The flow is evicted for another one.
    assert_eq!(at(2, 2), ["a"]);
}

#[test]
fn a_flow_that_has_ended_holds_no_name() {
    let host = OneHost::called("a");
    let mut replica = naming(8, &host);
    let flow = |number, second| (named_key(number), counters(second, &[ACK], &[ACK]));
    // A flow that stays, in a slot after it.
    scan_keys(&mut replica, 1, &[flow(1, 1), flow(2, 1)]);
    host.forget();
    assert_eq!(host.in_use(), 1);
    for second in [20, 40, 60, 61] {
        scan_keys(&mut replica, second, &[flow(3, second)]);
    }
    assert_eq!(replica.len(), 1);
    assert_eq!(host.in_use(), 0);
}

#[test]
fn the_name_is_that_of_its_end_whoever_began() {
    let mut replica = naming(8, &OneHost::called("a"));
    let mut answers = counters(1, &[], &[ACK]);
    began(&mut answers, 1, 0);
    let records = scan_keys(&mut replica, 1, &[(named_key(1), answers)]);
    let [source, destination] = records[0].names();
    assert_eq!(source.map(|(_, source)| source), Some(NameSource::Dns));
    assert_eq!(destination, None);
}

#[test]
fn a_slot_that_is_used_again_has_no_name_of_the_flow_before() {
    let mut replica = naming(1, &OneHost::called("a"));
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
