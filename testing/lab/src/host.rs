//! Two hosts and the wire between them: a veth pair with each end in its own namespace. Only packets that a test sends
//! move on it.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    process::Command,
    thread,
};

use anyhow::Result;

use crate::{Counters, Frame, FrameSocket, Generator, Namespace, SuperFrameSocket, Variety, run};

/// The features, by their names in `ethtool -K`, that let an skb differ from the frames on the wire.
const OFFLOADS: &[&str] = &["rx", "tx", "sg", "tso", "gso", "gro", "rxvlan", "txvlan"];

#[derive(Clone, Copy, Debug)]
pub struct LabOptions {
    /// Gives both ends an IPv4 and an IPv6 address, and each other's MAC as a permanent neighbour. If false, turns IPv6
    /// off.
    pub addresses: bool,
    /// Leaves checksum, segmentation and VLAN offloads at the kernel's defaults for a veth, which are on.
    pub offloads: bool,
    pub mtu_bytes: u32,
    /// Queues per end and direction. Native XDP needs one for each sending CPU.
    pub queues: usize,
}

impl Default for LabOptions {
    /// For synthetic frames: no addresses, no offloads, 1500 bytes, a queue for each CPU.
    fn default() -> Self {
        let queues = thread::available_parallelism().map_or(1, usize::from);
        Self {
            addresses: false,
            offloads: false,
            mtu_bytes: 1500,
            queues,
        }
    }
}

/// A namespace with one end of the wire.
#[derive(Debug)]
pub struct Host {
    pub namespace: Namespace,
    pub interface: String,
    pub ifindex: u32,
    pub mac: [u8; 6],
    /// Set on the interface only with [`LabOptions::addresses`].
    pub ipv4: Ipv4Addr,
    /// Set on the interface only with [`LabOptions::addresses`].
    pub ipv6: Ipv6Addr,
}

/// The agent's host and its peer. Dropping the lab removes both, and everything in them.
#[derive(Debug)]
pub struct Lab {
    pub agent: Host,
    pub peer: Host,
}

impl Lab {
    pub fn new(options: LabOptions) -> Result<Self> {
        let mut agent = Host::unwired("agent", 1)?;
        let mut peer = Host::unwired("peer", 2)?;
        for host in [&agent, &peer] {
            host.silence(options)?;
        }
        let mtu = options.mtu_bytes.to_string();
        let queues = options.queues.to_string();
        let shape = ["mtu", &mtu, "numrxqueues", &queues, "numtxqueues", &queues];
        let (agent_mac, peer_mac) = (agent.mac_text(), peer.mac_text());
        let mut link = vec!["link", "add", &agent.interface, "address", &agent_mac];
        link.extend(shape);
        link.extend([
            "type",
            "veth",
            "peer",
            "name",
            &peer.interface,
            "netns",
            peer.namespace.name(),
        ]);
        link.extend(["address", &peer_mac]);
        link.extend(shape);
        agent.namespace.ip(&link)?;
        for (host, other) in [(&agent, &peer), (&peer, &agent)] {
            host.bring_up(options, other)?;
        }
        agent.ifindex = agent.namespace.ifindex(&agent.interface)?;
        peer.ifindex = peer.namespace.ifindex(&peer.interface)?;
        Ok(Self { agent, peer })
    }

    /// Quiet ends without addresses, for synthetic frames.
    pub fn quiet() -> Result<Self> {
        Self::new(LabOptions::default())
    }

    /// Ends with addresses and without offloads, for real sockets.
    pub fn addressed() -> Result<Self> {
        Self::new(LabOptions {
            addresses: true,
            ..LabOptions::default()
        })
    }
}

