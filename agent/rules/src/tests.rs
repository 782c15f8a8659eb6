//! Compares compiled rules with the plain meaning of rules.

use std::net::IpAddr;

use agent_common::filter::{FIRST_FREE_ROW, Match, ROW_ENTRIES, first_match};
use proptest::{prelude::*, sample::select};

use super::*;
use crate::link_names::LinkNames;

mod told;

/// Applies rules as the language defines them, rule by rule and term by term.
fn plainly_matched(rules: &[Rule], probe: &Probe) -> Option<Match> {
    let [src, dst] = probe.ends;
    let packet = record::Sent {
        protocol: probe.protocol,
        addresses: [src.0, dst.0],
        ports: probe.has_ports.then_some([src.1, dst.1]),
        direction: probe.direction.unwrap(),
    };
    let index = record::first_match(rules, &packet, known(probe))?;
    Some(Match {
        rule: index as u32,
        is_excluded: rules[index].action == Action::Exclude,
    })
}

fn known(probe: &Probe) -> Known<'_> {
    Known {
        interface: probe.interface.as_deref().unwrap(),
        ..Known::default()
    }
}

/// Uses few addresses and many prefix lengths, so that prefixes lie within each other.
fn address_v4() -> impl Strategy<Value = IpAddr> {
    (
        select(&[0x0a00_0000_u32, 0x0a01_0000, 0xc000_0200]),
        0..4_u32,
    )
        .prop_map(|(net, host)| IpAddr::from((net + host).to_be_bytes()))
}

fn address_v6() -> impl Strategy<Value = IpAddr> {
    let nets = &[0x2001_0db8_u128 << 96, 0x2001_0db8_0001_u128 << 80, 0];
    (select(nets), 0..4_u128).prop_map(|(net, host)| IpAddr::from((net + host).to_be_bytes()))
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![address_v4(), address_v6()]
}

fn net() -> impl Strategy<Value = Net> {
    (address(), 0..=128_u8).prop_map(|(address, len)| {
        let whole = Net::of(address);
        let len = len.min(whole.prefix_len());
        Net::parse(&format!("{address}/{len}")).unwrap_or_else(|error| match error {
            net::BadNet::HostBits(net) => net,
            net::BadNet::NotAnAddress | net::BadNet::BadLength(_) => panic!("{error:?}"),
        })
    })
}

fn ports() -> impl Strategy<Value = Ports> {
    let port = select(&[0, 1, 52, 53, 54, 1023, 1024, 65_534, u16::MAX]);
    (port.clone(), port).prop_map(|(a, b)| a.min(b)..=a.max(b))
}

/// A term that is absent most of the time.
fn maybe<T: fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Vec<T>> {
    prop_oneof![
        3 => Just(()).prop_map(|()| Vec::new()).boxed(),
        2 => prop::collection::vec(value, 1..4).boxed(),
    ]
}

fn sides<T: fmt::Debug + Clone + 'static>(
    value: impl Strategy<Value = T> + Clone + 'static,
) -> impl Strategy<Value = Sides<T>> {
    (maybe(value.clone()), maybe(value.clone()), maybe(value))
        .prop_map(|(src, dst, either)| Sides { src, dst, either })
}

fn direction() -> impl Strategy<Value = Direction> {
    select(&[Direction::Ingress, Direction::Egress])
}

fn rule() -> impl Strategy<Value = Rule> {
    (
        select(&[Action::Include, Action::Exclude]),
        sides(net().boxed()),
        sides(ports().boxed()),
        maybe(select(&[1_u8, 6, 17])),
        maybe(select(&["eth0", "eth*", "wg0"])),
        prop::option::weighted(0.2, direction()),
    )
        .prop_map(
            |(action, nets, ports, protocols, interfaces, direction)| Rule {
                action,
                nets,
                names: Sides::none(),
                ports,
                protocols,
                interfaces: interfaces
                    .into_iter()
                    .map(|name| name.parse().unwrap())
                    .collect(),
                direction,
            },
        )
}

