//! The cells of tables of flows, in a few characters each.

use std::time::Duration;

use proto::{Cgroup, Direction, EndReason, Failure, FlowRecord, Process};

use super::{harmless::harmless, human};

/// The widest unit; a longer one is shortened.
const UNIT_WIDTH: usize = 30;

/// The interface with the VLANs behind it, and the tunnel: `eth0.100`, `eth0 vxlan 42`.
pub fn place(record: &FlowRecord, interface: Option<&String>) -> String {
    let name = interface
        .cloned()
        .unwrap_or_else(|| format!("#{}", record.ifindex));
    let vlan_ids = record.vlan_ids.iter().map(ToString::to_string);
    let mut place = std::iter::once(name)
        .chain(vlan_ids)
        .collect::<Vec<_>>()
        .join(".");
    if let Some(encapsulation) = human::encapsulation(record) {
        place = format!("{place} {encapsulation}");
    }
    if let Some(id) = record.tunnel_id {
        place = format!("{place} {id}");
    }
    place
}

/// `ingress` or `egress` for the initiator's packets; twice, as `ingress ingress`, if the responder's are seen on the same side.
pub fn direction(record: &FlowRecord) -> String {
    let [forward, reverse] = human::directions(record);
    let name = match forward {
        Some(Direction::Ingress) => "ingress",
        Some(Direction::Egress) => "egress",
        Some(Direction::Unspecified) | None => "?",
    };
    if forward.is_some() && forward == reverse {
        format!("{name} {name}")
    } else {
        name.to_owned()
    }
}

/// The container by the first digits of its id, as its runtime shows it; else the unit, or the path. `None` if all are
/// unknown.
pub(crate) fn sender(cgroup: &Cgroup) -> Option<String> {
    const SHORT_ID: usize = 12;
    let container = cgroup.container_id.get(..SHORT_ID).map(|id| {
        let runtime = match cgroup.container_runtime.as_str() {
            "" => "container",
            runtime => runtime,
        };
        format!("{runtime}:{id}")
    });
    let name = container.unwrap_or_else(|| {
        let unit = if cgroup.unit.is_empty() {
            &cgroup.path
        } else {
            &cgroup.unit
        };
        harmless(unit).into_owned()
    });
    (!name.is_empty()).then_some(name)
}

/// A unit as the column shows it.
pub fn short_unit(name: &str) -> String {
    human::shortened(name, UNIT_WIDTH).to_string()
}

/// The process's name and pid, as `nginx/1234`.
pub(crate) fn process(process: &Process) -> String {
    let name = harmless(&process.name);
    if name.is_empty() {
        process.pid.to_string()
    } else {
        format!("{name}/{}", process.pid)
    }
}

/// Both ends' round trips in microseconds. TCP's own value covers the whole path. Without one, the time to the
/// acknowledgment seen here.
pub fn round_trips(record: &FlowRecord) -> [Option<u32>; 2] {
    let known = record.ends().map(|end| end.tcp_rtt_us);
    if known == [None, None] {
        record.ends().map(|end| end.ack_rtt_us)
    } else {
        known
    }
}

/// A round trip, in about three digits.
pub fn round_trip(us: u32) -> String {
    let ms = f64::from(us) / 1e3;
    match us {
        0..1_000 => format!("{us}us"),
        1_000..10_000 => format!("{ms:.2}ms"),
        10_000..100_000 => format!("{ms:.1}ms"),
        100_000..1_000_000 => format!("{ms:.0}ms"),
        _ => format!("{:.1}s", ms / 1e3),
    }
}

pub fn ends(ends: &[Option<String>; 2]) -> String {
    both(ends.each_ref().map(Option::as_deref))
}

/// The host's end, or `initiator > responder` if both ends are here.
pub fn both(ends: [Option<&str>; 2]) -> String {
    match ends {
        [Some(source), Some(destination)] => format!("{source} > {destination}"),
        [one, other] => one.or(other).unwrap_or_default().to_owned(),
    }
}

pub fn protocol(record: &FlowRecord) -> String {
    let name = human::protocol(record);
    match (record.icmp_type, record.icmp_code) {
        (Some(icmp_type), Some(code)) => format!("{name} {icmp_type}/{code}"),
        _ if record.later_fragment => format!("{name} frag"),
        _ => name,
    }
}

