//! The texts for users about rules: explanations, faults, and the deciding rule of a packet.

use agent_common::L4Kind;

use super::*;

fn fault(text: &str) -> String {
    text.parse::<Rules>().unwrap_err().to_string()
}

#[test]
fn rules_are_read_in_any_order_of_terms_and_shown_in_one() {
    let cases = [
        ("exclude net 10.0.0.0/8", "exclude net 10.0.0.0/8"),
        (
            "include dst port 443 proto TCP src net 2001:db8::/32",
            "include src net 2001:db8::/32 dst port 443 proto tcp",
        ),
        (
            "  exclude\tport 1024-65535,53 proto 17 on eth0 ingress ; ",
            "exclude port 1024-65535,53 proto udp on eth0 ingress",
        ),
        ("exclude net 192.0.2.1", "exclude net 192.0.2.1/32"),
        ("exclude all", "exclude all"),
        (
            "exclude TCP,17 10.0.0.0/8 port https,DNS",
            "exclude net 10.0.0.0/8 port 443,53 proto tcp,udp",
        ),
        (
            "include dst fd00::1 src host 10.0.0.1",
            "include src net 10.0.0.1/32 dst net fd00::1/128",
        ),
        (
            "exclude host Example.com,192.0.2.1",
            "exclude host example.com,192.0.2.1",
        ),
    ];
    for (text, shown) in cases {
        let rules = rules(text);
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].to_string(), shown);
    }
    assert_eq!(rules("include net ::/0; exclude all").len(), 2);
    assert!(rules("").is_empty());
    let several = ["port 443", "exclude 10.0.0.1", " ", "host a.example; udp"];
    let several = several.map(|text| text.parse().unwrap());
    assert_eq!(
        text(&several),
        "exclude net 10.0.0.1/32; include port 443; include host a.example; include proto udp; exclude all"
    );
    let typed = typed(&several);
    assert_eq!(typed, "port 443; exclude 10.0.0.1; host a.example; udp");
    assert_eq!(text(&[typed.parse().unwrap()]), text(&several));
}

#[test]
fn a_fault_has_the_line_that_was_meant() {
    let meant = |text: &str| {
        let fault = text.parse::<Rules>().unwrap_err();
        fault.corrected().map(str::to_owned)
    };
    for (text, line) in [
        ("drop all", "exclude all"),
        ("exclde net 10.0.0.0/8", "exclude net 10.0.0.0/8"),
        ("exclude nets 10.1.2.3/8", "exclude net 10.0.0.0/8"),
        ("Port 443", "port 443"),
        ("443", "port 443"),
        ("https", "port https"),
        ("port htps", "port https"),
        ("port 443/tcp", "port 443 tcp"),
        ("443/tcp", "port 443 tcp"),
        ("port 90-80", "port 80-90"),
        ("port 80, 443", "port 80,443"),
        ("port 80 ,443", "port 80,443"),
        ("port 80 443 tcp", "port 80,443 tcp"),
        ("port 80,,443", "port 80,443"),
        ("tcp, port 443", "tcp port 443"),
        ("tcp udp", "tcp,udp"),
        ("proto tpc", "proto tcp"),
        ("tpc port 443", "tcp port 443"),
        ("port 1 proto tcp port 2", "port 1,2 proto tcp"),
        ("10.0.0.1:443", "host 10.0.0.1 port 443"),
        ("host [::1]:53 udp", "host ::1 port 53 udp"),
        ("host 10.0.0.0/8", "net 10.0.0.0/8"),
        ("net example.com", "host example.com"),
        ("exclude example.com", "exclude host example.com"),
        ("host ~example.com", "host example.com"),
        ("10.0.0.1,example.com", "host 10.0.0.1,example.com"),
        ("src port https or port 22", "src port https; port 22"),
        (
            "exclude port 80 or port 443",
            "exclude port 80; exclude port 443",
        ),
        ("tcp and port 443", "tcp port 443"),
        ("not port 22", "exclude port 22"),
        ("tcp and not port 22", "exclude port 22; tcp"),
        (
            "exclude udp include port 53",
            "exclude udp; include port 53",
        ),
        ("port=443 proto==tcp", "port 443 proto tcp"),
        ("dport 443 in", "dst port 443 ingress"),
        ("eth0", "on eth0"),
        ("only ipv6", "net ::/0"),
        ("  exclude all tcp ; udp", "exclude tcp ; udp"),
        ("port 1 ingress egress", "port 1"),
    ] {
        assert_eq!(meant(text).as_deref(), Some(line), "{text}");
    }
    let long = format!("exclde net {}10.0.0.1", "10.0.0.1,".repeat(100));
    assert_eq!(meant(&long), None);
    assert_eq!(
        fault("  prot tcp"),
        "no term begins like this; expected src, dst, net, host, port, proto, on, ingress, egress, all, an address or \
         a protocol\n    prot tcp\n    ^^^^\n  did you mean: proto tcp"
    );
}

