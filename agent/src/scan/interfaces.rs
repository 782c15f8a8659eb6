//! Follows the watched interfaces from scan to scan: their names, their counters around the flip, and which
//! of them have left this network namespace.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::Arc,
};

use anyhow::Result;

use crate::{
    kernel::links::{
        Counters,
        statistics::{Names, Snapshot, Statistics},
    },
    log_limit::LogLimit,
    proto,
};

/// The watched interfaces, by slot.
pub struct Interfaces {
    names: Names,
    statistics: Statistics,
    before: Snapshot,
    after: Snapshot,
    watched: BTreeMap<usize, Watched>,
    gone: LogLimit,
    deselected: LogLimit,
    messages: Arc<[proto::Interface]>,
    netns: u32,
}

/// One interface as the last scan found it.
#[derive(Clone, Debug)]
pub struct Watched {
    pub ifindex: u32,
    pub name: String,
    /// It is forgotten after the next scan.
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

    /// Takes in the readings around a flip, which are by name, and says whether the name has changed.
    fn update(
        &mut self,
        name: Option<String>,
        before: &HashMap<&str, Counters>,
        after: &HashMap<&str, Counters>,
    ) -> bool {
        let Some(name) = name else {
            self.is_gone = true;
            return false;
        };
        let is_renamed = name != self.name;
        // A reading before the flip may belong to another interface that had the name then, so it is not used
        // after a renaming. The last scan's reading was before this flip as well.
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
    /// Watches no interface yet, in the network namespace of the calling thread, whose number is `netns`.
    pub fn open(netns: u32) -> Result<Self> {
        Ok(Self {
            names: Names::open()?,
            statistics: Statistics::open()?,
            before: Snapshot::default(),
            after: Snapshot::default(),
            watched: BTreeMap::new(),
            gone: LogLimit::default(),
            deselected: LogLimit::default(),
            messages: Arc::new([]),
            netns,
        })
    }

    /// Watches the interface at a slot, if it does not already.
    pub fn watch(&mut self, slot: usize, ifindex: u32, name: &str) {
        if self.watched.contains_key(&slot) {
            return;
        }
        let watched = Watched {
            ifindex,
            name: name.to_owned(),
            is_gone: false,
            before_flip: Counters::default(),
            after_flip: Counters::default(),
        };
        self.watched.insert(slot, watched);
        self.write_messages();
    }

    /// Forgets the interface at a slot.
    pub fn forget(&mut self, slot: usize, is_deselected: bool) {
        if let Some(watched) = self.watched.remove(&slot) {
            let limit = if is_deselected {
                &mut self.deselected
            } else {
                &mut self.gone
            };
            if let Some(interfaces) = limit.event() {
                let why = if is_deselected {
                    "not selected any more"
                } else {
                    "gone"
                };
                tracing::info!(
                    interface = watched.name,
                    ifindex = watched.ifindex,
                    interfaces,
                    "the interface is {why}, and its flows have ended"
                );
            }
            self.write_messages();
        }
    }

    /// Reads the counters right before a flip. Never waits for another process.
    pub fn read_before_flip(&mut self) -> Result<()> {
        self.statistics.read(&mut self.before)
    }

    /// Reads the counters again right after the flip, and finds the interfaces that were renamed or have left
    /// since the last scan. Those in `left` are known to have left.
    pub fn read_after_flip(&mut self, left: &BTreeSet<u32>) -> Result<()> {
        self.statistics.read(&mut self.after)?;
        let (before, after) = (self.before.by_name(), self.after.by_name());
        let mut is_renamed = false;
        let watched = self.watched.values_mut();
        for watched in watched.filter(|watched| !watched.is_gone) {
            // The index of an interface that left may belong to another one by then.
            let name = if left.contains(&watched.ifindex) {
                None
            } else {
                watched.name_by(self.names.of(watched.ifindex))
            };
            is_renamed |= watched.update(name, &before, &after);
        }
        if is_renamed {
            self.write_messages();
        }
        Ok(())
    }

    fn write_messages(&mut self) {
        let interface = |watched: &Watched| proto::Interface {
            ifindex: watched.ifindex,
            name: watched.name.clone(),
            netns: self.netns,
        };
        self.messages = self.watched.values().map(interface).collect();
    }

    /// The interfaces as batches name them.
    pub fn messages(&self) -> &Arc<[proto::Interface]> {
        &self.messages
    }

    pub fn watched(&self, slot: usize) -> Option<&Watched> {
        self.watched.get(&slot)
    }

    pub fn netns(&self) -> u32 {
        self.netns
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::kernel::links::LOOPBACK_IFINDEX;

    fn counted(rx_packets: u64) -> Counters {
        Counters {
            rx_packets,
            ..Counters::default()
        }
    }

    fn watched(name: &str) -> Watched {
        Watched {
            ifindex: 7,
            name: name.to_owned(),
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
                .map(|&(name, packets)| (name, counted(packets)))
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
        let other = HashMap::from([("old", counted(100))]);
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
        let mut interfaces = Interfaces::open(5).unwrap();
        interfaces.watch(3, LOOPBACK_IFINDEX, "lo");
        let watched = |interfaces: &Interfaces| interfaces.watched(3).unwrap().clone();
        let name = interfaces.messages()[0].clone();
        assert_eq!((name.name.as_str(), name.netns), ("lo", 5));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let send = || socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        let (none, lo) = (BTreeSet::new(), BTreeSet::from([LOOPBACK_IFINDEX]));

        send();
        interfaces.read_before_flip().unwrap();
        send();
        interfaces.read_after_flip(&none).unwrap();
        let [before, after] = readings(&watched(&interfaces));
        assert!(0 < before && before < after, "{before} {after}");
        send();
        interfaces.read_after_flip(&lo).unwrap();
        assert!(watched(&interfaces).is_gone);
        assert_eq!(readings(&watched(&interfaces)), [before, after]);
        interfaces.forget(3, false);
        assert!(interfaces.messages().is_empty() && interfaces.watched(3).is_none());
    }
}