/// The failure, or else the state of the flow.
pub fn state(record: &FlowRecord) -> &'static str {
    match record.failure.map(Failure::try_from) {
        Some(Ok(Failure::Refused)) => return "refused",
        Some(Ok(Failure::Unanswered)) => return "no answer",
        Some(Ok(Failure::Unreachable)) => return "unreachable",
        Some(Ok(Failure::Reset)) => return "reset",
        Some(Ok(Failure::Unspecified) | Err(_)) | None => {}
    }
    match record.end_reason.map(EndReason::try_from) {
        None if record.closing => "closing",
        None => "active",
        Some(Ok(EndReason::IdleTimeout)) => "idle",
        Some(Ok(EndReason::EndOfFlow)) => "closed",
        Some(Ok(EndReason::ForcedEnd)) => "stopped",
        Some(Ok(EndReason::LackOfResources)) => "evicted",
        Some(Ok(EndReason::ActiveTimeout | EndReason::Unspecified) | Err(_)) => "ended",
    }
}

/// The time since the flow's first packet: until `now_unix_ns`, or until its last packet if it is over.
pub fn age(record: &FlowRecord, now_unix_ns: u64) -> String {
    let is_over = record.end_reason.is_some() || record.closing;
    let until = if is_over {
        record.last_seen_unix_ns
    } else {
        now_unix_ns
    };
    let age = until.saturating_sub(record.first_seen_unix_ns);
    human::duration(Duration::from_nanos(age))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_its_number_and_a_harmless_name() {
        let shown = |name: &str| {
            process(&Process {
                pid: 12,
                name: name.to_owned(),
                ..Process::default()
            })
        };
        assert_eq!(shown("php"), "php/12");
        assert_eq!(shown(""), "12");
        assert!(!shown("\x1b[2J").contains('\x1b'));
    }

    #[test]
    fn a_flow_that_is_over_is_as_old_as_its_last_packet() {
        let living = FlowRecord {
            first_seen_unix_ns: 10_000_000_000,
            last_seen_unix_ns: 17_000_000_000,
            ..FlowRecord::default()
        };
        let closing = FlowRecord {
            closing: true,
            ..living.clone()
        };
        let ended = FlowRecord {
            end_reason: Some(EndReason::EndOfFlow.into()),
            ..living.clone()
        };
        for (record, shown) in [
            (living, ["active", "50s"]),
            (closing, ["closing", "7s"]),
            (ended, ["closed", "7s"]),
        ] {
            let age = age(&record, 60_000_000_000);
            assert_eq!([state(&record), &age], shown);
        }
    }

    #[test]
    fn a_sender_has_a_short_and_harmless_name() {
        let cgroup = |unit: &str, container_id: &str, runtime: &str| Cgroup {
            path: "/somewhere".to_owned(),
            unit: unit.to_owned(),
            container_id: container_id.to_owned(),
            container_runtime: runtime.to_owned(),
            ..Cgroup::default()
        };
        let shown = |cgroup: &Cgroup| sender(cgroup).unwrap();
        let id = "0123456789abcdef";
        assert_eq!(
            shown(&cgroup("docker-01.scope", id, "docker")),
            "docker:0123456789ab"
        );
        assert_eq!(shown(&cgroup("", id, "")), "container:0123456789ab");
        assert_eq!(shown(&cgroup("a.service", "", "")), "a.service");
        assert_eq!(shown(&cgroup("", "", "")), "/somewhere");
        assert!(!shown(&cgroup("\x1b[2Ja.service", "", "")).contains('\x1b'));
        let long = shown(&cgroup(&"u".repeat(255), "", ""));
        assert_eq!(short_unit(&long).chars().count(), UNIT_WIDTH);
        assert_eq!(sender(&Cgroup::default()), None);
    }

    #[test]
    fn the_direction_is_the_initiators_and_tells_a_mirror_port() {
        let shown = |forward: Direction, reverse: Direction| {
            let mut record = FlowRecord::default();
            record.src_mut().set_direction(forward);
            record.dst_mut().set_direction(reverse);
            direction(&record)
        };
        let none = Direction::Unspecified;
        assert_eq!(shown(Direction::Ingress, Direction::Egress), "ingress");
        assert_eq!(shown(Direction::Egress, Direction::Ingress), "egress");
        assert_eq!(
            shown(Direction::Ingress, Direction::Ingress),
            "ingress ingress"
        );
        assert_eq!(shown(Direction::Egress, Direction::Egress), "egress egress");
        assert_eq!(shown(none, none), "?");
    }
}