#[test]
fn joined_and_negated_terms_become_rules_that_mean_the_same() {
    for (text, line) in [
        ("tcp:443", "port 443 tcp"),
        ("src port 80 or 443", "src port 80,443"),
        ("port 80 or", "port 80"),
        ("!tcp", "exclude tcp"),
        ("not 22", "exclude port 22"),
        ("tcp except port 22", "exclude port 22; tcp"),
        ("example.com.", "host example.com."),
        ("src 10.0.0.1:443", "src host 10.0.0.1 src port 443"),
        (
            "host 10.0.0.1 and host 10.0.0.2",
            "src host 10.0.0.1 dst host 10.0.0.2; src host 10.0.0.2 dst host 10.0.0.1",
        ),
        (
            "exclude 10.0.0.1 and 10.0.0.2 and udp",
            "exclude src 10.0.0.1 dst 10.0.0.2 udp; exclude src 10.0.0.2 dst 10.0.0.1 udp",
        ),
        (
            "host a.example and b.example",
            "src host a.example dst host b.example; src host b.example dst host a.example",
        ),
    ] {
        let fault = text.parse::<Rules>().unwrap_err();
        assert_eq!(fault.corrected(), Some(line), "{text}");
    }
}

#[test]
fn where_it_is_uncertain_what_was_meant_nothing_is_suggested() {
    for text in [
        "exclude src",
        "net 10.0.0.0/33",
        "exclude ☃",
        "port 70000",
        // An action is not completed, and one of two is not chosen.
        "exclude",
        "include",
        "tcp exclude",
        "exclude exclude tcp",
        "include exclude tcp",
        "not exclude tcp",
        "10.0.0.1 10.0.0.2",
        "net 10.0.0.0/8 net 192.0.2.1",
        // Each word is a term of other languages, or nothing.
        "less 100",
        "greater 100",
        "vlan 10",
        "broadcast",
        "ether",
        "arp",
        "port tcp",
        "port udp",
        "port ssl",
        "tcp&&udp",
        "ip and tcp",
        "ip host 10.0.0.1",
        "or tcp",
        "src or dst port 22",
        "src and dst port 22",
        "(tcp or udp) port 80",
        "tcp[13]",
        "port != 22",
        "port >80",
        // No rule can negate a part.
        "exclude !tcp",
        "proto !tcp",
        "proto not tcp",
        "~tcp",
        "-tcp",
        "proto ~tcp",
        "port not 22",
        "port !22",
        "tcp not",
        "port 22 !",
        "not all",
        "not",
        "exclude tcp except port 22",
        "tcp; not port 22",
    ] {
        let fault = text.parse::<Rules>().unwrap_err();
        assert_eq!(fault.corrected(), None, "{text}");
    }
}

#[test]
fn rules_for_packets_name_no_hosts_and_say_what_does() {
    for text in [
        "host example.com",
        "exclude src host 10.0.0.1,*.example.com",
    ] {
        let fault = text.parse::<PacketRules>().unwrap_err();
        assert!(fault.message().contains("give the address"), "{fault}");
        assert!(fault.message().contains("watch"), "{fault}");
        assert_eq!(fault.corrected(), None);
    }
    assert!("host 10.0.0.1,::1".parse::<PacketRules>().is_ok());
    // What cannot be written there is not suggested.
    let fault = "exclude example.com".parse::<PacketRules>().unwrap_err();
    assert_eq!(fault.corrected(), None);
    let named = rules("host example.com");
    assert_eq!(Compiled::check(&named).unwrap_err(), CompileError::Names);
}

