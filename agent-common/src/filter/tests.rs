use super::*;
use crate::flow::FlowKey;

/// A rule set in memory, made by hand. Each rule has one term.
struct Set {
    rows: Vec<Row>,
    /// The addresses that terms name, with their rows. `other` holds the rows of all other addresses.
    v4: Vec<(u32, NetRows)>,
    v6: Vec<([u32; 4], NetRows)>,
    other: NetRows,
}

impl RuleSet for Set {
    fn row(&self, number: u32) -> Option<&Row> {
        self.rows.get(number as usize)
    }

    fn nets_v4(&self, key: &NetKey4) -> Option<&NetRows> {
        assert_eq!((key.prefix_len, key.address_ne[1]), (32, 0));
        let mut nets = self.v4.iter();
        let found = nets.find(|(address, _)| *address == key.address_ne[0]);
        Some(found.map_or(&self.other, |(_, rows)| rows))
    }

    fn nets_v6(&self, key: &NetKey6) -> Option<&NetRows> {
        assert_eq!(key.prefix_len, 128);
        let mut nets = self.v6.iter();
        let found = nets.find(|(address, _)| *address == key.address_ne);
        Some(found.map_or(&self.other, |(_, rows)| rows))
    }
}

impl Set {
    /// Every packet satisfies all of `rules` rules.
    fn new(rules: usize) -> Self {
        let mut head = Row::NONE;
        head.0[Head::Words as usize] = rules.div_ceil(64) as u64;
        head.0[Head::Portless as usize] = u64::from(ALL_ROW);
        let all = with_rules(&Row::NONE, 0..rules);
        let other = NetRows {
            src: all,
            dst: all,
            either: all,
        };
        Self {
            rows: vec![head, all, Row::NONE],
            v4: Vec::new(),
            v6: Vec::new(),
            other,
        }
    }

    fn push(&mut self, row: Row) -> u16 {
        self.rows.push(row);
        (self.rows.len() - 1) as u16
    }

    /// Adds the table for one kind of term; `terms` pairs each rule with its index in the table.
    fn table(&mut self, head: Head, terms: &[(u32, usize)]) {
        let mut without = self.rows[ALL_ROW as usize];
        for &(_, rule) in terms {
            without.remove(rule);
        }
        let default = self.push(without);
        let mut table = vec![Row::NONE; 1024];
        for index in 0..=u32::from(u16::MAX) {
            table[(index / 64) as usize].set_entry(index, default);
        }
        for &(index, rule) in terms {
            let mut row = without;
            row.insert(rule);
            let number = self.push(row);
            table[(index / 64) as usize].set_entry(index, number);
        }
        self.rows[HEAD_ROW as usize].0[head as usize] = self.rows.len() as u64;
        self.rows.extend(table);
    }
}

fn with_rules(row: &Row, rules: impl Iterator<Item = usize>) -> Row {
    let mut row = *row;
    for rule in rules {
        row.insert(rule);
    }
    row
}

