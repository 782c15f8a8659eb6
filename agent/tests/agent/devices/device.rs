//! Makes a virtual device between two hosts: two ends over their wire, with addresses of their own.

use anyhow::{Context as _, Result, ensure};
use lab::{Host, Lab, traffic::IpVersion};

use crate::support::wait_until;

/// The name of both ends.
pub const NAME: &str = "dev0";

/// One kind of device and what it adds to a packet that it hands down to the wire.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    /// The arguments of `ip link add`. `LOCAL` and `REMOTE` stand for the host's and its peer's addresses,
    /// `WIRE` for the host's end of the wire.
    pub link: &'static str,
    pub is_ethernet: bool,
    /// The IP versions that may go through it.
    pub versions: &'static [IpVersion],
    /// Whether it runs between the wire's IPv6 addresses.
    pub outer_is_ipv6: bool,
    /// How many bytes longer a packet is on the wire; `None` if that differs from packet to packet.
    pub overhead_bytes: Option<u64>,
    /// The protocol of the packets on the wire; `None` if it is the inner one.
    pub outer_protocol: Option<u64>,
    /// The VLAN ids of the flows on the wire.
    pub vlan_ids: &'static str,
    /// The bytes of tags that stay beside the frame on its way over the wire.
    pub offloaded_bytes: u64,
}

pub const BOTH: &[IpVersion] = &[IpVersion::V4, IpVersion::V6];

impl Kind {
    pub const VLAN: Self = Self {
        name: "8021q",
        link: "link WIRE name dev0 type vlan id 100",
        is_ethernet: true,
        versions: BOTH,
        outer_is_ipv6: false,
        overhead_bytes: Some(4),
        outer_protocol: None,
        vlan_ids: "[100]",
        offloaded_bytes: 0,
    };
    pub const OFFLOADED_VLAN: Self = Self {
        name: "8021q with offloads",
        offloaded_bytes: 4,
        ..Self::VLAN
    };
    /// The lab leaves the offloads of 802.1ad on, so the outer tag stays beside the frame.
    pub const QINQ: Self = Self {
        name: "802.1ad over 802.1Q",
        link: "link outer0 name dev0 type vlan id 300",
        overhead_bytes: Some(8),
        vlan_ids: "[200,300]",
        offloaded_bytes: 4,
        ..Self::VLAN
    };
    pub const BOND: Self = Self {
        name: "bonding",
        link: "name dev0 type bond mode active-backup miimon 100",
        overhead_bytes: Some(0),
        vlan_ids: "[]",
        ..Self::VLAN
    };
    pub const BRIDGE: Self = Self {
        name: "bridge",
        link: "name dev0 type bridge mcast_snooping 0",
        ..Self::BOND
    };
    pub const MACVLAN: Self = Self {
        name: "macvlan",
        link: "link WIRE name dev0 type macvlan mode bridge",
        ..Self::BOND
    };
    pub const GRE: Self = Self {
        name: "gre",
        link: "name dev0 type gre local LOCAL remote REMOTE ttl 64",
        is_ethernet: false,
        overhead_bytes: Some(14 + 20 + 4),
        outer_protocol: Some(47),
        vlan_ids: "[]",
        ..Self::VLAN
    };
    pub const GRETAP: Self = Self {
        name: "gretap",
        link: "name dev0 type gretap local LOCAL remote REMOTE ttl 64 key 7",
        is_ethernet: true,
        overhead_bytes: Some(14 + 20 + 8),
        ..Self::GRE
    };
    pub const IP6GRE: Self = Self {
        name: "ip6gre",
        link: "name dev0 type ip6gre local LOCAL remote REMOTE ttl 64 encaplimit none",
        outer_is_ipv6: true,
        overhead_bytes: Some(14 + 40 + 4),
        ..Self::GRE
    };
    pub const IPIP: Self = Self {
        name: "ipip",
        link: "name dev0 type ipip local LOCAL remote REMOTE ttl 64",
        versions: &[IpVersion::V4],
        overhead_bytes: Some(14 + 20),
        outer_protocol: Some(4),
        ..Self::GRE
    };
    pub const SIT: Self = Self {
        name: "sit",
        link: "name dev0 type sit local LOCAL remote REMOTE ttl 64",
        versions: &[IpVersion::V6],
        outer_protocol: Some(41),
        ..Self::IPIP
    };
    /// With the destination option that limits the nesting of tunnels (RFC 2473).
    pub const IP6TNL: Self = Self {
        name: "ip6tnl",
        link: "name dev0 type ip6tnl local LOCAL remote REMOTE mode ip6ip6",
        outer_is_ipv6: true,
        overhead_bytes: Some(14 + 40 + 8),
        ..Self::SIT
    };
    pub const GENEVE: Self = Self {
        name: "geneve",
        link: "name dev0 type geneve id 42 remote REMOTE",
        is_ethernet: true,
        versions: BOTH,
        overhead_bytes: Some(14 + 20 + 8 + 8),
        outer_protocol: Some(17),
        ..Self::GRE
    };
    pub const VXLAN: Self = Self {
        name: "vxlan",
        link: "name dev0 type vxlan id 42 dstport 4789 local LOCAL remote REMOTE",
        ..Self::GENEVE
    };
    /// Pads to sixteen bytes, and sends a handshake first.
    pub const WIREGUARD: Self = Self {
        name: "wireguard",
        link: "name dev0 type wireguard",
        is_ethernet: false,
        overhead_bytes: None,
        ..Self::GENEVE
    };