#[test]
fn a_fault_points_at_its_place() {
    assert_eq!(
        fault("include all; exclude net 10.0.0.0/8,10.0.0.0/33 ingress"),
        "the prefix length is a number from 0 to 32\n  \
         include all; exclude net 10.0.0.0/8,10.0.0.0/33 ingress\n  \
         \u{20}                                   ^^^^^^^^^^^"
    );
    assert_eq!(
        fault("exclude src"),
        "expected net, host or port here\n  exclude src\n              ^"
    );
    let cases = [
        ("drop all", "^^^^", "no term begins like this"),
        ("exclude", "^", "expected src, dst"),
        (
            "exclude hosts 10.0.0.1",
            "^^^^^",
            "no term begins like this",
        ),
        ("include tcp exclude udp", "^^^^^^^", "with a semicolon"),
        ("host 10.0.0.0/8", "^^^^^^^^^^", "a network follows net"),
        ("tcp,upd", "^^^", "expected a protocol's name"),
        (
            "exclude net 10.1.2.3/8",
            "^^^^^^^^^^",
            "the network is 10.0.0.0/8",
        ),
        (
            "exclude port 70000",
            "^^^^^",
            "a port, a service or a range",
        ),
        ("exclude port 90-80", "^^^^^", "80-90 is not"),
        ("exclude port 80, 90", "^", "a list has no spaces"),
        ("exclude proto tpc", "^^^", "expected a protocol's name"),
        ("exclude on /eth/", "^^^^^", "this has a slash or a space"),
        ("exclude on eth[", "^^^^", "this is not a glob"),
        ("exclude on #1", "^^", "write [#]"),
        ("exclude all net ::/0", "^^^", "stands alone"),
        ("exclude ingress egress", "^^^^^^", "already given"),
        ("exclude port 1 proto tcp port 2", "^^^^", "is given twice"),
        ("exclude net ☃", "^", "a network or an address"),
    ];
    for (text, mark, message) in cases {
        let fault = fault(text);
        assert!(!fault.contains("regex"), "{fault}");
        assert!(fault.contains(message), "{fault}");
        assert_eq!(fault.lines().nth(2).unwrap().trim_start(), mark, "{fault}");
    }
}

#[test]
fn what_decides_nothing_is_told() {
    let explained = explain(&rules(
        "exclude net 10.0.0.0/8; include src net 10.1.0.0/16 proto tcp; exclude port 53; \
         include src net 10.0.0.0/8 dst net ::/0",
    ));
    let noted = |index: usize, note: &str| {
        explained[index]
            .notes
            .iter()
            .any(|known| known.starts_with(note))
    };
    assert!(explained[0].notes.is_empty());
    assert!(noted(1, "never decides: rule 1") && noted(1, "one direction only"));
    assert!(noted(2, "matches no packet without ports") && !noted(2, "never"));
    assert!(noted(3, "never matches: its networks"));
}

#[test]
fn a_rule_for_both_directions_is_not_said_to_be_for_one() {
    let is_one_way = |rule: &str| {
        let explained = explain(&rules(rule));
        let [explained] = &explained[..] else {
            panic!("one rule: {rule}");
        };
        let mut notes = explained.notes.iter();
        notes.any(|note| note.starts_with("one direction only"))
    };
    for both in [
        "exclude src net 10.0.0.0/8 dst net 10.0.0.0/8",
        "exclude src net 10.0.0.0/8,fd00::/8 dst net fd00::/8,10.0.0.0/8 port 53",
        "exclude src port 53,67-68 dst port 67-68,53",
        "exclude net 10.0.0.0/8 ingress",
    ] {
        assert!(!is_one_way(both), "{both}");
    }
    for one in [
        "exclude src net 10.0.0.0/8 dst net 10.0.0.0/9",
        "exclude src net 10.0.0.0/8 dst net 10.0.0.0/8 dst port 53",
        "exclude src net 10.0.0.0/8 dst net 10.0.0.0/8 ingress",
    ] {
        assert!(is_one_way(one), "{one}");
    }
}

