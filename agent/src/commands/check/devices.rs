//! Shows how the devices are stacked, which of them are counted, and why.

use std::collections::BTreeSet;

use agent_common::Direction;
use kernel::{
    attach::AttachSettings,
    devices::{Devices, is_tunnel},
    flowtables::Offloaded,
    interfaces::{Choice, Selection, Uplinks},
    links::Link,
};
use serde::Serialize;

use super::{
    Check,
    xdp::{self, Asker},
};

/// Beyond this many lines, the text omits trees without any counted device. JSON has them all.
const MOST_LINES: usize = 40;

/// A device, as a line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "device")]
pub(super) struct Device {
    /// The network namespace as the settings name it; null if the settings name none.
    pub(super) netns: Option<String>,
    name: String,
    ifindex: u32,
    /// The kind as in `ip link add type`; null for a NIC and for `lo`.
    kind: Option<String>,
    is_up: bool,
    /// The devices below it.
    lower: Vec<String>,
    /// The other end of a virtual cable.
    other_end: Option<String>,
    is_counted: bool,
    reason: &'static str,
    detail: String,
    /// Null if it is not counted.
    ingress_hook: Option<&'static str>,
    /// Why this hook, if it is not the one in the settings.
    ingress_detail: Option<String>,
    egress_hook: Option<&'static str>,
    #[serde(skip)]
    depth: usize,
    /// Shown elsewhere in the text, together with the devices under it.
    #[serde(skip)]
    pub(super) is_repeated: bool,
}

/// The facts that decide how the devices are shown.
pub(super) struct Known<'a> {
    pub netns: Option<&'a str>,
    pub links: &'a [Link],
    pub selection: &'a Selection,
    /// The devices that carry a default route.
    pub carriers: &'a BTreeSet<u32>,
    /// `None` if the settings cannot be read.
    pub attach: Option<AttachSettings>,
}

