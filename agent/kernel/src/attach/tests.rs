//! Events between two steps of attaching, where another process would have to act at just that moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, mpsc::Receiver},
    thread,
    time::{Duration, Instant},
};

use lab::{
    Namespace, kernel,
    log::logged,
    privilege::{is_root_or_skip, skip},
    tcx_programs,
};

use super::{
    attacher::Attacher,
    closer::{Closer, Detach},
    lines::Lines,
    programs::Programs,
    slots::Place,
    takeover::{Carried, Takeover},
    watcher::{Look, Watcher, WatcherLog},
    xdp::Plan,
    *,
};
use crate::{
    interfaces::Uplinks,
    links::{LinkSocket, driver::Drivers, netlink::errno, tags::Features},
    load::LoadSettings,
};

pub(super) const SETTINGS: AttachSettings = AttachSettings {
    ingress_hook: IngressHook::Tc,
    xdp_mode: XdpMode::Auto,
    xdp_without_tags: true,
    directions: Directions::Both,
    tc_attach: TcAttach::Auto,
    tcx_order: TcxOrder::First,
};

pub(super) fn kernel() -> Kernel {
    kernel_for(4, SETTINGS)
}

pub(super) fn kernel_for(max_interfaces: u32, settings: AttachSettings) -> Kernel {
    Kernel::load(&LoadSettings {
        min_flows: 16,
        max_flows: 16,
        max_interfaces,
        asks_drivers: settings.may_ask_drivers(),
        sample_rate: 1,
        ..LoadSettings::smallest(vec![0])
    })
    .unwrap()
}

/// Its programs, without anything that attaches them.
pub(super) fn programs(kernel: &mut Kernel) -> Programs {
    let set = kernel.sets.remove(0);
    let nothing = Selection::default();
    Programs::load(set, &[], &nothing, SETTINGS).unwrap()
}

/// The thread that attaches, for wires with such names, and its requests to the thread that detaches. The test plays
/// both.
fn watcher(
    kernel: &mut Kernel,
    pattern: &str,
    settings: AttachSettings,
) -> (Watcher, Receiver<Detach>) {
    watcher_with(kernel, pattern, settings, Carried::default())
}

/// The same, with links of predecessors.
pub(super) fn watcher_with(
    kernel: &mut Kernel,
    pattern: &str,
    settings: AttachSettings,
    carried: Carried,
) -> (Watcher, Receiver<Detach>) {
    let selection = Selection {
        include: vec![pattern.parse().unwrap()],
        exclude: Vec::new(),
        waits: false,
    };
    let slots = Slots::new(4, 0);
    let (closer, to_detach) = Closer::channel();
    let set = kernel.sets.remove(0);
    let table = set.interfaces.clone();
    let watcher = Watcher {
        attacher: Attacher {
            programs: Programs::load(set, &[], &selection, settings).unwrap(),
            settings,
            slots: slots.clone(),
            counters: LinkSocket::open().unwrap(),
            features: Features::open(),
            drivers: Drivers::default(),
            clsact: None,
            takeover: Takeover::new(carried),
            first: Vec::new(),
            lines: Lines::default(),
        },
        slots,
        table,
        links: LinkSocket::open().unwrap(),
        name_interface: Arc::new(|_, _| Ok(())),
        stop: Arc::new(AtomicBool::new(false)),
        not_counted: Arc::default(),
        progress_interval: Duration::ZERO,
        log: WatcherLog::default(),
        pending: BTreeMap::new(),
        have_left: false,
        deselected: BTreeSet::new(),
        reselected: None,
        routed: BTreeSet::new(),
        stacks: stacks::Stacks::default(),
        changes: Changes::new(selection.clone()),
        closer,
        selection,
        namespaces: 1,
    };
    (watcher, to_detach)
}

pub(super) fn wires(namespace: &Namespace, count: usize) -> Vec<Link> {
    for number in 0..count {
        let (near, far) = (format!("new{number}"), format!("far{number}"));
        namespace.add_wire([&near, &far]).unwrap();
    }
    let mut links = namespace.enter(crate::links::links).unwrap();
    links.retain(|link| link.name.starts_with("new"));
    links
}

