//! The table of kept faults: each is one replacement in one file, with the test that must catch it.

use std::fmt;

use anyhow::{Result, ensure};

/// A test, as `cargo test` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub package: &'static str,
    /// The program behind `--test`.
    pub binary: &'static str,
    pub test: &'static str,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.package, self.binary, self.test)
    }
}

pub struct Fault {
    pub name: &'static str,
    pub file: &'static str,
    /// The text to replace. It must stand in the file exactly once.
    pub from: &'static str,
    pub to: &'static str,
    pub target: Target,
}

impl Fault {
    /// The file's text with the fault.
    pub fn put_into(&self, text: &str) -> Result<String> {
        let times = text.matches(self.from).count();
        ensure!(
            times == 1,
            "fault {}: `{}` stands {times} times in {}: the table has to follow the sources",
            self.name,
            self.from,
            self.file
        );
        Ok(text.replacen(self.from, self.to, 1))
    }
}

const fn races(test: &'static str) -> Target {
    Target {
        package: "races",
        binary: "races",
        test,
    }
}

const fn corpus(test: &'static str) -> Target {
    Target {
        package: "corpus",
        binary: "host",
        test,
    }
}

const fn agent(test: &'static str) -> Target {
    Target {
        package: "agent",
        binary: "agent",
        test,
    }
}

const SAME_FLOWS: Target =
    races("two_cpus_that_bring_the_same_new_flows_at_once_make_one_entry_of_each");
const SHARED: Target = agent("accounts::cpus_that_share_counters_lose_nothing");
const FLIPS: Target = races("every_account_closes_while_programs_are_on_their_way_at_each_flip");
const EVERY_FRAME: Target = agent("corpus::every_frame_counts_in_the_kernel_as_its_entry_says");
const HOST_FRAMES: Target = corpus("every_frame_gives_what_its_entry_says");

