//! One program in the kernel against the parser on the host: a frame and what the parser says of it come
//! in, what the kernel counted otherwise goes out.

use std::collections::BTreeMap;

use agent_common::{FlowCounters, FlowKey, Pair, Reason};
use corpus::{Parsed, RawFrame};

use crate::programs::{Counted, Hook, IFINDEX, NETNS, NotRun, Programs, is_short_skb};

/// What is wrong with what the kernel counted for a frame of `len` bytes, if anything.
pub fn compare(expected: &Parsed, len: usize, counted: &Counted) -> Result<(), String> {
    let one = Pair {
        packets: 1,
        bytes: len as u64,
    };
    let placed = expected.err().unwrap_or(Reason::Flows);
    let sums: BTreeMap<Reason, Pair> = Reason::ALL
        .iter()
        .filter(|reason| !Reason::BESIDE.contains(reason))
        .map(|&reason| (reason, counted.account.get(reason)))
        .filter(|(_, pair)| *pair != Pair::default())
        .collect();
    if sums != BTreeMap::from([(Reason::Seen, one), (placed, one)]) {
        return Err(format!("the account has {sums:?}"));
    }
    let Ok(packet) = expected else {
        return counted
            .flows
            .is_empty()
            .then_some(())
            .ok_or_else(|| format!("the page has {:?}", counted.flows));
    };
    let mut key = packet.key;
    (key.netns, key.ifindex) = (NETNS, IFINDEX);
    let direction = usize::from(packet.direction);
    let as_expected = |(found, counters): &(FlowKey, FlowCounters)| {
        let mut both = [Pair::default(); 2];
        both[direction] = one;
        let mut flags = [0; 2];
        flags[direction] = packet.tcp_flags;
        *found == key
            && counters.packets == both.map(|pair| pair.packets)
            && counters.bytes == both.map(|pair| pair.bytes)
            && [0, 1].map(|at: usize| counters.tcp_flags[at].union()) == flags
            && counters.first_direction == packet.initiator
            && counters.dscp == packet.dscp
    };
    match &counted.flows[..] {
        [flow] if as_expected(flow) => Ok(()),
        flows => Err(format!("the page has {flows:?}, not {key:?} of {packet:?}")),
    }
}

/// Runs a program on a frame and compares; the error says what is wrong.
pub fn run_and_compare(
    programs: &mut Programs,
    (name, hook): (&str, Hook),
    frame: &RawFrame,
    expected: &Parsed,
) -> Result<Option<NotRun>, String> {
    if let Some(reason) = hook.refuses(frame) {
        return Ok(Some(reason));
    }
    match programs.run(name, hook, &frame.bytes) {
        Ok(counted) => compare(expected, frame.bytes.len(), &counted).map(|()| None),
        Err(error)
            if hook.takes_skbs()
                && is_short_skb(&frame.bytes)
                && error.raw_os_error() == Some(libc::EINVAL) =>
        {
            Ok(Some(NotRun::ShortSkb))
        }
        Err(error) => Err(error.to_string()),
    }
    .map_err(|error| format!("{name}: {error}"))
}