#[test]
fn an_interface_that_is_gone_is_not_one_without_native_xdp() {
    if !is_root_or_skip("kernel::an_interface_that_is_gone_is_not_one_without_native_xdp") {
        return;
    }
    let namespace = Namespace::new("gone").unwrap();
    let link = wires(&namespace, 1).swap_remove(0);
    namespace.ip(&["link", "del", "new0"]).unwrap();
    for xdp_mode in [XdpMode::Auto, XdpMode::Native, XdpMode::Generic] {
        let settings = AttachSettings {
            ingress_hook: IngressHook::Xdp,
            xdp_mode,
            ..SETTINGS
        };
        let attach = || {
            let mut kernel = kernel();
            let (mut watcher, _) = watcher(&mut kernel, "new*", settings);
            let attacher = &mut watcher.attacher;
            let mut hook = attacher.planned(&link, 0, Direction::Ingress);
            Ok(attacher
                .xdp_or_tc(&link, Plan::Xdp(None), &mut hook)
                .unwrap_err())
        };
        let error = namespace.enter(attach).unwrap();
        let chain = format!("{error:#}");
        assert_eq!(errno(&error), Some(libc::ENODEV), "{xdp_mode:?}: {chain}");
        assert!(!chain.contains("attach tc"), "{xdp_mode:?}: {chain}");
    }
}

#[test]
fn an_interface_whose_driver_cannot_be_asked_is_counted_at_tc() {
    const NAME: &str = "kernel::an_interface_whose_driver_cannot_be_asked_is_counted_at_tc";
    if !kernel::is_at_least(6, 8) {
        skip(NAME, "drivers tell XDP the tags from 6.8");
        return;
    }
    if !is_root_or_skip(NAME) {
        return;
    }
    let namespace = Namespace::new("unasked").unwrap();
    let link = wires(&namespace, 1).swap_remove(0);
    let settings = AttachSettings {
        ingress_hook: IngressHook::Xdp,
        xdp_without_tags: false,
        ..SETTINGS
    };
    let plan = || {
        // Loaded without the program that asks.
        let mut kernel = kernel();
        let (mut watcher, _) = watcher(&mut kernel, "new*", settings);
        watcher.attacher.plan_xdp(&link)
    };
    let Plan::Tc(why, in_words) = namespace.enter(plan).unwrap() else {
        panic!("it is counted at XDP");
    };
    assert_eq!(why, InsteadOfXdp::HiddenTags);
    assert!(
        in_words.contains("its driver cannot be asked: "),
        "{in_words}"
    );
}

#[test]
fn nothing_is_attached_to_whatever_has_the_index_of_one_that_has_just_left() {
    if !is_root_or_skip(
        "kernel::nothing_is_attached_to_whatever_has_the_index_of_one_that_has_just_left",
    ) {
        return;
    }
    let namespace = Namespace::new("reused").unwrap();
    let link = wires(&namespace, 1).swap_remove(0);
    let watch = || {
        let mut kernel = kernel();
        let (mut watcher, _) = watcher(&mut kernel, "new*", SETTINGS);
        let (slots, table, ifindex) = (watcher.slots.clone(), watcher.table.clone(), link.ifindex);
        // The thread that follows notifications hears that it has left. Another interface has its index.
        watcher.name_interface = Arc::new(move |_, _| {
            table.forget(ifindex);
            drop(slots.leave(ifindex));
            Ok(())
        });
        let error = watcher.watch(&link).unwrap_err();
        assert_eq!(errno(&error), Some(libc::ENODEV), "{error:#}");
        assert!(watcher.slots.progress().is_empty(), "no hook was planned");
        assert!(watcher.table.enter(ifindex, 1), "it is not in the table");
        Ok(())
    };
    namespace.enter(watch).unwrap();
}

