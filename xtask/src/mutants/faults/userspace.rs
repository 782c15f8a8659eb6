//! Faults in the agent's user-space half: the flip, the pages, the scan, the replica, names.

use super::{FLIPS, Fault, SHARED, Target, agent, races, unit};

const DSCP: Target = unit(
    "flows",
    "replica::tests::each_end_keeps_the_dscp_of_its_first_packet_and_is_marked_once_another_follows",
);

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "the flip does not wait for running programs",
        file: "agent/kernel/src/pages.rs",
        from: "let waited = self.place(idle, self.both[idle as usize].windows());",
        to: "let waited = io::Result::Ok(()).map(|()| drop(idle));",
        target: FLIPS,
    },
    Fault {
        name: "an RST out of nowhere is the end of a connection",
        file: "agent/flows/src/replica/entry.rs",
        from: "let is_reset = were_there &&",
        to: "let is_reset = (were_there || true) &&",
        target: agent(
            "initiator::segments_out_of_nowhere_are_no_connection_and_prove_no_initiator",
        ),
    },
    Fault {
        name: "a SYN with ACK that nobody asked for proves an initiator",
        file: "agent/flows/src/replica/handshake.rs",
        from: "(is_answered || self.has(Self::SYN << opener))",
        to: "(is_answered || true)",
        target: agent(
            "initiator::segments_out_of_nowhere_are_no_connection_and_prove_no_initiator",
        ),
    },
    Fault {
        name: "an RST stands although the connection goes on",
        file: "agent/flows/src/replica/segments.rs",
        from: "self.0 &= Self::SPOKE | Self::SPOKE << 1;",
        to: "",
        target: agent("initiator::a_forged_rst_ends_no_flow_of_a_connection_that_goes_on"),
    },
    Fault {
        name: "nobody remembers who opened a connection that was quiet",
        file: "agent/flows/src/replica/remembered.rs",
        from: "if self.len == 0 {",
        to: "if self.len != usize::MAX {",
        target: agent(
            "initiator::a_connection_keeps_its_ends_over_a_pause_and_a_younger_agent_assumes_them",
        ),
    },
    Fault {
        name: "signals reach a thread while the verifier works for it",
        file: "agent/kernel/src/attach/programs.rs",
        from: "let _held = signals::Held::new();",
        to: "let _ = signals::Held::new();",
        target: agent("lifecycle::signals::signals_do_not_keep_the_programs_out"),
    },
    Fault {
        name: "what waits when the sample rate changes is reported with the next scan",
        file: "agent/src/scan.rs",
        from: "if rates.current != rates.scanned {",
        to: "if false {",
        target: agent(
            "collect::samples::a_collector_that_wants_fewer_flows_gets_them_whole_and_each_record_says_so",
        ),
    },
    Fault {
        name: "the second page is not drained at the end",
        file: "agent/src/scan.rs",
        from: "self.kernel.pages.stop()?.to_vec()",
        to: "self.kernel.pages.stop()?[..1].to_vec()",
        target: races("no_end_of_clsact_under_full_load_loses_a_packet"),
    },
    Fault {
        name: "what was drained counts twice",
        file: "agent/src/scan/hooks.rs",
        from: "growth.counters[Reason::Flows as usize] = Pair::default();",
        to: "let _ = Pair::default();",
        target: agent("exact::both_directions_are_one_flow_from_the_sender_of_the_syn"),
    },
    Fault {
        name: "a window in which the table refused does not say so",
        file: "agent/src/scan/hooks.rs",
        from: "refused |= growth.not_inserted().packets != 0;",
        to: "refused |= growth.not_inserted().packets == u64::MAX;",
        target: agent("exact::a_full_table_keeps_what_it_has_and_counts_what_it_refuses"),
    },
    Fault {
        name: "what generic XDP saw counts as exact",
        file: "agent/src/scan/hooks.rs",
        from: "if is_inexact {",
        to: "if is_inexact && seen.packets == 0 {",
        target: agent("xdp::all_that_generic_xdp_counts_is_inexact"),
    },
    Fault {
        name: "who may change rules is not asked",
        file: "agent/server/src/peer.rs",
        from: "uid == 0 || uid == agent_uid",
        to: "uid < u32::MAX || uid == agent_uid",
        target: agent(
            "admission::rules::rules_are_changed_by_root_seen_by_local_users_and_neither_over_tcp",
        ),
    },
    Fault {
        name: "what went behind the slots is not drained",
        file: "agent/kernel/src/pages.rs",
        from: "if behind_flows != 0 {",
        to: "if behind_flows == u64::MAX {",
        target: agent("table::flows_that_find_no_slot_go_behind_the_slots"),
    },
    Fault {
        name: "programs do not hear of a page's size",
        file: "agent/kernel/src/pages.rs",
        from: "&mut self.switches.sizes[idle as usize];",
        to: "&mut self.switches.sizes[0 * idle as usize];",
        target: agent("table::pages_grow_with_new_flows_and_shrink_without_them"),
    },
    Fault {
        name: "windows are replaced on the page in use",
        file: "agent/kernel/src/pages.rs",
        from: "placed.and_then(|()| self.place(idle, &windows))",
        to: "placed.and_then(|()| self.place(1 - idle, &windows))",
        target: races("pages_that_grow_and_shrink_under_full_load_lose_nothing"),
    },
    Fault {
        name: "who sent a flow stays on the page",
        file: "agent/kernel/src/pages/senders.rs",
        from: "of_flow.put(plane, [0; 2]);",
        to: "",
        target: agent("senders::a_slot_that_another_flow_had_names_nobody"),
    },
    Fault {
        name: "dns: what arrives may be a query and its answer",
        file: "agent/enrich/src/dns/queries.rs",
        from: "flow: if key.ifindex == LOOPBACK {",
        to: "flow: if key.ifindex != 0 {",
        target: agent(
            "names::nothing_is_learned_from_answers_that_nobody_asked_for_and_from_garbage",
        ),
    },
    Fault {
        name: "dns: a flow has a name that was learned later",
        file: "agent/enrich/src/dns/names.rs",
        from: "known.since_ns <= at_ns && at_ns <= known.until_ns",
        to: "at_ns <= known.until_ns",
        target: agent("names::a_flow_is_to_the_name_that_its_host_asked_for_last_before_it_began"),
    },
    Fault {
        name: "counters of interfaces are read once and never again",
        file: "agent/src/scan/interfaces.rs",
        from: "self.before.is_like(&self.last) && self.after.is_like(&self.last)",
        to: "self.after.is_like(&self.after)",
        target: agent("lifecycle::audits::an_audit_knows_a_plain_wire_and_one_that_polls"),
    },
    Fault {
        name: "one that leaves keeps its place among the watched ones",
        file: "agent/kernel/src/interface_table.rs",
        from: "                && let Err(error) = drops.end(ifindex)",
        to: "                && let Err(error) = drops.end(0)",
        target: agent("drops::what_is_dropped_at_interfaces_that_come_late_is_with_its_flow"),
    },
    Fault {
        name: "units have what is reported and not what is counted",
        file: "agent/flows/src/replica.rs",
        from: "if self.by_cgroup.is_wanted() {",
        to: "if self.by_cgroup.is_wanted() && self.reports.due_ns(slot).is_none() {",
        target: agent(
            "senders::unit_traffic::what_units_and_containers_exchange_is_in_the_metrics",
        ),
    },
    Fault {
        name: "a page that grows has no room for who sent its flows",
        file: "agent/kernel/src/pages.rs",
        from: "let placed = self.place_senders(idle, &windows);",
        to: "let placed = self.place_senders(idle, self.both[idle as usize].windows());",
        target: agent("senders::pages_that_grow_name_all_of_their_flows"),
    },
    Fault {
        name: "a flow in two slots of a window is two",
        file: "agent/kernel/src/pages/page.rs",
        from: "self.keys[start..].iter().position(",
        to: "self.keys[start..start].iter().position(",
        target: races("two_cpus_that_bring_the_same_new_flows_at_once_make_one_entry_of_each"),
    },
    Fault {
        name: "a drained page counts as full",
        file: "agent/kernel/src/pages.rs",
        from: "let empty = [0; size_of::<PageFill>()];",
        to: "let empty = [255; size_of::<PageFill>()];",
        target: agent("pressure::ten_tables_of_new_flows_in_one_interval_are_all_counted"),
    },
    Fault {
        name: "what is pending is read of the other page",
        file: "agent/kernel/src/account.rs",
        from: "let entries = (0..self.layout.cpus).map(|cpu| cpu * 2 + page);",
        to: "let entries = (0..self.layout.cpus).map(|cpu| cpu * 2 + 1 - page);",
        target: SHARED,
    },
    Fault {
        name: "what is pending belongs to every account",
        file: "agent/kernel/src/account.rs",
        from: "pending.filter(|pending| pending.account == u64::from(account))",
        to: "pending.filter(|pending| pending.account != u64::MAX)",
        target: SHARED,
    },
    Fault {
        name: "an account is read as if it had begun anew",
        file: "agent/kernel/src/account.rs",
        from: "let growth = sum.since(before);",
        to: "let growth = sum.since(&HookAccount::default());",
        target: FLIPS,
    },
    Fault {
        name: "userspace reads the clocks of its time namespace, and the programs those of the host",
        file: "agent/sys/src/clock.rs",
        from: "time_ns.saturating_sub_signed(TIME_NAMESPACE.offset_ns(name))",
        to: "time_ns.saturating_sub_signed(TIME_NAMESPACE.offset_ns(name) * 0)",
        target: agent(
            "exact::time_namespace::an_agent_in_a_time_namespace_tells_the_time_of_the_packets",
        ),
    },
    Fault {
        name: "a file that begins after the clock was set back is the oldest",
        file: "agent/exporters/src/files/names.rs",
        from: "Ordering::Less => (resets + 1, 1),",
        to: "Ordering::Less => (0, 1),",
        target: unit(
            "exporters",
            "files::tests::the_newest_files_stay_however_far_the_clock_was_set_back",
        ),
    },
    Fault {
        name: "whoever has many cgroups gives up no name",
        file: "agent/enrich/src/unit/cgroups/share.rs",
        from: "if has + 1 >= most {",
        to: "if has + 1 >= most || most > 0 {",
        target: unit(
            "enrich",
            "unit::cgroups::tests::whoever_has_the_most_makes_room_for_those_who_have_less",
        ),
    },
    Fault {
        name: "a name that an interface gets besides is not heard of",
        file: "agent/kernel/src/links/events.rs",
        from: "altnames: list.unwrap_or_default(),",
        to: "altnames: list.map(|_| Vec::new()).unwrap_or_default(),",
        target: agent(
            "lifecycle::names::an_interface_is_selected_and_filtered_by_its_alternative_names",
        ),
    },
    Fault {
        name: "a DSCP that changes in a later scan leaves no mark",
        file: "agent/flows/src/replica/entry.rs",
        from: "Classes::expand(self.classes).and_later(counters.classes)",
        to: "Classes::expand(self.classes)",
        target: DSCP,
    },
    Fault {
        name: "both ends have the DSCP of one",
        file: "agent/flows/src/replica/entry.rs",
        from: "classes.dscp(direction as u8)",
        to: "classes.dscp(0 * direction as u8)",
        target: DSCP,
    },
    Fault {
        name: "both ends have the mark of a changed DSCP if one has",
        file: "agent/flows/src/replica/entry.rs",
        from: "classes.has_changed(direction as u8)",
        to: "classes.has_changed(direction as u8) || classes.has_changed(1 - direction as u8)",
        target: DSCP,
    },
];
