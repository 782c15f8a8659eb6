//! Experiments on the cost per packet at the hook, and on the table that counts packets.

use super::{
    Column, Experiment,
    Shows::{Bar, DifferenceTo, RatioTo},
    Tone::{Agent, Part, Quiet},
};

pub static OVERHEAD: Experiment = Experiment {
    name: "overhead",
    bench: "overhead",
    heading: "Counting a packet",
    question: "What does it cost to count a packet, beside the barest program that keeps flows in a kernel \
               hash map?",
    answer: "On TC, a packet of the only flow costs {1 flow, TC: agent}, {1 flow, TC: agent | barest \
             program} of the barest program; a packet of one of 10k flows costs {10k flows, TC: agent}, \
             {10k flows, TC: agent | barest program}; the first packet of a flow costs {new flows, TC: \
             agent}, {new flows, TC: agent | barest program}.",
    axes: ("flows and hook", "time of a packet over an empty program"),
    labels: "measure=net_ns_per_packet",
    rows: &[
        ("1 flow, TC", "hook=tc; path=hit; flows=1; frame_bytes=64"),
        ("10k flows, TC", "hook=tc; path=hit; flows=10000"),
        ("500k flows, TC", "hook=tc; path=hit; flows=500000"),
        ("new flows, TC", "hook=tc; path=insert"),
        ("1 flow, XDP", "hook=xdp; path=hit; flows=1; frame_bytes=64"),
        ("10k flows, XDP", "hook=xdp; path=hit; flows=10000"),
        ("500k flows, XDP", "hook=xdp; path=hit; flows=500000"),
        ("new flows, XDP", "hook=xdp; path=insert"),
    ],
    columns: &[
        Column("agent", "arm=agent", Bar(Agent)),
        Column("barest program", "arm=bare", Bar(Quiet)),
        Column("agent / barest", "arm=agent", RatioTo("arm=bare")),
    ],
};

pub static COLD: Experiment = Experiment {
    name: "cold",
    bench: "overhead",
    heading: "Counting a packet with cold caches",
    question: "What does a packet cost where other work takes the caches between two packets?",
    answer: "Where 64 KiB were read since the last packet, one of the only flow costs {1 flow, 64 KiB: agent}, \
             {1 flow, 64 KiB: agent | barest program} of the barest program, and one of 500k flows \
             {500k flows, 64 KiB: agent}, {500k flows, 64 KiB: agent | barest program}. Where 512 KiB were read, \
             these cost {1 flow, 512 KiB: agent} and {500k flows, 512 KiB: agent}.",
    axes: (
        "flows and memory read between two packets",
        "time of a packet over an empty program",
    ),
    labels: "measure=net_ns_per_packet; path=cold; hook=tc",
    rows: &[
        ("1 flow, 64 KiB", "flows=1; walk_bytes=65536"),
        ("10k flows, 64 KiB", "flows=10000; walk_bytes=65536"),
        ("100k flows, 64 KiB", "flows=100000; walk_bytes=65536"),
        ("500k flows, 64 KiB", "flows=500000; walk_bytes=65536"),
        ("1 flow, 512 KiB", "flows=1; walk_bytes=524288"),
        ("10k flows, 512 KiB", "flows=10000; walk_bytes=524288"),
        ("100k flows, 512 KiB", "flows=100000; walk_bytes=524288"),
        ("500k flows, 512 KiB", "flows=500000; walk_bytes=524288"),
    ],
    columns: &[
        Column("agent", "arm=agent", Bar(Agent)),
        Column("barest program", "arm=bare", Bar(Quiet)),
        Column("agent / barest", "arm=agent", RatioTo("arm=bare")),
    ],
};

pub static ENRICHED: Experiment = Experiment {
    name: "enriched",
    bench: "overhead",
    heading: "Asking more of a packet",
    question: "What does all of `--enrich`, but `drops`, add to a segment of TCP that arrives at TC?",
    answer: "To a packet of one of 10k flows it {10k flows: added}, and where 64 KiB were read since the last packet it \
             {10k flows, 64 KiB: added}; to the first packet of a flow and scan it {new flows, 64 KiB: added} then.",
    axes: (
        "flows and memory read between two packets",
        "time of a packet over an empty program",
    ),
    labels: "measure=net_ns_per_packet; hook=tc",
    rows: &[
        ("10k flows", "path=enriched; flows=10000"),
        (
            "10k flows, 64 KiB",
            "path=enriched cold; flows=10000; walk_bytes=65536",
        ),
        ("new flows, 64 KiB", "path=enriched new; walk_bytes=65536"),
    ],
    columns: &[
        Column("agent", "arm=agent", Bar(Quiet)),
        Column("all of `--enrich`", "arm=enriched", Bar(Agent)),
        Column("added", "arm=enriched", DifferenceTo("arm=agent")),
    ],
};