#[test]
fn an_interface_that_goes_between_selection_and_start_gives_its_slot_back() {
    const NAME: &str =
        "kernel::an_interface_that_goes_between_selection_and_start_gives_its_slot_back";
    if !is_root_or_skip(NAME) {
        return;
    }
    let has_tcx = kernel::is_at_least(6, 6);
    let ways = [TcAttach::Tcx, TcAttach::Clsact];
    for tc_attach in ways.into_iter().skip(usize::from(!has_tcx)) {
        let namespace = Namespace::new("vanishes").unwrap();
        let links = wires(&namespace, 2);
        let settings = AttachSettings {
            tc_attach,
            ..SETTINGS
        };
        let start = |selected: &[Link]| {
            let mut kernel = kernel();
            // By name, since patterns may wait for others.
            let (mut watcher, _) = watcher(&mut kernel, "new0", settings);
            for link in selected {
                let place = watcher.slots.take(link.ifindex, link.names());
                assert!(matches!(place, Place::Slot(_)));
            }
            let mut outcome = Ok(());
            let log = logged(|| outcome = watcher.start(selected));
            for attached in 0..selected.len() {
                let told = format!(
                    "attaching attached={attached} interfaces={}",
                    selected.len()
                );
                assert!(log.contains(&told), "{told}: {log}");
            }
            assert_eq!(watcher.slots.slot_of(links[0].ifindex), None);
            let left = watcher.slots.left();
            assert_eq!(left.len(), 1, "{tc_attach:?}");
            assert_eq!(left[0].why, Why::GivenUp);
            assert_eq!(left[0].id.ifindex, links[0].ifindex);
            let hooks = watcher.slots.progress();
            let attached = hooks.iter().filter(|hook| hook.after_attach.is_some());
            let attached: Vec<u32> = attached.map(|hook| hook.hook.id.ifindex).collect();
            (outcome, attached)
        };
        namespace.ip(&["link", "del", "new0"]).unwrap();
        let enter = |selected| namespace.enter(|| Ok(start(selected))).unwrap();
        let (outcome, attached) = enter(&links);
        outcome.unwrap();
        assert_eq!(attached, [links[1].ifindex; 2], "{tc_attach:?}");
        let (outcome, attached) = enter(&links[..1]);
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("no interface is left"), "{error}");
        assert!(attached.is_empty(), "{tc_attach:?}: {attached:?}");
    }
}

#[test]
fn a_start_on_many_interfaces_says_once_what_is_faster_than_tcx() {
    const NAME: &str = "kernel::a_start_on_many_interfaces_says_once_what_is_faster_than_tcx";
    if !is_root_or_skip(NAME) {
        return;
    }
    if !kernel::is_at_least(6, 6) {
        return skip(NAME, "the kernel has TCX from 6.6");
    }
    for (tc_attach, expected) in [(TcAttach::Auto, 1), (TcAttach::Clsact, 0)] {
        let namespace = Namespace::new("many").unwrap();
        let links = wires(&namespace, 1);
        let settings = AttachSettings {
            tc_attach,
            ..SETTINGS
        };
        let start = || {
            let mut kernel = kernel();
            let (mut watcher, _) = watcher(&mut kernel, "new0", settings);
            watcher.slots.take(links[0].ifindex, links[0].names());
            let started = logged(|| watcher.start(&links).unwrap());
            let few = logged(|| watcher.tell_progress(1, 200));
            let many = logged(|| {
                watcher.tell_progress(1, 201);
                watcher.tell_progress(100, 201);
            });
            Ok((started, few, many))
        };
        let (started, few, many) = namespace.enter(start).unwrap();
        assert!(
            started.contains("attaching attached=1 interfaces=1"),
            "{started}"
        );
        assert!(few.contains("attaching attached=1 interfaces=200"), "{few}");
        assert_eq!(many.matches("attached=").count(), 2, "{many}");
        let advised = many.matches("--tc-attach clsact is faster").count();
        assert_eq!(advised, expected, "{tc_attach:?}: {many}");
    }
}

