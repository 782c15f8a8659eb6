//! Tests our parser on the host against the corpus and against the second parser.

use std::collections::{BTreeMap, BTreeSet};

use agent_common::{Encapsulation, LinkType, Packet, Reason, parse, parse_all};
use corpus::{Difference, RawFrame, check, entries, mutation};
use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngSeed, TestCaseError, TestRunner},
};

/// The frames of the corpus on which the two parsers differ. [`Difference::reason`] says why.
const DIFFERENCES: &[(Difference, &[&str])] = &[
    (
        Difference::VersionAgainstEtherType,
        &[
            "ipv4_version_6",
            "ipv4_version_6_and_no_ipv6_either",
            "ipv6_version_4",
            "ipv6_version_4_shorter_than_ipv6",
            "pppoe_ipv4_that_is_version_6",
        ],
    ),
    (Difference::Macsec, &["macsec"]),
    (Difference::OneByte, &["bare_one_byte_of_ipv6"]),
    (
        Difference::FirstOfTwoFaults,
        &["ipv4_cut_and_ihl_4", "ipv4_options_cut_and_total_length_21"],
    ),
    (Difference::Ipv4Authentication, &["ah_over_ipv4"]),
    (
        Difference::HopByHopNotFirst,
        &[
            "hop_by_hop_behind_another",
            "ipv6_of_zeros_behind_version",
            "two_hop_by_hop_headers",
        ],
    ),
    (Difference::TcpOptionsCut, &["tcp_options_past_the_packet"]),
    (Difference::TimestampLength, &["icmp_timestamp_of_8_bytes"]),
    (
        Difference::InsideATunnel,
        &["vxlan_inner_version_against_ether_type_opened"],
    ),
];

#[test]
fn every_frame_gives_what_its_entry_says() {
    let wrong: Vec<String> = entries()
        .unwrap()
        .into_iter()
        .filter(|entry| entry.frame.parse() != entry.expected)
        .map(|entry| {
            let ours = check::found(&entry.frame, &entry.frame.parse());
            format!("{entry}but our parser says\n\n{ours}")
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{} frames\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn the_second_parser_reads_every_frame_alike_or_for_a_reason_otherwise() {
    let mut differences: BTreeMap<Difference, BTreeSet<String>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for entry in entries().unwrap() {
        match check::check(&entry.frame) {
            Ok(None) => {}
            Ok(Some(difference)) => {
                differences
                    .entry(difference)
                    .or_default()
                    .insert(entry.name);
            }
            Err(error) => wrong.push(format!("{}: {error}", entry.name)),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} frames\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    let stated = DIFFERENCES
        .iter()
        .map(|(difference, names)| {
            (
                *difference,
                names.iter().map(|&name| name.to_owned()).collect(),
            )
        })
        .collect();
    assert_eq!(differences, stated);
}

/// The programs call `parse` first, and `parse_all` if `parse` finds no IP.
#[test]
fn only_rare_headers_are_left_to_the_second_entry_of_the_parser() {
    let mut left = 0;
    for entry in entries().unwrap() {
        let frame = entry.frame;
        let read = |all: bool| {
            let mut packet = Packet::default();
            let (bytes, packet_read) = (&&*frame.bytes, &mut packet);
            if all {
                parse_all(bytes, frame.link_type, frame.tag, packet_read)
            } else {
                parse(bytes, frame.link_type, frame.tag, packet_read)
            }
            .map(|()| packet)
        };
        let uplinks = [Encapsulation::Pppoe, Encapsulation::Mpls].map(|kind| kind as u8);
        let (first, second) = (read(false), read(true));
        let is_left = match second {
            Ok(packet) => {
                uplinks.contains(&packet.key.encapsulation)
                    || packet.key.ip_version == 6 && has_extension(&frame)
            }
            Err(reason) => first != Err(reason),
        };
        if is_left {
            let reason = first.expect_err(&entry.name);
            assert_eq!(reason, Reason::NotIp, "{}", entry.name);
            left += 1;
        } else {
            assert_eq!(first, second, "{}", entry.name);
        }
    }
    assert!(left > 100, "{left}");
}

/// Whether an extension header follows the IPv6 header, after an Ethernet header with or without tags.
fn has_extension(frame: &RawFrame) -> bool {
    let mut ip = 0;
    if frame.link_type == LinkType::Ethernet {
        ip = 14;
        while matches!(frame.bytes[ip - 2..ip], [0x81 | 0x91, 0x00] | [0x88, 0xa8]) {
            ip += 4;
        }
    }
    matches!(frame.bytes[ip + 6], 0 | 43 | 44 | 51 | 60)
}

#[test]
fn every_difference_is_shown_by_a_frame() {
    let shown: Vec<Difference> = DIFFERENCES
        .iter()
        .map(|(difference, _)| *difference)
        .collect();
    assert_eq!(shown, Difference::ALL);
}

#[test]
fn every_reason_is_shown_by_a_frame() {
    let shown: BTreeSet<Reason> = entries()
        .unwrap()
        .into_iter()
        .filter_map(|entry| entry.expected.err())
        .collect();
    // A frame cannot cause that reason.
    let is_the_parsers = |reason: &Reason| *reason != Reason::UnknownInterface;
    let parsers = Reason::UNPARSED.iter().copied().filter(is_the_parsers);
    assert_eq!(shown, parsers.collect());
}

/// Generates the same frames in every run unless `PROPTEST_CASES` or `PROPTEST_RNG_SEED` is set.
fn runner(cases: u32) -> TestRunner {
    let asked = Config::default();
    let is_asked = |name| std::env::var_os(name).is_some();
    TestRunner::new(Config {
        cases: if is_asked("PROPTEST_CASES") {
            asked.cases
        } else {
            cases
        },
        rng_seed: if is_asked("PROPTEST_RNG_SEED") {
            asked.rng_seed
        } else {
            RngSeed::Fixed(1)
        },
        failure_persistence: None,
        ..asked
    })
}

fn both_parsers_agree_on(frames: &impl Strategy<Value = RawFrame>, cases: u32) {
    let result = runner(cases).run(frames, |frame| {
        check::check(&frame).map_err(TestCaseError::fail)?;
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn both_parsers_agree_on_mutated_frames() {
    let entries = entries().unwrap();
    both_parsers_agree_on(&mutation::mutated(&entries), 50_000);
}

#[test]
fn both_parsers_agree_on_any_bytes() {
    both_parsers_agree_on(&mutation::arbitrary(), 50_000);
}
