//! Takes over the links and filters that a process left on an interface when it ended without detaching.
//!
//! If our program belongs at the same place, the link or filter is switched to it, and each packet is counted by one of
//! the two. Otherwise the old program is removed right before ours counts, and packets in between are not counted. The
//! old and the new program never count at the same time.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use agent_common::{Direction, InterfaceId};

use super::{
    clsact::{Clsact, StaleFilters},
    held::{self, HeldLink},
    lines::{Line, Lines},
    link_store::LinkStore,
    programs::has_xdp_frags,
};
use crate::{
    bpf::{self, LinkPlace},
    carry::{InheritedLink, InheritedLinks, Keep},
    links::Link,
};

#[cfg(test)]
mod tests;

/// What this process has taken over from others so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// Links and filters that were switched to our programs.
    pub links: u64,
    /// Links that were detached instead, and links whose interface is gone.
    pub removed: u64,
    /// Hooks at which packets were not counted: the old program was detached before the new one was attached, or the old
    /// program's table is gone.
    pub gaps: u64,
}

/// The links of predecessors and the store, which all network namespaces share. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Carried {
    links: InheritedLinks,
    has_maps: bool,
    pub store: LinkStore,
    tally: Arc<Tally>,
}

#[derive(Default)]
struct Tally {
    links: AtomicU64,
    removed: AtomicU64,
    gaps: AtomicU64,
}

impl Carried {
    pub(super) fn new(links: InheritedLinks, keep: Keep, has_maps: bool) -> Self {
        Self {
            links,
            has_maps,
            store: LinkStore::new(keep),
            tally: Arc::default(),
        }
    }

    pub(super) fn taken_over(&self) -> TakenOver {
        let Tally {
            links,
            removed,
            gaps,
        } = &*self.tally;
        TakenOver {
            links: links.load(Relaxed),
            removed: removed.load(Relaxed),
            gaps: gaps.load(Relaxed),
        }
    }

    /// Detaches the links that nobody has taken over. Call it once all first hooks are attached.
    pub(super) fn detach_rest(&self) {
        for link in self.links.take_rest() {
            self.detach(&link);
        }
        let TakenOver {
            links,
            removed,
            gaps,
        } = self.taken_over();
        if links + removed > 0 {
            tracing::info!(
                taken_over = links,
                removed,
                gaps,
                "took over what the previous process had attached"
            );
        }
    }

    fn detach(&self, InheritedLink { id, place, fd }: &InheritedLink) {
        // Anything with such a name that is not a link is closed and forgotten, too.
        if let Err(error) = bpf::detach_link(fd.as_fd()) {
            tracing::warn!(?id, ?place, %error, "cannot detach a program of the previous process");
        }
        self.store.remove(*id, *place);
        self.tally.removed.fetch_add(1, Relaxed);
    }
}

/// The same, and the filters in one network namespace.
pub(super) struct Takeover {
    pub carried: Carried,
    pub filters: StaleFilters,
}

/// The programs in one direction of an interface.
struct Others {
    links: Vec<InheritedLink>,
    /// Links whose interface is gone, or is another one by now.
    strays: Vec<InheritedLink>,
    has_filters: bool,
}

impl Others {
    fn count_here(&self) -> bool {
        self.has_filters || !self.links.is_empty()
    }

    /// Whether the kernel refuses a link at this place because of them.
    fn exclude(&self, place: LinkPlace) -> bool {
        place.is_exclusive() && self.links.iter().any(|link| link.place.is_exclusive())
    }
}

impl Takeover {
    pub(super) fn new(carried: Carried) -> Self {
        Self {
            carried,
            filters: StaleFilters::default(),
        }
    }

    /// Makes a program count at a place of an interface, instead of any that count packets of that direction there.
    /// Stores the link. On failure, the previous ones may still be there.
    pub(super) fn attach(
        &mut self,
        (id, link): (InterfaceId, &Link),
        place: LinkPlace,
        program: BorrowedFd<'_>,
        lines: &mut Lines,
    ) -> io::Result<HeldLink> {
        let mut others = self.find(id, link, place.direction());
        if let Some(at) = others.links.iter().position(|one| one.place == place) {
            let inherited = others.links.swap_remove(at);
            // Only the others: the link that is switched keeps counting.
            let shares_its_name = self.detach_all(others, link, place);
            match bpf::update_link(inherited.fd.as_fd(), program) {
                Ok(()) => {
                    self.carried.tally.links.fetch_add(1, Relaxed);
                    let store = &self.carried.store;
                    let stored = if shares_its_name {
                        store.put(id, place, inherited.fd.as_fd())
                    } else {
                        Some(store.adopt(id, place))
                    };
                    return Ok(HeldLink::new(inherited.fd, place, stored));
                }
                Err(error) => tracing::info!(
                    interface = link.name,
                    ?place,
                    %error,
                    "the kernel does not switch this link to another program"
                ),
            }
            others = Others {
                links: vec![inherited],
                strays: Vec::new(),
                has_filters: false,
            };
        }
        let fd = if !others.count_here() {
            self.detach_all(others, link, place);
            bpf::create_link(program, link.ifindex, place)?
        } else if others.exclude(place) {
            let began = Instant::now();
            self.detach_all(others, link, place);
            let created = bpf::create_link(program, link.ifindex, place);
            self.tell_of_gap(link, began, lines);
            created?
        } else {
            self.create_beside(others, link, place, program, lines)?
        };
        let stored = self.carried.store.put(id, place, fd.as_fd());
        Ok(HeldLink::new(fd, place, stored))
    }

