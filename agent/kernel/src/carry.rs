//! What outlives the process in the service manager's store: the links, which keep the programs counting, and the maps
//! that they count into. The next process takes the links over, and drains the maps once.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use agent_common::{Direction, InterfaceId};
use sys::fd_store::FdStore;

use crate::bpf::LinkPlace;

/// Stores descriptors for a successor. Clones store in the same place. The default stores nothing: then the kernel
/// detaches the programs with the process.
#[derive(Clone, Debug, Default)]
pub struct Keep {
    store: FdStore,
    instance: Arc<str>,
    /// The files of this instance that are stored.
    files: Arc<Mutex<BTreeSet<String>>>,
    has_given_up: Arc<AtomicBool>,
}

impl Keep {
    /// Stores for the successor of this instance of the agent.
    pub fn new(store: FdStore, instance: &str) -> Self {
        Self {
            store,
            instance: instance.into(),
            files: Arc::default(),
            has_given_up: Arc::default(),
        }
    }

    /// Whether anything is stored.
    pub fn is_there(&self) -> bool {
        self.store.is_there() && !self.has_given_up.load(Relaxed)
    }

    /// Stores nothing from now on, and removes the files that it has stored.
    pub fn give_up(&self) {
        self.has_given_up.store(true, Relaxed);
        self.remove_files();
    }

    /// Stores a map, or another file, of this instance.
    pub fn put_file(&self, what: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        if !self.is_there() {
            return Ok(());
        }
        self.files().insert(what.to_owned());
        self.store.put(&file_name(&self.instance, what), file)
    }

    pub fn remove_file(&self, what: &str) -> io::Result<()> {
        self.files().remove(what);
        self.store.remove(&file_name(&self.instance, what))
    }

    /// Removes all files of this instance, since a successor has nothing to take over.
    pub fn remove_files(&self) {
        let files: Vec<_> = std::mem::take(&mut *self.files()).into_iter().collect();
        self.forget(&self.instance, &files);
    }

    fn files(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything is stored that was put there before.
    pub fn settle(&self) -> io::Result<()> {
        self.store.barrier()
    }

    /// Stores a link. It stays attached until it is detached or [removed](Self::remove_link) and closed.
    pub fn put_link(
        &self,
        id: InterfaceId,
        place: LinkPlace,
        link: BorrowedFd<'_>,
    ) -> io::Result<()> {
        self.store.put(&link_name(id, place), link)
    }

    pub fn remove_link(&self, id: InterfaceId, place: LinkPlace) -> io::Result<()> {
        self.store.remove(&link_name(id, place))
    }

    /// Removes files that another instance has stored.
    pub fn forget(&self, instance: &str, files: &[String]) {
        for what in files {
            if let Err(error) = self.store.remove(&file_name(instance, what)) {
                tracing::debug!(%error, instance, what, "a file of an earlier process stays in the store");
            }
        }
    }
}

fn file_name(instance: &str, what: &str) -> String {
    format!("map.{instance}.{what}")
}

fn link_name(InterfaceId { netns, ifindex }: InterfaceId, place: LinkPlace) -> String {
    format!("link.{netns}.{ifindex}.{}", place_name(place))
}

fn place_name(place: LinkPlace) -> &'static str {
    match place {
        LinkPlace::TcxFirst(Direction::Ingress) => "tcx_ingress_first",
        LinkPlace::TcxLast(Direction::Ingress) => "tcx_ingress_last",
        LinkPlace::TcxFirst(Direction::Egress) => "tcx_egress_first",
        LinkPlace::TcxLast(Direction::Egress) => "tcx_egress_last",
        LinkPlace::XdpNative => "xdp_native",
        LinkPlace::XdpGeneric => "xdp_generic",
    }
}

fn place_of(name: &str) -> Option<LinkPlace> {
    [
        LinkPlace::TcxFirst(Direction::Ingress),
        LinkPlace::TcxLast(Direction::Ingress),
        LinkPlace::TcxFirst(Direction::Egress),
        LinkPlace::TcxLast(Direction::Egress),
        LinkPlace::XdpNative,
        LinkPlace::XdpGeneric,
    ]
    .into_iter()
    .find(|&place| place_name(place) == name)
}

/// An earlier process whose maps nobody has drained yet.
pub struct Predecessor {
    pub instance: String,
    /// By their role.
    pub files: BTreeMap<String, OwnedFd>,
}