pub static THROUGHPUT: Experiment = Experiment {
    name: "throughput",
    bench: "overhead",
    heading: "Packets through one CPU",
    question: "How much traffic still passes when the agent counts all of it?",
    answer: "With 10k flows of 64-byte frames on TC, one CPU passes {10k flows, TC: agent}, {10k flows, TC: \
             agent | no agent} without an agent; with 500k flows it passes {500k flows, TC: agent}, \
             {500k flows, TC: agent | no agent}; one TCP stream reaches {one TCP stream: agent}, \
             {one TCP stream: agent | no agent}.",
    axes: ("flows and hook", "packets a second"),
    labels: "",
    rows: &[
        (
            "10k flows, TC",
            "hook=tc; path=hit; flows=10000; measure=packets_per_second",
        ),
        (
            "500k flows, TC",
            "hook=tc; path=hit; flows=500000; measure=packets_per_second",
        ),
        (
            "new flows, TC",
            "hook=tc; path=insert; measure=packets_per_second",
        ),
        (
            "10k flows, XDP",
            "hook=xdp; path=hit; flows=10000; measure=packets_per_second",
        ),
        (
            "500k flows, XDP",
            "hook=xdp; path=hit; flows=500000; measure=packets_per_second",
        ),
        (
            "new flows, XDP",
            "hook=xdp; path=insert; measure=packets_per_second",
        ),
        (
            "one TCP stream",
            "traffic=one TCP stream; measure=tcp_bytes_per_second",
        ),
    ],
    columns: &[
        Column("agent", "arm=agent", Bar(Agent)),
        Column("no agent", "arm=nothing", Bar(Quiet)),
        Column("agent / no agent", "arm=agent", RatioTo("arm=nothing")),
    ],
};

pub static NEWFLOWS: Experiment = Experiment {
    name: "newflows",
    bench: "newflows",
    heading: "New flows a second",
    question: "How many new flows a second does the table take before it loses the first one, or the sender \
               can go no faster?",
    answer: "A table of 65,536 flows that is scanned every 10 s takes {65,536 flows, 10 s: early scans} new \
             flows a second, {65,536 flows, 10 s: early scans | no early scans} without early scans; one of 500k \
             flows that is scanned every second takes {500k flows, 1 s: early scans}, {500k flows, 1 s: \
             early scans | no early scans}.",
    axes: (
        "size of the table and scan interval",
        "new flows a second without a loss",
    ),
    labels: "measure=lossless_flows_per_second",
    rows: &[
        ("65,536 flows, 10 s", "table=65536; scan_interval=10s"),
        ("500k flows, 10 s", "table=500000; scan_interval=10s"),
        ("65,536 flows, 1 s", "table=65536; scan_interval=1s"),
        ("500k flows, 1 s", "table=500000; scan_interval=1s"),
    ],
    columns: &[
        Column("early scans", "arm=early", Bar(Agent)),
        Column("no early scans", "arm=interval", Bar(Quiet)),
        Column("early / not", "arm=early", RatioTo("arm=interval")),
    ],
};

pub static FILTERS: Experiment = Experiment {
    name: "filters",
    bench: "filters",
    heading: "Filter rules",
    question: "What do filter rules add to a packet on TC?",
    answer: "With 10k flows, 1 network in the rules makes a packet cost {1 network: 10k flows}, {1 network: \
             10k flows | no rules: 10k flows} without rules; 1,000 networks make it cost {1,000 networks: \
             10k flows}, {1,000 networks: 10k flows | no rules: 10k flows}.",
    axes: ("rules", "time of a packet in the program"),
    labels: "hook=tc; measure=program_ns_per_packet",
    rows: &[
        ("no rules", "arm=no rules"),
        ("1 network", "arm=1 network"),
        ("100 networks", "arm=100 networks"),
        ("1,000 networks", "arm=1000 networks"),
        ("`--sample 100`", "arm=1 flow in 100"),
    ],
    columns: &[
        Column("10k flows", "flows=10000", Bar(Agent)),
        Column("over no rules", "flows=10000", RatioTo("arm=no rules")),
        Column("1 flow", "flows=1", Bar(Part)),
        Column("over no rules", "flows=1", RatioTo("arm=no rules")),
    ],
};
