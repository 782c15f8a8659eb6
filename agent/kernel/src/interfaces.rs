//! Chooses the interfaces to count on, by patterns or by default routes.
//!
//! An exact name must exist at the start, unless the selection waits, and its link type must be readable. A glob or
//! regex takes each readable interface that it matches, now or later. With several network namespaces ([`everywhere`])
//! a name must exist in one of them.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use rules::{link_names::LinkNames, pattern::Pattern, similar};
use tracing::{info, warn};

use crate::links::Link;

mod choice;
pub mod everywhere;

pub use choice::{Choice, Uplinks};

/// Which interfaces to count on.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// If empty, interfaces with a default route are chosen; see [`Uplinks`].
    pub include: Vec<Pattern>,
    pub exclude: Vec<Pattern>,
    /// Wait for a name that does not exist, or for a default route if there is none. Interfaces that patterns may match
    /// are always waited for.
    pub waits: bool,
}

impl Selection {
    pub fn follows_default_routes(&self) -> bool {
        self.include.is_empty()
    }

    /// Whether to count on a link that came later.
    pub fn takes(&self, link: &Link, uplinks: &Uplinks) -> bool {
        self.choice(link, uplinks).is_counted()
    }

    /// Whether patterns choose an interface with these names, if the programs can read its frames.
    pub fn takes_names(&self, names: &LinkNames) -> bool {
        let is_meant = |pattern: &Pattern| pattern.matches_any(names);
        self.include.iter().any(is_meant) && !self.exclude.iter().any(is_meant)
    }

    /// The exact names of interfaces to count.
    pub fn exact_names(&self) -> BTreeSet<&str> {
        let names = self.include.iter().filter_map(|pattern| match pattern {
            Pattern::Name(name) => Some(name.as_str()),
            Pattern::Glob(_) | Pattern::Regex(_) => None,
        });
        names
            .filter(|name| !any_matches(&self.exclude, name))
            .collect()
    }

    /// Whether it names the link exactly.
    fn names(&self, link: &Link) -> bool {
        let mut include = self.include.iter();
        include.any(|pattern| matches!(pattern, Pattern::Name(name) if link.is_called(name)))
    }

    /// Whether to start without an interface, because one that appears later may be selected.
    pub fn may_wait(&self) -> bool {
        self.waits || self.has_patterns()
    }

    /// Whether patterns may match interfaces that are not here yet.
    pub fn has_patterns(&self) -> bool {
        let mut include = self.include.iter();
        include.any(|pattern| !matches!(pattern, Pattern::Name(_)))
    }
}

/// A selected name or default route that is missing.
#[derive(Debug)]
pub struct Absent {
    /// A default route, or the name of an interface.
    pub what: String,
    /// The complaint, as a sentence.
    pub fault: String,
}

fn absent(links: &[Link], selection: &Selection, default_route: &BTreeSet<u32>) -> Vec<Absent> {
    let here = names(links);
    if selection.follows_default_routes() {
        if links
            .iter()
            .any(|link| default_route.contains(&link.ifindex))
        {
            return Vec::new();
        }
        return vec![Absent {
            what: "a default route".to_owned(),
            fault: format!(
                "no interface carries a default route; name one with --interface NAME; interfaces here: {here}"
            ),
        }];
    }
    let name_of = |name: &String| {
        let hint = similar::hint(name, links.iter().flat_map(Link::each_name));
        Absent {
            what: name.clone(),
            fault: format!("there is no interface '{name}'{hint}; interfaces here: {here}"),
        }
    };
    absent_names(links, selection).map(name_of).collect()
}

fn absent_names<'a>(
    links: &'a [Link],
    selection: &'a Selection,
) -> impl Iterator<Item = &'a String> {
    selection
        .include
        .iter()
        .filter_map(|pattern| match pattern {
            Pattern::Name(name) if !links.iter().any(|link| link.is_called(name)) => Some(name),
            Pattern::Name(_) | Pattern::Glob(_) | Pattern::Regex(_) => None,
        })
}

