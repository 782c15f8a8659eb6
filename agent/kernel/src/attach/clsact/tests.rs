//! Our filters beside strangers' filters.

use std::os::fd::{AsFd as _, OwnedFd};

use agent_common::LinkType;
use lab::{Namespace, log::logged, privilege::is_root_or_skip};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;
use crate::{
    attach::{
        programs::tc_name,
        tests::{kernel, programs},
    },
    links::links,
};

const STRANGER: &str = "theirs";
const OURS: &str = "flow-agent:tc_ingress";

/// An interface, and the programs of its filters.
struct Wire {
    namespace: Namespace,
    link: Link,
    ours: OwnedFd,
    theirs: OwnedFd,
}

impl Wire {
    fn new(label: &str) -> Self {
        let namespace = Namespace::new(label).unwrap();
        namespace.add_wire(["new0", "far0"]).unwrap();
        let mut links = namespace.enter(links).unwrap();
        links.retain(|link| link.name == "new0");
        let [ours, theirs] = namespace.enter(two_programs).unwrap();
        Self {
            namespace,
            link: links.swap_remove(0),
            ours,
            theirs,
        }
    }

    fn attach(&self, clsact: &mut Clsact) -> Place {
        let (link, program) = (&self.link, self.ours.as_fd());
        clsact.prepare(link, Direction::Ingress).unwrap();
        clsact
            .attach(link, Direction::Ingress, program, "tc_ingress")
            .unwrap();
        *clsact.filters.last().unwrap()
    }

    fn add_stranger(&self, socket: &mut TcSocket, place: Place, name: &str) {
        socket.add(place, self.theirs.as_fd(), name).unwrap();
    }

    /// The place of an agent's filter if it is free.
    fn first_place(&self, clsact: &Clsact) -> Place {
        Place {
            ifindex: self.link.ifindex,
            direction: Direction::Ingress,
            priority: INGRESS_PRIORITY,
            handle: HANDLE_MAJOR << 16 | u32::from(clsact.instance.number as u16),
        }
    }

    fn all(&self, socket: &mut TcSocket) -> Vec<(Place, String)> {
        let (ifindex, side) = (self.link.ifindex, Direction::Ingress);
        let mut all = socket.list(ifindex, side, INGRESS_PRIORITY).unwrap();
        // The kernel also lists each priority, as a filter whose handle is 0.
        all.retain(|(place, _)| place.handle != 0);
        all
    }

    /// The names of all filters, the stranger's first, and ours without its number.
    fn names(&self, socket: &mut TcSocket) -> Vec<String> {
        let name = |(_, name): (Place, String)| name.split('@').next().unwrap().to_owned();
        let mut names: Vec<String> = self.all(socket).into_iter().map(name).collect();
        names.sort_by_key(|name| name != STRANGER);
        names
    }

