//! Experiments on the agent's effect on the host and its users, and on its own process.

use super::{
    Column, Experiment,
    Shows::{Bar, DifferenceTo, Figure, RatioTo},
    Tone::{Agent, Pale, Part, Quiet},
};

pub static SWEEP: Experiment = Experiment {
    name: "sweep",
    bench: "sweep",
    heading: "From one flow to a million",
    question: "What do more flows cost at a steady {packets_per_second} packets a second, beside a packet \
               capture (TPACKET_V3) that keeps the same flows?",
    answer: "With 10k flows the agent takes {10k: CPU, agent} of a core, {10k: CPU, agent | CPU, capture} of \
             the capture; with 1M flows it takes {1M: CPU, agent}, {1M: CPU, agent | CPU, capture}, and \
             {1M: memory, agent} of memory, {1M: memory, agent | memory, capture}. Both are of kernel and process together. Where flows take more than a \
             quarter of its table, the agent runs with `--early-scan 0`, so that it scans as often as the capture, every 10 s.",
    axes: ("flows", "CPU of one core, kernel and process"),
    labels: "section=flows",
    rows: &[
        ("1", "flows=1"),
        ("1k", "flows=1000"),
        ("10k", "flows=10000"),
        ("100k", "flows=100000"),
        ("500k", "flows=500000"),
        ("1M", "flows=1000000"),
    ],
    columns: &[
        Column("CPU, agent", "arm=agent; measure=cpu_percent", Bar(Agent)),
        Column(
            "CPU, capture",
            "arm=capture; measure=cpu_percent",
            Bar(Quiet),
        ),
        Column(
            "agent / capture",
            "arm=agent; measure=cpu_percent",
            RatioTo("arm=capture"),
        ),
        Column("memory, agent", "arm=agent; measure=memory_bytes", Figure),
        Column(
            "memory, capture",
            "arm=capture; measure=memory_bytes",
            Figure,
        ),
    ],
};

pub static LADDER: Experiment = Experiment {
    name: "ladder",
    bench: "ladder",
    heading: "What each feature adds",
    question: "What does each thing that the agent is asked to do add to the ones before it, at \
               {packets_per_second} packets a second of {flows} flows?",
    answer: "Counting and scanning take {scanning: agent's process} of a core in the process and {scanning: \
             its programs} in the programs; with four consumers that is {four consumers: agent's process} \
             and {four consumers: its programs}, with all steps {debug logging: agent's process} and \
             {debug logging: its programs}.",
    axes: ("step", "CPU of one core"),
    labels: "",
    rows: &[
        ("attached", "arm=attached"),
        ("scanning", "arm=scanning"),
        ("one consumer", "arm=one consumer"),
        ("four consumers", "arm=four consumers"),
        ("JSON output", "arm=json output"),
        ("decapsulation", "arm=decapsulation"),
        (
            "units, processes, TCP, round trips",
            "arm=units, processes, tcp, rtt",
        ),
        ("names, ICMP, drops", "arm=names, icmp, drops"),
        ("ten filter rules", "arm=ten filter rules"),
        ("debug logging", "arm=debug logging"),
    ],
    columns: &[
        Column("agent's process", "measure=agent_cpu_percent", Bar(Agent)),
        Column("its programs", "measure=programs_cpu_percent", Bar(Part)),
        Column("its consumers", "measure=consumers_cpu_percent", Bar(Quiet)),
        Column("resident memory", "measure=resident_bytes", Figure),
    ],
};

pub static HTTP: Experiment = Experiment {
    name: "http",
    bench: "http",
    heading: "What users of a service notice",
    question: "How much longer do HTTP requests take beside the agent, at {offered_requests_per_second} \
               requests a second that a server answers after {server_delay_ms} ms?",
    answer: "The agent {median: added} to the median, {99 %: added} to the 99th percentile, and {99.9 %: \
             added} to the 99.9th.",
    axes: ("share of the requests that are faster", "latency"),
    labels: "",
    rows: &[
        ("median", "measure=latency_p50_us"),
        ("99 %", "measure=latency_p99_us"),
        ("99.9 %", "measure=latency_p999_us"),
    ],
    columns: &[
        Column("agent", "arm=agent", Bar(Agent)),
        Column("no agent", "arm=nothing", Bar(Quiet)),
        Column("added", "arm=agent", DifferenceTo("arm=nothing")),
    ],
};

