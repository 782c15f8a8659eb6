//! Follows the watched interfaces from scan to scan: their names, their counters around the flip, and whether they have
//! left their network namespace.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    io, mem,
    sync::Arc,
};

use agent_common::InterfaceId;
use anyhow::Result;
use kernel::{
    attach::{Hook, Why},
    links::{
        Counters,
        statistics::{Names, Snapshot, Statistics},
    },
    netns::Namespace,
};
use sys::log_limit::LogLimit;

/// The watched interfaces, by slot.
pub struct Interfaces {
    /// Keyed by namespace number.
    namespaces: BTreeMap<u32, Asked>,
    watched: BTreeMap<usize, Watched>,
    gone: LogLimit,
    deselected: LogLimit,
    given_up: LogLimit,
    messages: Arc<[proto::Interface]>,
    /// Set if the counters of some interface have not been read yet.
    is_new: bool,
}

/// The state of one network namespace.
struct Asked {
    /// What `--netns` calls it.
    name: String,
    names: Names,
    statistics: Statistics,
    before: Snapshot,
    after: Snapshot,
    /// `after` of the previous scan.
    last: Snapshot,
}

/// Counters, by the names that the interfaces had when they were read.
type Readings<'a> = HashMap<Cow<'a, str>, Counters>;

/// One interface as the last scan found it.
#[derive(Clone, Debug)]
pub struct Watched {
    pub id: InterfaceId,
    pub name: String,
    pub is_bare_ip: bool,
    /// The interface has left; it is forgotten after the next scan.
    pub is_gone: bool,
    pub before_flip: Counters,
    pub after_flip: Counters,
}

impl Watched {
    /// Its current name, according to the kernel's answer. `None` if the interface is gone.
    fn name_by(&self, answer: io::Result<String>) -> Option<String> {
        match answer {
            Ok(name) => Some(name),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => None,
            Err(_) => Some(self.name.clone()),
        }
    }

    /// Updates from the readings around a flip, which are keyed by name. Returns whether the name has changed.
    fn update(
        &mut self,
        name: Option<String>,
        before: &Readings<'_>,
        after: &Readings<'_>,
    ) -> bool {
        let Some(name) = name else {
            self.is_gone = true;
            return false;
        };
        let is_renamed = name != self.name;
        // After a rename, the reading before the flip may belong to another interface that had the name then, so it is
        // not used. The last scan's reading was taken before this flip as well.
        self.before_flip = match before.get(&*name) {
            Some(counters) if !is_renamed => *counters,
            _ => self.after_flip,
        };
        if let Some(counters) = after.get(&*name) {
            self.after_flip = *counters;
        }
        if is_renamed {
            tracing::info!(from = self.name, to = name, "an interface was renamed");
            self.name = name;
        }
        is_renamed
    }
}

impl Interfaces {
    /// Opens these network namespaces without watching any interface.
    pub fn open(namespaces: &[Namespace]) -> Result<Self> {
        let ask = |namespace: &Namespace| {
            let asked = namespace.enter(|| {
                Ok(Asked {
                    name: namespace.name().to_owned(),
                    names: Names::open()?,
                    statistics: Statistics::open()?,
                    before: Snapshot::default(),
                    after: Snapshot::default(),
                    last: Snapshot::default(),
                })
            });
            Ok((namespace.number(), asked?))
        };
        Ok(Self {
            namespaces: namespaces.iter().map(ask).collect::<Result<_>>()?,
            watched: BTreeMap::new(),
            gone: LogLimit::default(),
            deselected: LogLimit::default(),
            given_up: LogLimit::default(),
            messages: Arc::new([]),
            is_new: false,
        })
    }

    /// Watches the interface of a hook unless it is watched already.
    pub fn watch(&mut self, hook: &Hook) {
        let slot = hook.slot();
        if self.watched.contains_key(&slot) {
            return;
        }
        let watched = Watched {
            id: hook.id,
            name: hook.interface.clone(),
            is_bare_ip: hook.is_bare_ip,
            is_gone: false,
            before_flip: Counters::default(),
            after_flip: Counters::default(),
        };
        self.watched.insert(slot, watched);
        self.is_new = true;
        self.write_messages();
    }

