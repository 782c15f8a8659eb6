//! One agent after another on one wire, under traffic. The test plays the service manager with the store.

use std::{sync::Arc, thread, time::Duration};

use agent_common::account::Reason;
use lab::{
    Namespace,
    kernel::{has_tcx, is_at_least},
    log::logged,
    privilege::{is_root_or_skip, skip},
    tcx_programs,
};

use super::*;
use crate::{
    attach::{
        AttachSettings, Attachments, Carry, IngressHook, Interfaces, Mode, Slots, TcAttach,
        TcxOrder, XdpMode, first_slots,
        slots::Place,
        tests::{SETTINGS, kernel, kernel_for, watcher_with},
        watcher::Watcher,
    },
    interfaces::Selection,
    links::{AttachedXdp, links},
    load::Kernel,
    netns,
};

mod manager;
mod wire;

use manager::Manager;
use wire::Wire;

const PATIENCE: Duration = Duration::from_mins(1);

/// The attaching part of an agent.
struct Agent {
    kernel: Kernel,
    watcher: Watcher,
    log: String,
}

impl Agent {
    /// Starts on the interfaces of a namespace whose names are `new` and a number.
    fn start(namespace: &Namespace, settings: AttachSettings, carried: Carried) -> Self {
        let start = || {
            let mut links = links()?;
            links.retain(|link| link.name.starts_with("new"));
            let mut kernel = kernel_for(4, settings);
            let (mut watcher, _) = watcher_with(&mut kernel, "new*", settings, carried);
            for link in &links {
                let Place::Slot(slot) = watcher.slots.take(link.ifindex, link.names()) else {
                    panic!("there is a slot");
                };
                kernel.register(0, link.ifindex, link.names(), slot)?;
            }
            let log = logged(|| watcher.start(&links).unwrap());
            Ok(Self {
                kernel,
                watcher,
                log,
            })
        };
        namespace.enter(start).unwrap()
    }

    fn carried(&self) -> &Carried {
        &self.watcher.attacher.takeover.carried
    }

    fn taken_over(&self) -> TakenOver {
        self.carried().taken_over()
    }

    /// Whether a program that is bound to its interface counts ingress.
    fn is_bound(&self) -> bool {
        let hooks = self.watcher.slots.progress();
        hooks.iter().any(|hook| {
            hook.after_attach.is_some()
                && hook.hook.mode == Mode::XdpNative
                && hook.hook.tag_place.is_none()
        })
    }

    /// Ends like a killed process. Its maps stay, so that the counts of its programs can be read.
    fn kill(mut self) -> Kernel {
        for link in self.watcher.slots.take_links() {
            link.leave();
        }
        if let Some(clsact) = self.watcher.attacher.clsact.take() {
            clsact.leave();
        }
        self.kernel
    }
}

