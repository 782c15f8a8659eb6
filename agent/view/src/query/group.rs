//! The groups that rows are added to.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    net::IpAddr,
    rc::Rc,
};

use anyhow::{Result, ensure};
use formats::human;

use super::{Order, Question, Stepping, row::Row, steps::TimeSteps};

/// A group takes about 400 bytes.
const MOST_GROUPS: usize = 5_000_000;

/// What rows have in common that are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// An address, at either end: what it sent, and what it received.
    Address,
    /// The address of the initiator.
    #[value(alias = "src")]
    Source,
    /// The address of the responder.
    #[value(alias = "dst")]
    Destination,
    /// The port of the responder, with the protocol.
    Port,
    /// The IP protocol.
    Protocol,
    /// The interface at which the flow was seen.
    Interface,
    /// The host whose agent saw the flow.
    Host,
    /// The systemd unit, at either end: what it sent, and what it received. Of agents that look for it (`--enrich unit`).
    Unit,
    /// The name of the process that made the socket, at either end, likewise. Of agents that look for it (`--enrich process`).
    Process,
    /// What an address was called, at either end, likewise. Of agents that look for it (`--enrich dns`).
    Name,
}

/// One value of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The time after `start_us` up to `end_us`, Unix time in microseconds. Comes before all others.
    Step {
        start_us: i64,
        end_us: i64,
    },
    Address(IpAddr),
    /// A protocol, and the port if it has ports and this one is known.
    Port(u8, Option<u16>),
    Protocol(u8),
    /// Empty if unknown.
    Name(Rc<str>),
    /// In the only row of a step that has no records.
    Nothing,
}

/// Arrays are indexed by direction: 0 is from the source or from the group's own end, 1 is the other direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub records: u64,
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
    /// Flows whose first record is included.
    pub begun: u64,
    /// Flows whose last record is included.
    pub ended: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub parts: Vec<Part>,
    pub sums: Sums,
}

impl Group {
    /// The step of time, if the query asked for steps.
    pub fn step(&self) -> Option<&Part> {
        let first = self.parts.first();
        first.filter(|part| matches!(part, Part::Step { .. }))
    }
}

impl Sums {
    pub(super) fn of(row: &Row<'_>) -> Self {
        Self {
            records: 1,
            packets: row.packets,
            bytes: row.bytes,
            begun: row.begins.into(),
            ended: row.ends.into(),
        }
    }

    /// The same with the directions swapped.
    fn reversed(mut self) -> Self {
        self.packets.reverse();
        self.bytes.reverse();
        self
    }

    /// Sums saturate at `u64::MAX`.
    pub(super) fn add(&mut self, other: &Self) {
        for direction in 0..2 {
            let add = |sum: &mut u64, more| *sum = sum.saturating_add(more);
            add(&mut self.packets[direction], other.packets[direction]);
            add(&mut self.bytes[direction], other.bytes[direction]);
        }
        // There are never that many rows.
        self.records += other.records;
        self.begun += other.begun;
        self.ended += other.ended;
    }

    /// Whether a sum has saturated, so that the true value may be larger.
    pub fn is_at_its_bound(&self) -> bool {
        let all = self.packets.iter().chain(&self.bytes);
        all.copied().any(|sum| sum == u64::MAX)
    }

    /// Both directions together.
    pub fn packets(&self) -> u64 {
        self.packets[0].saturating_add(self.packets[1])
    }

    pub fn bytes(&self) -> u64 {
        self.bytes[0].saturating_add(self.bytes[1])
    }

    fn by(&self, order: Order) -> u64 {
        match order {
            Order::Bytes => self.bytes(),
            Order::Packets => self.packets(),
            Order::Begun => self.begun,
        }
    }
}

pub(super) struct Groups<'a> {
    by: &'a [By],
    steps: Option<(&'a Stepping, TimeSteps)>,
    sums: HashMap<Vec<Part>, Sums>,
    names: Names,
    /// The group of the current row.
    parts: Vec<Part>,
}