#[test]
fn a_rule_for_one_direction_says_what_that_is_of_a_flow() {
    let notes = |rule: &str| explain(&rules(rule)).remove(0).notes;
    for rule in ["exclude egress", "include net 10.0.0.0/8 ingress"] {
        assert!(notes(rule)[0].contains("mirror port"), "{rule}");
    }
    assert!(notes("exclude net 10.0.0.0/8").is_empty());
}

#[test]
fn ports_of_protocols_that_have_none_never_match() {
    let notes = |rule: &str| explain(&rules(rule)).remove(0).notes;
    for never in [
        "exclude proto icmp port 80",
        "exclude proto gre,icmp6 src port 1",
    ] {
        assert_eq!(notes(never), ["never matches: its protocols have no ports"]);
    }
    for some in [
        "exclude proto icmp,tcp port 80",
        "exclude proto udplite port 80",
        "exclude port 80",
    ] {
        assert!(notes(some)[0].starts_with("matches no packet without"));
    }
}

#[test]
fn a_rule_is_covered_by_one_that_asks_for_no_more() {
    let is_covered = |outer: &str, inner: &str| {
        let explained = explain(&rules(&format!("exclude {outer}; include {inner}")));
        assert_eq!((explained[0].number, explained[1].number), (1, 2));
        let mut notes = explained[1].notes.iter();
        notes.any(|note| note.starts_with("never decides: rule 1"))
    };
    for (outer, inner) in [
        ("port 1-10", "port 1-10"),
        ("port 1-10", "port 2-9 proto tcp"),
        ("proto tcp,udp", "proto udp"),
        ("on eth*", "on eth*"),
        ("on eth*", "on eth0"),
        ("ingress", "ingress"),
        ("all", "egress"),
    ] {
        assert!(is_covered(outer, inner), "{outer}, {inner}");
    }
    for (outer, inner) in [
        ("port 1-10", "port 5-11"),
        ("port 5-10", "port 1-7"),
        ("proto tcp", "proto udp"),
        ("proto tcp", "all"),
        ("on eth*", "on eth0*"),
        ("on eth*", "on wg0"),
        ("ingress", "egress"),
        ("ingress", "all"),
    ] {
        assert!(!is_covered(outer, inner), "{outer}, {inner}");
    }
}

#[test]
fn rules_on_interfaces_that_are_not_watched_are_told() {
    let interfaces = ["eth0", "veth1"].map(|name| Some(name.into()));
    let told = |text: &str| not_watched(&rules(text), &interfaces);
    assert_eq!(told("exclude on eth0; exclude on v*; exclude all"), [""; 0]);
    assert_eq!(
        told("exclude on eth0; exclude on eth0,eht0; include on w* ingress"),
        [
            "filter rule 2: no interface that is watched is named eht0",
            "filter rule 3: no interface that is watched is named w*",
        ]
    );
}

#[test]
fn a_probe_tells_the_rule_for_the_packet_and_its_answer() {
    let probe: Probe = "192.0.2.1:1234 > 10.0.0.1:53 udp on eth0 ingress"
        .parse()
        .unwrap();
    let verdicts = probe
        .verdicts(&rules(
            "include proto tcp; exclude src net 10.0.0.0/8 egress",
        ))
        .unwrap();
    assert_eq!(
        verdicts,
        [
            Verdict {
                packet: "192.0.2.1:1234 > 10.0.0.1:53 udp on eth0 ingress".to_owned(),
                is_counted: Some(true),
                rule: None,
            },
            Verdict {
                packet: "10.0.0.1:53 > 192.0.2.1:1234 udp on eth0 egress".to_owned(),
                is_counted: Some(false),
                rule: Some(2),
            },
        ]
    );
    for bad in [
        "",
        "10.0.0.1 > ::1 tcp",
        "10.0.0.1:1 > 10.0.0.2:2 icmp",
        "10.0.0.1 > 10.0.0.2 tcp up",
    ] {
        assert!(bad.parse::<Probe>().is_err(), "{bad}");
    }
}