    /// Makes both ends and gives the hosts the ends' addresses. Returns `false` if the kernel has no such
    /// device.
    pub fn make(&self, lab: &mut Lab) -> Result<bool> {
        let hosts = [(&lab.agent, &lab.peer), (&lab.peer, &lab.agent)];
        for (host, other) in hosts {
            match self.add(host, other) {
                Err(error) if format!("{error:#}").contains("Unknown device type") => {
                    return Ok(false);
                }
                outcome => outcome?,
            }
        }
        if self.name == "wireguard" {
            introduce(&lab.agent, &lab.peer)?;
        }
        let (agent, peer) = (self.bring_up(&lab.agent, 1)?, self.bring_up(&lab.peer, 2)?);
        if self.name == Self::BOND.name {
            // A bond checks its lower devices ten times a second, and takes none that is not up.
            wait_until("both bonds have a lower device", || {
                [&lab.agent, &lab.peer].iter().all(|host| has_carrier(host))
            });
        }
        for (host, number, mac) in [(&lab.agent, 2, &peer), (&lab.peer, 1, &agent)] {
            if self.is_ethernet {
                for address in [format!("10.78.0.{number}"), format!("fd78::{number}")] {
                    host.namespace.ip(&[
                        "neighbour",
                        "replace",
                        &address,
                        "lladdr",
                        mac,
                        "nud",
                        "permanent",
                        "dev",
                        NAME,
                    ])?;
                }
            }
        }
        for (host, number) in [(&mut lab.agent, 1), (&mut lab.peer, 2)] {
            host.ipv4 = [10, 78, 0, number].into();
            host.ipv6 = [0xfd78, 0, 0, 0, 0, 0, 0, number.into()].into();
        }
        Ok(true)
    }

    fn add(&self, host: &Host, other: &Host) -> Result<()> {
        let [local, remote] = [host, other].map(|host| {
            if self.outer_is_ipv6 {
                host.ipv6.to_string()
            } else {
                host.ipv4.to_string()
            }
        });
        if self.name == Self::OFFLOADED_VLAN.name {
            host.set_offloads(&["rxvlan", "txvlan"], true)?;
        }
        if self.name == Self::QINQ.name {
            let outer = "link WIRE name outer0 type vlan proto 802.1ad id 200";
            self.ip_link_add(host, outer, &local, &remote)?;
            host.namespace.ip(&[
                "link",
                "set",
                "outer0",
                "arp",
                "off",
                "addrgenmode",
                "none",
                "up",
            ])?;
        }
        self.ip_link_add(host, self.link, &local, &remote)?;
        if self.name == Self::BOND.name {
            // A bond takes interfaces that are down.
            host.namespace
                .ip(&["link", "set", &host.interface, "down"])?;
        }
        if [Self::BOND.name, Self::BRIDGE.name].contains(&self.name) {
            host.namespace
                .ip(&["link", "set", &host.interface, "master", NAME])?;
        }
        Ok(())
    }