impl<'a> Groups<'a> {
    pub(super) fn of(question: &'a Question) -> Self {
        let steps = question.steps.as_ref();
        Self {
            by: &question.by,
            steps: steps.map(|stepping| (stepping, stepping.steps())),
            sums: HashMap::new(),
            names: Names::default(),
            parts: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, row: &Row<'_>) -> Result<()> {
        let sums = Sums::of(row);
        let by_address = self.by.contains(&By::Address);
        let by_unit = self.by.contains(&By::Unit);
        let by_process = self.by.contains(&By::Process);
        let by_name = self.by.contains(&By::Name);
        // An end without a name gets no group of its own if the other end has a name.
        let [is_source, is_destination] = [0, 1].map(|end| {
            by_address
                || by_unit && !row.units[end].is_empty()
                || by_process && !row.processes[end].is_empty()
                || by_name && !row.names[end].is_empty()
        });
        if is_source || !is_destination {
            self.add_as(row, 0, &sums)?;
        }
        if is_destination {
            let mut sums = sums.reversed();
            let [source, destination] = row.facts.addresses;
            let is_same = (!by_address || source == destination)
                && (!by_unit || row.units[0] == row.units[1])
                && (!by_process || row.processes[0] == row.processes[1])
                && (!by_name || row.names[0] == row.names[1]);
            if is_source && is_same {
                // The flow was counted for the source already.
                sums = Sums {
                    packets: sums.packets,
                    bytes: sums.bytes,
                    ..Sums::default()
                };
            }
            self.add_as(row, 1, &sums)?;
        }
        Ok(())
    }

    /// Adds to the row's group as seen from one end: 0 is the source, 1 the destination.
    fn add_as(&mut self, row: &Row<'_>, end: usize, sums: &Sums) -> Result<()> {
        self.parts.clear();
        if let Some((_, steps)) = &mut self.steps {
            self.parts.push(steps.of(row.window_us.end));
        }
        let facts = &row.facts;
        for by in self.by {
            self.parts.push(match by {
                By::Address => Part::Address(facts.addresses[end]),
                By::Unit => self.names.name(row.units[end]),
                By::Process => self.names.name(row.processes[end]),
                By::Name => self.names.name(row.names[end]),
                By::Source => Part::Address(facts.addresses[0]),
                By::Destination => Part::Address(facts.addresses[1]),
                By::Port => Part::Port(facts.protocol, facts.ports.map(|[_, port]| port)),
                By::Protocol => Part::Protocol(facts.protocol),
                By::Interface => self.names.interface(row.netns_name, row.interface),
                By::Host => self.names.name(row.hostname),
            });
        }
        if let Some(known) = self.sums.get_mut(&self.parts[..]) {
            known.add(sums);
            return Ok(());
        }
        ensure!(
            self.sums.len() < MOST_GROUPS,
            "there are more than {MOST_GROUPS} groups: ask for less time, with --filter, or --by something else"
        );
        self.sums.insert(self.parts.clone(), *sums);
        Ok(())
    }

    /// The largest groups, and the number of all groups. With steps of time, the largest of each step, and a row for each step
    /// that has none. Fails if there are too many steps.
    pub(super) fn top(self, order: Order, most: usize) -> Result<(Vec<Group>, usize)> {
        let mut all = self.sums.len();
        let groups = self.sums.into_iter();
        let mut groups: Vec<_> = groups.map(|(parts, sums)| Group { parts, sums }).collect();
        // Ties are sorted by value, so that an answer is always the same.
        groups.sort_unstable_by(|one, other| {
            let of = |group: &Group| Reverse(group.sums.by(order));
            (one.step(), of(one), &one.parts).cmp(&(other.step(), of(other), &other.parts))
        });
        let Some((stepping, mut steps)) = self.steps else {
            groups.truncate(most);
            return Ok((groups, all));
        };
        let ends = groups.first().zip(groups.last());
        let Some((first, last)) = ends.and_then(|(one, other)| one.step().zip(other.step())) else {
            return Ok((groups, all));
        };
        let each = steps.all(stepping, first.clone()..last.clone())?;
        let mut shown = Vec::new();
        let mut groups = groups.into_iter().peekable();
        for step in each {
            let mut number = 0;
            while let Some(group) = groups.next_if(|group| group.step() == Some(&step)) {
                number += 1;
                if number <= most {
                    shown.push(group);
                }
            }
            if number == 0 {
                let rest = self.by.iter().map(|_| Part::Nothing);
                shown.push(Group {
                    parts: std::iter::once(step).chain(rest).collect(),
                    sums: Sums::default(),
                });
                all += 1;
            }
        }
        Ok((shown, all))
    }
}

/// Interns names, since most rows share the same few.
#[derive(Default)]
struct Names(HashSet<Rc<str>>);

impl Names {
    fn name(&mut self, name: &str) -> Part {
        if let Some(known) = self.0.get(name) {
            return Part::Name(Rc::clone(known));
        }
        let name: Rc<str> = name.into();
        self.0.insert(Rc::clone(&name));
        Part::Name(name)
    }

    fn interface(&mut self, netns_name: &str, name: &str) -> Part {
        if netns_name.is_empty() {
            self.name(name)
        } else {
            self.name(&human::interface(netns_name, name))
        }
    }
}
