//! Compiles rules into the rows and prefixes that the kernel programs look up.
//!
//! `agent_common::filter` defines them. It also has the code that finds the first match in them, for the kernel and for
//! this crate.

use std::collections::{BTreeMap, HashMap};

use agent_common::{
    Direction,
    direction::hook_number,
    filter::{
        ALL_ROW, EXCLUDE_ROW, FIRST_FREE_ROW, HEAD_ROW, Head, MAX_RULES, NetKey, NetKey4, NetKey6,
        NetRows, ROW_ENTRIES, Row, RuleSet,
    },
};
use thiserror::Error;

use super::{Action, MAX_NETWORKS, Net, Ports, Rule};
use crate::link_names::LinkNames;

/// The names of the interfaces by slot; `None` for a slot without an interface.
pub type HookNames = [Option<LinkNames>];

#[derive(Debug, Error, PartialEq, Eq)]
pub enum CompileError {
    #[error(
        "{0} filter rules; a set has at most {MAX_RULES} (rules without include or exclude add one, `exclude all`; a term takes \
         several values: net A,B)"
    )]
    TooManyRules(usize),
    #[error("{0} networks in the filter rules; a set has at most {MAX_NETWORKS}")]
    TooManyNetworks(usize),
    #[error(
        "the filter rules have more different ranges of ports than fit: use fewer or wider ones"
    )]
    TooManyPorts,
    #[error("filter rules for packets cannot name hosts: give addresses")]
    Names,
}

/// Prefixes, each with the rules that it satisfies.
pub type Prefixes<K> = Vec<(K, NetRows)>;

/// A set of rules in the form that packets are matched against.
#[derive(Debug, Default)]
pub struct Compiled {
    rules: usize,
    pub rows: Vec<Row>,
    pub nets_v4: Prefixes<NetKey4>,
    pub nets_v6: Prefixes<NetKey6>,
}

impl Compiled {
    pub fn new(rules: &[Rule], interfaces: &HookNames) -> Result<Self, CompileError> {
        let rows = rows(rules, interfaces)?;
        let (nets_v4, nets_v6) = networks(rules);
        Ok(Self {
            rules: rules.len(),
            rows,
            nets_v4,
            nets_v6,
        })
    }

    /// Fails if the rules do not fit into a set, regardless of the interfaces.
    pub fn check(rules: &[Rule]) -> Result<(), CompileError> {
        Tables::of(rules, &[]).map(drop)
    }

    /// Whether there are no rules, so that every packet is counted.
    pub fn is_empty(&self) -> bool {
        self.rules == 0
    }
}

/// The rows. They depend on the names of the interfaces, and are quick to compute.
pub fn rows(rules: &[Rule], interfaces: &HookNames) -> Result<Vec<Row>, CompileError> {
    Ok(Tables::of(rules, interfaces)?.rows)
}

/// The prefixes of both IP versions. They do not depend on the interfaces. A million takes a second.
pub fn networks(rules: &[Rule]) -> (Prefixes<NetKey4>, Prefixes<NetKey6>) {
    let (mut nets_v4, mut nets_v6) = (Vec::new(), Vec::new());
    if has_nets(rules) {
        for (net, rows) in prefixes(rules, false) {
            let [address, ..] = net.address_ne();
            nets_v4.push((key(&net, [address, 0]), rows));
        }
        for (net, rows) in prefixes(rules, true) {
            nets_v6.push((key(&net, net.address_ne()), rows));
        }
    }
    (nets_v4, nets_v6)
}

fn has_nets(rules: &[Rule]) -> bool {
    rules.iter().any(|rule| !rule.nets.is_empty())
}

fn key<const N: usize>(net: &Net, address_ne: [u32; N]) -> NetKey<N> {
    NetKey {
        prefix_len: net.prefix_len().into(),
        address_ne,
    }
}

/// The row of the rules that `is_satisfied` accepts.
fn row_of(rules: &[Rule], is_satisfied: impl Fn(&Rule) -> bool) -> Row {
    let mut row = Row::NONE;
    for (index, rule) in rules.iter().enumerate() {
        if is_satisfied(rule) {
            row.insert(index);
        }
    }
    row
}

/// The rows under construction.
struct Tables {
    rows: Vec<Row>,
    /// The number of each bitmap's row, so that equal bitmaps share one.
    numbers: HashMap<Row, u16>,
}

