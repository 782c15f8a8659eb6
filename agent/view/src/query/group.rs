//! The groups that rows are added to.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    ops::Range,
    rc::Rc,
};

use anyhow::{Result, ensure};
use formats::human;

use super::{
    Order, Query, Stepping, When,
    history::{Bars, Scale, join},
    row::Row,
    steps::TimeSteps,
};

/// A group takes about 400 bytes, and 300 more with a history.
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
    /// In the earlier time, if the query compares.
    pub before: Option<Sums>,
    /// Of what groups are sorted by, both directions together: equal parts of the time that the windows cover. Empty unless it
    /// was asked for.
    pub history: Vec<u64>,
}

impl Group {
    /// The step of time, if the query asked for steps.
    pub fn step(&self) -> Option<&Part> {
        step(&self.parts)
    }
}

fn step(parts: &[Part]) -> Option<&Part> {
    let first = parts.first();
    first.filter(|part| matches!(part, Part::Step { .. }))
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

    /// What an order goes by.
    pub fn by(&self, order: Order) -> u64 {
        match order {
            Order::Bytes => self.bytes(),
            Order::Packets => self.packets(),
            Order::Begun => self.begun,
        }
    }
}

pub(super) struct Groups<'a> {
    by: &'a [By],
    order: Order,
    most: usize,
    compares: bool,
    steps: Option<(&'a Stepping, TimeSteps)>,
    scale: Option<Scale>,
    figures: HashMap<Vec<Part>, Figures>,
    names: Names,
    /// The group of the current row.
    parts: Vec<Part>,
}

#[derive(Default)]
struct Figures {
    sums: Sums,
    before: Sums,
    bars: Option<Bars>,
}

impl<'a> Groups<'a> {
    pub(super) fn of(query: &'a Query) -> Self {
        let steps = query.steps.as_ref();
        Self {
            by: &query.by,
            order: query.order,
            most: query.top,
            compares: query.earlier_us.is_some(),
            scale: query.history.then(Scale::new),
            steps: steps.map(|stepping| (stepping, stepping.steps())),
            figures: HashMap::new(),
            names: Names::default(),
            parts: Vec::new(),
        }
    }

    /// Makes room for this scan window in the history.
    pub(super) fn include(&mut self, window_us: &Range<i64>) {
        if let Some(scale) = &mut self.scale {
            scale.include(window_us, |numbers| {
                let all = self.figures.values_mut();
                all.filter_map(|one| one.bars.as_mut())
                    .for_each(|bars| join(bars, numbers));
            });
        }
    }

