//! Builds the status message for `GetStatus` from the scanner's state after each scan.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use agent_common::{Direction, InterfaceId};
use flows::replica::Failed;
use kernel::{
    attach::{Hook, InsteadOfXdp, Mode, Uncounted},
    links::{Counters, qdisc::dropped_since},
};
use proto::batch::Identity;
use sys::{clock, process_memory};

use crate::{
    changes::Times,
    scan::{ByProtocol, Durations, HookState, Scanner},
};

/// Settings that cannot change while the agent runs.
pub struct StatusSettings {
    pub identity: Arc<Identity>,
    pub max_interfaces: u32,
    pub max_tracked_flows: u64,
    pub early_scan_percent: u32,
}

/// Builds the status. `times` are the ones in force; `late` is how many scans took longer than the interval. Drops by
/// qdiscs are added by [`add_qdisc_drops`]; the server adds its own part: uptime, consumers, connections and outputs.
pub fn agent_status(
    settings: &StatusSettings,
    times: Times,
    scanner: &Scanner,
    late: u64,
) -> proto::AgentStatus {
    let counts = scanner.stats;
    let capacity = u64::from(scanner.capacity());
    let (not_counted, absent) = (scanner.not_counted(), scanner.absent());
    let mut status = proto::AgentStatus {
        agent: Some((*settings.identity).clone()),
        started_unix_ns: 0,
        uptime_ns: 0,
        settings: Some(proto::Settings {
            max_flows: capacity,
            max_tracked_flows: settings.max_tracked_flows,
            scan_interval_ns: clock::nanos(times.scan_interval),
            idle_timeout_ns: clock::nanos(times.idle_timeout),
            linger_ns: clock::nanos(times.linger),
            report_interval_ns: clock::nanos(times.report_interval),
            early_scan_percent: settings.early_scan_percent,
            sample_rate: scanner.sample_rates().current,
            filter_rules: scanner.filter_rules(),
        }),
        hooks: scanner
            .hooks
            .iter()
            .filter_map(|state| hook(scanner, state))
            .collect(),
        table: Some(proto::TableStatus {
            capacity,
            occupancy: counts.occupancy,
            high_water: counts.high_water,
            suggested_max_flows: suggested_max_flows(counts.high_water),
            room: scanner.table_room_flows().into(),
            behind: scanner.behind_flows(),
        }),
        replica: Some(proto::ReplicaStatus {
            tracked: scanner.replica().len() as u64,
            capacity: scanner.replica().capacity() as u64,
            evicted: scanner.replica().evicted(),
            forgotten_initiators: scanner.replica().forgotten_initiators(),
            failed_flows: failed_flows(scanner.replica().failed()),
            ..proto::ReplicaStatus::default()
        }),
        scans: Some(proto::ScanStatus {
            count: counts.count,
            early: counts.early,
            late,
            last_duration_ns: counts.last_duration_ns,
            last_flip_wait_ns: counts.last_flip_wait_ns,
            cpu_ns: counts.cpu_ns,
            durations: Some(durations(counts.durations)),
            flip_waits: Some(durations(counts.flip_waits)),
            lateness: Some(durations(counts.lateness)),
            lapsed_ns: counts.lapsed_ns,
        }),
        memory: Some(proto::MemoryStatus {
            resident_bytes: process_memory::resident_bytes(),
            kernel_map_bytes: scanner.kernel_memory_bytes(),
        }),
        consumers: Vec::new(),
        server: None,
        outputs: Vec::new(),
        interfaces: Some(proto::InterfacesStatus {
            capacity: settings.max_interfaces,
            not_counted: u32::try_from(not_counted.interfaces).unwrap_or(u32::MAX),
            uncounted: not_counted
                .first
                .into_iter()
                .map(|one| uncounted(scanner, one))
                .collect(),
            absent: u32::try_from(absent.names).unwrap_or(u32::MAX),
            absent_names: absent.first,
            departed: scanner.departed.interfaces,
            departed_account: Some(proto::Account {
                sample_rate: scanner.sample_rates().scanned,
                ..proto::Account::from_hook(&scanner.departed.account, false)
            }),
        }),
        account: Some(proto::Account {
            sample_rate: scanner.sample_rates().scanned,
            ..proto::Account::from_hook(&scanner.account, false)
        }),
        traffic: Some(proto::Traffic {
            ingress: by_protocol(&scanner.traffic[0]).collect(),
            egress: by_protocol(&scanner.traffic[1]).collect(),
        }),
        carried_over: carried_over(scanner),
        ..proto::AgentStatus::default()
    };
    scanner.report_enrichment(&mut status);
    status
}

/// `None` if nothing was taken over.
fn carried_over(scanner: &Scanner) -> Option<proto::CarriedOver> {
    let maps = scanner.carried_over;
    let links = scanner.taken_over_links();
    let is_something =
        maps.processes != 0 || maps.orphans != 0 || links.links != 0 || links.gaps != 0;
    is_something.then_some(proto::CarriedOver {
        processes: maps.processes,
        flows: maps.flows,
        seen_packets: maps.seen.packets,
        seen_bytes: maps.seen.bytes,
        repeated_batches: maps.repeated_batches,
        waiting_packets: maps.waiting.packets,
        waiting_bytes: maps.waiting.bytes,
        links: links.links,
        gaps: links.gaps,
        orphans: maps.orphans,
        orphaned_packets: maps.orphaned.packets,
        orphaned_bytes: maps.orphaned.bytes,
    })
}

