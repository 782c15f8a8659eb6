//! Chooses the interfaces to count on, by patterns or by default routes.
//!
//! An exact name must exist at the start and be readable. A glob or a regex takes the readable ones of those
//! that it matches, now or later. With several network namespaces ([`everywhere`]) a name has to be in one of them.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};
use tracing::{info, warn};

use crate::{kernel::links::Link, pattern::Pattern, similar};

mod choice;
pub mod everywhere;

pub use choice::{Choice, Uplinks};

/// Which interfaces to count on.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// If empty, those that carry a default route; see [`Uplinks`].
    pub include: Vec<Pattern>,
    pub exclude: Vec<Pattern>,
    /// If no interface carries a default route at the start, wait for one. Those that patterns may match are always
    /// waited for.
    pub waits_for_default_route: bool,
}

impl Selection {
    pub fn follows_default_routes(&self) -> bool {
        self.include.is_empty()
    }

    /// Whether to count on a link that came later.
    pub fn takes(&self, link: &Link, uplinks: &Uplinks) -> bool {
        self.choice(link, uplinks).is_counted()
    }

    /// Whether patterns choose an interface with this name, if the programs can read its frames.
    pub fn takes_name(&self, name: &str) -> bool {
        any_matches(&self.include, name) && !any_matches(&self.exclude, name)
    }

    /// Whether it names the link exactly.
    fn names(&self, link: &Link) -> bool {
        let mut include = self.include.iter();
        include.any(|pattern| matches!(pattern, Pattern::Name(name) if *name == link.name))
    }

    /// Whether to start without an interface, since one that comes may be meant.
    pub fn may_wait(&self) -> bool {
        if self.follows_default_routes() {
            self.waits_for_default_route
        } else {
            self.has_patterns()
        }
    }

    /// Whether interfaces that are not here may be meant.
    pub fn has_patterns(&self) -> bool {
        let mut include = self.include.iter();
        include.any(|pattern| !matches!(pattern, Pattern::Name(_)))
    }
}

fn any_matches(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

/// The links to begin with, sorted by ifindex.
///
/// Fails if a name is not here, if no link is left and none can come, or if a link that is named exactly has a
/// link type that the agent cannot read.
pub fn select(
    links: &[Link],
    selection: &Selection,
    default_route: &BTreeSet<u32>,
) -> Result<Vec<Link>> {
    let included = if selection.follows_default_routes() {
        with_default_route(links, selection, default_route)?
    } else {
        matching(links, &selection.include)?
    };
    warn_of_idle_exclusions(links, &selection.exclude);
    let (excluded, left): (Vec<_>, Vec<_>) = included
        .into_iter()
        .partition(|link| selection.excluding(link).is_some());
    ensure!(
        excluded.is_empty() || !left.is_empty() || selection.has_patterns(),
        "every selected interface is excluded ({}); remove an --exclude-interface",
        names(excluded)
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
        let awaited = if selection.follows_default_routes() {
            "a default route"
        } else {
            "one that is selected"
        };
        warn!(
            "no interface here can be counted on; waiting for {awaited}; interfaces here: {}",
            names(links)
        );
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

/// Leaves out the carriers of default routes whose packets are counted under them.
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

fn with_default_route<'a>(
    links: &'a [Link],
    selection: &Selection,
    default_route: &BTreeSet<u32>,
) -> Result<Vec<&'a Link>> {
    let carriers = links
        .iter()
        .filter(|link| default_route.contains(&link.ifindex));
    let carriers: Vec<_> = carriers.collect();
    ensure!(
        !carriers.is_empty() || selection.may_wait(),
        "no interface carries a default route; name one with --interface NAME; \
         interfaces here: {}",
        names(links)
    );
    Ok(carriers)
}

fn matching<'a>(links: &'a [Link], include: &[Pattern]) -> Result<Vec<&'a Link>> {
    for pattern in include {
        if links.iter().any(|link| pattern.matches(&link.name)) {
            continue;
        }
        let here = names(links);
        match pattern {
            Pattern::Name(name) => {
                let hint = similar::hint(name, each_name(links));
                bail!("there is no interface '{name}'{hint}; interfaces here: {here}")
            }
            Pattern::Glob(_) | Pattern::Regex(_) => {
                warn!("no interface matches '{pattern}' yet; interfaces here: {here}");
            }
        }
    }
    let included = links
        .iter()
        .filter(|link| include.iter().any(|pattern| pattern.matches(&link.name)));
    Ok(included.collect())
}

/// Warns only about names. A glob often excludes interfaces that may appear later, but a name that matches
/// nothing may be misspelt.
fn warn_of_idle_exclusions(links: &[Link], exclude: &[Pattern]) {
    for pattern in exclude {
        if let Pattern::Name(name) = pattern
            && !links.iter().any(|link| link.name == *name)
        {
            let hint = similar::hint(name, each_name(links));
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
            ..devices::tests::link(ifindex, name, "")
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
                waits_for_default_route: true,
                ..Selection::default()
            };
            let routes = routes.iter().copied().collect();
            select(&links(), &selection, &routes).map(|links| links.len())
        };
        assert_eq!(waiting(&[], &[]).unwrap(), 0);
        assert_eq!(waiting(&["eth0"], &[]).unwrap(), 0);
        assert_eq!(waiting(&[], &[2]).unwrap(), 1);
        let refusal = waiting(&["eth0"], &[2]).unwrap_err().to_string();
        assert!(refusal.contains("excluded (eth0)"), "{refusal}");
    }

    #[test]
    fn names_globs_and_regexes_add_up_and_sort_by_ifindex() {
        assert_eq!(
            selected(&["veth?", "/^t.n/", "eth0", "[e]th*"], &[], &[]).unwrap(),
            ["eth0", "tun0", "veth1"]
        );
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
        // One that cannot be read is passed over, or taken by its name and then refused.
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