    /// Adds a row, for whose scan window the history must have room.
    pub(super) fn add(&mut self, row: &Row<'_>, when: When) -> Result<()> {
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
            self.add_as(row, when, 0, &sums)?;
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
            self.add_as(row, when, 1, &sums)?;
        }
        Ok(())
    }

    /// Adds to the row's group as seen from one end: 0 is the source, 1 the destination. What is earlier counts in the step of
    /// time with which it is compared.
    fn add_as(&mut self, row: &Row<'_>, when: When, end: usize, sums: &Sums) -> Result<()> {
        self.parts.clear();
        if let Some((_, steps)) = &mut self.steps {
            let earlier_us = match when {
                When::Now => 0,
                When::Before(earlier_us) => earlier_us,
            };
            let end_us = row.window_us.end.saturating_add(earlier_us);
            self.parts.push(steps.of(end_us));
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
        if !self.figures.contains_key(&self.parts[..]) {
            ensure!(
                self.figures.len() < MOST_GROUPS,
                "there are more than {MOST_GROUPS} groups: ask for less time, with --filter, or --by something else"
            );
            self.figures.insert(self.parts.clone(), Figures::default());
        }
        let figures = self.figures.get_mut(&self.parts[..]);
        let figures = figures.expect("it was inserted if it was missing");
        match when {
            When::Now => figures.sums.add(sums),
            When::Before(_) => {
                figures.before.add(sums);
                return Ok(());
            }
        }
        if let Some(scale) = &self.scale {
            let bars = figures.bars.get_or_insert_default();
            scale.add(bars, &row.window_us, sums.by(self.order));
        }
        Ok(())
    }

    /// The largest groups, or those with the largest difference, and the number of all groups. With steps of time, the largest
    /// of each step, and a row for each step that has none. `windows_us` is the time for which
    /// the history has room. Fails if there are too many steps.
    pub(super) fn top(self, windows_us: &Range<i64>) -> Result<(Vec<Group>, usize)> {
        let (order, most) = (self.order, self.most);
        let mut all = self.figures.len();
        let mut groups: Vec<_> = self.figures.into_iter().collect();
        // Ties are sorted by value, so that an answer is always the same.
        groups.sort_unstable_by(|one, other| {
            let of = |(_, figures): &(_, Figures)| {
                let (now, before) = (figures.sums.by(order), figures.before.by(order));
                // Without a comparison, that is what there is now.
                Reverse(now.abs_diff(before))
            };
            (step(&one.0), of(one), &one.0).cmp(&(step(&other.0), of(other), &other.0))
        });
        let shown = |(parts, mut figures): (Vec<Part>, Figures)| {
            let bars = self.scale.as_ref().zip(figures.bars.as_mut());
            Group {
                parts,
                sums: figures.sums,
                before: self.compares.then_some(figures.before),
                history: bars.map_or_else(Vec::new, |(scale, bars)| scale.read(bars, windows_us)),
            }
        };
        let Some((stepping, mut steps)) = self.steps else {
            groups.truncate(most);
            return Ok((groups.into_iter().map(shown).collect(), all));
        };
        let step_of = |(parts, _): &(Vec<Part>, Figures)| step(parts).cloned();
        let [first, last] = [groups.first(), groups.last()].map(|group| group.and_then(step_of));
        // Those with groups are among these; this makes sure that no group is left out.
        let mut each: BTreeSet<_> = steps.all(stepping, first.zip(last))?.into_iter().collect();
        each.extend(groups.iter().filter_map(step_of));
        let mut rows = Vec::new();
        let mut groups = groups.into_iter().peekable();
        for one in each {
            let mut number = 0;
            while let Some(group) = groups.next_if(|(parts, _)| step(parts) == Some(&one)) {
                number += 1;
                if number <= most {
                    rows.push(shown(group));
                }
            }
            if number == 0 {
                let rest = self.by.iter().map(|_| Part::Nothing);
                let parts = std::iter::once(one).chain(rest).collect();
                rows.push(shown((parts, Figures::default())));
                all += 1;
            }
        }
        Ok((rows, all))
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

#[cfg(test)]
mod tests {
    use sys::local_time::{Step, Zone};

    use super::*;

    #[test]
    fn no_group_is_left_out_whatever_the_steps_are() {
        let stepping = Stepping {
            step: Step::MINUTE,
            zone: Zone::Utc,
            shown_us: i64::MIN..i64::MAX,
        };
        let query = Query {
            time_us: i64::MIN..i64::MAX,
            earlier_us: None,
            rules: Vec::new(),
            by: Vec::new(),
            steps: Some(stepping),
            order: Order::Bytes,
            history: false,
            top: usize::MAX,
        };
        let mut groups = Groups::of(&query);
        // The second one is no step of the clock.
        let steps = [(0, 60), (90, 91), (120, 180)].map(|(start, end)| Part::Step {
            start_us: start * 1_000_000,
            end_us: end * 1_000_000,
        });
        let each = steps
            .iter()
            .map(|step| (vec![step.clone()], Figures::default()));
        groups.figures.extend(each);
        let (rows, _) = groups.top(&(0..1)).unwrap();
        let found: Vec<_> = rows.iter().filter_map(Group::step).collect();
        assert!(steps.iter().all(|step| found.contains(&step)), "{found:?}");
    }
}