pub static SERVICE: Experiment = Experiment {
    name: "service",
    bench: "http",
    heading: "Between the packets of a service",
    question: "What does a packet cost the programs where the kernel, a server and a client take the caches meanwhile, at \
               {offered_requests_per_second} requests a second over {connections} connections, and what does `--enrich` add with units, processes, TCP, round trips, \
               names and ICMP errors?",
    answer: "A run of a program takes {a run: agent} and a request {a request: agent}, with the kernel's own measuring in them. `--enrich` \
             {a run: added} to a run.",
    axes: ("what", "time in the programs"),
    labels: "",
    rows: &[
        ("a run", "measure=program_ns_per_run"),
        ("a request", "measure=program_ns_per_request"),
    ],
    columns: &[
        Column("agent", "arm=agent", Bar(Agent)),
        Column("agent with `--enrich`", "arm=enriched", Bar(Part)),
        Column("added", "arm=enriched", DifferenceTo("arm=agent")),
    ],
};

pub static PRIORITY: Experiment = Experiment {
    name: "priority",
    bench: "priority",
    heading: "A machine without a CPU to spare",
    question: "What does a table of 65,536 flows refuse of {new_flows_per_second} new flows a second, beside services \
               that take all the CPU they get, by the weight of the agent's service among them (`CPUWeight`, \
               usually 100) and its nice value?",
    answer: "Beside 16 busy services it refuses {16: weight 100} with a weight of 100, {16: weight 200} with 200 and \
             {16: weight 500} with 500; a nice value of -10 at weight 100 leaves {16: nice -10}.",
    axes: ("busy services", "packets refused"),
    labels: "measure=refused_percent",
    rows: &[
        ("1", "busy_services=1"),
        ("4", "busy_services=4"),
        ("16", "busy_services=16"),
    ],
    columns: &[
        Column("weight 100", "arm=weight 100", Bar(Quiet)),
        Column("weight 200", "arm=weight 200", Bar(Agent)),
        Column("weight 500", "arm=weight 500", Bar(Part)),
        Column("nice -10", "arm=nice -10", Bar(Pale)),
    ],
};

pub static OUTPUTS: Experiment = Experiment {
    name: "outputs",
    bench: "outputs",
    heading: "What an output adds",
    question: "What does a flow's report cost the agent's process, with {flows} flows that all report at each scan, \
               every {scan_interval}, by where it goes?",
    answer: "Without an output it takes {no output: CPU of a report}; a consumer of our own stream adds {one consumer: \
             added}, IPFIX over UDP {IPFIX over UDP: added} and JSON Lines {JSON Lines: added}.",
    axes: ("output", "CPU time of a report"),
    labels: "",
    rows: &[
        ("no output", "arm=no output"),
        ("one consumer", "arm=one consumer"),
        ("IPFIX file", "arm=ipfix file"),
        ("IPFIX file, uniflow", "arm=ipfix uniflow file"),
        ("IPFIX over UDP", "arm=ipfix over UDP"),
        ("IPFIX over TCP", "arm=ipfix over TCP"),
        ("pbflow", "arm=pbflow"),
        ("OTLP", "arm=otlp"),
        ("JSON Lines", "arm=jsonl file"),
        ("Parquet", "arm=parquet files"),
        ("IPFIX over TCP, unread", "arm=ipfix over TCP, unread"),
        ("OTLP, unanswered", "arm=otlp, unanswered"),
    ],
    columns: &[
        Column(
            "CPU of a report",
            "measure=process_cpu_ns_per_report",
            Bar(Agent),
        ),
        Column("added", "measure=added_ns_per_report", Figure),
        Column("bytes", "measure=bytes_per_report", Figure),
        Column("a scan takes", "measure=scan_us", Figure),
        Column("a scan is late by", "measure=scan_lateness_us", Figure),
    ],
};