impl Known<'_> {
    fn uplinks(&self) -> Uplinks {
        Uplinks::new(self.links, self.selection, self.carriers, &BTreeSet::new())
    }

    /// Each device after the ones on top of it. A device under several others appears several times.
    pub(super) fn tree(&self, asker: &mut Asker) -> Vec<Device> {
        let (devices, uplinks) = (Devices::new(self.links), self.uplinks());
        let mut tree = Vec::new();
        let mut seen = BTreeSet::new();
        // Tunnels stacked on each other in a circle have no top.
        for top in devices.tops().into_iter().chain(self.links) {
            if seen.contains(&top.ifindex) {
                continue;
            }
            let mut to_show = vec![(0, top)];
            while let Some((depth, link)) = to_show.pop() {
                let is_repeated = !seen.insert(link.ifindex);
                let mut device = self.device(link, &devices, &uplinks, asker);
                (device.depth, device.is_repeated) = (depth, is_repeated);
                tree.push(device);
                if !is_repeated {
                    let under = devices.under(link).into_iter().rev();
                    to_show.extend(under.map(|lower| (depth + 1, lower)));
                }
            }
        }
        tree
    }

    fn device(
        &self,
        link: &Link,
        devices: &Devices,
        uplinks: &Uplinks,
        asker: &mut Asker,
    ) -> Device {
        let choice = self.selection.choice(link, uplinks);
        let under = devices.under(link);
        let has_no_hook = choice.is_counted() && self.attach.is_some_and(|it| !it.has_hooks(link));
        let is_counted = choice.is_counted() && !has_no_hook;
        let mut detail = self.detail(link, &choice, under.is_empty());
        if has_no_hook {
            detail +=
                ", but what it sends also arrives there, and would be counted on ingress alone";
        }
        let attach = self.attach.filter(|_| is_counted);
        let ingress = attach.filter(|it| it.has_hook(link, Direction::Ingress));
        let ingress = ingress.map(|attach| xdp::ingress_hook(asker, link, attach));
        let (ingress_hook, ingress_detail) = ingress.unzip();
        let has_egress = attach.is_some_and(|it| it.has_hook(link, Direction::Egress));
        Device {
            netns: self.netns.map(str::to_owned),
            name: link.name.clone(),
            ifindex: link.ifindex,
            kind: Some(link.kind.clone()).filter(|kind| !kind.is_empty()),
            is_up: link.is_up,
            lower: under.iter().map(|lower| lower.name.clone()).collect(),
            other_end: devices.other_end(link).map(|end| end.name.clone()),
            is_counted,
            reason: if has_no_hook {
                "no_hook"
            } else {
                choice.word()
            },
            detail,
            ingress_hook,
            ingress_detail: ingress_detail.flatten(),
            egress_hook: has_egress.then_some("tc"),
            depth: 0,
            is_repeated: false,
        }
    }

    fn detail(&self, link: &Link, choice: &Choice, stands_alone: bool) -> String {
        let mut detail = choice.to_string();
        if let Choice::CountedAt(lower) = choice
            && let Some(lower) = self.links.iter().find(|link| link.ifindex == *lower)
        {
            detail = format!(
                "a default route leads over it, and its packets are counted at {}",
                lower.name
            );
        }
        if choice.is_counted() && link.is_vrf() {
            detail += "; most of what its members receive and send passes their hooks alone: count at these";
        } else if choice.is_counted() && link.kind == "bridge" {
            detail += "; what it forwards between its ports is not counted here";
        } else if choice.is_counted() && is_tunnel(link) && stands_alone {
            detail += "; its tunnel's packets pass an interface that it does not name";
        }
        detail
    }

    /// A warning for each pair of devices that count the same packets, and for each tunnel that may.
    pub(super) fn twice(&self) -> Vec<Check> {
        let uplinks = self.uplinks();
        let counted = self
            .links
            .iter()
            .filter(|link| self.selection.takes(link, &uplinks));
        let counted = counted.map(|link| link.ifindex).collect();
        let devices = Devices::new(self.links);
        let twice = devices.twice(&counted);
        let warnings = twice.iter().map(|pair| {
            Check::warn(
                format!("twice {} {}", pair.upper.name, pair.lower.name),
                format!("packets are counted twice: {pair}"),
                pair.remedy(),
            )
        });
        let tunnels = devices.may_be_twice(&counted);
        let tunnels = tunnels.iter().map(|it| {
            Check::warn(
                format!("twice {}", it.tunnel.name),
                format!("packets may be counted twice: {it}"),
                it.remedy(),
            )
        });
        let vrfs = self.links.iter();
        let vrfs = vrfs.filter(|link| link.is_vrf() && self.selection.takes(link, &uplinks));
        let vrfs = vrfs.map(|link| {
            Check::warn(
                format!("vrf {}", link.name),
                "most packets of a VRF device pass no hook of it: only those between this host's own addresses do",
                "count at its members",
            )
        });
        warnings.chain(tunnels).chain(vrfs).collect()
    }

    /// A warning for each counted device that misses packets because a flowtable forwards them.
    pub(super) fn offloaded(&self, offloaded: &Offloaded) -> Vec<Check> {
        let uplinks = self.uplinks();
        let devices = Devices::new(self.links);
        let counted = self
            .links
            .iter()
            .filter(|link| self.selection.takes(link, &uplinks));
        let check = |link: &Link| {
            let name = format!("flowtable {}", link.name);
            if offloaded.in_hardware.contains(&link.name) {
                return Some(Check::warn(
                    name,
                    "a flowtable hands connections to its hardware: no program sees their packets",
                    "leave 'flags offload' out of the flowtable, if all packets are to be counted",
                ));
            }
            // The flowtable takes them after the hook of the device that it is on.
            let is_taken = |lower: &&Link| {
                offloaded.devices.contains(&lower.name) && devices.stands_on(link, lower)
            };
            let lower = self.links.iter().find(is_taken)?;
            Some(Check::warn(
                name,
                format!(
                    "what a flowtable takes at {} does not arrive here, nor does the device count it",
                    lower.name
                ),
                format!("count at {}", lower.name),
            ))
        };
        counted.filter_map(check).collect()
    }
}

/// The tree as text, one device per line.
pub(super) fn lines(tree: &[Device]) -> Vec<String> {
    let Some(first) = tree.first() else {
        return Vec::new();
    };
    let netns = first.netns.as_ref();
    let place = netns.map_or_else(String::new, |name| format!(" in {name}"));
    let width = |of: &dyn Fn(&Device) -> usize| tree.iter().map(of).max().unwrap_or_default();
    let name_width = width(&|it| 2 * it.depth + it.name.chars().count());
    let kind_width = width(&|it| it.kind_in_words().len());
    let mut lines = vec![format!(
        "devices{place}, each above those that its packets pass, too; * is counted:"
    )];
    let mut left_out = 0;
    for family in tree.chunk_by(|_, next| next.depth > 0) {
        let is_counted = family.iter().any(|device| device.is_counted);
        if !is_counted && lines.len() + family.len() > MOST_LINES {
            left_out += family.iter().filter(|device| !device.is_repeated).count();
            continue;
        }
        for device in family {
            lines.push(device.line(name_width, kind_width));
        }
    }
    if left_out > 0 {
        lines.push(format!(
            "    and {left_out} more, none of which is counted; --output json has them"
        ));
    }
    lines
}