fn probe() -> impl Strategy<Value = Probe> {
    let port = select(&[0, 1, 53, 1023, 1024, 40_000, u16::MAX]);
    let ends = prop_oneof![
        (address_v4().boxed(), address_v4().boxed()),
        (address_v6().boxed(), address_v6().boxed()),
    ];
    (
        ends,
        (port.clone(), port),
        any::<bool>(),
        select(&[1_u8, 6, 17]),
        select(&["eth0", "eth1", "wg0", "lo"]),
        direction(),
    )
        .prop_map(
            |(ends, ports, has_ports, protocol, interface, direction)| Probe {
                ends: [(ends.0, ports.0), (ends.1, ports.1)],
                has_ports: has_ports && protocol != 1,
                protocol,
                interface: Some(interface.to_owned()),
                direction: Some(direction),
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn compiled_rules_mean_what_the_language_says(
        rules in prop::collection::vec(rule(), 0..150),
        probes in prop::collection::vec(probe(), 50),
    ) {
        let names = ["eth0", "eth1", "wg0", "lo"].map(|name| Some(name.into()));
        let compiled = Compiled::new(&rules, &names).unwrap();
        for probe in probes {
            let slot = names.iter().position(|known| known.as_ref().map(|one: &LinkNames| &one.name) == probe.interface.as_ref());
            let slot = slot.unwrap() as u32;
            let direction = probe.direction.unwrap_or(Direction::Ingress);
            let hook = agent_common::direction::hook_number(slot, direction as u32);
            prop_assert_eq!(
                first_match(&compiled, &probe.packet(), hook),
                plainly_matched(&rules, &probe),
                "{}", probe
            );
        }
    }

    #[test]
    fn a_record_passes_if_the_programs_would_count_a_packet_of_it(
        rules in prop::collection::vec(rule(), 1..20),
        probe in probe(),
        (sends, answers, is_mirrored) in any::<(bool, bool, bool)>(),
    ) {
        let answer = Probe {
            direction: if is_mirrored { probe.direction } else { probe.answer().direction },
            ..probe.answer()
        };
        let names = [probe.interface.clone().map(Into::into)];
        let compiled = Compiled::new(&rules, &names).unwrap();
        let is_counted = |packet: &Probe| {
            let hook = agent_common::direction::hook_number(0, packet.direction.unwrap() as u32);
            first_match(&compiled, &packet.packet(), hook).is_none_or(|rule| !rule.is_excluded)
        };
        let [src, dst] = probe.ends;
        let facts = Facts {
            protocol: probe.protocol,
            addresses: [src.0, dst.0],
            ports: probe.has_ports.then_some([src.1, dst.1]),
            sent: [
                probe.direction.filter(|_| sends),
                answer.direction.filter(|_| answers),
            ],
        };
        prop_assert_eq!(
            passes(&rules, facts, known(&probe)),
            sends && is_counted(&probe) || answers && is_counted(&answer),
            "{}", probe
        );
    }

    #[test]
    fn a_rule_reads_back_what_it_shows(rule in rule()) {
        let shown = rule.to_string();
        let rules = set(&[shown.parse().unwrap()]);
        prop_assert_eq!(rules.len(), 1);
        prop_assert_eq!(rules[0].to_string(), shown);
    }

    #[test]
    fn what_is_explained_of_a_rule_is_true(
        rules in prop::collection::vec(rule(), 2..6),
        probes in prop::collection::vec(probe(), 200),
    ) {
        for explained in explain(&rules) {
            let rule = &rules[explained.number - 1];
            let names_a_side = rule.nets.names_a_side() || rule.ports.names_a_side();
            if names_a_side && explained.notes.iter().all(|note| !note.contains("one direction") && !note.starts_with("never")) {
                for probe in &probes {
                    let holds = |probe| plainly_matched(std::slice::from_ref(rule), probe).is_some();
                    prop_assert_eq!(holds(probe), holds(&probe.answer()), "{}", probe);
                }
            }
            if explained.notes.iter().any(|note| note.starts_with("never")) {
                for probe in &probes {
                    let matched = plainly_matched(&rules, probe);
                    prop_assert_ne!(matched.map(|matched| matched.rule as usize + 1), Some(explained.number));
                }
            }
        }
    }
}

fn rules(text: &str) -> Vec<Rule> {
    set(&[text.parse().unwrap()])
}

#[test]
fn more_rules_than_fit_are_refused() {
    let one = rules("exclude net 10.0.0.0/8");
    let many: Vec<Rule> = one.iter().cycle().take(1025).cloned().collect();
    assert_eq!(
        Compiled::new(&many, &[]).unwrap_err(),
        CompileError::TooManyRules(1025)
    );
    assert!(Compiled::new(&many[..1024], &[]).is_ok());
}

#[test]
fn more_networks_than_fit_are_refused() {
    let mut rule = Rule::new(Action::Exclude);
    let net = Net::of(IpAddr::from([10, 0, 0, 1]));
    rule.nets.src = vec![net; MAX_NETWORKS];
    let mut other = Rule::new(Action::Include);
    other.nets.either = vec![net];
    let set = [rule, other];
    assert!(Compiled::new(&set[..1], &[]).is_ok());
    let error = Compiled::new(&set, &[]).unwrap_err().to_string();
    assert_eq!(
        error,
        "1000001 networks in the filter rules; a set has at most 1000000"
    );
}

#[test]
fn the_values_at_all_sides_are_counted() {
    let [rule] = &rules("exclude src net ::/0 dst net ::/1,8000::/1 net ::/0,::/1,::/2")[..] else {
        panic!("one rule");
    };
    assert_eq!(rule.nets.len(), 6);
}

#[test]
fn no_rules_are_an_empty_set_and_one_is_not() {
    let is_empty = |text: &str| Compiled::new(&rules(text), &[]).unwrap().is_empty();
    assert!(is_empty("") && !is_empty("exclude all"));
}

#[test]
fn a_set_has_no_more_rows_than_its_tables_and_different_bitmaps() {
    let rows = |text: &str| Compiled::new(&rules(text), &[]).unwrap().rows.len();
    let table = |entries: u32| entries.div_ceil(ROW_ENTRIES) as usize;
    let fixed = FIRST_FREE_ROW as usize;
    // The bitmap with the rule, and the bitmap without it.
    assert_eq!(rows("exclude proto tcp"), fixed + table(256) + 2);
    // Every port satisfies both rules, and packets without ports satisfy neither.
    let all_ports = "exclude port 0-65535; exclude src port 0-65535";
    assert_eq!(rows(all_ports), fixed + 2 * table(1 << 16) + 2);
}

#[test]
fn a_rule_holds_for_each_name_of_an_interface() {
    let altnames = vec!["enp0s3".to_owned(), "uplink-of-the-rack".to_owned()];
    let names = LinkNames {
        name: "eth0".to_owned(),
        altnames,
    };
    let names = [Some("lo".into()), Some(names)];
    let packet = "10.0.0.1:1 > 10.0.0.2:2 udp".parse::<Probe>().unwrap();
    for on in ["eth0", "enp0s3", "uplink-of-the-rack", "enp*"] {
        let rules = rules(&format!("exclude on {on}"));
        let set = Compiled::new(&rules, &names).unwrap();
        let excluded = (0..4).filter(|&hook| first_match(&set, &packet.packet(), hook).is_some());
        assert_eq!(excluded.collect::<Vec<_>>(), [2, 3], "{on}");
        assert!(not_watched(&rules, &names).is_empty(), "{on}");
    }
}

#[test]
fn rules_for_the_last_of_many_interfaces_hold_there() {
    let names: Vec<_> = (0..40)
        .map(|number| Some(format!("eth{number}").into()))
        .collect();
    let set = Compiled::new(&rules("exclude on eth39 egress"), &names).unwrap();
    let packet = "10.0.0.1:1 > 10.0.0.2:2 udp".parse::<Probe>().unwrap();
    let excluded = (0..80).filter(|&hook| first_match(&set, &packet.packet(), hook).is_some());
    assert_eq!(excluded.collect::<Vec<_>>(), [79]);
}
