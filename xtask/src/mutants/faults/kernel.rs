//! Faults in the programs, and in the data that they share with the agent.

use super::{FLIPS, Fault, SHARED, Target, agent, corpus, races, unit};

const SAME_FLOWS: Target =
    races("two_cpus_that_bring_the_same_new_flows_at_once_make_one_entry_of_each");
const EVERY_FRAME: Target = agent("corpus::every_frame_counts_in_the_kernel_as_its_entry_says");
const HOST_FRAMES: Target = corpus("every_frame_gives_what_its_entry_says");

const DSCP: Target = agent("directions::each_end_has_its_dscp_and_a_mark_if_that_changed");
const RATE: Target = unit(
    "agent-common",
    "tcp::tests::a_rate_is_that_of_its_sample_and_needs_one",
);

pub(super) const FAULTS: &[Fault] = &[
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
        name: "a scan is not told of a window with flows",
        file: "agent-ebpf/src/table.rs",
        from: "if word.read_volatile() & bit == 0 {",
        to: "if word.read_volatile() & bit == 0 && window % 64 != 0 {",
        target: agent("table::pages_grow_with_new_flows_and_shrink_without_them"),
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
        name: "icmp errors at XDP are not handed over",
        file: "agent-ebpf/src/hook.rs",
        from: "    icmp_errors::note_frame(frame, answer, packet);\n",
        to: "",
        target: agent("failures::what_icmp_says_cannot_be_reached_is_unreachable"),
    },
    Fault {
        name: "copies of this host's own broadcasts count as packets that arrive",
        file: "agent-ebpf/src/hook.rs",
        from: "if direction == Direction::Ingress && is_bare && looped_back::is_copy(paged.0) {",
        to: "if direction == Direction::Ingress && is_bare && paged.0.is_null() {",
        target: agent(
            "looped_back::what_a_host_sends_to_everybody_is_counted_as_it_leaves_and_not_as_it_comes_back",
        ),
    },
    Fault {
        name: "drops of copies of this host's own broadcasts are drops of the flow that left",
        file: "agent-ebpf/src/dropped_flows.rs",
        from: "if looped_back::is_copy_by_byte(packet_type) {",
        to: "if looped_back::is_copy_by_byte(packet_type) && skb.is_null() {",
        target: agent("looped_back::a_device_without_link_headers_counts_no_copy_either"),
    },
    Fault {
        name: "a bare packet at an Ethernet device is read as an Ethernet frame",
        file: "agent-ebpf/src/link_header.rs",
        from: "u32::from(is_other)",
        to: "u32::from(is_other && link_type == LinkType::Ip)",
        target: agent(
            "link_headers::a_bare_packet_that_tc_puts_in_the_way_of_an_ethernet_device_is_in_its_own_flow",
        ),
    },
    Fault {
        name: "an Ethernet frame at a device without link headers is read as an IP packet",
        file: "agent-ebpf/src/link_header.rs",
        from: "u32::from(is_other)",
        to: "u32::from(is_other && link_type == LinkType::Ethernet)",
        target: agent(
            "link_headers::an_ethernet_frame_that_tc_puts_in_the_way_of_a_bare_device_is_in_its_own_flow",
        ),
    },
    Fault {
        name: "a drop is counted for the next reason",
        file: "agent-ebpf/src/drops.rs",
        from: "DROPS.get_ptr_mut(place(reason))",
        to: "DROPS.get_ptr_mut(place(reason + 1))",
        target: agent("drops::what_the_kernel_drops_is_counted_by_its_reason"),
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
        name: "only the first packet of a scan says who sends",
        file: "agent-ebpf/src/senders.rs",
        from: "kept().has(who) && leaves",
        to: "false && kept().has(who) && leaves",
        target: agent(
            "senders::handed_over::packets_of_a_port_that_is_handed_over_are_marked_as_shared",
        ),
    },
    Fault {
        name: "no socket shows that it was accepted",
        file: "agent-ebpf/src/connections.rs",
        from: "Role::shown(backlog | came_by != 0, came_by_v6)",
        to: "Role::shown(backlog & came_by & 0 != 0, came_by_v6)",
        target: agent(
            "initiator::a_socket_of_the_host_shows_who_opened_a_connection_that_is_older_than_the_agent",
        ),
    },
    Fault {
        name: "a DSCP that changes within a scan leaves no mark",
        file: "agent-common/src/flow.rs",
        from: "            Self::CHANGED\n        };",
        to: "            0 * Self::CHANGED\n        };",
        target: DSCP,
    },
    Fault {
        name: "the DSCP of answers is that of the first packet",
        file: "agent-common/src/flow.rs",
        from: "self.news_of(direction, Self::first(direction, dscp).of(direction))",
        to: "self.news_of(direction, Self::first(direction, if self.0 == 0 { dscp } else { 0 }).of(direction))",
        target: DSCP,
    },
    Fault {
        name: "a delivery rate without a sample is zero",
        file: "agent-common/src/tcp.rs",
        from: "(rate != 0).then_some(rate)",
        to: "Some(rate)",
        target: RATE,
    },
    Fault {
        name: "a delivery rate is in segments",
        file: "agent-common/src/tcp.rs",
        from: "u64::from(self.rate_delivered) * u64::from(self.mss)",
        to: "u64::from(self.rate_delivered)",
        target: RATE,
    },
];