fn seen(kernel: &Kernel) -> u64 {
    kernel.accounts.sum().get(Reason::Seen).packets
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the test can run: as root, on a kernel with TCX.
fn can_run(test: &str) -> bool {
    let name = format!("kernel::{test}");
    if !has_tcx() {
        skip(&name, "the kernel has TCX from 6.6");
        return false;
    }
    is_root_or_skip(&name)
}

const XDP: AttachSettings = AttachSettings {
    ingress_hook: IngressHook::Xdp,
    xdp_mode: XdpMode::Native,
    ..SETTINGS
};
/// By a program that is bound to the interface.
const BOUND: AttachSettings = AttachSettings {
    xdp_without_tags: false,
    ..XDP
};
const GENERIC: AttachSettings = AttachSettings {
    xdp_mode: XdpMode::Generic,
    ..XDP
};
const LAST: AttachSettings = AttachSettings {
    tcx_order: TcxOrder::Last,
    ..SETTINGS
};
const CLSACT: AttachSettings = AttachSettings {
    tc_attach: TcAttach::Clsact,
    ..SETTINGS
};

/// Kills one agent after the other while frames pass. Each frame counts once.
fn takes_over_exactly(settings: AttachSettings) {
    let (wire, manager) = (Wire::new("over"), Manager::start());
    let first = Agent::start(&wire.namespace, settings, manager.carried());
    assert_eq!(first.is_bound(), settings.may_ask_drivers());
    let names = manager.names();
    let stored = if settings.tc_attach == TcAttach::Clsact {
        0
    } else {
        2
    };
    assert_eq!(names.len(), stored, "{names:?}");
    let mut kernels = Vec::new();
    let sent = wire.send_during(|| {
        kernels.push(first.kill());
        assert_eq!(wire.programs(), [1, 1], "{settings:?}: of the killed one");
        // The second successor inherits from the first one.
        for _ in 0..2 {
            let next = Agent::start(&wire.namespace, settings, manager.carried());
            assert_eq!(wire.programs(), [1, 1], "{settings:?}");
            let expected = TakenOver {
                links: 2,
                ..TakenOver::default()
            };
            assert_eq!(next.taken_over(), expected, "{settings:?}: {}", next.log);
            assert_eq!(manager.names(), names);
            kernels.push(next.kill());
        }
    });
    let mut sent = sent.0;
    let sum = || kernels.iter().map(seen).sum::<u64>();
    wait_for("all frames are counted", || sum() >= sent);
    let before: Vec<u64> = kernels.iter().map(seen).collect();
    sent += wire.send(100);
    wait_for("all frames are counted", || sum() >= sent);
    assert_eq!(sum(), sent, "{settings:?}");
    let counted: Vec<u64> = kernels
        .iter()
        .zip(&before)
        .map(|(kernel, before)| seen(kernel) - before)
        .collect();
    assert_eq!(counted, [0, 0, 200], "{settings:?}: the last one counts");
}

#[test]
fn each_packet_counts_once_while_a_successor_takes_the_links_over() {
    if !can_run("each_packet_counts_once_while_a_successor_takes_the_links_over") {
        return;
    }
    for settings in [SETTINGS, LAST, XDP, GENERIC, BOUND] {
        if !settings.may_ask_drivers() || is_at_least(6, 8) {
            takes_over_exactly(settings);
        }
    }
}

#[test]
fn each_packet_counts_once_while_a_successor_takes_the_filters_over() {
    if is_root_or_skip("kernel::each_packet_counts_once_while_a_successor_takes_the_filters_over") {
        takes_over_exactly(CLSACT);
    }
}

/// Several instances may have been killed before one of them removed the filters of the others.
#[test]
fn of_several_filters_one_is_replaced_and_the_others_are_removed() {
    if !is_root_or_skip("kernel::of_several_filters_one_is_replaced_and_the_others_are_removed") {
        return;
    }
    let wire = Wire::new("several");
    let start = || Agent::start(&wire.namespace, CLSACT, Carried::default());
    let (first, mut others) = (start(), Vec::new());
    // They live at the same time, so none of them takes another one's filters.
    others.extend([start(), start()]);
    assert_eq!(wire.programs(), [3, 3]);
    let mut killed: Vec<_> = others.into_iter().map(Agent::kill).collect();
    killed.push(first.kill());
    let next = start();
    assert_eq!(wire.programs(), [1, 1]);
    // Nobody has what they counted.
    let expected = TakenOver {
        links: 2,
        gaps: 2,
        ..TakenOver::default()
    };
    assert_eq!(next.taken_over(), expected, "{}", next.log);
    assert_eq!(
        next.log.matches("are not counted").count(),
        2,
        "{}",
        next.log
    );
    let before: Vec<u64> = killed.iter().map(seen).collect();
    let sent = seen(&next.kernel) + wire.send(100);
    wait_for("the next one counts", || seen(&next.kernel) >= sent);
    assert_eq!(seen(&next.kernel), sent);
    assert_eq!(killed.iter().map(seen).collect::<Vec<u64>>(), before);
}

#[test]
fn no_packet_counts_twice_where_a_link_has_to_be_replaced() {
    if !can_run("no_packet_counts_twice_where_a_link_has_to_be_replaced") {
        return;
    }
    // The number of directions that are switched, and of those that change their place.
    for (before, after, links, gaps) in [
        (SETTINGS, LAST, 0, 2),
        (SETTINGS, XDP, 1, 1),
        (XDP, SETTINGS, 1, 1),
        (GENERIC, SETTINGS, 1, 1),
        (XDP, GENERIC, 1, 1),
        (GENERIC, XDP, 1, 1),
        (SETTINGS, CLSACT, 0, 2),
        (XDP, CLSACT, 0, 2),
        (BOUND, SETTINGS, 1, 1),
        (SETTINGS, BOUND, 1, 1),
    ] {
        let asks = before.may_ask_drivers() || after.may_ask_drivers();
        if asks && !is_at_least(6, 8) {
            continue;
        }
        let case = format!("{before:?}, then {after:?}");
        let (wire, manager) = (Wire::new("replaced"), Manager::start());
        let first = Agent::start(&wire.namespace, before, manager.carried());
        let mut killed = None;
        let (sent, second) = wire.send_during(|| {
            killed = Some(first.kill());
            Agent::start(&wire.namespace, after, manager.carried())
        });
        assert_eq!(wire.programs(), [1, 1], "{case}");
        let expected = TakenOver {
            links,
            removed: 2 - links,
            gaps,
        };
        assert_eq!(second.taken_over(), expected, "{case}: {}", second.log);
        let told = second.log.matches("are not counted").count();
        assert_eq!(told, gaps as usize, "{case}: {}", second.log);
        let stored = if after.tc_attach == TcAttach::Clsact {
            0
        } else {
            2
        };
        assert_eq!(manager.names().len(), stored, "{case}");

        let killed = killed.unwrap();
        let (last, first) = (seen(&second.kernel), seen(&killed));
        let more = wire.send(100);
        wait_for("the second one counts", || {
            seen(&second.kernel) >= last + more
        });
        let sum = seen(&killed) + seen(&second.kernel);
        assert!(sum <= sent + more, "{case}: {sum} of {}", sent + more);
        assert_eq!(seen(&killed), first, "{case}: the first one still counts");
    }
}

#[test]
fn a_link_stays_at_tc_without_a_gap_if_xdp_is_refused_once_more() {
    if !can_run("a_link_stays_at_tc_without_a_gap_if_xdp_is_refused_once_more") {
        return;
    }
    let settings = AttachSettings {
        xdp_mode: XdpMode::Auto,
        ..XDP
    };
    // A bridge has no native XDP.
    let namespace = Namespace::new("refused").unwrap();
    namespace
        .ip(&["link", "add", "new0", "type", "bridge"])
        .unwrap();
    let ifindex = namespace.ifindex("new0").unwrap();
    let manager = Manager::start();
    let first = Agent::start(&namespace, settings, manager.carried());
    assert!(first.log.contains("counting at TC"), "{}", first.log);
    let _killed = first.kill();
    let second = Agent::start(&namespace, settings, manager.carried());
    assert!(second.log.contains("counting at TC"), "{}", second.log);
    let expected = TakenOver {
        links: 2,
        ..TakenOver::default()
    };
    assert_eq!(second.taken_over(), expected, "{}", second.log);
    assert_eq!(tcx_programs(&namespace, ifindex).unwrap(), [1, 1]);
}

#[test]
fn a_link_of_an_interface_whose_index_another_one_has_is_dropped() {
    if !can_run("a_link_of_an_interface_whose_index_another_one_has_is_dropped") {
        return;
    }
    for settings in [SETTINGS, XDP] {
        let (wire, manager) = (Wire::new("reused"), Manager::start());
        let _killed = Agent::start(&wire.namespace, settings, manager.carried()).kill();
        let index = wire.ifindex.to_string();
        wire.namespace.ip(&["link", "del", "new0"]).unwrap();
        let add = format!("link add new0 index {index} type veth peer name far0");
        let add: Vec<&str> = add.split(' ').collect();
        wire.namespace.ip(&add).unwrap();
        let second = Agent::start(&wire.namespace, settings, manager.carried());
        let expected = TakenOver {
            removed: 2,
            ..TakenOver::default()
        };
        assert_eq!(second.taken_over(), expected, "{}", second.log);
        assert_eq!(wire.programs(), [1, 1]);
        // The store has exactly the attached links.
        let _killed = second.kill();
        assert_eq!(manager.names().len(), 2);
        let third = Agent::start(&wire.namespace, settings, manager.carried());
        assert_eq!(third.taken_over().links, 2, "{}", third.log);
    }
}

/// Another interface has the index, and a stranger's program is on it.
#[test]
fn a_link_that_moved_away_with_its_interface_is_not_taken_for_another_one() {
    if !can_run("a_link_that_moved_away_with_its_interface_is_not_taken_for_another_one") {
        return;
    }
    for settings in [SETTINGS, XDP] {
        let (wire, manager) = (Wire::new("moved"), Manager::start());
        let elsewhere = Namespace::new("elsewhere").unwrap();
        let _killed = Agent::start(&wire.namespace, settings, manager.carried()).kill();
        let ip = |command: String| {
            let words: Vec<&str> = command.split(' ').collect();
            wire.namespace.ip(&words).unwrap();
        };
        ip(format!("link set new0 netns {}", elsewhere.name()));
        ip(format!(
            "link add new0 index {} type veth peer name far1",
            wire.ifindex
        ));
        assert_eq!(
            elsewhere.ifindex("new0").unwrap(),
            wire.ifindex,
            "it keeps its index"
        );
        let stranger = Agent::start(&wire.namespace, settings, Carried::default());
        let second = Agent::start(
            &wire.namespace,
            AttachSettings {
                xdp_mode: XdpMode::Auto,
                ..settings
            },
            manager.carried(),
        );
        let expected = TakenOver {
            removed: 2,
            ..TakenOver::default()
        };
        assert_eq!(second.taken_over(), expected, "{}", second.log);
        assert_eq!(tcx_programs(&elsewhere, wire.ifindex).unwrap(), [0, 0]);
        drop((stranger, second));
    }
}

#[test]
fn a_filter_of_a_killed_agent_counts_until_our_link_is_attached() {
    if !can_run("a_filter_of_a_killed_agent_counts_until_our_link_is_attached") {
        return;
    }
    for settings in [SETTINGS, XDP] {
        let wire = Wire::new("filters");
        let first = Agent::start(&wire.namespace, CLSACT, Carried::default());
        let mut killed = None;
        let (sent, second) = wire.send_during(|| {
            killed = Some(first.kill());
            assert_eq!(wire.programs(), [1, 1], "they outlive the process");
            Agent::start(&wire.namespace, settings, Carried::default())
        });
        assert_eq!(wire.programs(), [1, 1], "{settings:?}");
        assert_eq!(second.taken_over().gaps, 2, "{settings:?}");
        let log = &second.log;
        assert_eq!(log.matches("are not counted").count(), 2, "{log}");
        assert_eq!(log.matches("removed a filter").count(), 2, "{log}");
        let killed = killed.unwrap();
        let (first, last) = (seen(&killed), seen(&second.kernel));
        let more = wire.send(100);
        wait_for("the second one counts", || {
            seen(&second.kernel) >= last + more
        });
        assert_eq!(seen(&killed), first, "{settings:?}");
        let sum = first + seen(&second.kernel);
        assert!(sum <= sent + more, "{settings:?}: {sum} of {}", sent + more);
    }
}

#[test]
fn no_gap_is_told_of_where_a_filter_is_only_removed() {
    if !is_root_or_skip("kernel::no_gap_is_told_of_where_a_filter_is_only_removed") {
        return;
    }
    let wire = Wire::new("rest");
    let _killed = Agent::start(&wire.namespace, CLSACT, Carried::default()).kill();
    wire.namespace.add_wire(["new1", "far1"]).unwrap();
    wire.namespace
        .ip(&["link", "set", "new0", "name", "old0"])
        .unwrap();
    let second = Agent::start(&wire.namespace, CLSACT, Carried::default());
    assert_eq!(second.taken_over(), TakenOver::default());
    let log = &second.log;
    assert_eq!(log.matches("removed a filter").count(), 2, "{log}");
    assert!(!log.contains("are not counted"), "{log}");
}

/// Starts on all interfaces with such names, and waits until they are attached.
fn attach_to(
    namespace: &Namespace,
    pattern: &str,
    carry: Carry,
    settings: AttachSettings,
) -> (Kernel, Attachments) {
    let start = || {
        let selection = Selection {
            include: vec![pattern.parse().unwrap()],
            ..Selection::default()
        };
        let mut links = links()?;
        links.retain(|link| link.is_meant(&selection.include[0]));
        let mut kernel = kernel_for(32, settings);
        for (slot, link) in (0..).zip(&links) {
            kernel.register(0, link.ifindex, link.names(), slot)?;
        }
        let selected = vec![(netns::Namespace::own()?, links)];
        let slots: Slots = first_slots(32, &selected)?;
        let interfaces = Interfaces {
            selected,
            slots,
            selection,
            name_interface: Arc::new(|_, _| Ok(())),
        };
        let (attachments, reports) = Attachments::start(&mut kernel, interfaces, carry, settings)?;
        reports.attached.blocking_recv()??;
        Ok((kernel, attachments))
    };
    namespace.enter(start).unwrap()
}

#[test]
fn what_is_left_counts_until_the_last_descriptor_is_closed() {
    if !can_run("what_is_left_counts_until_the_last_descriptor_is_closed") {
        return;
    }
    for settings in [SETTINGS, XDP] {
        let (wire, manager) = (Wire::new("left"), Manager::start());
        let carry = Carry {
            keep: manager.keep(),
            ..Carry::default()
        };
        let (kernel, attachments) = attach_to(&wire.namespace, "new*", carry, settings);
        assert!(attachments.can_leave());
        assert!(attachments.leave());
        assert_eq!(wire.programs(), [1, 1], "{settings:?}");
        let sent = wire.send(100);
        wait_for("they count", || seen(&kernel) == sent);
        manager.forget_everything();
        // A child of another test has the links' descriptors until it executes its program.
        wait_for("they are detached", || wire.programs() == [0, 0]);
    }
}

#[test]
fn dropping_detaches_although_the_store_has_copies() {
    if !can_run("dropping_detaches_although_the_store_has_copies") {
        return;
    }
    // If there are more than a few, the kernel detaches them when the last copy is closed.
    for wires in [1, 9] {
        let (wire, manager) = (Wire::new("dropped"), Manager::start());
        for number in 1..wires {
            let (near, far) = (format!("new{number}"), format!("far{number}"));
            wire.namespace.add_wire([&near, &far]).unwrap();
        }
        for settings in [SETTINGS, XDP] {
            let carry = Carry {
                keep: manager.keep(),
                ..Carry::default()
            };
            let (_kernel, attachments) = attach_to(&wire.namespace, "new*", carry, settings);
            assert_eq!(wire.programs(), [1, 1]);
            let copies = manager.stored();
            assert_eq!(copies.len(), 2 * wires);
            drop(attachments);
            if wires == 1 {
                assert_eq!(wire.programs(), [0, 0], "{settings:?}");
            }
            assert_eq!(wire.xdp(wire.ifindex), AttachedXdp::None);
            assert!(manager.names().is_empty(), "{:?}", manager.names());
            drop(copies);
            wait_for("they are detached", || wire.programs() == [0, 0]);
        }
    }
}

#[test]
fn links_that_nobody_takes_over_are_detached_once_all_are_attached() {
    if !can_run("links_that_nobody_takes_over_are_detached_once_all_are_attached") {
        return;
    }
    let (wire, manager) = (Wire::new("rest"), Manager::start());
    wire.namespace.add_wire(["new1", "far1"]).unwrap();
    let carry = || Carry {
        has_maps: true,
        inherited: manager.inherited(),
        keep: manager.keep(),
    };
    let (_kernel, first) = attach_to(&wire.namespace, "new*", carry(), SETTINGS);
    assert!(first.leave());
    let other = wire.namespace.ifindex("new1").unwrap();
    let on = |ifindex| tcx_programs(&wire.namespace, ifindex).unwrap();
    assert_eq!((on(wire.ifindex), on(other)), ([1, 1], [1, 1]));

    let settings = AttachSettings {
        directions: crate::attach::Directions::Ingress,
        ..SETTINGS
    };
    let (_kernel, second) = attach_to(&wire.namespace, "new0", carry(), settings);
    assert_eq!((on(wire.ifindex), on(other)), ([1, 0], [0, 0]));
    let expected = TakenOver {
        links: 1,
        removed: 3,
        gaps: 0,
    };
    assert_eq!(second.taken_over(), expected);
    assert_eq!(manager.names().len(), 1);
    drop(second);
    assert_eq!(on(wire.ifindex), [0, 0]);
    assert!(manager.names().is_empty());
}

#[test]
fn a_start_that_fails_leaves_what_it_has_not_taken_over() {
    if !can_run("a_start_that_fails_leaves_what_it_has_not_taken_over") {
        return;
    }
    starts_and_fails(SETTINGS, XDP);
    let with_filters = AttachSettings {
        tc_attach: TcAttach::Clsact,
        ..XDP
    };
    starts_and_fails(CLSACT, with_filters);
}

/// The programs of the first agent stay where the second one has not got to.
fn starts_and_fails(first: AttachSettings, second: AttachSettings) {
    let (wire, manager) = (Wire::new("fails"), Manager::start());
    wire.namespace.add_wire(["new1", "far1"]).unwrap();
    let _killed = Agent::start(&wire.namespace, first, manager.carried()).kill();
    wire.namespace.ip(&["link", "del", "new0"]).unwrap();
    wire.namespace
        .ip(&["link", "add", "new0", "type", "bridge"])
        .unwrap();
    let start = || {
        let mut links = links()?;
        links.retain(|link| link.name.starts_with("new"));
        // The bridge first, which has no native XDP.
        links.sort_by_key(|link| link.kind != "bridge");
        let mut kernel = kernel();
        let (mut watcher, _) = watcher_with(&mut kernel, "new*", second, manager.carried());
        for link in &links {
            watcher.slots.take(link.ifindex, link.names());
        }
        watcher.start(&links).unwrap_err();
        Ok(())
    };
    wire.namespace.enter(start).unwrap();
    let other = wire.namespace.ifindex("new1").unwrap();
    assert_eq!(wire.programs_on("new1", other), [1, 1]);
}

#[test]
fn filters_that_are_left_count_until_a_successor_replaces_them() {
    if !is_root_or_skip("kernel::filters_that_are_left_count_until_a_successor_replaces_them") {
        return;
    }
    let (wire, manager) = (Wire::new("left"), Manager::start());
    let carry = || Carry {
        keep: manager.keep(),
        has_maps: true,
        ..Carry::default()
    };
    let (kernel, attachments) = attach_to(&wire.namespace, "new*", carry(), CLSACT);
    assert!(attachments.can_leave());
    assert!(attachments.leave());
    assert_eq!(wire.programs(), [1, 1]);
    let sent = wire.send(100);
    wait_for("they count", || seen(&kernel) == sent);
    let (next, attachments) = attach_to(&wire.namespace, "new*", carry(), CLSACT);
    assert_eq!(wire.programs(), [1, 1]);
    assert_eq!(attachments.taken_over().links, 2);
    let sent_to_next = wire.send(100);
    wait_for("the next one counts", || seen(&next) == sent_to_next);
    assert_eq!(seen(&kernel), sent);
    // Without a store nobody would drain what they count.
    drop(attachments);
    assert_eq!(wire.programs(), [0, 0]);
    let (_kernel, attachments) = attach_to(&wire.namespace, "new*", Carry::default(), CLSACT);
    assert!(!attachments.can_leave());
    assert!(!attachments.leave());
    assert_eq!(wire.programs(), [0, 0]);
}

#[test]
fn what_cannot_be_stored_is_counted_and_never_left() {
    if !can_run("what_cannot_be_stored_is_counted_and_never_left") {
        return;
    }
    let (wire, manager) = (Wire::new("unstored"), Manager::start());
    let keep = manager.keep();
    drop(manager);
    let carried = Carried::new(InheritedLinks::default(), keep.clone(), true);
    let agent = Agent::start(&wire.namespace, SETTINGS, carried);
    assert!(agent.log.contains("cannot store"), "{}", agent.log);
    assert_eq!(wire.programs(), [1, 1]);
    drop(agent);
    wait_for("they are detached", || wire.programs() == [0, 0]);

    let carry = Carry {
        keep,
        ..Carry::default()
    };
    let (_kernel, attachments) = attach_to(&wire.namespace, "new*", carry, SETTINGS);
    assert!(!attachments.can_leave());
    assert!(!attachments.leave());
    wait_for("they are detached", || wire.programs() == [0, 0]);
}

#[test]
fn a_descriptor_that_is_no_link_is_dropped() {
    if !can_run("a_descriptor_that_is_no_link_is_dropped") {
        return;
    }
    let (wire, manager) = (Wire::new("foreign"), Manager::start());
    let id = InterfaceId {
        netns: 0,
        ifindex: wire.ifindex,
    };
    let map = bpf::create_small_array().unwrap();
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    for (place, fd) in [
        (LinkPlace::TcxFirst(Direction::Ingress), &map),
        (LinkPlace::TcxLast(Direction::Egress), &file),
        (LinkPlace::XdpNative, &map),
    ] {
        manager.keep().put_link(id, place, fd.as_fd()).unwrap();
    }
    let agent = Agent::start(&wire.namespace, SETTINGS, manager.carried());
    assert_eq!(wire.programs(), [1, 1]);
    let expected = TakenOver {
        removed: 3,
        ..TakenOver::default()
    };
    assert_eq!(agent.taken_over(), expected, "{}", agent.log);
    assert_eq!(manager.names().len(), 2);
}

#[test]
fn what_has_the_same_name_does_not_take_a_link_out_of_the_store() {
    if !can_run("what_has_the_same_name_does_not_take_a_link_out_of_the_store") {
        return;
    }
    let (wire, manager) = (Wire::new("twice"), Manager::start());
    let _killed = Agent::start(&wire.namespace, SETTINGS, manager.carried()).kill();
    let id = InterfaceId {
        netns: 0,
        ifindex: wire.ifindex,
    };
    let map = bpf::create_small_array().unwrap();
    let place = LinkPlace::TcxFirst(Direction::Ingress);
    manager.keep().put_link(id, place, map.as_fd()).unwrap();
    let second = Agent::start(&wire.namespace, SETTINGS, manager.carried());
    let expected = TakenOver {
        links: 2,
        removed: 1,
        gaps: 0,
    };
    assert_eq!(second.taken_over(), expected, "{}", second.log);
    assert_eq!(manager.names().len(), 2);
    drop(second);
    assert!(manager.names().is_empty());
    assert_eq!(wire.programs(), [0, 0]);
}

#[test]
fn a_link_that_is_detached_late_does_not_take_its_successor_out_of_the_store() {
    let manager = Manager::start();
    let store = LinkStore::new(manager.keep());
    let id = InterfaceId {
        netns: 1,
        ifindex: 7,
    };
    let fd = std::fs::File::open("/dev/null").unwrap();
    let put = |place| store.put(id, place, fd.as_fd()).unwrap();
    let place = LinkPlace::TcxFirst(Direction::Ingress);
    let (first, second) = (put(place), put(place));
    let other = put(LinkPlace::XdpNative);
    assert_eq!(manager.names().len(), 2, "{:?}", manager.names());
    first.remove();
    assert_eq!(manager.names().len(), 2, "{:?}", manager.names());
    second.remove();
    second.remove();
    assert_eq!(manager.names().len(), 1, "{:?}", manager.names());
    other.remove();
    assert!(manager.names().is_empty());
}
