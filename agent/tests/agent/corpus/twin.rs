//! Compares what a program in the kernel counted for a frame with what the parser on the host says.

use std::collections::BTreeMap;

use agent_common::{FlowCounters, FlowKey, Pair, Reason, tunnel::outcome};
use corpus::{Meaning, Parsed, RawFrame};

use super::programs::{Counted, Hook, IFINDEX, NotRun, Programs, is_short_skb, netns};

/// An Ethernet frame on the wire has at least 60 bytes, without FCS.
const MIN_FRAME_LEN: u64 = 60;

/// Checks what the kernel counted for a frame; the error says what is wrong.
pub fn compare(expected: &Parsed, frame: &RawFrame, counted: &Counted) -> Result<(), String> {
    let had = Pair {
        packets: 1,
        bytes: frame.bytes.len() as u64,
    };
    let jumbo_len_bytes = expected.map_or(0, |meaning| meaning.packet.jumbo_len_bytes);
    let skb_len_bytes = had.bytes - u64::from(jumbo_len_bytes);
    // As many segments as the skb said, or one frame.
    let packets = u64::from(counted.segments).max(1);
    let repeated_len_bytes = repeated_len_bytes(expected, had.bytes);
    let wire = Pair {
        packets,
        bytes: skb_len_bytes + (packets - 1) * repeated_len_bytes.unwrap_or(0),
    };
    let sums: BTreeMap<Reason, Pair> = Reason::ALL
        .iter()
        .map(|&reason| (reason, counted.account.get(reason)))
        .filter(|(_, pair)| *pair != Pair::default())
        .collect();
    let placed = expected.err().unwrap_or(Reason::Flows);
    let mut expected_sums = BTreeMap::from([(Reason::Seen, wire), (placed, wire)]);
    if skb_len_bytes < MIN_FRAME_LEN {
        let bytes = MIN_FRAME_LEN - skb_len_bytes;
        expected_sums.insert(Reason::Short, Pair { packets: 1, bytes });
    }
    if frame.is_super_frame {
        expected_sums.extend([
            (Reason::SuperFrames, had),
            (Reason::SuperFrameSegments, wire),
        ]);
        if repeated_len_bytes.is_none() {
            expected_sums.insert(Reason::Inexact, wire);
        }
    }
    if let Ok(meaning) = expected {
        expected_sums.extend(facts(meaning).map(|fact| (fact, wire)));
    }
    if sums != expected_sums {
        return Err(format!("the account has {sums:?}, not {expected_sums:?}"));
    }
    let Ok(Meaning { packet, outer, .. }) = expected else {
        return (counted.flows.is_empty() && counted.outers.is_empty())
            .then_some(())
            .ok_or_else(|| format!("the page has {:?}", counted.flows));
    };
    let mut key = packet.key;
    (key.netns, key.ifindex) = (netns(), IFINDEX);
    key.set_side(packet.direction, counted.hook.account() as u8);
    let outers: Vec<_> = outer.iter().map(|&outer| (key, outer)).collect();
    let found = counted
        .outers
        .iter()
        .map(|&(key, outer)| (without_name(key), outer));
    let found: Vec<_> = found.collect();
    if found != outers {
        return Err(format!(
            "the tunnels' endpoints are {found:?}, not {outers:?}"
        ));
    }
    let ip_start_bytes = u64::from(packet.ip_start_bytes);
    let ip_bytes = if frame.is_super_frame {
        // The headers before each IP packet are on the wire as often as they are known to be repeated.
        let link_headers = repeated_len_bytes.map_or(1, |_| packets);
        wire.bytes - link_headers * ip_start_bytes
    } else {
        u64::from(packet.ip_end_bytes) - ip_start_bytes
    };
    let direction = usize::from(packet.direction);
    let as_expected = |(found, counters): &(FlowKey, FlowCounters)| {
        let mut both = [Pair::default(); 2];
        both[direction] = wire;
        let (mut ip, mut flags) = ([0; 2], [0; 2]);
        (ip[direction], flags[direction]) = (ip_bytes, packet.tcp_flags);
        without_name(*found) == key
            && counters.packets == both.map(|pair| pair.packets)
            && counters.bytes == both.map(|pair| pair.bytes)
            && counters.ip_bytes == ip
            && [0, 1].map(|at: usize| counters.bits.tcp_flags(at)) == flags
            && counters.bits.first_direction() == packet.initiator
            && counters.classes.dscp(packet.direction) == Some(packet.dscp)
    };
    match &counted.flows[..] {
        [flow] if as_expected(flow) => Ok(()),
        flows => Err(format!("the page has {flows:?}, not {key:?} of {packet:?}")),
    }
}

/// The length of the headers that each segment repeats, where the packet itself shows it. The skbs of
/// `BPF_PROG_TEST_RUN` have no GSO type that would.
fn repeated_len_bytes(expected: &Parsed, len_bytes: u64) -> Option<u64> {
    let Ok(meaning) = expected else {
        return None;
    };
    let packet = &meaning.packet;
    let is_opened = meaning.outcome & outcome::DECAPSULATED != 0;
    let header_len = u64::from(packet.segment_header_len_bytes);
    let is_known =
        packet.tells_what_repeats(is_opened) && header_len != 0 && header_len <= len_bytes;
    // Segments are without the hop-by-hop header of a jumbogram.
    is_known.then(|| header_len - u64::from(packet.jumbo_len_bytes))
}

/// The key without the hash for a missing tunnel number, as in the corpus.
fn without_name(mut key: FlowKey) -> FlowKey {
    corpus::unnamed(&mut key);
    key
}

/// What the account must have beside the sum. No fragment finds the first one of its datagram.
fn facts(meaning: &Meaning) -> impl Iterator<Item = Reason> {
    let is = |bit| meaning.outcome & bit != 0;
    [
        (meaning.packet.part.is_later(), Reason::FragmentsUnmatched),
        (is(outcome::DECAPSULATED), Reason::Decapsulated),
        (is(outcome::UNOPENED), Reason::TunnelsUnopened),
        (is(outcome::DEEPER), Reason::TunnelDepth),
    ]
    .into_iter()
    .filter_map(|(holds, fact)| holds.then_some(fact))
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
    // Headers that are repeated for several segments are absent for one.
    let segments: &[u32] = if frame.is_super_frame { &[1, 3] } else { &[0] };
    for &segments in segments {
        match programs.run(name, hook, frame, segments) {
            Ok(counted) => compare(expected, frame, &counted),
            Err(error)
                if hook.takes_skbs()
                    && is_short_skb(&frame.bytes)
                    && error.raw_os_error() == Some(libc::EINVAL) =>
            {
                return Ok(Some(NotRun::ShortSkb));
            }
            Err(error) => Err(error.to_string()),
        }
        .map_err(|error| format!("{name}, {segments} segments: {error}"))?;
    }
    Ok(None)
}
