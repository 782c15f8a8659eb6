//! Chooses the interfaces of several network namespaces. A selected name or default route has to exist in one of them.

use std::collections::BTreeSet;

use anyhow::Result;
use rules::pattern::Pattern;

use super::{Absent, Selection, names, select as select_here};
use crate::{
    links::{Link, LinkSocket},
    netns::Namespace,
};

/// The links and default routes of one network namespace.
struct Here {
    links: Vec<Link>,
    default_route: BTreeSet<u32>,
}

impl Here {
    fn ask() -> Result<Self> {
        let mut socket = LinkSocket::open()?;
        Ok(Self {
            links: socket.links()?,
            default_route: socket.default_route_ifindexes()?,
        })
    }

    fn has(&self, name: &str) -> bool {
        self.links.iter().any(|link| link.is_called(name))
    }
}

/// The links and default routes of all network namespaces at one moment.
pub struct Everywhere<'a> {
    namespaces: &'a [Namespace],
    all: Vec<Here>,
}

impl<'a> Everywhere<'a> {
    pub fn look(namespaces: &'a [Namespace]) -> Result<Self> {
        let ask = |namespace: &Namespace| namespace.enter(Here::ask);
        let all = namespaces.iter().map(ask).collect::<Result<_>>()?;
        Ok(Self { namespaces, all })
    }

    /// The links to start with in each network namespace, sorted by ifindex. Fails as [`select`](super::select) does.
    pub fn select(&self, selection: &Selection) -> Result<Vec<(Namespace, Vec<Link>)>> {
        let each = self.namespaces.iter().zip(&self.all);
        each.map(|(namespace, here)| {
            let select = || select_in(here, &self.all, selection);
            let links = namespace.span().in_scope(select);
            let links = links.map_err(|error| namespace.locate(error))?;
            Ok((namespace.clone(), links))
        })
        .collect()
    }

    /// Selected names and default routes that exist in no network namespace, and that a service waits for.
    pub fn absent(&self, selection: &Selection) -> Vec<Absent> {
        let all = self.all.iter();
        let default_route = all.clone().flat_map(|here| here.default_route.clone());
        let links: Vec<Link> = all.flat_map(|here| here.links.clone()).collect();
        super::absent(&links, selection, &default_route.collect())
    }
}

fn select_in(here: &Here, all: &[Here], selection: &Selection) -> Result<Vec<Link>> {
    if selection.follows_default_routes() {
        let is_elsewhere = all.iter().any(|one| !one.default_route.is_empty());
        if here.default_route.is_empty() && is_elsewhere {
            tracing::warn!(
                "no interface carries a default route here, and one that will is waited for; interfaces \
                 here: {}",
                names(&here.links)
            );
            return Ok(Vec::new());
        }
        return select_here(&here.links, selection, &here.default_route);
    }
    let is_elsewhere = |pattern: &&Pattern| match pattern {
        Pattern::Name(name) => !here.has(name) && all.iter().any(|one| one.has(name)),
        Pattern::Glob(_) | Pattern::Regex(_) => false,
    };
    let (elsewhere, include): (Vec<_>, Vec<_>) = selection.include.iter().partition(is_elsewhere);
    for pattern in elsewhere {
        tracing::info!("{pattern} is in another network namespace, and counted here when it comes");
    }
    if include.is_empty() {
        return Ok(Vec::new());
    }
    let selection = Selection {
        include: include.into_iter().cloned().collect(),
        exclude: selection.exclude.clone(),
        waits: selection.waits,
    };
    select_here(&here.links, &selection, &here.default_route)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::link, *};

    fn here(names: &[&str], default_route: &[u32]) -> Here {
        let links = (2..).zip(names);
        Here {
            links: links
                .map(|(ifindex, name)| link(ifindex, name, 1))
                .collect(),
            default_route: default_route.iter().copied().collect(),
        }
    }

    fn selected(include: &[&str], all: &[Here]) -> Vec<Result<Vec<String>>> {
        let selection = Selection {
            include: include.iter().map(|text| text.parse().unwrap()).collect(),
            ..Selection::default()
        };
        let select = |here| {
            let links = select_in(here, all, &selection)?;
            Ok(links.into_iter().map(|link| link.name).collect())
        };
        all.iter().map(select).collect()
    }

    #[test]
    fn a_name_has_to_be_in_one_network_namespace() {
        let all = [here(&["eth0", "veth1"], &[]), here(&["eth1"], &[])];
        let chosen = |include: &[&str]| {
            let selected = selected(include, &all).into_iter();
            selected.map(Result::unwrap).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&["eth0"]), [vec!["eth0"], vec![]]);
        assert_eq!(chosen(&["eth0", "eth1"]), [["eth0"], ["eth1"]]);
        assert_eq!(chosen(&["*eth1"]), [["veth1"], ["eth1"]]);
        for one in selected(&["eth7"], &all) {
            let error = one.unwrap_err().to_string();
            assert!(error.contains("no interface 'eth7'"), "{error}");
        }
    }

    #[test]
    fn a_default_route_has_to_be_in_one_network_namespace() {
        let all = [here(&["eth0"], &[2]), here(&["eth1"], &[])];
        let [with, without] = &selected(&[], &all)[..] else {
            panic!("two namespaces");
        };
        assert_eq!(*with.as_ref().unwrap(), ["eth0"]);
        assert!(without.as_ref().unwrap().is_empty());
        let none = selected(&[], &[here(&["eth0"], &[]), here(&["eth1"], &[])]);
        assert!(none.iter().all(Result::is_err));
    }
}