#[test]
fn a_probe_without_an_interface_is_held_against_each_that_a_rule_names() {
    let told = |probe: &str, text: &str| -> Vec<String> {
        let probe: Probe = probe.parse().unwrap();
        let verdicts = probe.verdicts(&rules(text)).unwrap().into_iter();
        let told = verdicts.map(|verdict| {
            let (_, packet) = verdict.packet.split_once(" udp").unwrap();
            let rule = verdict.rule.map(|rule| rule.to_string());
            let rule = rule.unwrap_or_default();
            match verdict.is_counted {
                Some(true) => format!("{packet} +{rule}"),
                Some(false) => format!("{packet} -{rule}"),
                None => format!("{packet} ?"),
            }
        });
        told.collect()
    };
    let probe = "10.0.0.1:1 > 10.0.0.2:2 udp";
    let egress = "10.0.0.1:1 > 10.0.0.2:2 udp egress";
    assert_eq!(
        told(probe, "exclude on eth0"),
        [
            " on eth0 ingress -1",
            " on eth0 egress -1",
            " on eth0 egress -1",
            " on eth0 ingress -1",
            " on any other interface ingress +",
            " on any other interface egress +",
            " on any other interface egress +",
            " on any other interface ingress +",
        ]
    );
    assert_eq!(
        told(
            egress,
            "include on eth0 src port 1; exclude on w*,eth0,lo; include on lo; exclude egress"
        ),
        [
            " on eth0 egress +1",
            " on eth0 ingress -2",
            " on w* egress ?",
            " on w* ingress ?",
            " on lo egress -2",
            " on lo ingress -2",
            " on any other interface egress -4",
            " on any other interface ingress +",
        ]
    );
    let on = "10.0.0.1:1 > 10.0.0.2:2 udp on wg0 ingress";
    assert_eq!(
        told(on, "exclude on w*; exclude on eth0"),
        [" on wg0 ingress -1", " on wg0 egress -1"]
    );
    assert_eq!(
        told(egress, "exclude port 1"),
        [" egress -1", " ingress -1"]
    );
}

#[test]
fn a_probe_is_the_packet_that_it_says() {
    let packet = |probe: &str| probe.parse::<Probe>().unwrap().packet();
    let from_a = packet("10.0.0.1:9 > 10.0.0.2:8 udp");
    let from_b = packet("10.0.0.2:8 > 10.0.0.1:9 udp");
    assert_eq!((from_a.direction, from_b.direction), (0, 1));
    for packet in [from_a, from_b] {
        assert_eq!(packet.key.addr_a[..4], [10, 0, 0, 1]);
        assert_eq!(packet.key.addr_b[..4], [10, 0, 0, 2]);
        assert_eq!((packet.key.port_a, packet.key.port_b), (9, 8));
        assert_eq!(
            (packet.key.protocol, packet.key.kind()),
            (17, Some(L4Kind::Ports))
        );
    }
    let to_itself = packet("10.0.0.1:9 > 10.0.0.1:9 udp");
    assert_eq!(to_itself.direction, 0);
    let without_ports = packet("10.0.0.1 > 10.0.0.2 udp");
    assert_eq!(without_ports.key.kind(), Some(L4Kind::None));
}

type Means = fn(&Probe) -> bool;