    fn ip_link_add(&self, host: &Host, link: &str, local: &str, remote: &str) -> Result<()> {
        let words: Vec<&str> = link
            .split(' ')
            .map(|word| match word {
                "WIRE" => &host.interface,
                "LOCAL" => local,
                "REMOTE" => remote,
                word => word,
            })
            .collect();
        host.namespace
            .ip(&[&["link", "add"], &words[..]].concat())
            .map(drop)
            .with_context(|| format!("make a {} device", self.name))
    }

    /// Brings an end up with addresses, and disables everything that sends by itself or makes super-frames. Returns its
    /// hardware address.
    fn bring_up(&self, host: &Host, number: u8) -> Result<String> {
        let namespace = &host.namespace;
        // Room for the headers of every kind, so that nothing is fragmented on the wire.
        namespace.ip(&["link", "set", NAME, "mtu", "1400", "addrgenmode", "none"])?;
        if self.is_ethernet {
            namespace.ip(&["link", "set", NAME, "arp", "off"])?;
        }
        let mut ethtool = host.command("ethtool");
        ethtool.args(["-K", NAME, "gro", "off", "gso", "off", "tso", "off"]);
        let output = ethtool.output().context("start ethtool")?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        namespace.ip(&["link", "set", NAME, "up"])?;
        namespace.ip(&[
            "address",
            "add",
            &format!("10.78.0.{number}/24"),
            "dev",
            NAME,
        ])?;
        namespace.ip(&[
            "address",
            "add",
            &format!("fd78::{number}/64"),
            "dev",
            NAME,
            "nodad",
        ])?;
        let links = namespace.ip(&["-j", "link", "show", "dev", NAME])?;
        let links: serde_json::Value = serde_json::from_slice(&links)?;
        Ok(links[0]["address"].as_str().unwrap_or_default().to_owned())
    }
}

fn has_carrier(host: &Host) -> bool {
    let links = host.namespace.ip(&["-j", "link", "show", "dev", NAME]);
    let links = links.expect("the bond is there");
    String::from_utf8_lossy(&links).contains(r#""operstate":"UP""#)
}

/// Gives two WireGuard ends each other's keys.
fn introduce(agent: &Host, peer: &Host) -> Result<()> {
    let folder = tempfile::TempDir::new().context("make a temporary folder")?;
    let key_of = |host: &Host| -> Result<(String, String)> {
        let private = folder.path().join(&host.interface);
        let script = format!(
            "umask 077; wg genkey | tee {0} | wg pubkey",
            private.display()
        );
        let output = host.command("sh").args(["-c", &script]).output()?;
        let public = String::from_utf8(output.stdout)?.trim().to_owned();
        ensure!(!public.is_empty(), "wg makes no key");
        Ok((private.display().to_string(), public))
    };
    let (agent_key, peer_key) = (key_of(agent)?, key_of(peer)?);
    for (host, (private, _), other, (_, public)) in [
        (agent, &agent_key, peer, &peer_key),
        (peer, &peer_key, agent, &agent_key),
    ] {
        let endpoint = format!("{}:51820", other.ipv4);
        let output = host
            .command("wg")
            .args(["set", NAME, "listen-port", "51820", "private-key", private])
            .args(["peer", public, "allowed-ips", "0.0.0.0/0,::/0"])
            .args(["endpoint", &endpoint])
            .output()
            .context("start wg")?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