impl Tables {
    /// All rows.
    fn of(rules: &[Rule], interfaces: &HookNames) -> Result<Self, CompileError> {
        if rules.len() > MAX_RULES {
            return Err(CompileError::TooManyRules(rules.len()));
        }
        if rules.iter().any(|rule| !rule.names.is_empty()) {
            return Err(CompileError::Names);
        }
        let networks = rules.iter().map(|rule| rule.nets.len()).sum();
        if networks > MAX_NETWORKS {
            return Err(CompileError::TooManyNetworks(networks));
        }
        let mut tables = Self::new(rules);
        if rules.iter().any(|rule| !rule.protocols.is_empty()) {
            tables.protocols(rules)?;
        }
        if rules
            .iter()
            .any(|rule| !rule.interfaces.is_empty() || rule.direction.is_some())
        {
            tables.hooks(rules, interfaces)?;
        }
        tables.ports(rules, Head::SrcPorts, |rule| &rule.ports.src)?;
        tables.ports(rules, Head::DstPorts, |rule| &rule.ports.dst)?;
        tables.ports(rules, Head::Ports, |rule| &rule.ports.either)?;
        let portless = row_of(rules, |rule| rule.ports.is_empty());
        let portless = tables.number_of(portless)?;
        tables.set_head(Head::Portless, portless);
        tables.set_head(Head::HasNets, u16::from(has_nets(rules)));
        Ok(tables)
    }

    fn new(rules: &[Rule]) -> Self {
        let mut rows = vec![Row::NONE; FIRST_FREE_ROW as usize];
        rows[HEAD_ROW as usize].0[Head::Words as usize] = rules.len().div_ceil(64) as u64;
        rows[ALL_ROW as usize] = Row::ALL;
        rows[EXCLUDE_ROW as usize] = row_of(rules, |rule| rule.action == Action::Exclude);
        Self {
            rows,
            numbers: HashMap::from([(Row::ALL, ALL_ROW as u16)]),
        }
    }

    fn set_head(&mut self, field: Head, value: u16) {
        self.rows[HEAD_ROW as usize].0[field as usize] = value.into();
    }

    fn number_of(&mut self, row: Row) -> Result<u16, CompileError> {
        if let Some(&number) = self.numbers.get(&row) {
            return Ok(number);
        }
        let number = u16::try_from(self.rows.len()).map_err(|_| CompileError::TooManyPorts)?;
        self.rows.push(row);
        self.numbers.insert(row, number);
        Ok(number)
    }

    /// Adds a table of `entries` entries. Each run has the row of its entries and the end of the run.
    fn table(
        &mut self,
        field: Head,
        entries: u32,
        runs: impl IntoIterator<Item = (u32, Row)>,
    ) -> Result<(), CompileError> {
        let first = self.rows.len();
        let len = entries.div_ceil(ROW_ENTRIES) as usize;
        self.rows.resize(first + len, Row::NONE);
        let number = u16::try_from(first).map_err(|_| CompileError::TooManyPorts)?;
        self.set_head(field, number);
        let mut index = 0;
        for (end, row) in runs {
            let number = self.number_of(row)?;
            while index < end {
                self.rows[first + (index / ROW_ENTRIES) as usize].set_entry(index, number);
                index += 1;
            }
        }
        Ok(())
    }

    fn protocols(&mut self, rules: &[Rule]) -> Result<(), CompileError> {
        let runs = (0..=u8::MAX).map(|protocol| {
            let row = row_of(rules, |rule| {
                rule.protocols.is_empty() || rule.protocols.contains(&protocol)
            });
            (u32::from(protocol) + 1, row)
        });
        self.table(Head::Protocols, 256, runs)
    }

    fn hooks(&mut self, rules: &[Rule], interfaces: &HookNames) -> Result<(), CompileError> {
        let hooks = (0..).zip(interfaces).flat_map(|(slot, names)| {
            Direction::BOTH.map(|direction| (hook_number(slot, direction as u32), names, direction))
        });
        let runs = hooks.map(|(hook, names, direction)| {
            let row = row_of(rules, |rule| {
                let is_on = |names| rule.interfaces.iter().any(|known| known.matches_any(names));
                (rule.interfaces.is_empty() || names.as_ref().is_some_and(is_on))
                    && rule.direction.is_none_or(|known| known == direction)
            });
            (hook + 1, row)
        });
        self.table(Head::Hooks, hook_number(interfaces.len() as u32, 0), runs)
    }