    /// Creates a link beside others, which are detached only once the kernel has accepted ours, and before it counts.
    fn create_beside(
        &mut self,
        others: Others,
        link: &Link,
        place: LinkPlace,
        program: BorrowedFd<'_>,
        lines: &mut Lines,
    ) -> io::Result<OwnedFd> {
        let passing = bpf::load_passing(place, has_xdp_frags());
        let created =
            passing.and_then(|passing| bpf::create_link(passing.as_fd(), link.ifindex, place));
        let created = match created {
            Ok(created) => created,
            Err(error) => {
                let Others { links, strays, .. } = others;
                self.carried
                    .links
                    .give_back(links.into_iter().chain(strays));
                return Err(error);
            }
        };
        let began = Instant::now();
        self.detach_all(others, link, place);
        let counting = if bpf::update_link(created.as_fd(), program).is_ok() {
            Ok(created)
        } else {
            drop(created);
            bpf::create_link(program, link.ifindex, place)
        };
        self.tell_of_gap(link, began, lines);
        counting
    }

    /// Replaces a predecessor's filter in one direction of an interface. On `false`, call [`Self::clear`]: there is no
    /// such filter, the kernel refused, or a predecessor's link is there, which a filter cannot replace.
    pub(super) fn replace_filter(
        &mut self,
        (id, link): (InterfaceId, &Link),
        direction: Direction,
        clsact: &mut Clsact,
        (program, program_name): (BorrowedFd<'_>, &str),
        lines: &mut Lines,
    ) -> bool {
        let inherited = self.carried.links.take(id, direction);
        let has_links = !inherited.is_empty();
        self.carried.links.give_back(inherited);
        if has_links {
            return false;
        }
        let Some(stale) = self.filters.take_one_on(link.ifindex, direction) else {
            return false;
        };
        match clsact.replace(&stale, program, program_name) {
            Ok(true) => {
                self.carried.tally.links.fetch_add(1, Relaxed);
                if !self.carried.has_maps {
                    self.carried.tally.gaps.fetch_add(1, Relaxed);
                    if let Some(hooks) = lines.due(Line::LostTable) {
                        tracing::warn!(
                            interface = link.name,
                            hooks,
                            "replaced the filter of a killed agent: packets after that agent's last scan are not counted"
                        );
                    }
                }
                return true;
            }
            Ok(false) => {}
            Err(error) => tracing::info!(
                interface = link.name,
                side = ?direction,
                "the kernel does not replace this filter: {error:#}"
            ),
        }
        self.filters.give_back(stale);
        false
    }

    /// Detaches whatever counts packets of this direction of an interface. Returns when, if there was something; then
    /// [`Self::tell_of_gap`] follows.
    pub(super) fn clear(
        &mut self,
        id: InterfaceId,
        link: &Link,
        direction: Direction,
    ) -> Option<Instant> {
        let others = self.find(id, link, direction);
        let began = others.count_here().then(Instant::now);
        for link in others.links.iter().chain(&others.strays) {
            self.carried.detach(link);
        }
        self.filters.remove_on(link.ifindex, direction);
        began
    }

    /// Counts and logs that packets were not counted since then.
    pub(super) fn tell_of_gap(&self, link: &Link, began: Instant, lines: &mut Lines) {
        self.carried.tally.gaps.fetch_add(1, Relaxed);
        if let Some(hooks) = lines.due(Line::Gap) {
            tracing::warn!(
                interface = link.name,
                hooks,
                after = ?began.elapsed(),
                "replaced a program of an earlier process: packets between its removal and our attachment are not \
                 counted"
            );
        }
    }

    fn find(&self, id: InterfaceId, link: &Link, direction: Direction) -> Others {
        let is_here = |one: &InheritedLink| {
            held::is_on(one.fd.as_fd(), one.place, link).unwrap_or(false)
                && is_same_program(one, link)
        };
        let taken = self.carried.links.take(id, direction);
        let (links, strays) = taken.into_iter().partition(is_here);
        Others {
            links,
            strays,
            has_filters: self.filters.are_on(link.ifindex, direction),
        }
    }

    /// Detaches them and removes them from the store. Returns whether one of them was stored by the name of a link at
    /// `place`, which must be stored anew then.
    fn detach_all(&mut self, others: Others, link: &Link, place: LinkPlace) -> bool {
        let Others { links, strays, .. } = others;
        for one in links.iter().chain(&strays) {
            self.carried.detach(one);
        }
        self.filters.remove_on(link.ifindex, place.direction());
        links.iter().chain(&strays).any(|one| one.place == place)
    }
}

/// An XDP link may be on an interface of another namespace with the same index, to which its own one has moved.
fn is_same_program(inherited: &InheritedLink, link: &Link) -> bool {
    !inherited.place.is_exclusive()
        || bpf::link(inherited.fd.as_fd()).is_ok_and(|found| {
            let is_it = |id: u32| id == found.program_id;
            found.is_xdp && link.xdp_program_id.is_none_or(is_it)
        })
}