#[test]
fn what_is_deselected_is_detached_from_by_another_thread() {
    const NAME: &str = "kernel::what_is_deselected_is_detached_from_by_another_thread";
    if !kernel::is_at_least(6, 6) {
        return skip(NAME, "the kernel has TCX from 6.6");
    }
    if !is_root_or_skip(NAME) {
        return;
    }
    let namespace = Namespace::new("deselected").unwrap();
    let links = wires(&namespace, 3);
    let attached = || {
        let of = |link: &Link| tcx_programs(&namespace, link.ifindex).unwrap();
        links.iter().map(of).collect::<Vec<_>>()
    };
    // A child of another test has the links' descriptors until it executes its program.
    let attached_becomes = |expected: [[u32; 2]; 3]| {
        let deadline = Instant::now() + Duration::from_mins(1);
        while attached() != expected && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(attached(), expected);
    };
    let reselect = || {
        let mut kernel = kernel();
        let (mut watcher, to_detach) = watcher(&mut kernel, "new*", SETTINGS);
        for link in &links {
            assert_eq!(watcher.watch(link)?, None);
        }
        assert_eq!(attached(), [[1, 1]; 3]);
        watcher.selection.include = vec!["new2".parse()?];
        let again = Look {
            at_everything: true,
            is_reselected: true,
            ..Look::default()
        };
        watcher.look(&again)?;
        watcher.look(&again)?;
        assert_eq!(attached(), [[1, 1]; 3]);
        let deselected = to_detach.try_iter().map(|one| match one {
            Detach::Deselected(ifindex) => ifindex,
            Detach::Links(_) => panic!("nothing has left"),
        });
        let deselected: Vec<u32> = deselected.collect();
        assert_eq!(deselected, [links[0].ifindex, links[1].ifindex]);

        let work = closer::Work {
            slots: watcher.slots.clone(),
            table: watcher.table.clone(),
            changes: watcher.changes.clone(),
        };
        // One of them leaves first, and another one has its index.
        watcher.table.forget(deselected[0]);
        drop(watcher.slots.leave(deselected[0]));
        watcher.slots.settle(&watcher.slots.left());
        attached_becomes([[0, 0], [1, 1], [1, 1]]);
        assert_eq!(watcher.watch(&links[0])?, None);
        for ifindex in deselected {
            work.end(ifindex);
        }
        attached_becomes([[1, 1], [0, 0], [1, 1]]);
        let left = watcher.slots.left();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].why, Why::Deselected);
        assert_eq!(left[0].id.ifindex, links[1].ifindex);
        Ok(())
    };
    namespace.enter(reselect).unwrap();
}

#[test]
fn an_interface_that_gets_an_excluded_name_is_given_up() {
    if !is_root_or_skip("kernel::an_interface_that_gets_an_excluded_name_is_given_up") {
        return;
    }
    let namespace = Namespace::new("excluded").unwrap();
    let link = wires(&namespace, 1).swap_remove(0);
    let rename = || {
        let mut kernel = kernel();
        let (mut watcher, to_detach) = watcher(&mut kernel, "new*", SETTINGS);
        watcher.selection.exclude = vec!["*-excluded".parse()?];
        assert_eq!(watcher.watch(&link)?, None);
        for name in ["late", "late-excluded", "later"] {
            namespace.ip(&[
                "link", "property", "add", "dev", &link.name, "altname", name,
            ])?;
            let named = watcher.links.link(link.ifindex)?;
            watcher.consider(&named, &Uplinks::default())?;
            let given_up = to_detach.try_iter().count();
            assert_eq!(given_up, usize::from(name == "late-excluded"), "{name}");
        }
        Ok(())
    };
    namespace.enter(rename).unwrap();
}

#[test]
fn a_panic_of_a_thread_that_watches_ends_the_agent() {
    const PATIENCE: Duration = Duration::from_mins(2);
    if !is_root_or_skip("kernel::a_panic_of_a_thread_that_watches_ends_the_agent") {
        return;
    }
    let namespace = Namespace::new("panic").unwrap();
    let mut kernel = kernel();
    let start = || {
        let interfaces = Interfaces {
            selected: vec![(crate::netns::Namespace::own()?, Vec::new())],
            slots: Slots::new(4, 0),
            selection: Selection {
                include: vec!["new*".parse().unwrap()],
                ..Selection::default()
            },
            name_interface: Arc::new(|_, names| panic!("{names:?} is named, as the test wants it")),
        };
        Attachments::start(&mut kernel, interfaces, Carry::default(), SETTINGS)
    };
    let (_attachments, mut reports) = namespace.enter(start).unwrap();
    reports.attached.blocking_recv().unwrap().unwrap();
    namespace.add_wire(["new0", "far0"]).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match reports.failed.try_recv() {
            Ok(error) => break error.to_string(),
            Err(_) => assert!(Instant::now() < deadline, "nobody is told"),
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert!(error.contains("\"attach\" panicked"), "{error}");
}