    /// Builds the table of one side's ports. All ports between two neighbouring bounds of ranges satisfy the same
    /// rules.
    fn ports(
        &mut self,
        rules: &[Rule],
        field: Head,
        side: impl Fn(&Rule) -> &Vec<Ports>,
    ) -> Result<(), CompileError> {
        // By port: the rules with a range that begins (true) or ends (false) there.
        let mut bounds = BTreeMap::<u32, Vec<(usize, bool)>>::new();
        for (index, rule) in rules.iter().enumerate() {
            for range in side(rule) {
                let (start, end) = (u32::from(*range.start()), u32::from(*range.end()) + 1);
                bounds.entry(start).or_default().push((index, true));
                bounds.entry(end).or_default().push((index, false));
            }
        }
        if bounds.is_empty() {
            return Ok(());
        }
        bounds.entry(1 << 16).or_default();
        let mut row = row_of(rules, |rule| side(rule).is_empty());
        let mut open = vec![0_u32; rules.len()];
        let mut runs = Vec::with_capacity(bounds.len());
        for (bound, changes) in bounds {
            if bound > 0 {
                runs.push((bound, row));
            }
            for (index, begins) in changes {
                if begins {
                    open[index] += 1;
                    row.insert(index);
                } else {
                    open[index] -= 1;
                    if open[index] == 0 {
                        row.remove(index);
                    }
                }
            }
        }
        self.table(field, 1 << 16, runs)
    }
}

/// Every prefix of one IP version that a rule names, and the prefix of all addresses. Each has the rules that it
/// satisfies, including the rules of the shorter prefixes that cover it.
fn prefixes(rules: &[Rule], is_v6: bool) -> Vec<(Net, NetRows)> {
    let everything = NetRows {
        src: row_of(rules, |rule| rule.nets.src.is_empty()),
        dst: row_of(rules, |rule| rule.nets.dst.is_empty()),
        either: row_of(rules, |rule| rule.nets.either.is_empty()),
    };
    let mut own = BTreeMap::<Net, NetRows>::new();
    own.insert(Net::everything(is_v6), everything);
    for (index, rule) in rules.iter().enumerate() {
        let mut add = |nets: &[Net], row: fn(&mut NetRows) -> &mut Row| {
            for net in nets.iter().filter(|net| net.is_v6() == is_v6) {
                row(own.entry(*net).or_default()).insert(index);
            }
        };
        add(&rule.nets.src, |rows| &mut rows.src);
        add(&rule.nets.dst, |rows| &mut rows.dst);
        add(&rule.nets.either, |rows| &mut rows.either);
    }
    let mut around: Vec<(Net, NetRows)> = Vec::new();
    let mut all = Vec::with_capacity(own.len());
    for (net, mut rows) in own {
        while around.last().is_some_and(|(outer, _)| !outer.covers(&net)) {
            around.pop();
        }
        if let Some((_, outer)) = around.last() {
            merge(&mut rows.src, &outer.src);
            merge(&mut rows.dst, &outer.dst);
            merge(&mut rows.either, &outer.either);
        }
        around.push((net, rows));
        all.push((net, rows));
    }
    all
}

fn merge(row: &mut Row, more: &Row) {
    for (word, more) in row.0.iter_mut().zip(more.0) {
        *word |= more;
    }
}

impl RuleSet for Compiled {
    fn row(&self, number: u32) -> Option<&Row> {
        self.rows.get(number as usize)
    }

    fn nets_v4(&self, key: &NetKey4) -> Option<&NetRows> {
        longest(&self.nets_v4, key)
    }

    fn nets_v6(&self, key: &NetKey6) -> Option<&NetRows> {
        longest(&self.nets_v6, key)
    }
}

/// Finds the longest prefix of an address, as the kernel's trie does.
fn longest<'a, const N: usize>(
    prefixes: &'a [(NetKey<N>, NetRows)],
    address: &NetKey<N>,
) -> Option<&'a NetRows> {
    let covering = prefixes
        .iter()
        .filter(|(prefix, _)| is_prefix(prefix, address));
    covering
        .max_by_key(|(prefix, _)| prefix.prefix_len)
        .map(|(_, rows)| rows)
}

fn is_prefix<const N: usize>(prefix: &NetKey<N>, address: &NetKey<N>) -> bool {
    let mut bits = prefix.prefix_len;
    for (prefix, address) in prefix.address_ne.iter().zip(address.address_ne) {
        let in_word = bits.min(32);
        bits -= in_word;
        let differing = u32::from_be(*prefix ^ address);
        if differing.leading_zeros() < in_word {
            return false;
        }
    }
    true
}