impl Device {
    fn line(&self, name_width: usize, kind_width: usize) -> String {
        let mark = if self.is_counted { '*' } else { ' ' };
        let name = format!("{:indent$}{}", "", self.name, indent = 2 * self.depth);
        let (kind, told) = (self.kind_in_words(), self.told());
        format!("  {mark} {name:<name_width$}  {kind:<kind_width$}  {told}")
    }

    fn kind_in_words(&self) -> &str {
        match &self.kind {
            Some(kind) => kind,
            None if self.name == "lo" => "loopback",
            None => "NIC",
        }
    }

    fn told(&self) -> String {
        if self.is_repeated {
            return "see above".to_owned();
        }
        let mut told = vec![self.detail.clone()];
        if let Some(hook) = self.ingress_hook {
            let hook = in_words(hook);
            told.push(match &self.ingress_detail {
                Some(detail) => format!("ingress at {hook} ({detail})"),
                None => format!("ingress at {hook}"),
            });
        }
        if let Some(hook) = self.egress_hook {
            told.push(format!("egress at {}", in_words(hook)));
        }
        if let Some(other_end) = &self.other_end {
            told.push(format!("its other end is {other_end}"));
        }
        if !self.is_up {
            told.push("down".to_owned());
        }
        told.join("; ")
    }
}

fn in_words(hook: &str) -> &'static str {
    match hook {
        "tc" => "TC",
        "xdp_native" => "native XDP",
        "xdp_generic" => "generic XDP",
        _ => "no hook",
    }
}

#[cfg(test)]
mod tests {
    use kernel::{
        attach::{Directions, IngressHook, TcAttach, TcxOrder, XdpMode},
        devices::samples::{link, port_of, stack},
    };

    use super::*;

    const ATTACH: AttachSettings = AttachSettings {
        ingress_hook: IngressHook::Tc,
        xdp_mode: XdpMode::Auto,
        xdp_without_tags: false,
        directions: Directions::Both,
        tc_attach: TcAttach::Auto,
        tcx_order: TcxOrder::First,
    };