impl Host {
    fn unwired(role: &str, number: u8) -> Result<Self> {
        Ok(Self {
            namespace: Namespace::new(role)?,
            interface: format!("{role}0"),
            ifindex: 0,
            mac: [0x02, 0, 0, 0, 0, number],
            ipv4: Ipv4Addr::new(10, 77, 0, number),
            ipv6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()),
        })
    }

    /// Turns off everything that would send on its own, before an interface exists.
    fn silence(&self, options: LabOptions) -> Result<()> {
        for scope in ["all", "default"] {
            let settings = [
                ("disable_ipv6", if options.addresses { "0" } else { "1" }),
                ("accept_dad", "0"),
                ("dad_transmits", "0"),
                ("accept_ra", "0"),
                ("router_solicitations", "0"),
            ];
            for (name, value) in settings {
                self.namespace
                    .set_sysctl(&format!("net/ipv6/conf/{scope}/{name}"), value)?;
            }
        }
        Ok(())
    }

    fn bring_up(&self, options: LabOptions, other: &Self) -> Result<()> {
        let set = ["link", "set", "dev", &self.interface];
        // Without ARP the kernel does not join a solicited-node group, so it sends no multicast report for one
        // (addrconf_join_solict, 5.10 to 6.18).
        self.namespace
            .ip(&[&set[..], &["addrgenmode", "none", "arp", "off"]].concat())?;
        if !options.offloads {
            self.set_offloads(OFFLOADS, false)?;
        }
        self.namespace.ip(&[&set[..], &["up"]].concat())?;
        if options.addresses {
            let mac = other.mac_text();
            let on_link = [
                (format!("{}/24", self.ipv4), other.ipv4.to_string()),
                (format!("{}/64", self.ipv6), other.ipv6.to_string()),
            ];
            for (address, neighbour) in &on_link {
                self.namespace
                    .ip(&["address", "add", address, "dev", &self.interface])?;
                self.namespace.ip(&[
                    "neighbour",
                    "replace",
                    neighbour,
                    "lladdr",
                    &mac,
                    "nud",
                    "permanent",
                    "dev",
                    &self.interface,
                ])?;
            }
        }
        Ok(())
    }

    /// Turns features on or off, by their names in `ethtool -K`.
    pub fn set_offloads(&self, features: &[&str], on: bool) -> Result<()> {
        let state = if on { "on" } else { "off" };
        let mut ethtool = self.namespace.command("ethtool");
        ethtool
            .args(["-K", &self.interface])
            .args(features.iter().flat_map(|feature| [*feature, state]));
        run(&mut ethtool).map(drop)
    }

    /// A command that will run on this host.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.namespace.command(program)
    }

    pub fn counters(&self) -> Result<Counters> {
        Counters::read(&self.namespace, &self.interface)
    }

    /// A socket that sends whole frames on this host's end.
    pub fn frame_socket(&self) -> Result<FrameSocket> {
        FrameSocket::new(&self.namespace, &self.interface)
    }

    /// A socket that sends super-frames on this host's end.
    pub fn super_frame_socket(&self) -> Result<SuperFrameSocket> {
        SuperFrameSocket::new(&self.namespace, &self.interface)
    }

    /// A full-speed sender on this host's end; see [`Generator`] for the requirements on the other end.
    pub fn generator(&self) -> Result<Generator<'_>> {
        Generator::new(&self.namespace, &self.interface, Variety::Same)
    }

    /// The same, with copies that differ.
    pub fn generator_of(&self, variety: Variety) -> Result<Generator<'_>> {
        Generator::new(&self.namespace, &self.interface, variety)
    }

    /// The MAC address in `ip`'s notation.
    pub fn mac_text(&self) -> String {
        self.mac.map(|byte| format!("{byte:02x}")).join(":")
    }

    /// An IPv4 frame from this host.
    pub fn frame_v4(&self, to: &Self) -> Frame {
        Frame::ethernet(self.mac, to.mac, self.ipv4, to.ipv4)
    }

    /// An IPv6 frame from this host.
    pub fn frame_v6(&self, to: &Self) -> Frame {
        Frame::ethernet(self.mac, to.mac, self.ipv6, to.ipv6)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::privilege::is_root_or_skip;

    #[test]
    fn an_unused_wire_stays_silent() {
        if !is_root_or_skip("lab::an_unused_wire_stays_silent") {
            return;
        }
        for options in [
            LabOptions::default(),
            LabOptions {
                addresses: true,
                ..LabOptions::default()
            },
            LabOptions {
                addresses: true,
                offloads: true,
                ..LabOptions::default()
            },
        ] {
            let lab = Lab::new(options).unwrap();
            // Address detection, router solicitations and multicast reports would appear within two seconds.
            thread::sleep(Duration::from_millis(2500));
            for host in [&lab.agent, &lab.peer] {
                assert_eq!(host.counters().unwrap(), Counters::default(), "{options:?}");
            }
        }
    }
}