/// Expressions of tcpdump, and the packets that they mean.
const EXPRESSIONS: &[(&str, Means)] = &[
    ("host 10.0.0.1 and host 10.0.0.2", |of| {
        host(of, 1) && host(of, 2)
    }),
    ("exclude host 10.0.0.1 and host 10.0.0.2", |of| {
        !(host(of, 1) && host(of, 2))
    }),
    ("host 10.0.0.1 and 10.0.0.2 and port 80", |of| {
        host(of, 1) && host(of, 2) && port(of, 80)
    }),
    ("tcp and 10.0.0.1 and 10.0.0.2", |of| {
        tcp(of) && host(of, 1) && host(of, 2)
    }),
    ("host 10.0.0.1 and host 10.0.0.2 and not port 22", |of| {
        host(of, 1) && host(of, 2) && !port(of, 22)
    }),
    ("host 10.0.0.1 and host 10.0.0.2 or host 10.0.0.3", |of| {
        host(of, 1) && host(of, 2) || host(of, 3)
    }),
    ("host 10.0.0.1 and 10.0.0.2 or 10.0.0.3", |of| {
        host(of, 1) && host(of, 2) || host(of, 3)
    }),
    ("host 10.0.0.1 and host 10.0.0.2 and host 10.0.0.3", |_| {
        false
    }),
    ("net 10.0.0.0/30 and net 10.0.0.2/31", |of| {
        host(of, 2) || host(of, 3)
    }),
    ("src host 10.0.0.1 and src host 10.0.0.2", |_| false),
    ("src host 10.0.0.1 and 10.0.0.2", |_| false),
    ("src host 10.0.0.1 and dst host 10.0.0.2", |of| {
        src(of, 1) && dst(of, 2)
    }),
    ("src host 10.0.0.1 or 10.0.0.2", |of| {
        src(of, 1) || src(of, 2)
    }),
    ("port 80 and port 443", |of| port(of, 80) && port(of, 443)),
    ("port 80 and 443", |of| port(of, 80) && port(of, 443)),
    ("src port 80 and 443", |_| false),
    ("src port 80 or 443", |of| {
        of.has_ports && [80, 443].contains(&of.ends[0].1)
    }),
    ("port 80 or 443 or 22", |of| {
        port(of, 80) || port(of, 443) || port(of, 22)
    }),
    ("tcp port 80 or 443", |of| {
        tcp(of) && (port(of, 80) || port(of, 443))
    }),
    ("tcp and port 80 or 443", |of| {
        tcp(of) && port(of, 80) || port(of, 443)
    }),
    ("tcp and port 80 or port 443", |of| {
        tcp(of) && port(of, 80) || port(of, 443)
    }),
    ("exclude tcp or port 80", |of| !(tcp(of) || port(of, 80))),
    ("tcp and udp", |_| false),
    ("tcp or udp", |of| tcp(of) || udp(of)),
    ("tcp udp", |of| tcp(of) || udp(of)),
    ("tcp && port 22", |of| tcp(of) && port(of, 22)),
    ("ingress and egress", |_| false),
    ("on eth0 and on eth1", |_| false),
    ("not tcp", |of| !tcp(of)),
    ("!tcp", |of| !tcp(of)),
    ("exclude !tcp", tcp),
    ("exclude not tcp", tcp),
    ("proto !tcp", |of| !tcp(of)),
    ("~tcp", |of| !tcp(of)),
    ("port not 22", |of| !port(of, 22)),
    ("! port 22", |of| !port(of, 22)),
    ("not not tcp", tcp),
    ("!!tcp", tcp),
    ("not exclude tcp", tcp),
    ("not port 22 and tcp", |of| !port(of, 22) && tcp(of)),
    ("not port 22 or port 80", |of| !port(of, 22) || port(of, 80)),
    ("not port 22 and not port 80", |of| {
        !port(of, 22) && !port(of, 80)
    }),
    ("tcp and not port 22", |of| tcp(of) && !port(of, 22)),
    ("tcp and !port 22", |of| tcp(of) && !port(of, 22)),
    ("tcp or not port 22", |of| tcp(of) || !port(of, 22)),
    ("tcp and not port 22 or udp", |of| {
        tcp(of) && !port(of, 22) || udp(of)
    }),
    ("tcp and not port 22 and host 10.0.0.1", |of| {
        tcp(of) && !port(of, 22) && host(of, 1)
    }),
    ("udp or tcp and not port 22", |of| {
        (udp(of) || tcp(of)) && !port(of, 22)
    }),
    ("udp or tcp and port 22", |of| {
        (udp(of) || tcp(of)) && port(of, 22)
    }),
    ("exclude tcp and not port 22", |of| !tcp(of) || port(of, 22)),
    ("include tcp except port 22", |of| tcp(of) && !port(of, 22)),
    ("tcp except port 22", |of| tcp(of) && !port(of, 22)),
    ("not host 10.0.0.1", |of| !host(of, 1)),
    ("not src host 10.0.0.1", |of| !src(of, 1)),
    ("(tcp or udp) and port 22", |of| {
        (tcp(of) || udp(of)) && port(of, 22)
    }),
];