    fn known<'a>(
        links: &'a [Link],
        selection: &'a Selection,
        carriers: &'a BTreeSet<u32>,
    ) -> Known<'a> {
        Known {
            netns: None,
            links,
            selection,
            carriers,
            attach: Some(ATTACH),
        }
    }

    fn selection(include: &[&str]) -> Selection {
        Selection {
            include: include.iter().map(|text| text.parse().unwrap()).collect(),
            ..Selection::default()
        }
    }

    #[test]
    fn the_tree_has_each_device_above_those_it_stands_on_and_why_it_is_counted() {
        let (links, carriers) = (stack(), BTreeSet::from([4, 5, 7]));
        let tree = known(&links, &Selection::default(), &carriers).tree(&mut Asker::default());
        let expected = "\
devices, each above those that its packets pass, too; * is counted:
    vxlan0        vxlan   a default route leads over it, and its packets are counted at bond0
      br0         bridge  no default route leads over it
        bond0.10  vlan    a default route leads over it, and its packets are counted at bond0
  *       bond0   bond    a default route leads over it; ingress at TC; egress at TC
            eth0  NIC     no default route leads over it
            eth1  NIC     no default route leads over it
    veth0         veth    no default route leads over it; its other end is veth1
    veth1         veth    no default route leads over it; its other end is veth0";
        assert_eq!(lines(&tree).join("\n"), expected);
    }

    #[test]
    fn a_device_under_several_is_told_of_once_and_counted_once() {
        let mut links = stack();
        links.push(kernel::devices::samples::over(
            4,
            link(10, "bond0.20", "vlan"),
        ));
        links[6].is_up = false;
        let (selection, carriers) = (selection(&["bond*", "veth0"]), BTreeSet::new());
        let known = known(&links, &selection, &carriers);
        let text = lines(&known.tree(&mut Asker::default())).join("\n");
        assert_eq!(
            text.matches("'bond*' matches it; ingress").count(),
            3,
            "{text}"
        );
        assert_eq!(text.matches("bond    see above").count(), 1, "{text}");
        assert_eq!(text.matches(" eth0 ").count(), 1, "{text}");
        assert!(text.contains("named; ingress at TC; egress at TC; its other end is veth1; down"));
        let twice: Vec<_> = known.twice().into_iter().map(|check| check.name).collect();
        assert_eq!(twice, ["twice bond0.10 bond0", "twice bond0.20 bond0"]);
    }

    #[test]
    fn a_line_of_json_has_the_same() {
        let (links, carriers) = (stack(), BTreeSet::from([4]));
        let tree = known(&links, &Selection::default(), &carriers).tree(&mut Asker::default());
        let bond = tree.iter().find(|device| device.name == "bond0").unwrap();
        assert_eq!(
            serde_json::to_value(bond).unwrap(),
            serde_json::json!({
                "type": "device", "netns": null, "name": "bond0", "ifindex": 4, "kind": "bond", "is_up": true,
                "lower": ["eth0", "eth1"], "other_end": null, "is_counted": true,
                "reason": "default_route", "detail": "a default route leads over it",
                "ingress_hook": "tc", "ingress_detail": null, "egress_hook": "tc",
            })
        );
    }

    #[test]
    fn a_driver_that_stacks_devices_is_counted_at_tc_where_xdp_is_asked_for() {
        // The synthetic interface of a Hyper-V guest, whose virtual function is its slave, and a bond.
        let mut links = vec![
            link(2, "eth0", ""),
            port_of(2, link(3, "vf0", "")),
            link(4, "bond0", "bond"),
        ];
        links[0].has_lower = true;
        let (selection, carriers) = (selection(&["eth0", "bond0"]), BTreeSet::new());
        let known = Known {
            attach: Some(AttachSettings {
                ingress_hook: IngressHook::Xdp,
                ..ATTACH
            }),
            ..known(&links, &selection, &carriers)
        };
        for device in known.tree(&mut Asker::default()) {
            let hook = (device.ingress_hook, device.egress_hook);
            if device.name == "vf0" {
                assert_eq!(hook, (None, None));
                continue;
            }
            assert_eq!(hook, (Some("tc"), Some("tc")), "{}", device.name);
            let why = device.ingress_detail.unwrap();
            assert!(why.contains("on its lower devices"), "{why}");
        }
    }

    #[test]
    fn the_loopback_interface_is_not_counted_where_only_egress_is() {
        let mut lo = link(1, "lo", "");
        lo.is_loopback = true;
        let (links, carriers) = ([lo], BTreeSet::new());
        for (include, reason) in [(&["lo"], "no_hook"), (&["eth0"], "no_match")] {
            let selection = selection(include);
            let known = Known {
                attach: Some(AttachSettings {
                    directions: Directions::Egress,
                    ..ATTACH
                }),
                ..known(&links, &selection, &carriers)
            };
            let tree = known.tree(&mut Asker::default());
            assert_eq!((tree[0].is_counted, tree[0].reason), (false, reason));
            assert_eq!((tree[0].ingress_hook, tree[0].egress_hook), (None, None));
        }
    }

    #[test]
    fn a_device_that_a_flowtable_passes_by_is_named_and_the_one_with_the_flowtable_is_not() {
        let (links, carriers) = (stack(), BTreeSet::new());
        let selection = selection(&["bond0", "bond0.10", "veth0", "eth1"]);
        let known = known(&links, &selection, &carriers);
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let offloaded = Offloaded {
            devices: names(&["bond0", "veth0", "eth1"]),
            in_hardware: names(&["eth1"]),
        };
        let warnings = known.offloaded(&offloaded);
        let told: Vec<_> = warnings.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(
            told,
            ["flowtable eth1", "flowtable bond0", "flowtable bond0.10"]
        );
        assert!(known.offloaded(&Offloaded::default()).is_empty());
    }

    #[test]
    fn a_vrf_is_counted_as_packets_arrive_and_is_named_for_what_it_lacks() {
        let links = [
            link(2, "red", "vrf"),
            port_of(2, link(3, "eth0", "")),
            link(4, "blue", "vrf"),
        ];
        let (selection, carriers) = (selection(&["red", "eth0"]), BTreeSet::new());
        let known = known(&links, &selection, &carriers);
        let tree = known.tree(&mut Asker::default());
        let red = tree.iter().find(|device| device.name == "red").unwrap();
        assert_eq!((red.ingress_hook, red.egress_hook), (Some("tc"), None));
        let warnings: Vec<_> = known.twice().into_iter().map(|check| check.name).collect();
        assert_eq!(warnings, ["vrf red"]);
    }

    #[test]
    fn of_many_devices_the_text_has_those_that_are_counted() {
        let mut links: Vec<_> = (2..2002)
            .map(|ifindex| link(ifindex, &format!("veth{ifindex}"), "veth"))
            .collect();
        links.push(link(5000, "eth0", ""));
        let carriers = BTreeSet::from([5000]);
        let selection = Selection::default();
        let tree = known(&links, &selection, &carriers).tree(&mut Asker::default());
        assert_eq!(tree.len(), 2001);
        let text = lines(&tree);
        assert_eq!(text.len(), MOST_LINES + 2);
        assert!(text[MOST_LINES].contains("* eth0"), "{text:?}");
        assert!(text[MOST_LINES + 1].contains("and 1961 more"), "{text:?}");
    }
}