    /// The filters as `tc` shows them, with their handles, names and the ids of their programs, without ours.
    fn strangers(&self) -> Vec<String> {
        let mut command = self.namespace.command("tc");
        command.args(["filter", "show", "dev", "new0", "ingress"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let shown = String::from_utf8(output.stdout).unwrap();
        let strangers = shown.lines().filter(|line| line.contains(" handle "));
        let strangers = strangers.filter(|line| !line.contains(OURS));
        strangers.map(str::to_owned).collect()
    }
}

/// Two programs that differ.
fn two_programs() -> Result<[OwnedFd; 2]> {
    let mut kernel = kernel();
    let mut programs = programs(&mut kernel);
    let mut owned = |direction| -> Result<OwnedFd> {
        let program = programs.get(tc_name(direction, LinkType::Ethernet))?;
        Ok(program.try_clone_to_owned()?)
    };
    Ok([owned(Direction::Ingress)?, owned(Direction::Egress)?])
}

/// Agents begin at different handles, but a stranger may already use this one's.
#[test]
fn attaching_displaces_no_filter_of_a_stranger() {
    if !is_root_or_skip("kernel::attaching_displaces_no_filter_of_a_stranger") {
        return;
    }
    let wire = Wire::new("stranger");
    let beside = || {
        let mut clsact = Clsact::open()?;
        let first = wire.first_place(&clsact);
        clsact.ensure_qdisc(&wire.link, Direction::Ingress)?;
        wire.add_stranger(&mut clsact.socket, first, STRANGER);
        let before = wire.strangers();
        assert_eq!(before.len(), 1, "{before:?}");
        assert!(before[0].contains(STRANGER), "{before:?}");

        let ours = wire.attach(&mut clsact);
        assert_eq!(wire.strangers(), before, "after ours was added");
        let next = HANDLE_MAJOR << 16 | u32::from((first.handle as u16).wrapping_add(1));
        assert_eq!(
            ours,
            Place {
                handle: next,
                ..first
            }
        );
        assert_eq!(wire.names(&mut clsact.socket), [STRANGER, OURS]);
        clsact.detach(wire.link.ifindex);
        assert_eq!(wire.strangers(), before, "after ours was removed");
        assert_eq!(wire.names(&mut clsact.socket), [STRANGER]);

        wire.attach(&mut clsact);
        drop(clsact);
        assert_eq!(wire.strangers(), before, "at the end");
        assert_eq!(wire.names(&mut TcSocket::open()?), [STRANGER]);
        Ok(())
    };
    wire.namespace.enter(beside).unwrap();
}

#[test]
fn a_stranger_at_the_place_of_one_of_ours_that_was_removed_stays() {
    if !is_root_or_skip("kernel::a_stranger_at_the_place_of_one_of_ours_that_was_removed_stays") {
        return;
    }
    let wire = Wire::new("replaced");
    let removals: [fn(Clsact, u32) -> Result<()>; 3] = [
        |mut clsact, ifindex| clsact.remove_rest(ifindex),
        |mut clsact, ifindex| {
            clsact.detach(ifindex);
            Ok(())
        },
        |_, _| Ok(()),
    ];
    let replaced = || {
        let mut socket = TcSocket::open()?;
        // Another agent is a stranger, too. Its filters differ from ours by their number alone.
        for name in [STRANGER, "flow-agent:tc_ingress@0"] {
            for remove in removals {
                let mut clsact = Clsact::open()?;
                let ours = wire.attach(&mut clsact);
                assert!(clsact.is_on(wire.link.ifindex)?);
                socket.remove(ours)?;
                wire.add_stranger(&mut socket, ours, name);
                assert!(!clsact.is_on(wire.link.ifindex)?, "{name}");
                remove(clsact, wire.link.ifindex)?;
                let left = wire.all(&mut socket);
                assert_eq!(left, [(ours, name.to_owned())]);
                socket.remove(ours)?;
            }
        }
        Ok(())
    };
    wire.namespace.enter(replaced).unwrap();
}

/// The kernel refuses this thread's requests meanwhile.
fn without_privilege<T>(work: impl FnOnce() -> T) -> T {
    let privileged = capabilities(None).unwrap();
    let mut without = privileged;
    without.effective.remove(CapabilitySet::NET_ADMIN);
    set_capabilities(None, without).unwrap();
    let outcome = work();
    set_capabilities(None, privileged).unwrap();
    outcome
}

#[test]
fn a_filter_that_cannot_be_removed_is_removed_later_and_never_counts_beside_another_one() {
    let test = "kernel::a_filter_that_cannot_be_removed_is_removed_later_and_never_counts_beside_another_one";
    if !is_root_or_skip(test) {
        return;
    }
    let wire = Wire::new("kept");
    let kept = || {
        let ifindex = wire.link.ifindex;
        let mut clsact = Clsact::open()?;
        let first = wire.attach(&mut clsact);
        let log = logged(|| without_privilege(|| clsact.detach(ifindex)));
        assert!(log.contains("a clsact filter stays"), "{log}");
        assert_eq!(wire.names(&mut clsact.socket), [OURS]);

        let again = |clsact: &mut Clsact| {
            let program = wire.ours.as_fd();
            clsact.prepare(&wire.link, Direction::Ingress)?;
            clsact.attach(&wire.link, Direction::Ingress, program, "tc_ingress")
        };
        without_privilege(|| again(&mut clsact)).unwrap_err();
        assert_eq!(wire.names(&mut clsact.socket), [OURS]);
        again(&mut clsact)?;
        assert_eq!(clsact.filters, [first]);
        assert_eq!(wire.names(&mut clsact.socket), [OURS]);

        without_privilege(|| clsact.remove_rest(ifindex)).unwrap_err();
        clsact.remove_rest(ifindex)?;
        assert!(wire.all(&mut clsact.socket).is_empty());

        wire.attach(&mut clsact);
        without_privilege(|| clsact.detach(ifindex));
        drop(clsact);
        assert!(wire.all(&mut TcSocket::open()?).is_empty());
        Ok(())
    };
    wire.namespace.enter(kept).unwrap();
}

#[test]
fn filters_of_other_priorities_are_neither_listed_nor_removed() {
    if !is_root_or_skip("kernel::filters_of_other_priorities_are_neither_listed_nor_removed") {
        return;
    }
    let wire = Wire::new("others");
    let beside = || {
        let mut clsact = Clsact::open()?;
        let ours = wire.attach(&mut clsact);
        for priority in [1, INGRESS_PRIORITY - 1, INGRESS_PRIORITY + 1, u16::MAX] {
            wire.add_stranger(&mut clsact.socket, Place { priority, ..ours }, STRANGER);
        }
        let strangers = wire.strangers();
        assert_eq!(strangers.len(), 4, "{strangers:?}");
        // Also without the line for each priority.
        let listed = wire.all(&mut clsact.socket);
        let places: Vec<Place> = listed.into_iter().map(|(place, _)| place).collect();
        assert_eq!(places, [ours]);
        assert!(clsact.is_on(ours.ifindex)?);
        clsact.detach(ours.ifindex);
        assert!(wire.all(&mut clsact.socket).is_empty());
        assert_eq!(wire.strangers(), strangers);
        Ok(())
    };
    wire.namespace.enter(beside).unwrap();
}

/// An interface's filters may be in a block that others share. Then the kernel lists them for the interface, and lets
/// them be removed from the block alone (`__tcf_block_find`, 5.10).
#[test]
fn what_a_killed_agent_left_goes_also_where_some_of_it_cannot_be_removed() {
    let test = "kernel::what_a_killed_agent_left_goes_also_where_some_of_it_cannot_be_removed";
    if !is_root_or_skip(test) {
        return;
    }
    let wire = Wire::new("stale");
    wire.namespace.add_wire(["new1", "far1"]).unwrap();
    let stale = || {
        let mut socket = TcSocket::open()?;
        let mut all = links()?;
        all.sort_by_key(|link| link.ifindex);
        let [refused @ .., last] = all.as_slice() else {
            panic!("there are wires");
        };
        // In the message to the kernel, a block's number is where the parent is, which has this one.
        let (block, number) = (u32::MAX, 0xffff_fff2_u32);
        let place = |ifindex| Place {
            ifindex,
            direction: Direction::Ingress,
            priority: INGRESS_PRIORITY,
            handle: HANDLE_MAJOR << 16,
        };
        let name = "flow-agent:tc_ingress@0";
        for link in refused {
            let block = format!("qdisc add dev {} ingress_block {number} clsact", link.name);
            let mut command = wire.namespace.command("tc");
            let output = command.args(block.split(' ')).output()?;
            assert!(output.status.success(), "{output:?}");
        }
        wire.add_stranger(&mut socket, place(block), name);
        socket.add_clsact(last.ifindex)?;
        wire.add_stranger(&mut socket, place(last.ifindex), name);

        let log = logged(|| StaleFilters::find().unwrap().remove_rest());
        let told = format!("filters of killed agents may stay: remove {name} from interface index");
        assert!(log.contains(&told), "{log}");
        assert!(
            log.contains(&format!("failures={}", refused.len())),
            "{log}"
        );
        assert_eq!(log.matches("removed a filter").count(), 1, "{log}");
        let left = socket.list(last.ifindex, Direction::Ingress, INGRESS_PRIORITY)?;
        assert!(left.is_empty(), "{left:?}");
        Ok(())
    };
    wire.namespace.enter(stale).unwrap();
}

#[test]
fn a_filter_that_has_just_gone_is_no_error() {
    if !is_root_or_skip("kernel::a_filter_that_has_just_gone_is_no_error") {
        return;
    }
    let wire = Wire::new("gone");
    let gone = || {
        let mut clsact = Clsact::open()?;
        let ours = wire.attach(&mut clsact);
        let number = clsact.instance.number;
        let remove_again = |socket: &mut TcSocket, expected: i32| {
            let error = socket.remove(ours).unwrap_err();
            assert_eq!(errno(&error), Some(expected));
            assert!(!remove(socket, ours, number).unwrap());
        };
        clsact.socket.remove(ours)?;
        remove_again(&mut clsact.socket, libc::ENOENT);
        let name = &wire.link.name;
        let mut command = wire.namespace.command("tc");
        let output = command.args(["qdisc", "del", "dev", name, "clsact"]);
        assert!(output.status()?.success());
        remove_again(&mut clsact.socket, libc::EINVAL);
        wire.namespace.ip(&["link", "del", name])?;
        remove_again(&mut clsact.socket, libc::ENODEV);
        Ok(())
    };
    wire.namespace.enter(gone).unwrap();
}

#[test]
fn a_filter_is_ours_by_priority_handle_and_name_together() {
    let ours = Place {
        ifindex: 2,
        direction: Direction::Ingress,
        priority: INGRESS_PRIORITY,
        handle: 0xf10a_0003,
    };
    let name = "flow-agent:tc_ingress@412";
    assert_eq!(instance_number(ours, name), Some(412));
    let others = [
        (
            Place {
                priority: 8,
                ..ours
            },
            name,
        ),
        (
            Place {
                direction: Direction::Egress,
                ..ours
            },
            name,
        ),
        (Place { handle: 3, ..ours }, name),
        (ours, "tc_ingress@412"),
        (ours, "flow-agent:tc_ingress"),
    ];
    for (place, name) in others {
        assert_eq!(instance_number(place, name), None, "{place:?} {name}");
    }
}