const HERE: [u8; 16] = [10, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
const THERE: [u8; 16] = [10, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
const ELSEWHERE: [u8; 16] = [10, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13];

/// A packet with ports: once with its sender as endpoint a, once as endpoint b.
fn packets(version: u8, ends: [([u8; 16], u16); 2], protocol: u8) -> [Packet; 2] {
    [0, 1].map(|direction| {
        let [a, b] = [ends[direction], ends[1 - direction]];
        let address = |mut address: [u8; 16]| {
            if version == 4 {
                address[4..].fill(0);
            }
            address
        };
        Packet {
            key: FlowKey {
                addr_a: address(a.0),
                addr_b: address(b.0),
                port_a: a.1,
                port_b: b.1,
                ip_version: version,
                protocol,
                l4_kind: L4Kind::Ports as u8,
                ..FlowKey::default()
            },
            direction: direction as u8,
            ..Packet::default()
        }
    })
}

#[test]
fn an_entry_of_a_table_is_the_one_that_was_set() {
    let mut row = Row::NONE;
    for index in 0..ROW_ENTRIES {
        row.set_entry(index, 0xffff);
        row.set_entry(index, (index * 3) as u16);
    }
    for index in 0..ROW_ENTRIES {
        assert_eq!(row.entry(index + 7 * ROW_ENTRIES), index * 3);
    }
}

#[test]
fn a_row_has_each_rule_that_was_put_in_and_not_taken_out() {
    let mut row = Row::NONE;
    for rule in 0..MAX_RULES {
        row.insert(rule);
        row.insert(rule);
        assert_eq!(row.0[rule / 64] >> (rule % 64), 1);
    }
    assert_eq!(row, Row::ALL);
    for rule in 0..MAX_RULES {
        row.remove(rule);
        row.remove(rule);
        let ones = row.0.iter().map(|word| word.count_ones()).sum::<u32>();
        assert_eq!(ones as usize, MAX_RULES - 1 - rule);
    }
    assert_eq!(row, Row::NONE);
}

/// Each kind of term has its own rule, which is the first that the packet matches.
#[test]
fn a_term_is_held_against_what_it_is_about() {
    let mut set = Set::new(6);
    set.table(Head::SrcPorts, &[(1000, 0)]);
    set.table(Head::DstPorts, &[(1000, 1)]);
    set.table(Head::Ports, &[(70, 2)]);
    set.table(Head::Protocols, &[(17, 3)]);
    set.table(Head::Hooks, &[(130, 4)]);
    let mut portless = set.rows[ALL_ROW as usize];
    for rule in 0..3 {
        portless.remove(rule);
    }
    let portless = set.push(portless);
    set.rows[HEAD_ROW as usize].0[Head::Portless as usize] = portless.into();
    set.rows[EXCLUDE_ROW as usize].insert(3);

    let found = |[src, dst]: [u16; 2], protocol, hook| {
        let [one, other] = [4, 6]
            .map(|version| packets(version, [(HERE, src), (THERE, dst)], protocol))
            .map(|packets| packets.map(|packet| first_match(&set, &packet, hook)));
        assert_eq!((one[0], one[1]), (one[1], one[0]));
        assert_eq!(one, other);
        one[0].map(|found| (found.rule, found.is_excluded))
    };
    let counted = |rule| Some((rule, false));
    assert_eq!(found([1000, 9], 6, 0), counted(0));
    assert_eq!(found([9, 1000], 6, 0), counted(1));
    assert_eq!(found([9, 70], 6, 0), counted(2));
    assert_eq!(found([70, 9], 6, 0), counted(2));
    assert_eq!(found([70, 70], 6, 0), counted(2));
    assert_eq!(found([9, 9], 17, 130), Some((3, true)));
    assert_eq!(found([9, 9], 6, 130), counted(4));
    assert_eq!(found([9, 9], 6, 0), counted(5));

    // The port fields of an ICMP packet are not ports.
    let mut packet = packets(4, [(HERE, 1000), (THERE, 1000)], 1)[0];
    packet.key.l4_kind = L4Kind::IcmpQuery as u8;
    let found = first_match(&set, &packet, 0);
    assert_eq!(found.map(|found| found.rule), Some(5));
}

#[test]
fn addresses_are_asked_for_in_their_version_and_on_their_side() {
    for version in [4, 6] {
        let mut set = Set::new(4);
        set.rows[HEAD_ROW as usize].0[Head::HasNets as usize] = 1;
        let all = set.other.src;
        set.other.src.remove(0);
        set.other.dst.remove(1);
        set.other.either.remove(2);
        let here = NetRows {
            src: all,
            dst: all,
            ..set.other
        };
        let there = NetRows {
            either: all,
            ..set.other
        };
        let packet = packets(version, [(HERE, 1), (THERE, 2)], 6)[0];
        let [one, other] = [packet.key.addr_a, packet.key.addr_b].map(|address| {
            let word = |at: usize| u32::from_ne_bytes(address[at..][..4].try_into().unwrap());
            [word(0), word(4), word(8), word(12)]
        });
        if version == 4 {
            set.v4 = vec![(one[0], here), (other[0], there)];
        } else {
            set.v6 = vec![(one, here), (other, there)];
        }
        let found = |src, dst| {
            packets(version, [(src, 1), (dst, 2)], 6)
                .map(|packet| first_match(&set, &packet, 0).unwrap().rule)
        };
        assert_eq!(found(HERE, ELSEWHERE), [0, 0]);
        assert_eq!(found(ELSEWHERE, HERE), [1, 1]);
        assert_eq!(found(THERE, ELSEWHERE), [2, 2]);
        assert_eq!(found(ELSEWHERE, THERE), [2, 2]);
        assert_eq!(found(ELSEWHERE, ELSEWHERE), [3, 3]);
    }
}

/// The lowest match after removing the first rule from the `lacking` ones of the ten rows.
fn lowest_where(words: u64, exclude: &Row, rules: &[usize], lacking: &[usize]) -> Option<Match> {
    let every = with_rules(&Row::NONE, rules.iter().copied());
    let rows: Vec<Row> = (0..10)
        .map(|index| {
            let mut row = every;
            if lacking.contains(&index) {
                row.remove(rules[0]);
            }
            row
        })
        .collect();
    lowest(
        words,
        exclude,
        &Satisfied {
            nets: [&rows[0], &rows[1]],
            ports: [&rows[2], &rows[3]],
            protocol: &rows[4],
            hook: &rows[5],
            either_nets: [&rows[6], &rows[7]],
            either_ports: [&rows[8], &rows[9]],
        },
    )
}

#[test]
fn a_rule_matches_where_every_row_has_it_and_of_the_either_rows_one() {
    let rule_of = |found: Option<Match>| found.map(|found| found.rule);
    for rule in [0, 63, 64, 700, MAX_RULES - 1] {
        let found =
            |lacking: &[usize]| rule_of(lowest_where(WORDS as u64, &Row::NONE, &[rule], lacking));
        assert_eq!(found(&[]), Some(rule as u32));
        for row in 0..6 {
            assert_eq!(found(&[row]), None, "rule {rule}, row {row}");
        }
        for row in 6..10 {
            assert_eq!(found(&[row]), Some(rule as u32), "rule {rule}, row {row}");
        }
        assert_eq!((found(&[6, 7]), found(&[8, 9])), (None, None));
    }
}

#[test]
fn the_first_rule_wins_and_says_whether_it_excludes() {
    let exclude = with_rules(&Row::NONE, [5, 70, 71].into_iter());
    let found = |words, rules: &[usize], lacking: &[usize]| {
        let found = lowest_where(words, &exclude, rules, lacking)?;
        Some((found.rule, found.is_excluded))
    };
    assert_eq!(found(2, &[5, 6, 70], &[]), Some((5, true)));
    assert_eq!(found(2, &[4, 5, 70], &[]), Some((4, false)));
    // If an address row or a later row rules out the first rule, the next one is found.
    assert_eq!(found(2, &[5, 6, 70], &[0]), Some((6, false)));
    assert_eq!(found(2, &[5, 70], &[0]), Some((70, true)));
    assert_eq!(found(2, &[5, 70], &[4]), Some((70, true)));
    // Words beyond the number of words in use are not read.
    assert_eq!(found(2, &[128], &[]), None);
    assert_eq!(found(3, &[128], &[]), Some((128, false)));
}