    /// Forgets the interface at a slot.
    pub fn forget(&mut self, slot: usize, why: Why) {
        if let Some(watched) = self.watched.remove(&slot) {
            let (limit, why) = match why {
                Why::Gone => (&mut self.gone, "gone"),
                Why::Deselected => (&mut self.deselected, "not selected any more"),
                Why::GivenUp => (&mut self.given_up, "not counted any more"),
            };
            if let Some(interfaces) = limit.event() {
                tracing::info!(
                    interface = watched.name,
                    ifindex = watched.id.ifindex,
                    netns = self
                        .namespaces
                        .get(&watched.id.netns)
                        .and_then(Asked::label),
                    interfaces,
                    "the interface is {why}, and its flows have ended"
                );
            }
            self.write_messages();
        }
    }

    /// Reads the counters right before a flip. Never waits for another process.
    pub fn read_before_flip(&mut self) -> Result<()> {
        for asked in self.namespaces.values_mut() {
            asked.statistics.read(&mut asked.before)?;
        }
        Ok(())
    }

    /// Reads the counters again right after the flip, and finds the interfaces that were renamed or have left
    /// since the last scan. Those in `left` are known to have left.
    pub fn read_after_flip(&mut self, left: &BTreeSet<InterfaceId>) -> Result<()> {
        let (mut is_renamed, mut is_unread) = (false, false);
        for (&netns, asked) in &mut self.namespaces {
            mem::swap(&mut asked.last, &mut asked.after);
            asked.statistics.read(&mut asked.after)?;
            let are_quiet = asked.are_quiet() && !self.is_new;
            // No counter changed, so the interfaces keep the readings that they have.
            let (before, after) = if are_quiet {
                Default::default()
            } else {
                (asked.before.by_name(), asked.after.by_name())
            };
            let here = self.watched.values_mut();
            let here = here.filter(|watched| watched.id.netns == netns && !watched.is_gone);
            for watched in here {
                // The index of an interface that left may have been reused.
                let name = if left.contains(&watched.id) {
                    None
                } else {
                    watched.name_by(asked.names.of(watched.id.ifindex))
                };
                is_renamed |= watched.update(name, &before, &after);
                // The interface had another name when the counters were read.
                is_unread |= !are_quiet && !watched.is_gone && !after.contains_key(&*watched.name);
            }
        }
        self.is_new = is_unread;
        if is_renamed {
            self.write_messages();
        }
        Ok(())
    }

    fn write_messages(&mut self) {
        let messages = self.watched.values();
        self.messages = messages.map(|watched| self.message(watched)).collect();
    }

    /// An interface as batches and status name it.
    pub fn message(&self, watched: &Watched) -> proto::Interface {
        proto::Interface {
            bare_ip: watched.is_bare_ip,
            ..self.named(watched.id, &watched.name)
        }
    }

    /// The same for any interface of these network namespaces, watched or not.
    pub fn named(&self, id: InterfaceId, name: &str) -> proto::Interface {
        let InterfaceId { netns, ifindex } = id;
        let asked = self.namespaces.get(&netns);
        proto::Interface {
            ifindex,
            name: name.to_owned(),
            netns,
            netns_name: asked.map_or_else(String::new, |asked| asked.name.clone()),
            bare_ip: false,
        }
    }

    /// The interfaces as batches name them.
    pub fn messages(&self) -> &Arc<[proto::Interface]> {
        &self.messages
    }

    pub fn watched(&self, slot: usize) -> Option<&Watched> {
        self.watched.get(&slot)
    }
}

impl Asked {
    /// Whether no interface has sent or received anything since the previous scan.
    fn are_quiet(&self) -> bool {
        self.before.is_like(&self.last) && self.after.is_like(&self.last)
    }