pub static USERSPACE: Experiment = Experiment {
    name: "userspace",
    bench: "userspace",
    heading: "A flow in userspace",
    question: "What does a flow cost the process at each scan?",
    answer: "With 500k flows a scan takes {500k: whole scan} of CPU for each flow, and {500k: with all that is known} where units, processes, TCP, round \
             trips and names are known of all; draining the kernel's table alone takes {500k: drain alone}, and a flow has {500k: memory} of memory.",
    axes: ("flows in the table", "CPU time of a flow"),
    labels: "measure=cpu_ns_per_flow",
    rows: &[("10k", "flows=10000"), ("500k", "flows=500000")],
    columns: &[
        Column(
            "whole scan",
            "table=kernel; arm=drain_and_cycle",
            Bar(Agent),
        ),
        Column(
            "with all that is known",
            "table=enriched; arm=drain_and_cycle",
            Bar(Part),
        ),
        Column("drain alone", "table=kernel; arm=drain", Figure),
        Column("update alone", "table=synthetic; arm=update", Bar(Quiet)),
        Column("encoding alone", "table=synthetic; arm=encode", Bar(Pale)),
        Column(
            "memory",
            "table=kernel; arm=process; measure=resident_bytes_per_flow",
            Figure,
        ),
    ],
};

pub static PEERS: Experiment = Experiment {
    name: "peers",
    bench: "peers",
    heading: "Beside exporters of Debian",
    question: "What do softflowd and pmacct cost at {packets_per_second} packets a second, and what do they lose of \
               them?",
    answer: "With 1M flows the agent takes {1M: CPU, agent} of a core, {1M: CPU, agent | CPU, softflowd} of softflowd \
             and {1M: CPU, agent | CPU, pmacct} of pmacct; the agent loses {1M: lost, agent} of the packets, softflowd \
             {1M: lost, softflowd} and pmacct {1M: lost, pmacct}.",
    axes: ("flows", "CPU of one core, kernel and processes"),
    labels: "",
    rows: &[
        ("1k", "flows=1000"),
        ("100k", "flows=100000"),
        ("1M", "flows=1000000"),
    ],
    columns: &[
        Column("CPU, agent", "arm=agent; measure=cpu_percent", Bar(Agent)),
        Column(
            "CPU, softflowd",
            "arm=softflowd; measure=cpu_percent",
            Bar(Quiet),
        ),
        Column("CPU, pmacct", "arm=pmacct; measure=cpu_percent", Bar(Pale)),
        Column("lost, agent", "arm=agent; measure=lost_percent", Figure),
        Column(
            "lost, softflowd",
            "arm=softflowd; measure=lost_percent",
            Figure,
        ),
        Column("lost, pmacct", "arm=pmacct; measure=lost_percent", Figure),
        Column("memory, agent", "arm=agent; measure=resident_bytes", Figure),
        Column(
            "memory, softflowd",
            "arm=softflowd; measure=resident_bytes",
            Figure,
        ),
        Column(
            "memory, pmacct",
            "arm=pmacct; measure=resident_bytes",
            Figure,
        ),
    ],
};

/// The arm `*` is the other agent, whatever its name.
pub static COMPARE: Experiment = Experiment {
    name: "compare",
    bench: "compare",
    heading: "Beside another agent",
    question: "What do the programs and the processes of another agent cost, by how many flows there are?",
    answer: "With 10k flows a packet takes {10k: a packet, agent} in our programs, {10k: a packet, agent | a packet, other} \
             of the other's, over an empty program. Our process takes {10k: CPU of processes, agent} of a core, \
             {10k: CPU of processes, agent | CPU of processes, other} of the other's.",
    axes: ("flows", "time of a packet over an empty program"),
    labels: "",
    rows: &[
        ("1", "flows=1"),
        ("10k", "flows=10000"),
        ("100k", "flows=100000"),
        ("500k", "flows=500000"),
    ],
    columns: &[
        Column(
            "a packet, agent",
            "arm=agent; measure=programs_net_ns_per_packet",
            Bar(Agent),
        ),
        Column(
            "a packet, other",
            "arm=*; measure=programs_net_ns_per_packet",
            Bar(Quiet),
        ),
        Column(
            "agent / other",
            "arm=agent; measure=programs_net_ns_per_packet",
            RatioTo("arm=*"),
        ),
        Column(
            "CPU of processes, agent",
            "arm=agent; measure=cpu_percent",
            Figure,
        ),
        Column(
            "CPU of processes, other",
            "arm=*; measure=cpu_percent",
            Figure,
        ),
        Column(
            "kernel memory, agent",
            "arm=agent; measure=kernel_memory_bytes",
            Figure,
        ),
        Column(
            "kernel memory, other",
            "arm=*; measure=kernel_memory_bytes",
            Figure,
        ),
    ],
};
