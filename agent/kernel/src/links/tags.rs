//! Finds out whether XDP sees the VLAN tags of a link's frames.
//!
//! A driver may take the tag out of the frame and keep it in the skb. XDP has no skb, so frames of several VLANs look
//! like one flow, each frame four bytes too short. Whether that happens depends on features of the link or of its peer.

use std::{
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

use agent_common::LinkType;
use anyhow::{Context as _, Result};

use super::{
    Link,
    generic::{GenericSocket, attribute},
    netlink::{attributes, push_attribute},
    statistics::Names,
};

// linux/ethtool_netlink.h.
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const NLA_F_NESTED: u16 = 1 << 15;

/// The features for 802.1Q and 802.1ad tags, named as in `netdev_features_strings` (net/ethtool/common.c).
const RECEIVE: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];
const TRANSMIT: [&str; 2] = ["tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"];

/// The interface whose features decide where the tags of received frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagPlace {
    /// None: frames contain their tags, or cannot have any.
    InFrames,
    /// This interface: its driver may take tags out when it receives.
    Receiver(u32),
    /// The other end of a veth, by ifindex: a veth passes frames on as that end sends them (`veth_xmit`).
    Sender(u32),
    /// Unknown: the other end is in another network namespace, or other devices handle the tags before the link gets
    /// the frames.
    Unknown,
}

impl TagPlace {
    pub fn of(link: &Link) -> Self {
        if link.link_type() == Some(LinkType::Ip) {
            return Self::InFrames;
        }
        match link.kind.as_str() {
            // A NIC.
            "" => Self::Receiver(link.ifindex),
            "tun" => Self::InFrames,
            "veth" => link.peer_ifindex.map_or(Self::Unknown, Self::Sender),
            _ => Self::Unknown,
        }
    }
}

/// Asks for the features of links.
pub struct Features {
    ethtool: Result<GenericSocket>,
}

impl Features {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Self {
        Self {
            ethtool: GenericSocket::open("ethtool"),
        }
    }

    /// Why XDP may miss tags there, as text for the user. Unknown features count as a reason.
    pub fn hiding_tags(&mut self, place: TagPlace) -> Option<String> {
        let (ifindex, whose, hiding) = match place {
            TagPlace::InFrames => return None,
            TagPlace::Unknown => {
                return Some("it is unknown where this device's VLAN tags are".to_owned());
            }
            TagPlace::Receiver(ifindex) => (ifindex, "of its driver", RECEIVE),
            TagPlace::Sender(ifindex) => (ifindex, "of its other end", TRANSMIT),
        };
        let active = match self.active(ifindex) {
            Ok(active) => active,
            Err(error) => return Some(format!("its features are not known: {error:#}")),
        };
        let mut on = active.iter().filter(|name| hiding.contains(&name.as_str()));
        on.next().map(|name| {
            format!("{name} {whose} is on, which keeps VLAN tags beside the frames (ethtool -K)")
        })
    }

    /// The names of the features that are switched on.
    fn active(&mut self, ifindex: u32) -> Result<Vec<String>> {
        let ethtool = match &mut self.ethtool {
            Ok(ethtool) => ethtool,
            Err(error) => anyhow::bail!("{error:#}"),
        };
        let (mut header, mut request) = (Vec::new(), Vec::new());
        push_attribute(
            &mut header,
            ETHTOOL_A_HEADER_DEV_INDEX,
            &ifindex.to_ne_bytes(),
        );
        push_attribute(
            &mut request,
            ETHTOOL_A_FEATURES_HEADER | NLA_F_NESTED,
            &header,
        );
        let answer = ethtool
            .get(ETHTOOL_MSG_FEATURES_GET, &request)
            .with_context(|| format!("ask for the features of ifindex {ifindex}"))?;
        // The answer is a list of names: a feature that is listed is on.
        let active = attribute(&answer, ETHTOOL_A_FEATURES_ACTIVE)?;
        let bits = attribute(active, ETHTOOL_A_BITSET_BITS)?;
        let names = attributes(bits).map(|(_, bit)| {
            let name = attribute(bit, ETHTOOL_A_BITSET_BIT_NAME)?;
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            Ok(String::from_utf8_lossy(name).into_owned())
        });
        names.collect()
    }
}

