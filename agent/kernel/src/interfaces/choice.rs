//! Why an interface is counted or not.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use rules::pattern::Pattern;

use super::Selection;
use crate::{devices::Devices, links::Link};

/// The decision of a [`Selection`] about a link.
#[derive(Debug, Clone)]
pub enum Choice<'a> {
    DefaultRoute,
    Matches(&'a Pattern),
    NoDefaultRoute,
    NoMatch,
    Excluded(&'a Pattern),
    /// The programs cannot read its link type.
    Unreadable(u16),
    /// A default route leads over it, but its packets are counted at this lower link.
    CountedAt(u32),
}

impl Choice<'_> {
    pub fn is_counted(&self) -> bool {
        match self {
            Self::DefaultRoute | Self::Matches(_) => true,
            Self::NoDefaultRoute
            | Self::NoMatch
            | Self::Excluded(_)
            | Self::Unreadable(_)
            | Self::CountedAt(_) => false,
        }
    }

    /// The name of the decision in machine-readable output.
    pub fn word(&self) -> &'static str {
        match self {
            Self::DefaultRoute => "default_route",
            Self::Matches(Pattern::Name(_)) => "name",
            Self::Matches(Pattern::Glob(_) | Pattern::Regex(_)) => "pattern",
            Self::NoDefaultRoute => "no_default_route",
            Self::NoMatch => "no_match",
            Self::Excluded(_) => "excluded",
            Self::Unreadable(_) => "link_type",
            Self::CountedAt(_) => "counted_at_lower",
        }
    }
}

impl fmt::Display for Choice<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultRoute => write!(formatter, "a default route leads over it"),
            Self::Matches(Pattern::Name(_)) => write!(formatter, "named"),
            Self::Matches(pattern) => write!(formatter, "'{pattern}' matches it"),
            Self::NoDefaultRoute => write!(formatter, "no default route leads over it"),
            Self::NoMatch => write!(formatter, "not selected"),
            Self::Excluded(pattern) => write!(formatter, "excluded by '{pattern}'"),
            Self::Unreadable(arphrd) => write!(
                formatter,
                "its link type (ARPHRD {arphrd}) is not Ethernet or bare IP"
            ),
            Self::CountedAt(_) => write!(
                formatter,
                "a default route leads over it; its packets are counted under it"
            ),
        }
    }
}

/// Where packets that take a default route are counted: at the links that carry one. If one such link stands on
/// another, its packets pass both, and only the lower one counts them.
#[derive(Debug, Clone, Default)]
pub struct Uplinks {
    chosen: BTreeSet<u32>,
    /// For each carrier that is left out, the lower link that counts its packets.
    counted_at: BTreeMap<u32, u32>,
}

impl Uplinks {
    /// `carriers` are the links with a default route. `counted` are the links that are counted already.
    pub fn new(
        links: &[Link],
        selection: &Selection,
        carriers: &BTreeSet<u32>,
        counted: &BTreeSet<u32>,
    ) -> Self {
        let carriers: Vec<&Link> = links
            .iter()
            .filter(|link| carriers.contains(&link.ifindex))
            .collect();
        let may_be_counted =
            |link: &&&Link| link.link_type().is_some() && selection.excluding(link).is_none();
        let candidates = carriers.iter().filter(may_be_counted);
        let mut watched = counted.clone();
        watched.extend(candidates.map(|link| link.ifindex));
        let devices = Devices::new(links);
        let lower = |link: &Link, watched: &BTreeSet<u32>| {
            let mut under = devices.nearest_under(link, watched).into_iter();
            // Tunnels that stand on each other in a circle have no lower one.
            under.find(|lower| !devices.stands_on(lower, link))
        };
        let (upper, chosen): (Vec<&Link>, Vec<&Link>) = carriers
            .into_iter()
            .partition(|link| lower(link, &watched).is_some());
        watched.retain(|ifindex| !upper.iter().any(|link| link.ifindex == *ifindex));
        let counted_at = upper
            .iter()
            .filter_map(|link| Some((link.ifindex, lower(link, &watched)?.ifindex)));
        Self {
            counted_at: counted_at.collect(),
            chosen: chosen.iter().map(|link| link.ifindex).collect(),
        }
    }

    /// Whether a link is counted because of its default route.
    pub fn has(&self, ifindex: u32) -> bool {
        self.chosen.contains(&ifindex)
    }

    /// The link at which the packets of a carrier are counted, if not at the carrier itself.
    pub fn counted_at(&self, ifindex: u32) -> Option<u32> {
        self.counted_at.get(&ifindex).copied()
    }
}