    /// The namespace's label in log lines.
    fn label(&self) -> Option<&str> {
        (!self.name.is_empty()).then_some(self.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use agent_common::{Direction, direction::hook_number};
    use kernel::{attach::Mode, links::LOOPBACK_IFINDEX};

    use super::*;

    fn counted(rx_packets: u64) -> Counters {
        Counters {
            rx_packets,
            ..Counters::default()
        }
    }

    fn watched(name: &str) -> Watched {
        Watched {
            id: InterfaceId::default(),
            name: name.to_owned(),
            is_bare_ip: false,
            is_gone: false,
            before_flip: counted(1),
            after_flip: counted(2),
        }
    }

    /// Returns both readings, the one before the flip first.
    fn readings(watched: &Watched) -> [u64; 2] {
        [watched.before_flip, watched.after_flip].map(|counters| counters.rx_packets)
    }

    #[test]
    fn an_interface_has_its_own_counters_under_any_name() {
        let mut watched = watched("old");
        let read = |numbers: &[(&'static str, u64)]| {
            let numbers = numbers.iter();
            numbers
                .map(|&(name, packets)| (name.into(), counted(packets)))
                .collect()
        };
        let name = |name: &str| Some(name.to_owned());
        let (before, after) = (read(&[("old", 3)]), read(&[("old", 4)]));
        assert!(!watched.update(name("old"), &before, &after));
        assert_eq!(readings(&watched), [3, 4]);
        // Another interface had the name and was renamed as well.
        let (before, after) = (read(&[("old", 5), ("new", 100)]), read(&[("new", 6)]));
        assert!(watched.update(name("new"), &before, &after));
        assert_eq!(watched.name, "new");
        assert_eq!(readings(&watched), [4, 6]);
        let (before, after) = (read(&[("new", 7)]), read(&[]));
        assert!(!watched.update(name("new"), &before, &after));
        assert_eq!(readings(&watched), [7, 6]);
        let (before, after) = (read(&[]), read(&[("new", 8)]));
        assert!(!watched.update(name("new"), &before, &after));
        assert_eq!(readings(&watched), [6, 8]);
        assert!(!watched.is_gone);
    }

    #[test]
    fn one_that_is_gone_keeps_what_it_was() {
        let mut watched = watched("old");
        let other = HashMap::from([("old".into(), counted(100))]);
        assert!(!watched.update(None, &other, &other));
        assert!(watched.is_gone);
        assert_eq!((&*watched.name, readings(&watched)), ("old", [1, 2]));
    }

    #[test]
    fn only_an_index_of_nobody_is_gone() {
        let watched = watched("old");
        let name = |answer| watched.name_by(answer);
        let error = |number| Err(io::Error::from_raw_os_error(number));
        assert_eq!(name(Ok("new".to_owned())).as_deref(), Some("new"));
        assert_eq!(name(error(libc::EINTR)).as_deref(), Some("old"));
        assert_eq!(name(error(libc::ENODEV)), None);
    }

    #[test]
    fn the_readings_lie_around_the_flip_until_the_interface_leaves() {
        let namespace = Namespace::own().unwrap();
        let netns = namespace.number();
        let mut interfaces = Interfaces::open(&[namespace]).unwrap();
        let id = |netns| InterfaceId {
            netns,
            ifindex: LOOPBACK_IFINDEX,
        };
        interfaces.watch(&Hook {
            interface: "lo".to_owned(),
            id: id(netns),
            is_bare_ip: false,
            is_loopback: true,
            is_vrf: false,
            number: hook_number(3, 0),
            direction: Direction::Ingress,
            mode: Mode::Tcx,
            instead_of_xdp: None,
            tag_place: None,
            tags_unknown: false,
        });
        let watched = |interfaces: &Interfaces| interfaces.watched(3).unwrap().clone();
        let name = interfaces.messages()[0].clone();
        assert_eq!((name.name.as_str(), name.netns), ("lo", netns));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let send = || socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        // One that left elsewhere is another one.
        let [elsewhere, lo] = [netns + 1, netns].map(|netns| BTreeSet::from([id(netns)]));

        send();
        interfaces.read_before_flip().unwrap();
        send();
        interfaces.read_after_flip(&elsewhere).unwrap();
        let [before, after] = readings(&watched(&interfaces));
        assert!(0 < before && before < after, "{before} {after}");
        send();
        interfaces.read_after_flip(&lo).unwrap();
        assert!(watched(&interfaces).is_gone);
        assert_eq!(readings(&watched(&interfaces)), [before, after]);
        interfaces.forget(3, Why::Gone);
        assert!(interfaces.messages().is_empty() && interfaces.watched(3).is_none());
    }
}