pub const FAULTS: &[Fault] = &[
    Fault {
        name: "the flip does not wait for running programs",
        file: "agent/src/kernel/pages.rs",
        from: "let waited = self.place(idle, self.both[idle as usize].windows());",
        to: "let waited = io::Result::Ok(()).map(|()| drop(idle));",
        target: FLIPS,
    },
    Fault {
        name: "a file is not brought to the disk before its batches are acknowledged",
        file: "agent/src/collector/store.rs",
        from: "    file.sync().await\n}",
        to: "    Ok(drop(file))\n}",
        target: agent("collect::what_is_acknowledged_is_there_after_the_power_fails"),
    },
    Fault {
        name: "an RST out of nowhere is the end of a connection",
        file: "agent/src/replica/entry.rs",
        from: "let is_reset = were_there &&",
        to: "let is_reset = (were_there || true) &&",
        target: agent(
            "initiator::segments_out_of_nowhere_are_no_connection_and_prove_no_initiator",
        ),
    },
    Fault {
        name: "a SYN with ACK that nobody asked for proves an initiator",
        file: "agent/src/replica/handshake.rs",
        from: "(is_answered || self.has(Self::SYN << opener))",
        to: "(is_answered || true)",
        target: agent(
            "initiator::segments_out_of_nowhere_are_no_connection_and_prove_no_initiator",
        ),
    },
    Fault {
        name: "an RST stands although the connection goes on",
        file: "agent/src/replica/segments.rs",
        from: "self.0 &= Self::SPOKE | Self::SPOKE << 1;",
        to: "",
        target: agent("initiator::a_forged_rst_ends_no_flow_of_a_connection_that_goes_on"),
    },
    Fault {
        name: "nobody remembers who opened a connection that was quiet",
        file: "agent/src/replica/remembered.rs",
        from: "if self.len == 0 {",
        to: "if self.len != usize::MAX {",
        target: agent(
            "initiator::a_connection_keeps_its_ends_over_a_pause_and_a_younger_agent_assumes_them",
        ),
    },
    Fault {
        name: "signals reach a thread while the verifier works for it",
        file: "agent/src/kernel/attach/programs.rs",
        from: "let _held = signals::Held::new();",
        to: "let _ = signals::Held::new();",
        target: agent("lifecycle::signals::signals_do_not_keep_the_programs_out"),
    },
    Fault {
        name: "what waits when the sample rate changes is reported with the next scan",
        file: "agent/src/scan.rs",
        from: "self.replica.report_all();",
        to: "",
        target: agent(
            "collect::samples::a_collector_that_wants_fewer_flows_gets_them_whole_and_each_record_says_so",
        ),
    },
    Fault {
        name: "a segment of the spool is not brought to the disk",
        file: "agent/src/outputs/delivery/spool/segment.rs",
        from: "self.file.sync_data()",
        to: "io::Result::Ok(drop(&self.file))",
        target: agent(
            "outputs::spool::what_the_spool_has_brought_to_the_disk_is_there_after_the_power_fails",
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
        file: "agent/src/scan.rs",
        from: "growth.counters[Reason::Flows as usize] = Pair::default();",
        to: "let _ = Pair::default();",
        target: agent("exact::both_directions_are_one_flow_from_the_sender_of_the_syn"),
    },
    Fault {
        name: "a window in which the table refused does not say so",
        file: "agent/src/scan.rs",
        from: "refused |= growth.not_inserted().packets != 0;",
        to: "refused |= growth.not_inserted().packets == u64::MAX;",
        target: agent("exact::a_full_table_keeps_what_it_has_and_counts_what_it_refuses"),
    },
    Fault {
        name: "what generic XDP saw counts as exact",
        file: "agent/src/scan.rs",
        from: "if hook.mode == Mode::XdpGeneric {",
        to: "if hook.mode == Mode::XdpGeneric && seen.packets == 0 {",
        target: agent("xdp::all_that_generic_xdp_counts_is_inexact"),
    },
    Fault {
        name: "who may change rules is not asked",
        file: "agent/src/server/peer.rs",
        from: "uid == 0 || uid == agent_uid",
        to: "uid < u32::MAX || uid == agent_uid",
        target: agent(
            "doors::rules::rules_are_changed_by_root_seen_by_local_users_and_neither_over_tcp",
        ),
    },
    Fault {
        name: "the second to insert a flow forgets its packet",
        file: "agent-ebpf/src/table.rs",
        from: "let asked = add(visit.counters(slot), sought, size);\n                return did(HAD, sought.in_slot(asked, walk.window, slot));",
        to: "return did(HAD, Question::NONE);",
        target: SAME_FLOWS,
    },
    Fault {
        name: "an insert takes the place of another CPU's",
        file: "agent-ebpf/src/table/window.rs",
        from: "unsafe { atomic::swap_if(self.counters(slot).cast(), word(EMPTY), word(TAKEN)) }",
        to: "unsafe { self.counters(slot).cast::<u64>().write_volatile(word(TAKEN)) };\n        EMPTY == 0",
        target: SAME_FLOWS,
    },
    Fault {
        name: "an insert behind the slots takes the place of another CPU's",
        file: "agent-ebpf/src/table/behind.rs",
        from: "&first, BPF_NOEXIST.into())",
        to: "&first, (0 * BPF_NOEXIST).into())",
        target: races("two_cpus_that_bring_the_same_new_flows_to_a_full_page_are_both_counted"),
    },
    Fault {
        name: "the second to insert a flow behind the slots forgets its packet",
        file: "agent-ebpf/src/table/behind.rs",
        from: "EEXIST => grow(sought, size).map_or(Begun::Not(Reason::Vanished), Begun::Elsewhere),",
        to: "EEXIST => Begun::Elsewhere(Question::NONE),",
        target: races("two_cpus_that_bring_the_same_new_flows_to_a_full_page_are_both_counted"),
    },
    Fault {
        name: "what went behind the slots is not drained",
        file: "agent/src/kernel/pages.rs",
        from: "if behind_flows != 0 {",
        to: "if behind_flows == u64::MAX {",
        target: agent("table::flows_that_find_no_slot_go_behind_the_slots"),
    },
    Fault {
        name: "a scan is not told of a window with flows",
        file: "agent-ebpf/src/table.rs",
        from: "if word.read_volatile() & bit == 0 {",
        to: "if word.read_volatile() & bit == 0 && window % 64 != 0 {",
        target: agent("table::pages_grow_with_new_flows_and_shrink_without_them"),
    },
    Fault {
        name: "programs do not hear of a page's size",
        file: "agent/src/kernel/pages.rs",
        from: "&mut self.switches.sizes[idle as usize];",
        to: "&mut self.switches.sizes[0 * idle as usize];",
        target: agent("table::pages_grow_with_new_flows_and_shrink_without_them"),
    },
    Fault {
        name: "windows are replaced on the page in use",
        file: "agent/src/kernel/pages.rs",
        from: "placed.and_then(|()| self.place(idle, &windows))",
        to: "placed.and_then(|()| self.place(1 - idle, &windows))",
        target: races("pages_that_grow_and_shrink_under_full_load_lose_nothing"),
    },
    Fault {
        name: "who sent a flow stays on the page",
        file: "agent/src/kernel/pages/senders.rs",
        from: "noted.write([0; 2])",
        to: "noted.write(both)",
        target: agent("senders::a_slot_that_another_flow_had_names_nobody"),
    },
    Fault {
        name: "one direction of a flow alone is asked for its sender",
        file: "agent-ebpf/src/senders.rs",
        from: "FlowBits::asked(packet.direction);",
        to: "FlowBits::asked(0);",
        target: agent(
            "senders::both_ends_of_a_flow_have_the_unit_and_the_container_that_sent_its_packets",
        ),
    },
    Fault {
        name: "dns: what arrives may be a query and its answer",
        file: "agent/src/dns/queries.rs",
        from: "flow: if key.ifindex == LOOPBACK {",
        to: "flow: if key.ifindex != 0 {",
        target: agent(
            "names::nothing_is_learned_from_answers_that_nobody_asked_for_and_from_garbage",
        ),
    },
    Fault {
        name: "dns: what a filter leaves out is read",
        file: "agent-ebpf/src/dns.rs",
        from: "        && Question(answer).is_of_a_flow()\n",
        to: "        && answer != 1\n",
        target: agent("names::what_a_filter_leaves_out_is_not_read"),
    },
    Fault {
        name: "dns: there is no limit",
        file: "agent-ebpf/src/dns.rs",
        from: "if !is_in_budget(seen_ns) {",
        to: "if !is_in_budget(seen_ns) && seen_ns == 0 {",
        target: agent("names::a_flood_is_read_up_to_the_rate_and_each_other_message_is_counted"),
    },
    Fault {
        name: "dns: a flow has a name that was learned later",
        file: "agent/src/dns/names.rs",
        from: "known.since_ns <= at_ns && at_ns <= known.until_ns",
        to: "at_ns <= known.until_ns",
        target: agent("names::a_flow_is_to_the_name_that_its_host_asked_for_last_before_it_began"),
    },
    Fault {
        name: "icmp errors at XDP are not handed over",
        file: "agent-ebpf/src/hook.rs",
        from: "    icmp_errors::note_frame(frame, answer, packet);\n",
        to: "",
        target: agent("failures::what_icmp_says_cannot_be_reached_is_unreachable"),
    },
    Fault {
        name: "a drop is counted for the next reason",
        file: "agent-ebpf/src/drops.rs",
        from: "DROPS.get_ptr_mut(place(reason))",
        to: "DROPS.get_ptr_mut(place(reason + 1))",
        target: agent("drops::what_the_kernel_drops_is_counted_by_its_reason"),
    },
    Fault {
        name: "counters of interfaces are read once and never again",
        file: "agent/src/scan/interfaces.rs",
        from: "self.before.is_like(&self.last) && self.after.is_like(&self.last)",
        to: "self.after.is_like(&self.after)",
        target: agent("lifecycle::audits::an_audit_knows_a_plain_wire_and_one_that_polls"),
    },
    Fault {
        name: "drops of all network namespaces are of one",
        file: "agent-ebpf/src/dropped_flows.rs",
        from: "packet.key.netns = netns;",
        to: "packet.key.netns = netns & 0;",
        target: agent("drops::what_is_dropped_in_two_namespaces_with_one_index_is_told_apart"),
    },
    Fault {
        name: "drops where nobody watches take the room of others",
        file: "agent-ebpf/src/dropped_flows.rs",
        from: "        note_beside(beside::UNWATCHED);\n        return;\n",
        to: "",
        target: agent("drops::what_is_dropped_where_nobody_watches_takes_no_room"),
    },
    Fault {
        name: "one that leaves keeps its place among the watched ones",
        file: "agent/src/kernel/interface_table.rs",
        from: "                && let Err(error) = drops.end(ifindex)",
        to: "                && let Err(error) = drops.end(0)",
        target: agent("drops::what_is_dropped_at_interfaces_that_come_late_is_with_its_flow"),
    },
    Fault {
        name: "a segment that is sent again is a sample",
        file: "agent-common/src/round_trip.rs",
        from: "own.is_syn() || own.payload_len_bytes != 0 && is_earlier",
        to: "own.payload_len_bytes != 0 && is_earlier && own.flags == 0",
        target: agent("round_trips::what_cannot_be_told_is_not_said"),
    },
    Fault {
        name: "an answer behind extension headers is passed over",
        file: "agent-ebpf/src/round_trips.rs",
        from: "if of_other.waits() {",
        to: "if of_other.waits() && packet.direction > 1 {",
        target: agent("round_trips::headers_that_are_not_read_make_no_wrong_time"),
    },
    Fault {
        name: "a sample begins before the other direction was seen",
        file: "agent-ebpf/src/round_trips.rs",
        from: "has_payload && answers != 0",
        to: "has_payload && answers != u64::MAX",
        target: agent("round_trips::a_connection_that_passes_says_how_long_each_end_takes"),
    },
    Fault {
        name: "a reset is an acknowledgment",
        file: "agent-common/src/round_trip.rs",
        from: "self.flags & tcp_flags::ACK != 0 && self.flags & tcp_flags::RST == 0",
        to: "self.flags & tcp_flags::ACK != 0",
        target: agent("round_trips::a_connection_that_passes_says_how_long_each_end_takes"),
    },
    Fault {
        name: "units have what is reported and not what is counted",
        file: "agent/src/replica.rs",
        from: "if self.by_cgroup.is_wanted() {",
        to: "if self.by_cgroup.is_wanted() && self.reports.due_ns(slot).is_none() {",
        target: agent(
            "senders::unit_traffic::what_units_and_containers_exchange_is_in_the_metrics",
        ),
    },
    Fault {
        name: "what a socket knew at last is told of the other end",
        file: "agent-ebpf/src/connections.rs",
        from: "(*told).direction = (*flow).direction;",
        to: "(*told).direction = 1 - (*flow).direction;",
        target: agent(
            "senders::connections::over_a_wire_that_delays_and_loses_and_marks_records_say_at_the_end_what_the_kernel_does",
        ),
    },
    Fault {
        name: "a connection that closes is not asked again",
        file: "agent-ebpf/src/senders.rs",
        from: "asked.and(closing)",
        to: "asked",
        target: agent(
            "senders::connections::a_connection_that_one_end_closes_is_told_of_as_it_was_then",
        ),
    },
    Fault {
        name: "a page that grows has no room for who sent its flows",
        file: "agent/src/kernel/pages.rs",
        from: "let placed = self.place_senders(idle, &windows);",
        to: "let placed = self.place_senders(idle, self.both[idle as usize].windows());",
        target: agent("senders::pages_that_grow_name_all_of_their_flows"),
    },
    Fault {
        name: "a flow in two slots of a window is two",
        file: "agent/src/kernel/pages/page.rs",
        from: "self.keys[start..].iter().position(",
        to: "self.keys[start..start].iter().position(",
        target: races("two_cpus_that_bring_the_same_new_flows_at_once_make_one_entry_of_each"),
    },
    Fault {
        name: "counters grow by plain adds",
        file: "agent-ebpf/src/atomic.rs",
        from: "atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, value);",
        to: "counter.write_volatile(counter.read_volatile() + value);\n            \
             let _ = atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>;",
        target: agent("exact::an_elephant_from_two_cpus_is_counted_to_the_packet_over_tc"),
    },
    Fault {
        name: "seen is counted behind a branch",
        file: "agent-ebpf/src/count.rs",
        from: "account.see(size.packets, size.bytes);",
        to: "if is_parsed {\n        account.see(size.packets, size.bytes);\n    }",
        target: agent("kinds::what_cannot_be_parsed_is_counted_by_reason_over_tc_ingress"),
    },
    Fault {
        name: "XDP drops what it has counted",
        file: "agent-ebpf/src/main.rs",
        from: "hook::xdp_frags(&ctx, LinkType::Ethernet);\n    XDP_PASS",
        to: "hook::xdp_frags(&ctx, LinkType::Ethernet);\n    XDP_PASS - 1",
        target: EVERY_FRAME,
    },
    Fault {
        name: "XDP drops what it has counted with the driver's tag",
        file: "agent-ebpf/src/main.rs",
        from: "hook::xdp_tagged(&ctx);\n    XDP_PASS",
        to: "hook::xdp_tagged(&ctx);\n    XDP_PASS - 1",
        target: agent("xdp::what_the_driver_tells_goes_before_what_the_frame_has"),
    },
    Fault {
        name: "the driver has a tag for every frame",
        file: "agent-ebpf/src/vlan_tag.rs",
        from: "error if error == -ENODATA => Answer::Nothing,",
        to: "error if error == -ENODATA => Answer::Taken(tci),",
        target: agent("xdp::what_the_driver_tells_goes_before_what_the_frame_has"),
    },
    Fault {
        name: "TC ends the chain",
        file: "agent-ebpf/src/main.rs",
        from: "hook::tc(&ctx, Direction::Egress, LinkType::Ethernet);\n    TC_ACT_UNSPEC",
        to: "hook::tc(&ctx, Direction::Egress, LinkType::Ethernet);\n    TC_ACT_UNSPEC + 1",
        target: EVERY_FRAME,
    },
    Fault {
        name: "both pages have one account",
        file: "agent-ebpf/src/account.rs",
        from: "let number = page * per_page +",
        to: "let number = 0 * page * per_page +",
        target: FLIPS,
    },
    Fault {
        name: "both directions have one account",
        file: "agent-ebpf/src/account.rs",
        from: "hook_number((entry >> 32) as u32, direction)",
        to: "hook_number((entry >> 32) as u32, 0 * direction)",
        target: EVERY_FRAME,
    },
    Fault {
        name: "an interface that has left is not told",
        file: "agent-ebpf/src/namespace.rs",
        from: "inode != 0 && inode != NETNS.load()",
        to: "inode == 1 && inode != NETNS.load()",
        target: agent(
            "lifecycle::gone::an_interface_that_moves_away_behind_a_stopped_agent_begins_no_flows",
        ),
    },
    Fault {
        name: "rules are looked up in the other slot",
        file: "agent-ebpf/src/filter.rs",
        from: "RULE_ROWS.get(slot)",
        to: "RULE_ROWS.get(slot ^ 1)",
        target: agent("filters::rules_leave_out_what_they_say_over_tc_ingress"),
    },
    Fault {
        name: "no CPU says that a page fills",
        file: "agent-ebpf/src/fill.rs",
        from: "if inserted >= u64::from(mark) {",
        to: "if inserted == u64::MAX - u64::from(mark) {",
        target: agent("pressure::ten_tables_of_new_flows_in_one_interval_are_all_counted"),
    },
    Fault {
        name: "a drained page counts as full",
        file: "agent/src/kernel/pages.rs",
        from: "let empty = [0; size_of::<PageFill>()];",
        to: "let empty = [255; size_of::<PageFill>()];",
        target: agent("pressure::ten_tables_of_new_flows_in_one_interval_are_all_counted"),
    },
    Fault {
        name: "what is behind a VLAN tag begins too early",
        file: "agent-common/src/link.rs",
        from: "offset += VLAN_LEN;\n        if is_vlan(ethertype) {\n            if tags_before",
        to: "offset += VLAN_LEN - 4;\n        if is_vlan(ethertype) {\n            if tags_before",
        target: HOST_FRAMES,
    },
    Fault {
        name: "VLAN ids have the priority bits",
        file: "agent-common/src/link.rs",
        from: "tag.be16::<0>() & VLAN_ID_MASK;",
        to: "tag.be16::<0>() | (VLAN_ID_MASK & 0);",
        target: HOST_FRAMES,
    },
    Fault {
        name: "no first fragment is remembered",
        file: "agent-ebpf/src/fragments.rs",
        from: "if packet.part.is_first() {",
        to: "if packet.part.is_first() && now_ns == 0 {",
        target: agent("fragments::second_fragment_joins_its_flow_over_tc_ingress"),
    },
    Fault {
        name: "the packet's own header is what a super-frame repeats",
        file: "agent-common/src/segmentation.rs",
        from: "matches!(self.key.protocol, TCP | SCTP) && !is_opened",
        to: "!is_opened && !matches!(self.key.protocol, 0)",
        target: agent(
            "tunnels::device::super_frames_in_a_tunnel_that_is_not_opened_equal_the_wire",
        ),
    },
    Fault {
        name: "fragments of IPv6 have no header of their own",
        file: "agent-common/src/segmentation.rs",
        from: "if self.key.ip_version == 6 {",
        to: "if self.key.ip_version == 7 {",
        target: agent("super_frames::a_datagram_that_becomes_fragments_equals_the_wire"),
    },
    Fault {
        name: "the kernel's own hop-by-hop header is on the wire",
        file: "agent-common/src/ip.rs",
        from: "if differs == 0 { JUMBO_LEN } else { 0 }",
        to: "if differs == 0 { JUMBO_LEN - 8 } else { 0 }",
        target: agent("super_frames::big_tcp_equals_the_wire"),
    },
    Fault {
        name: "CPUs that share a counter add to it as if each had its own",
        file: "agent-ebpf/src/account.rs",
        from: "atomic::add(&raw mut (*counter).packets, packets);",
        to: "(*counter).packets += packets;",
        target: SHARED,
    },
    Fault {
        name: "what was pending for another account is forgotten",
        file: "agent-ebpf/src/account.rs",
        from: "share(before as u32, reason, packets, bytes);",
        to: "share(u32::MAX - before as u32, reason, packets, bytes);",
        target: SHARED,
    },
    Fault {
        name: "the first account of the second page waits with the first page's",
        file: "agent-ebpf/src/account.rs",
        from: "u32::from(account >= ACCOUNTS_PER_PAGE.load())",
        to: "u32::from(account > ACCOUNTS_PER_PAGE.load())",
        target: SHARED,
    },
    Fault {
        name: "what is pending stays so",
        file: "agent/src/kernel/account.rs",
        from: "self.settle(cpu * 2 + page);",
        to: "self.settle(cpu * 2 + 1 - page);",
        target: SHARED,
    },
    Fault {
        name: "what is pending is added again at the next scan",
        file: "agent/src/kernel/account.rs",
        from: "self.pending.store(place * NUMBERS_OF_PENDING + number, 0);",
        to: "",
        target: SHARED,
    },
    Fault {
        name: "an account is read as if it had begun anew",
        file: "agent/src/kernel/account.rs",
        from: "let growth = sum.since(before);",
        to: "let growth = sum.since(&HookAccount::default());",
        target: FLIPS,
    },
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::PathBuf};

    use super::*;
    use crate::workspace::root;

    #[test]
    fn every_fault_is_in_the_sources_and_has_its_name_alone() {
        let mut names = BTreeSet::new();
        for fault in FAULTS {
            assert!(names.insert(fault.name), "two are called {}", fault.name);
            let text = fs::read_to_string(root().join(fault.file)).unwrap();
            assert_ne!(fault.put_into(&text).unwrap(), text, "{}", fault.name);
        }
    }

    /// The file in which a target's test is.
    fn file(target: &Target) -> PathBuf {
        let package = ["agent", "testing/races", "testing/corpus"]
            .into_iter()
            .find(|package| package.ends_with(target.package))
            .unwrap();
        let tests = root().join(package).join("tests");
        let folder = tests.join(target.binary);
        match target.test.rsplit_once("::") {
            Some((module, _)) => folder.join(module.replace("::", "/")).with_extension("rs"),
            None if folder.is_dir() => folder.join("main.rs"),
            None => folder.with_extension("rs"),
        }
    }

    #[test]
    fn every_test_that_must_catch_a_fault_is_in_the_sources() {
        for &Fault { name, target, .. } in FAULTS {
            let file = file(&target);
            let source = fs::read_to_string(&file).unwrap();
            let test = target.test.rsplit("::").next().unwrap();
            assert_eq!(
                runs(&source, test),
                1,
                "{name}: {target} in {}",
                file.display()
            );
        }
    }

    /// How many tests of this name the source has that are not ignored.
    fn runs(source: &str, name: &str) -> usize {
        let heads = ["", "async "].map(|kind| format!("{kind}fn {name}() {{"));
        let lines: Vec<&str> = source.lines().map(str::trim).collect();
        let places =
            (0..lines.len()).filter(|&place| heads.iter().any(|head| head == lines[place]));
        let are_run = places.filter(|&place| {
            let above = lines[..place].iter().rev();
            let above = above.take_while(|line| line.starts_with("#[") || line.starts_with("///"));
            let has = |attribute: &str| above.clone().any(|line| line.starts_with(attribute));
            (has("#[test]") || has("#[tokio::test")) && !has("#[ignore")
        });
        are_run.count()
    }

    #[test]
    fn a_function_that_is_no_test_or_is_ignored_catches_no_fault() {
        for (above, times) in [
            ("#[test]\n", 1),
            ("/// Why.\n#[test]\n#[should_panic]\n", 1),
            ("#[tokio::test(flavor = \"multi_thread\")]\nasync ", 1),
            ("", 0),
            ("#[test]\nfn another() {\n}\n\n", 0),
            ("#[test]\n#[ignore = \"slow\"]\n", 0),
            ("#[ignore]\n/// Why.\n#[test]\n", 0),
        ] {
            let source = format!("use super::*;\n\n{above}fn it_holds() {{\n}}\n");
            assert_eq!(runs(&source, "it_holds"), times, "{source}");
        }
    }
}