fn any_matches(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

/// The links to start with, sorted by ifindex.
///
/// Fails if something is missing that the selection does not wait for, if no link is left and none can appear, or if a
/// link that is named exactly has a link type that the agent cannot read.
pub fn select(
    links: &[Link],
    selection: &Selection,
    default_route: &BTreeSet<u32>,
) -> Result<Vec<Link>> {
    let absent = absent(links, selection, default_route);
    for Absent { what, fault } in &absent {
        ensure!(selection.waits, "{fault}");
        warn!("waiting for {what}: {fault}");
    }
    let included = if selection.follows_default_routes() {
        let carries = |link: &&Link| default_route.contains(&link.ifindex);
        links.iter().filter(carries).collect()
    } else {
        matching(links, &selection.include)
    };
    warn_of_idle_exclusions(links, &selection.exclude);
    let is_awaited = |name: &String| selection.waits && !any_matches(&selection.exclude, name);
    let may_come = selection.has_patterns() || absent_names(links, selection).any(is_awaited);
    let (excluded, left): (Vec<_>, Vec<_>) = included
        .into_iter()
        .partition(|link| selection.excluding(link).is_some());
    let over = if selection.follows_default_routes() {
        "every interface over which a default route leads"
    } else {
        "every selected interface"
    };
    ensure!(
        excluded.is_empty() || !left.is_empty() || may_come,
        "{over} is excluded ({}); remove an --exclude-interface, or name others with --interface; interfaces here: {}",
        names(excluded),
        names(links)
    );
    let mut selected = Vec::new();
    for link in left {
        if link.link_type().is_some() {
            selected.push(link.clone());
            continue;
        }
        ensure!(
            !selection.names(link),
            "{}; name another one",
            unsupported(link)
        );
        warn!(interface = link.name, "skipped: {}", unsupported(link));
    }
    if selected.is_empty() && selection.may_wait() {
        // Otherwise a warning above has named the missing ones.
        if absent.is_empty() {
            warn!(
                "no interface here can be counted on; waiting for one that is selected; interfaces \
                 here: {}",
                names(links)
            );
        }
    } else {
        ensure!(
            !selected.is_empty(),
            "no selected interface has a link type that the agent can read; interfaces here: {}",
            names(links)
        );
    }
    if selection.follows_default_routes() {
        let uplinks = Uplinks::new(links, selection, default_route, &BTreeSet::new());
        leave_out_uppers(&mut selected, links, &uplinks);
    }
    selected.sort_by_key(|link| link.ifindex);
    Ok(selected)
}

/// Leaves out uplinks whose packets are counted at a lower link.
fn leave_out_uppers(selected: &mut Vec<Link>, links: &[Link], uplinks: &Uplinks) {
    selected.retain(|link| {
        let lower = uplinks.counted_at(link.ifindex);
        let lower = lower.and_then(|lower| links.iter().find(|link| link.ifindex == lower));
        if let Some(lower) = lower {
            info!(
                interface = link.name,
                lower = lower.name,
                "not counted, although a default route leads over it: its packets are counted at {}; name \
                 both with --interface to count them twice",
                lower.name
            );
        }
        lower.is_none()
    });
}

fn matching<'a>(links: &'a [Link], include: &[Pattern]) -> Vec<&'a Link> {
    for pattern in include {
        let is_name = matches!(pattern, Pattern::Name(_));
        if !is_name && !links.iter().any(|link| link.is_meant(pattern)) {
            let here = names(links);
            warn!("no interface matches '{pattern}' yet; interfaces here: {here}");
        }
    }
    let is_included = |link: &&Link| include.iter().any(|pattern| link.is_meant(pattern));
    links.iter().filter(is_included).collect()
}

/// Warns only about names. A name that matches nothing may be misspelt; a glob often excludes interfaces that appear
/// later.
fn warn_of_idle_exclusions(links: &[Link], exclude: &[Pattern]) {
    for pattern in exclude {
        if let Pattern::Name(name) = pattern
            && !links.iter().any(|link| link.is_called(name))
        {
            let hint = similar::hint(name, links.iter().flat_map(Link::each_name));
            warn!(
                interface = name,
                "excluded, but there is no such interface{hint}"
            );
        }
    }
}

fn unsupported(link: &Link) -> String {
    let Link {
        name,
        hardware_type,
        ..
    } = link;
    format!(
        "{name} has the link type ARPHRD {hardware_type}, which the agent cannot read \
         (it reads Ethernet and bare IP)"
    )
}

fn names<'a>(links: impl IntoIterator<Item = &'a Link>) -> String {
    each_name(links).collect::<Vec<_>>().join(", ")
}