/// Links whose programs count for a predecessor, to be taken over. Clones share them.
#[derive(Clone, Default)]
pub struct InheritedLinks(Arc<Mutex<Vec<InheritedLink>>>);

pub struct InheritedLink {
    pub id: InterfaceId,
    pub place: LinkPlace,
    pub fd: OwnedFd,
}

impl InheritedLinks {
    /// Takes the links that count packets of this direction of an interface.
    pub fn take(&self, id: InterfaceId, direction: Direction) -> Vec<InheritedLink> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extract_if(.., |link| {
            link.id == id && link.place.direction() == direction
        })
        .collect()
    }

    /// Returns links that were taken and could not be taken over yet.
    pub fn give_back(&self, links: impl IntoIterator<Item = InheritedLink>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(links);
    }

    /// Takes the links that nobody has taken over.
    pub fn take_rest(&self) -> Vec<InheritedLink> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// What predecessors have left in the store.
#[derive(Default)]
pub struct Inheritance {
    pub links: InheritedLinks,
    pub predecessors: Vec<Predecessor>,
    /// Names that this version does not know.
    pub unknown: Vec<String>,
}

impl Inheritance {
    /// Sorts stored descriptors by their names.
    pub fn of(stored: Vec<(String, OwnedFd)>) -> Self {
        let mut sorted = Self::default();
        let mut by_instance = BTreeMap::<String, BTreeMap<String, OwnedFd>>::new();
        let mut links = Vec::new();
        for (name, fd) in stored {
            if let Some((id, place)) = link_of(&name) {
                links.push(InheritedLink { id, place, fd });
            } else if let Some((instance, what)) = file_of(&name) {
                let files = by_instance.entry(instance.to_owned()).or_default();
                files.insert(what.to_owned(), fd);
            } else {
                sorted.unknown.push(name);
            }
        }
        sorted.links = InheritedLinks(Arc::new(Mutex::new(links)));
        sorted.predecessors = by_instance
            .into_iter()
            .map(|(instance, files)| Predecessor { instance, files })
            .collect();
        sorted
    }
}

fn link_of(name: &str) -> Option<(InterfaceId, LinkPlace)> {
    let mut parts = name.strip_prefix("link.")?.split('.');
    let netns = parts.next()?.parse().ok()?;
    let ifindex = parts.next()?.parse().ok()?;
    let place = place_of(parts.next()?)?;
    parts
        .next()
        .is_none()
        .then_some((InterfaceId { netns, ifindex }, place))
}

fn file_of(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("map.")?.split_once('.')
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn stored(names: &[&str]) -> Vec<(String, OwnedFd)> {
        let open = || OwnedFd::from(File::open("/dev/null").unwrap());
        names
            .iter()
            .map(|name| ((*name).to_owned(), open()))
            .collect()
    }

    #[test]
    fn what_was_stored_is_found_by_its_name() {
        let id = InterfaceId {
            netns: 4_026_531_840,
            ifindex: 7,
        };
        let place = LinkPlace::TcxLast(Direction::Egress);
        let names = [
            link_name(id, place),
            link_name(id, LinkPlace::XdpNative),
            file_name("4b1a-9", "windows.0.3"),
            file_name("4b1a-9", "fill"),
            file_name("77", "fill"),
            "link.1.2.elsewhere".to_owned(),
            "link.1.2".to_owned(),
            "nothing".to_owned(),
        ];
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let found = Inheritance::of(stored(&names));
        let files = |predecessor: &Predecessor| {
            let files: Vec<_> = predecessor.files.keys().cloned().collect();
            (predecessor.instance.clone(), files)
        };
        let files: Vec<_> = found.predecessors.iter().map(files).collect();
        let expected = [
            (
                "4b1a-9".to_owned(),
                vec!["fill".to_owned(), "windows.0.3".to_owned()],
            ),
            ("77".to_owned(), vec!["fill".to_owned()]),
        ];
        assert_eq!(files, expected);
        assert_eq!(found.unknown.len(), 3);
        let of = |direction| {
            let links = found.links.take(id, direction);
            links.iter().map(|link| link.place).collect::<Vec<_>>()
        };
        assert_eq!(of(Direction::Egress), [place]);
        assert_eq!(of(Direction::Egress), []);
        assert_eq!(of(Direction::Ingress), [LinkPlace::XdpNative]);
        assert!(found.links.take_rest().is_empty());
    }
}