impl Selection {
    /// Whether to count on a link, and why.
    pub fn choice(&self, link: &Link, uplinks: &Uplinks) -> Choice<'_> {
        if let Some(pattern) = self.excluding(link) {
            return Choice::Excluded(pattern);
        }
        let included = if self.follows_default_routes() {
            match uplinks.counted_at(link.ifindex) {
                Some(lower) => Choice::CountedAt(lower),
                None if uplinks.has(link.ifindex) => Choice::DefaultRoute,
                None => Choice::NoDefaultRoute,
            }
        } else {
            let mut include = self.include.iter();
            let matching = include.find(|pattern| link.is_meant(pattern));
            matching.map_or(Choice::NoMatch, Choice::Matches)
        };
        if included.is_counted() && link.link_type().is_none() && !self.names(link) {
            return Choice::Unreadable(link.hardware_type);
        }
        included
    }

    /// The pattern that leaves a link out.
    pub fn excluding(&self, link: &Link) -> Option<&Pattern> {
        let mut exclude = self.exclude.iter();
        exclude.find(|pattern| link.is_meant(pattern))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        devices::samples::{link, over, stack},
        interfaces::select,
    };

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn excluding(texts: &[&str]) -> Selection {
        Selection {
            exclude: patterns(texts),
            ..Selection::default()
        }
    }

    fn words(selection: &Selection, links: &[Link], uplinks: &Uplinks) -> Vec<String> {
        let told = links.iter().map(|link| {
            let choice = selection.choice(link, uplinks);
            format!("{} {}", link.name, choice.word())
        });
        told.collect()
    }

    #[test]
    fn of_default_routes_over_devices_that_stand_on_each_other_the_lowest_counts() {
        let links = stack();
        let names = |selection: &Selection, carriers: &[u32], counted: &[u32]| {
            let carriers = carriers.iter().copied().collect();
            let counted = counted.iter().copied().collect();
            let uplinks = Uplinks::new(&links, selection, &carriers, &counted);
            let taken = links.iter().filter(|link| selection.takes(link, &uplinks));
            taken.map(|link| link.name.clone()).collect::<Vec<_>>()
        };
        let all = Selection::default();
        // The link that carries the route is the uplink, whatever it stands on.
        assert_eq!(names(&all, &[5], &[]), ["bond0.10"]);
        assert_eq!(names(&all, &[6], &[]), ["br0"]);
        assert_eq!(names(&all, &[4, 5], &[]), ["bond0"]);
        assert_eq!(names(&all, &[2, 5, 7], &[]), ["eth0"]);
        assert_eq!(names(&all, &[2, 3], &[]), ["eth0", "eth1"]);
        assert_eq!(names(&all, &[8, 9], &[]), ["veth0", "veth1"]);
        // An excluded link counts nothing, so the link above it does.
        assert_eq!(names(&excluding(&["bond0"]), &[4, 5], &[]), ["bond0.10"]);
        // A link that is still counted after its route has gone does so, too.
        assert!(names(&all, &[5], &[4]).is_empty());
        assert_eq!(names(&all, &[5], &[5]), ["bond0.10"]);

        let carriers = BTreeSet::from([2, 4, 5]);
        let uplinks = Uplinks::new(&links, &all, &carriers, &BTreeSet::new());
        assert_eq!(
            uplinks.counted_at(5),
            Some(2),
            "and not at bond0, which is left out"
        );
    }

    #[test]
    fn tunnels_in_a_circle_are_both_counted() {
        let links = [over(3, link(2, "a", "gre")), over(2, link(3, "b", "gre"))];
        let carriers = BTreeSet::from([2, 3]);
        let uplinks = Uplinks::new(&links, &Selection::default(), &carriers, &BTreeSet::new());
        assert!(uplinks.has(2) && uplinks.has(3));
    }

    #[test]
    fn each_choice_has_its_reason() {
        let mut links = stack();
        links[2].hardware_type = 32;
        let carriers = BTreeSet::from([2, 4, 5, 8]);
        let selection = excluding(&["veth0"]);
        let uplinks = Uplinks::new(&links, &selection, &carriers, &BTreeSet::new());
        assert_eq!(
            words(&selection, &links, &uplinks),
            [
                "eth0 default_route",
                "eth1 no_default_route",
                "bond0 counted_at_lower",
                "bond0.10 counted_at_lower",
                "br0 no_default_route",
                "vxlan0 no_default_route",
                "veth0 excluded",
                "veth1 no_default_route",
            ]
        );
        let selection = Selection {
            include: patterns(&["eth0", "b*"]),
            exclude: patterns(&["br?"]),
            ..Selection::default()
        };
        assert_eq!(
            words(&selection, &links, &Uplinks::default()),
            [
                "eth0 name",
                "eth1 no_match",
                "bond0 link_type",
                "bond0.10 pattern",
                "br0 excluded",
                "vxlan0 no_match",
                "veth0 no_match",
                "veth1 no_match",
            ]
        );
    }

    #[test]
    fn what_is_selected_at_the_start_is_what_is_chosen_later() {
        let mut links = stack();
        links[1].hardware_type = 32;
        let carriers = BTreeSet::from([2, 3, 4, 5, 8]);
        for (include, exclude) in [
            (&[][..], &[][..]),
            (&[], &["eth0"]),
            (&[], &["eth*", "bond0"]),
            (&["*"], &[]),
            (&["eth*", "veth0"], &["eth0"]),
            (&["/^b/"], &["br0"]),
        ] {
            let selection = Selection {
                include: patterns(include),
                exclude: patterns(exclude),
                ..Selection::default()
            };
            let uplinks = Uplinks::new(&links, &selection, &carriers, &BTreeSet::new());
            let taken = links.iter().filter(|link| selection.takes(link, &uplinks));
            let taken: Vec<Link> = taken.cloned().collect();
            let selected = select(&links, &selection, &carriers).unwrap();
            assert_eq!(selected, taken, "{include:?} without {exclude:?}");
        }
    }
}