fn each_name<'a>(links: impl IntoIterator<Item = &'a Link>) -> impl Iterator<Item = &'a str> {
    links.into_iter().map(|link| link.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices;

    pub(super) fn link(ifindex: u32, name: &str, hardware_type: u16) -> Link {
        Link {
            hardware_type,
            ..devices::samples::link(ifindex, name, "")
        }
    }

    fn links() -> Vec<Link> {
        vec![
            link(1, "lo", 772),
            link(5, "veth1", 1),
            link(2, "eth0", 1),
            link(3, "tun0", 0xfffe),
            link(4, "ib0", 32),
        ]
    }

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn selected(include: &[&str], exclude: &[&str], routes: &[u32]) -> Result<Vec<String>> {
        let routes = routes.iter().copied().collect();
        let selection = Selection {
            include: patterns(include),
            exclude: patterns(exclude),
            ..Selection::default()
        };
        let links = select(&links(), &selection, &routes)?;
        Ok(links.into_iter().map(|link| link.name).collect())
    }

    fn refusal(include: &[&str], exclude: &[&str], routes: &[u32]) -> String {
        selected(include, exclude, routes).unwrap_err().to_string()
    }

    #[test]
    fn default_routes_select_where_nothing_is_named() {
        assert_eq!(selected(&[], &[], &[5, 2]).unwrap(), ["eth0", "veth1"]);
    }

    #[test]
    fn without_a_default_route_the_error_lists_what_is_here() {
        assert_eq!(
            refusal(&[], &[], &[]),
            "no interface carries a default route; name one with --interface NAME; \
             interfaces here: lo, veth1, eth0, tun0, ib0"
        );
    }

    #[test]
    fn a_service_waits_for_a_default_route_but_not_for_one_that_is_excluded() {
        let waiting = |exclude: &[&str], routes: &[u32]| {
            let selection = Selection {
                exclude: patterns(exclude),
                waits: true,
                ..Selection::default()
            };
            let routes = routes.iter().copied().collect();
            select(&links(), &selection, &routes).map(|links| links.len())
        };
        assert_eq!(waiting(&[], &[]).unwrap(), 0);
        assert_eq!(waiting(&["eth0"], &[]).unwrap(), 0);
        assert_eq!(waiting(&[], &[2]).unwrap(), 1);
        let refusal = waiting(&["eth0"], &[2]).unwrap_err().to_string();
        let expected = "every interface over which a default route leads is excluded (eth0); ";
        assert!(refusal.starts_with(expected), "{refusal}");
    }

    #[test]
    fn a_service_waits_for_names_that_are_not_here() {
        let waiting = |include: &[&str], exclude: &[&str]| {
            let selection = Selection {
                include: patterns(include),
                exclude: patterns(exclude),
                waits: true,
            };
            let links = select(&links(), &selection, &BTreeSet::new())?;
            Ok::<_, anyhow::Error>(links.into_iter().map(|link| link.name).collect::<Vec<_>>())
        };
        assert_eq!(waiting(&["eth0", "wg0"], &[]).unwrap(), ["eth0"]);
        assert_eq!(waiting(&["wg0", "wg1"], &[]).unwrap(), [""; 0]);
        assert_eq!(waiting(&["eth0", "wg0"], &["eth0"]).unwrap(), [""; 0]);
        for (include, exclude, told) in [
            (
                &["eth0", "wg0"][..],
                &["eth0", "wg0"][..],
                "excluded (eth0)",
            ),
            (&["eth0"], &["eth0"], "excluded (eth0)"),
            (&["ib0", "wg0"], &[], "ARPHRD 32"),
        ] {
            let refusal = waiting(include, exclude).unwrap_err().to_string();
            assert!(refusal.contains(told), "{refusal}");
        }
    }

    #[test]
    fn names_globs_and_regexes_add_up_and_sort_by_ifindex() {
        assert_eq!(
            selected(&["veth?", "/^t.n/", "eth0", "[e]th*"], &[], &[]).unwrap(),
            ["eth0", "tun0", "veth1"]
        );
    }

    #[test]
    fn an_interface_is_meant_by_each_of_its_names() {
        let mut links = links();
        links[2].altnames = vec!["uplink-of-the-rack".to_owned(), "enp0s3".to_owned()];
        let chosen = |include: &[&str], exclude: &[&str]| {
            let selection = Selection {
                include: patterns(include),
                exclude: patterns(exclude),
                ..Selection::default()
            };
            let selected = select(&links, &selection, &BTreeSet::new())?;
            let names = selected.iter().map(|link| link.name.clone());
            let names: Vec<_> = names.collect();
            let takes = |link: &&Link| selection.takes(link, &Uplinks::default());
            let later = links.iter().filter(takes).map(|link| link.name.clone());
            let heard = |link: &&Link| selection.takes_names(&link.names());
            let heard = links.iter().filter(heard).map(|link| link.name.clone());
            assert!(later.collect::<BTreeSet<_>>() == names.iter().cloned().collect());
            assert!(
                heard
                    .collect::<BTreeSet<_>>()
                    .is_superset(&names.iter().cloned().collect())
            );
            Ok::<_, anyhow::Error>(names)
        };
        for include in [
            &["uplink-of-the-rack"][..],
            &["enp0s3", "eth0"],
            &["enp*"],
            &["/rack$/"],
        ] {
            assert_eq!(chosen(include, &[]).unwrap(), ["eth0"], "{include:?}");
        }
        assert_eq!(chosen(&["*"], &["enp*"]).unwrap(), ["lo", "tun0", "veth1"]);
        let refusal = chosen(&["enp0s3"], &["uplink-of-the-rack"]).unwrap_err();
        assert!(refusal.to_string().contains("excluded (eth0)"), "{refusal}");
        let refusal = chosen(&["enp0s4"], &[]).unwrap_err().to_string();
        assert!(refusal.contains("did you mean enp0s3?"), "{refusal}");
    }

    #[test]
    fn a_misspelt_name_gets_a_suggestion() {
        let refusal = refusal(&["eht0"], &[], &[]);
        assert!(
            refusal.starts_with("there is no interface 'eht0' (did you mean eth0?); interfaces"),
            "{refusal}"
        );
    }

    #[test]
    fn a_pattern_may_match_what_comes_later() {
        assert_eq!(selected(&["eth0", "wlan*"], &[], &[]).unwrap(), ["eth0"]);
        for pattern in ["wlan*", "/^wlan/", "eth*"] {
            let none = selected(&[pattern], &["eth0"], &[]).unwrap();
            assert!(none.is_empty(), "{none:?}");
        }
    }

    #[test]
    fn what_comes_later_is_chosen_as_what_was_there() {
        let takes = |include: &[&str], exclude: &[&str], link: &Link, has_default_route: bool| {
            let selection = Selection {
                include: patterns(include),
                exclude: patterns(exclude),
                ..Selection::default()
            };
            let carriers = has_default_route.then_some(link.ifindex);
            let carriers = carriers.into_iter().collect();
            let links = [link.clone()];
            let uplinks = Uplinks::new(&links, &selection, &carriers, &BTreeSet::new());
            selection.takes(link, &uplinks)
        };
        let (veth, odd) = (link(9, "veth9", 1), link(10, "veth10", 32));
        assert!(takes(&["veth*"], &[], &veth, false));
        assert!(!takes(&["veth*"], &["veth9"], &veth, false));
        assert!(!takes(&["eth*"], &[], &veth, true));
        assert!(takes(&[], &[], &veth, true));
        assert!(!takes(&[], &[], &veth, false));
        assert!(!takes(&[], &["veth9"], &veth, true));
        // An unreadable link is skipped by a glob, but taken by its name, and then refused.
        assert!(!takes(&["veth*"], &[], &odd, false));
        assert!(takes(&["veth10"], &[], &odd, false));
    }

    #[test]
    fn exclusion_wins_and_must_leave_something() {
        assert_eq!(selected(&["*eth*"], &["veth*"], &[]).unwrap(), ["eth0"]);
        assert_eq!(selected(&["eth0"], &["absent0"], &[]).unwrap(), ["eth0"]);
        let refusal = refusal(&["eth0"], &["/eth/"], &[]);
        assert!(refusal.contains("excluded (eth0)"), "{refusal}");
    }

    #[test]
    fn an_unreadable_link_type_fails_by_name_and_is_skipped_by_pattern() {
        assert!(refusal(&["ib0"], &[], &[]).contains("ARPHRD 32"));
        assert_eq!(
            selected(&["*"], &[], &[]).unwrap(),
            ["lo", "eth0", "tun0", "veth1"]
        );
        assert!(selected(&["ib*"], &[], &[]).unwrap().is_empty());
        assert!(refusal(&[], &[], &[4]).contains("no selected interface"));
    }
}
