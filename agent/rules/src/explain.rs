//! Explains how each rule was understood, with notes about likely mistakes.

use serde::Serialize;

use agent_common::Direction;

use super::{Action, HookNames, Net, Ports, Rule, Sides, probe::WITH_PORTS};
use crate::pattern::Pattern;

/// A rule with notes about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// Counts from 1.
    pub number: usize,
    pub rule: String,
    pub notes: Vec<String>,
}

/// Explains the rules, in order.
pub fn explain(rules: &[Rule]) -> Vec<Explained> {
    let explained = rules.iter().enumerate().map(|(index, rule)| Explained {
        number: index + 1,
        rule: rule.to_string(),
        notes: if closes(rules, index) {
            Vec::new()
        } else {
            notes(&rules[..index], rule)
        },
    });
    let mut explained: Vec<Explained> = explained.collect();
    let excludes = rules.iter().any(|rule| rule.action == Action::Exclude);
    if !excludes && let Some(last) = explained.last_mut() {
        last.notes.push(
            "no rule excludes anything, so everything is counted: leave include out to count only this".to_owned(),
        );
    }
    explained
}

/// Whether a rule may be the `exclude all` that conditions imply.
fn closes(rules: &[Rule], index: usize) -> bool {
    let rule = &rules[index];
    index + 1 == rules.len()
        && rule.action == Action::Exclude
        && rule.matches_all()
        && index > 0
        && rules[index - 1].action == Action::Include
}

/// One line for each rule that names an interface missing from `interfaces`.
pub fn not_watched(rules: &[Rule], interfaces: &HookNames) -> Vec<String> {
    let is_here = |pattern: &Pattern| {
        let mut names = interfaces.iter().flatten();
        names.any(|names| pattern.matches_any(names))
    };
    let missing = rules.iter().zip(1..).filter_map(|(rule, number)| {
        let mut patterns = rule.interfaces.iter();
        let pattern = patterns.find(|pattern| !is_here(pattern))?;
        Some(format!(
            "filter rule {number}: no interface that is watched is named {pattern}"
        ))
    });
    missing.collect()
}

fn notes(earlier: &[Rule], rule: &Rule) -> Vec<String> {
    let mut notes = Vec::new();
    let covering = earlier.iter().position(|earlier| covers(earlier, rule));
    if let Some(index) = covering {
        notes.push(format!(
            "never decides: rule {} matches all that it does",
            index + 1
        ));
    }
    if let Some(reason) = never_matches(rule) {
        notes.push(format!("never matches: {reason}"));
        return notes;
    }
    if !rule.ports.is_empty() {
        notes.push(
            "matches no packet without ports: ICMP, and later fragments whose first was not seen"
                .to_owned(),
        );
    }
    if rule.direction.is_some() {
        notes.push(
            "a plain flow arrives in one direction and leaves in the other; at a mirror port and on \
             loopback both arrive"
                .to_owned(),
        );
    }
    let names_a_side = rule.nets.names_a_side() || rule.ports.names_a_side();
    if names_a_side && !covers(rule, &answers(rule)) {
        notes.push(
            match rule.action {
                Action::Include => {
                    "one direction only: the answers of these packets are for later rules"
                }
                Action::Exclude => {
                    "one direction only: the answers of these packets are counted unless a rule \
                 excludes them"
                }
            }
            .to_owned(),
        );
    }
    notes
}

/// Why no packet can satisfy all terms of a rule, if none can.
fn never_matches(rule: &Rule) -> Option<&'static str> {
    let has_ports = |protocol| WITH_PORTS.contains(protocol);
    if mixes_versions(&rule.nets) {
        Some("its networks are of two IP versions")
    } else if !rule.ports.is_empty()
        && !rule.protocols.is_empty()
        && !rule.protocols.iter().any(has_ports)
    {
        Some("its protocols have no ports")
    } else {
        None
    }
}

/// The rule that matches the answers to the packets that `rule` matches.
fn answers(rule: &Rule) -> Rule {
    Rule {
        nets: rule.nets.mirrored(),
        ports: rule.ports.mirrored(),
        direction: rule.direction.map(Direction::opposite),
        ..rule.clone()
    }
}

/// Whether no packet of either IP version can satisfy all networks.
fn mixes_versions(nets: &Sides<Net>) -> bool {
    let can_be = |is_v6: bool| {
        [&nets.src, &nets.dst, &nets.either]
            .into_iter()
            .all(|side| side.is_empty() || side.iter().any(|net| net.is_v6() == is_v6))
    };
    !can_be(false) && !can_be(true)
}

/// Whether `outer` matches every packet that `inner` matches. `false` if that is uncertain.
fn covers(outer: &Rule, inner: &Rule) -> bool {
    outer.names.is_empty()
        && side_covers(&outer.nets, &inner.nets, Net::covers)
        && side_covers(&outer.ports, &inner.ports, |outer: &Ports, inner| {
            outer.start() <= inner.start() && inner.end() <= outer.end()
        })
        && all_within(&outer.protocols, &inner.protocols, |outer, inner| {
            outer == inner
        })
        && all_within(
            &outer.interfaces,
            &inner.interfaces,
            |outer, inner| match inner {
                Pattern::Name(name) => outer.matches(name),
                Pattern::Glob(_) | Pattern::Regex(_) => outer.to_string() == inner.to_string(),
            },
        )
        && (outer.direction.is_none() || outer.direction == inner.direction)
}

fn side_covers<T>(outer: &Sides<T>, inner: &Sides<T>, covers: impl Fn(&T, &T) -> bool) -> bool {
    let within = |outer: &[T], inner: &[T]| all_within(outer, inner, &covers);
    let either = [&inner.either, &inner.src, &inner.dst];
    within(&outer.src, &inner.src)
        && within(&outer.dst, &inner.dst)
        && either.into_iter().any(|inner| within(&outer.either, inner))
}

/// Whether the values `outer` of a term accept everything that the values `inner` accept.
fn all_within<T>(outer: &[T], inner: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    outer.is_empty()
        || !inner.is_empty()
            && inner
                .iter()
                .all(|inner| outer.iter().any(|outer| covers(outer, inner)))
}