fn failed_flows(failed: Failed) -> BTreeMap<String, u64> {
    let all = [
        ("refused", failed.refused),
        ("reset", failed.reset),
        ("unanswered", failed.unanswered),
        ("unreachable", failed.unreachable),
    ];
    all.map(|(failure, count)| (failure.to_owned(), count))
        .into()
}

/// Adds what each interface's qdiscs dropped between two readings.
pub fn add_qdisc_drops(
    status: &mut proto::AgentStatus,
    before: &BTreeMap<InterfaceId, u64>,
    after: &BTreeMap<InterfaceId, u64>,
) {
    for hook in &mut status.hooks {
        let id = hook.interface.as_ref().map(|one| InterfaceId {
            netns: one.netns,
            ifindex: one.ifindex,
        });
        let of = |drops: &BTreeMap<_, u64>| drops.get(&id.unwrap_or_default()).copied();
        hook.qdisc_drops = dropped_since(of(before), of(after));
    }
}

/// Marks the hooks in network namespaces where IPsec terminates tunnels: decrypted packets arrive there a second time.
pub fn add_ipsec(status: &mut proto::AgentStatus, netns: &BTreeSet<u32>) {
    for hook in &mut status.hooks {
        let is_there = hook
            .interface
            .as_ref()
            .is_some_and(|one| netns.contains(&one.netns));
        hook.opens_ipsec_tunnels = is_there && hook.hook() == proto::Hook::TcIngress;
    }
}

/// Twice the high-water mark, at least 1,024, rounded up to a power of two.
fn suggested_max_flows(high_water: u64) -> u64 {
    (high_water * 2).max(1024).next_power_of_two()
}

/// `None` while the hook is being attached.
fn hook(scanner: &Scanner, state: &HookState) -> Option<proto::HookStatus> {
    let after_attach = state.after_attach?;
    let watched = scanner.interfaces().watched(state.hook.slot())?;
    Some(proto::HookStatus {
        interface: Some(scanner.interfaces().message(watched)),
        hook: hook_kind(&state.hook) as i32,
        mode: match state.hook.mode {
            Mode::Tcx => proto::AttachMode::Tcx,
            Mode::Clsact => proto::AttachMode::Clsact,
            Mode::XdpNative => proto::AttachMode::Native,
            Mode::XdpGeneric => proto::AttachMode::Generic,
        } as i32,
        account: Some(proto::Account {
            sample_rate: scanner.sample_rates().scanned,
            ..proto::Account::from_hook(&state.account, false)
        }),
        before_attach: Some(counters(state.before_attach)),
        after_attach: Some(counters(after_attach)),
        before_flip: state.is_scanned.then(|| counters(watched.before_flip)),
        after_flip: state.is_scanned.then(|| counters(watched.after_flip)),
        qdisc_drops: None,
        is_vrf: state.hook.is_vrf,
        opens_ipsec_tunnels: false,
        traffic: by_protocol(&state.traffic)
            .filter(|(_, count)| count.packets != 0)
            .collect(),
        interface_gone: watched.is_gone,
        instead_of_xdp: state.hook.instead_of_xdp.map(|why| {
            match why {
                InsteadOfXdp::NoNativeMode => proto::InsteadOfXdp::NoNativeMode,
                InsteadOfXdp::HiddenTags => proto::InsteadOfXdp::HiddenTags,
                InsteadOfXdp::LowerDevices => proto::InsteadOfXdp::LowerDevices,
                InsteadOfXdp::SuperFrames => proto::InsteadOfXdp::SuperFrames,
                InsteadOfXdp::Taken => proto::InsteadOfXdp::Taken,
            }
            .into()
        }),
    })
}

fn by_protocol(traffic: &ByProtocol) -> impl Iterator<Item = (String, proto::Count)> {
    traffic
        .iter()
        .map(|(class, pair)| (class.name().to_owned(), pair.into()))
}

fn durations(durations: Durations) -> proto::Durations {
    let bounds = Durations::bounds().iter();
    proto::Durations {
        bounds_ns: bounds.copied().map(clock::nanos).collect(),
        counts: durations.counts().to_vec(),
        sum_ns: clock::nanos(durations.sum()),
    }
}

fn uncounted(scanner: &Scanner, one: Uncounted) -> proto::UncountedInterface {
    proto::UncountedInterface {
        interface: Some(scanner.interfaces().named(one.id, &one.name)),
        reason: one.reason.to_owned(),
        detail: one.detail,
    }
}

fn hook_kind(hook: &Hook) -> proto::Hook {
    match (hook.direction, hook.mode) {
        (Direction::Egress, _) => proto::Hook::TcEgress,
        (Direction::Ingress, Mode::XdpNative | Mode::XdpGeneric) => proto::Hook::Xdp,
        (Direction::Ingress, Mode::Tcx | Mode::Clsact) => proto::Hook::TcIngress,
    }
}

fn counters(counters: Counters) -> proto::InterfaceCounters {
    proto::InterfaceCounters {
        rx_packets: counters.rx_packets,
        rx_bytes: counters.rx_bytes,
        rx_dropped: counters.rx_dropped,
        rx_errors: counters.rx_errors,
        tx_packets: counters.tx_packets,
        tx_bytes: counters.tx_bytes,
        tx_dropped: counters.tx_dropped,
        tx_errors: counters.tx_errors,
    }
}