/// Watches places where frames contain their tags, and reports each place once tags may be hidden there.
///
/// The kernel answers under the RTNL lock, so a separate thread asks and the caller need not wait.
pub struct TagWatch {
    places: Sender<(u32, TagPlace)>,
    hidden: Receiver<(TagPlace, String)>,
}

impl TagWatch {
    const INTERVAL: Duration = Duration::from_secs(1);

    /// Watches in the network namespace of the calling thread.
    pub fn start() -> Result<Self> {
        let (places, to_watch) = mpsc::channel();
        let (told, hidden) = mpsc::channel();
        let names = Names::open()?;
        thread::Builder::new()
            .name("tags".to_owned())
            .spawn(move || watch(&to_watch, &told, &names))
            .context("start a thread")?;
        Ok(Self { places, hidden })
    }

    /// Watches the place of an interface until the interface has left.
    pub fn add(&self, ifindex: u32, place: TagPlace) {
        // The thread lives at least as long as this sender.
        let _ = self.places.send((ifindex, place));
    }

    /// The places where tags became hidden since the last call, each with the reason. Reports each place once. Never
    /// blocks.
    pub fn hidden(&self) -> impl Iterator<Item = (TagPlace, String)> {
        self.hidden.try_iter()
    }
}

fn watch(to_watch: &Receiver<(u32, TagPlace)>, told: &Sender<(TagPlace, String)>, names: &Names) {
    let mut features = Features::open();
    let mut places = Vec::new();
    loop {
        let place = if places.is_empty() {
            to_watch.recv().map_err(RecvTimeoutError::from)
        } else {
            to_watch.recv_timeout(TagWatch::INTERVAL)
        };
        match place {
            Ok(place) => places.push(place),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        places.extend(to_watch.try_iter());
        places.retain(|&(ifindex, place)| {
            let Some(why) = features.hiding_tags(place) else {
                return true;
            };
            // When a veth leaves, its other end leaves, too, and its features are unknown.
            let name = names.of(ifindex);
            let has_left = name.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV));
            !has_left && told.send((place, why)).is_err()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::{LOOPBACK_IFINDEX, links};

    #[test]
    fn the_kind_of_a_link_says_whose_features_decide() {
        let mut link = links().unwrap().swap_remove(0);
        let place_of = |link: &Link| TagPlace::of(link);
        assert_eq!(place_of(&link), TagPlace::Receiver(LOOPBACK_IFINDEX));
        link.kind = "veth".into();
        assert_eq!(place_of(&link), TagPlace::Unknown);
        link.peer_ifindex = Some(7);
        assert_eq!(place_of(&link), TagPlace::Sender(7));
        link.kind = "bond".into();
        assert_eq!(place_of(&link), TagPlace::Unknown);
        link.kind = "tun".into();
        assert_eq!(place_of(&link), TagPlace::InFrames);
    }

    #[test]
    fn nothing_is_told_of_an_interface_that_has_left() {
        const GONE: u32 = 0x7fff_fff0;
        let watch = TagWatch::start().unwrap();
        watch.add(GONE, TagPlace::Sender(GONE + 1));
        watch.add(GONE, TagPlace::Receiver(GONE));
        // The watch looks at places in the order they were added.
        watch.add(LOOPBACK_IFINDEX, TagPlace::Unknown);
        let (place, _) = watch.hidden.recv().unwrap();
        assert_eq!(place, TagPlace::Unknown);
    }

    #[test]
    fn loopback_hides_no_tags_and_an_unknown_interface_may() {
        let mut features = Features::open();
        let active = features.active(LOOPBACK_IFINDEX).unwrap();
        assert!(active.contains(&"loopback".to_owned()), "{active:?}");
        let lo = TagPlace::Receiver(LOOPBACK_IFINDEX);
        assert_eq!(features.hiding_tags(lo), None);
        let gone = TagPlace::Sender(0x7fff_fff0);
        assert!(features.hiding_tags(gone).is_some());
    }
}