/// What tcpdump means by an expression is what the suggested rules decide, if rules are suggested.
#[test]
fn a_suggestion_decides_as_the_expression_means() {
    let mut probes = Vec::new();
    for (src, dst) in [(1, 2), (2, 1), (1, 3), (3, 2), (3, 4), (1, 1)] {
        probes.push(format!("10.0.0.{src} > 10.0.0.{dst} icmp"));
        for ports in [
            [80, 443],
            [443, 80],
            [22, 80],
            [5000, 22],
            [80, 5000],
            [5000, 443],
            [1, 2],
        ] {
            let [from, to] = ports;
            for protocol in ["tcp", "udp", "sctp"] {
                probes.push(format!(
                    "10.0.0.{src}:{from} > 10.0.0.{dst}:{to} {protocol}"
                ));
            }
        }
    }
    let mut suggested = 0;
    for (expression, means) in EXPRESSIONS {
        let read = match expression.parse::<Rules>() {
            Ok(_) => (*expression).to_owned(),
            Err(fault) => match fault.corrected() {
                Some(corrected) => corrected.to_owned(),
                None => continue,
            },
        };
        suggested += 1;
        let rules = rules(&read);
        for probe in &probes {
            let probe: Probe = format!("{probe} on eth0 ingress").parse().unwrap();
            let matched = plainly_matched(&rules, &probe);
            let is_counted = matched.is_none_or(|matched| !matched.is_excluded);
            assert_eq!(is_counted, means(&probe), "{expression}: {read}: {probe}");
        }
    }
    assert!(suggested >= 20, "{suggested}");
}

fn src(probe: &Probe, host: u8) -> bool {
    probe.ends[0].0 == IpAddr::from([10, 0, 0, host])
}

fn dst(probe: &Probe, host: u8) -> bool {
    probe.ends[1].0 == IpAddr::from([10, 0, 0, host])
}

fn host(probe: &Probe, host: u8) -> bool {
    src(probe, host) || dst(probe, host)
}

fn port(probe: &Probe, port: u16) -> bool {
    probe.has_ports && probe.ends.iter().any(|end| end.1 == port)
}

fn tcp(probe: &Probe) -> bool {
    probe.protocol == 6
}

fn udp(probe: &Probe) -> bool {
    probe.protocol == 17
}

#[test]
fn a_name_may_end_with_the_dot_of_the_root() {
    let shown = rules("host Example.com.,*.example.org.")[0].to_string();
    assert_eq!(shown, "include host example.com,*.example.org");
}

#[test]
fn a_part_that_a_rule_negates_is_told() {
    for text in [
        "port not 22",
        "exclude !tcp",
        "not port 22",
        "host !a.example",
        "proto !tcp",
    ] {
        assert!(
            fault(text).starts_with("a rule cannot negate a part"),
            "{text}"
        );
    }
    let fault = fault("tcp and port 443");
    assert!(fault.starts_with("leave out `and`"), "{fault}");
}

#[test]
fn the_closing_rule_of_conditions_has_no_notes() {
    for text in ["all", "exclude all; tcp"] {
        let last = explain(&rules(text)).pop().unwrap();
        assert_eq!((&*last.rule, last.notes.len()), ("exclude all", 0));
    }
    let last = explain(&rules("exclude all; exclude all")).pop().unwrap();
    assert!(last.notes[0].starts_with("never decides"));
    let conditions = Compiled::new(&rules(&"tcp;".repeat(1024)), &[]);
    let error = conditions.unwrap_err().to_string();
    assert!(
        error.contains("without include or exclude add one"),
        "{error}"
    );
}
