use std::time::Duration;

use proto::{
    Account, AgentIdentity, Count, DepartedOutputs, Durations, Hook, HookStatus, Interface,
    InterfacesStatus, OutputStatus, OutputTlsStatus, RecordSum, ScanStatus, Traffic, UnitTraffic,
};

use super::{programs::Outcome, *};

fn count(packets: u64, bytes: u64) -> Count {
    Count { packets, bytes }
}

fn status() -> AgentStatus {
    let account = Account {
        seen: Some(count(12, 1200)),
        flows: Some(count(7, 700)),
        filtered: Some(count(1, 100)),
        unparsed: [("arp".to_owned(), count(3, 300))].into(),
        not_inserted: [("table_full".to_owned(), count(1, 100))].into(),
        ..Account::default()
    };
    AgentStatus {
        agent: Some(AgentIdentity {
            version: "1.2.3".to_owned(),
            ..AgentIdentity::default()
        }),
        hooks: vec![HookStatus {
            interface: Some(Interface {
                ifindex: 5,
                name: r#"a"b\c"#.to_owned(),
                ..Interface::default()
            }),
            hook: Hook::TcIngress as i32,
            account: Some(account.clone()),
            traffic: [("tcp".to_owned(), count(7, 700))].into(),
            ..HookStatus::default()
        }],
        traffic: Some(Traffic {
            ingress: [("tcp".to_owned(), count(7, 700))].into(),
            egress: [("tcp".to_owned(), count(0, 0))].into(),
        }),
        account: Some(account),
        units: vec![UnitTraffic {
            unit: "web.service".to_owned(),
            container_id: String::new(),
            sent: Some(count(5, 500)),
            received: Some(count(6, 600)),
        }],
        interfaces: Some(InterfacesStatus {
            not_counted: 2,
            ..InterfacesStatus::default()
        }),
        scans: Some(ScanStatus {
            last_duration_ns: 2_500_000,
            lateness: Some(Durations {
                bounds_ns: vec![1_000_000, 2_500_000],
                counts: vec![4, 2, 1],
                sum_ns: 1_500_000_000,
            }),
            ..ScanStatus::default()
        }),
        ..AgentStatus::default()
    }
}

#[test]
fn both_texts_have_the_same_samples() {
    let samples = |format| -> Vec<String> {
        let text = text(status(), 1_500_000_000, Sampled::default(), format).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    };
    let classic = samples(Format::Classic);
    assert_eq!(classic, samples(Format::OpenMetrics));
    for sample in [
        "flow_agent_seen_packets_total 12",
        "flow_agent_seen_bytes_total 1200",
        "flow_agent_flow_packets_total 7",
        r#"flow_agent_left_out_packets_total{reason="filtered"} 1"#,
        r#"flow_agent_left_out_packets_total{reason="sampled_out"} 0"#,
        r#"flow_agent_unparsed_bytes_total{reason="arp"} 300"#,
        r#"flow_agent_lost_packets_total{reason="table_full"} 1"#,
        r#"flow_agent_hook_lost_packets_total{netns="",interface="a\"b\\c",ifindex="5",hook="tc_ingress",mode="unknown"} 1"#,
        r#"flow_agent_traffic_packets_total{direction="ingress",protocol="tcp"} 7"#,
        r#"flow_agent_traffic_bytes_total{direction="egress",protocol="tcp"} 0"#,
        r#"flow_agent_interface_bytes_total{netns="",interface="a\"b\\c",ifindex="5",direction="ingress",protocol="tcp"} 700"#,
        r#"flow_agent_unit_transmit_packets_total{unit="web.service",container_id=""} 5"#,
        r#"flow_agent_unit_receive_bytes_total{unit="web.service",container_id=""} 600"#,
        r#"flow_agent_scan_lateness_seconds_bucket{le="0.001"} 4"#,
        r#"flow_agent_scan_lateness_seconds_bucket{le="0.0025"} 6"#,
        r#"flow_agent_scan_lateness_seconds_bucket{le="+Inf"} 7"#,
        "flow_agent_scan_lateness_seconds_sum 1.5",
        "flow_agent_scan_lateness_seconds_count 7",
        "flow_agent_uncounted_interfaces 2.0",
        "flow_agent_last_scan_duration_seconds 0.0025",
        "process_cpu_seconds_total 1.5",
    ] {
        assert!(
            classic.iter().any(|line| line == sample),
            "{sample} in {classic:#?}"
        );
    }
}

#[test]
fn a_counters_family_is_named_as_its_format_wants_it() {
    let described = |format| text(status(), 0, Sampled::default(), format).unwrap();
    let classic = described(Format::Classic);
    assert!(
        classic.contains("# TYPE flow_agent_scans_total counter\n"),
        "{classic}"
    );
    assert!(!classic.contains("# EOF"));
    let open = described(Format::OpenMetrics);
    assert!(open.contains("# TYPE flow_agent_scans counter\n"), "{open}");
    assert!(open.ends_with("# EOF\n"));
}

#[test]
fn a_name_of_any_characters_is_one_value_of_one_line() {
    let mut status = status();
    let name = "a\"} 1\nflow_agent_scans_total 9 # \\".to_owned();
    status.hooks[0]
        .interface
        .as_mut()
        .unwrap()
        .netns_name
        .clone_from(&name);
    status.outputs = vec![OutputStatus {
        name,
        kind: "jsonl".to_owned(),
        ..OutputStatus::default()
    }];
    for format in [Format::Classic, Format::OpenMetrics] {
        let text = text(status.clone(), 0, Sampled::default(), format).unwrap();
        let escaped = r#"="a\"} 1\nflow_agent_scans_total 9 # \\","#;
        assert!(text.contains(&format!("netns{escaped}")), "{text}");
        assert!(text.contains(&format!("output{escaped}")), "{text}");
        let scans = text
            .lines()
            .filter(|line| line.starts_with("flow_agent_scans_total "));
        assert_eq!(scans.collect::<Vec<_>>(), ["flow_agent_scans_total 0"]);
    }
}

#[test]
fn an_interface_that_is_selected_again_before_a_scan_has_each_series_once() {
    let mut status = status();
    status.hooks.push(status.hooks[0].clone());
    let text = text(status, 0, Sampled::default(), Format::OpenMetrics).unwrap();
    let mut series: Vec<_> = text
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .collect();
    let once = |name: &str, value| {
        let of_name = series.iter().filter(|(series, _)| series.starts_with(name));
        assert_eq!(
            of_name.map(|(_, value)| *value).collect::<Vec<_>>(),
            [value]
        );
    };
    once("flow_agent_hook_seen_packets_total{", "24");
    once("flow_agent_hook_left_out_packets_total{", "2");
    once("flow_agent_interface_packets_total{", "14");
    let all = series.len();
    series.sort_unstable();
    series.dedup_by_key(|(series, _)| *series);
    assert_eq!(series.len(), all);
}

#[test]
fn outputs_tell_when_the_certificates_end_that_they_show() {
    let output = |name: &str, tls: Option<OutputTlsStatus>| OutputStatus {
        name: name.to_owned(),
        kind: "otlp".to_owned(),
        tls,
        ..OutputStatus::default()
    };
    let shown = OutputTlsStatus {
        client_certificate: true,
        not_after_unix_ns: 2_000_000_000_000_000_000,
        reload_error: "gone".to_owned(),
        ..OutputTlsStatus::default()
    };
    let status = AgentStatus {
        outputs: vec![
            output("shown", Some(shown)),
            output("trusting", Some(OutputTlsStatus::default())),
            output("plain", None),
        ],
        ..AgentStatus::default()
    };
    let text = text(status, 0, Sampled::default(), Format::Classic).unwrap();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("flow_agent_output_certificate_"))
        .collect();
    assert_eq!(
        lines,
        [
            r#"flow_agent_output_certificate_expiry_time_seconds{output="shown",kind="otlp"} 2000000000.0"#,
            r#"flow_agent_output_certificate_reload_failing{output="shown",kind="otlp"} 1.0"#,
            r#"flow_agent_output_certificate_reload_failing{output="trusting",kind="otlp"} 0.0"#,
        ]
    );
}

/// No two numbers are equal, so none can stand for another.
#[test]
fn each_sum_of_an_output_is_under_its_own_fate() {
    let sum = |records| {
        Some(RecordSum {
            records,
            packets: 10 * records,
            bytes: 100 * records,
        })
    };
    let output = |name: &str, first: u64, failing| OutputStatus {
        name: name.to_owned(),
        kind: "ipfix".to_owned(),
        sent: sum(first),
        refused: sum(first + 1),
        lost: sum(first + 2),
        left_out: sum(first + 3),
        queued: sum(first + 4),
        failures: first + 5,
        failing,
        ..OutputStatus::default()
    };
    let status = AgentStatus {
        outputs: vec![output("a", 1, false), output("b", 11, true)],
        ..AgentStatus::default()
    };
    let text = text(status, 0, Sampled::default(), Format::Classic).unwrap();
    let mut lines: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("flow_agent_output_"))
        .collect();
    let mut expected = Vec::new();
    for (name, first, failing) in [("a", 1, "0.0"), ("b", 11, "1.0")] {
        let labels = format!(r#"output="{name}",kind="ipfix""#);
        let fates = ["sent", "refused", "lost", "left_out"];
        for (unit, factor) in [("records", 1), ("packets", 10), ("bytes", 100)] {
            for (fate, number) in fates.into_iter().zip(first..) {
                let sum = number * factor;
                expected.push(format!(
                    r#"flow_agent_output_{unit}_total{{{labels},fate="{fate}"}} {sum}"#
                ));
            }
        }
        expected.extend([
            format!(
                "flow_agent_output_queued_records{{{labels}}} {}.0",
                first + 4
            ),
            format!("flow_agent_output_failing{{{labels}}} {failing}"),
            format!("flow_agent_output_failures_total{{{labels}}} {}", first + 5),
        ]);
    }
    lines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn what_departed_outputs_sent_stays() {
    let sum = |records| {
        Some(RecordSum {
            records,
            packets: 10 * records,
            bytes: 100 * records,
        })
    };
    let status = AgentStatus {
        departed_outputs: Some(DepartedOutputs {
            outputs: 2,
            queued: sum(1),
            sent: sum(2),
            refused: sum(3),
            lost: sum(4),
            left_out: sum(5),
        }),
        ..AgentStatus::default()
    };
    let text = text(status, 0, Sampled::default(), Format::Classic).unwrap();
    for sample in [
        "flow_agent_departed_outputs_total 2",
        r#"flow_agent_departed_output_records_total{fate="sent"} 2"#,
        r#"flow_agent_departed_output_packets_total{fate="refused"} 30"#,
        r#"flow_agent_departed_output_bytes_total{fate="lost"} 400"#,
        r#"flow_agent_departed_output_bytes_total{fate="left_out"} 500"#,
        "flow_agent_departed_output_queued_records 1.0",
    ] {
        assert!(
            text.lines().any(|line| line == sample),
            "{sample} in {text}"
        );
    }
}

#[test]
fn programs_have_run_times_or_a_reason_why_not() {
    let families = |sampled: &Sampled| -> Vec<String> {
        let text = text(AgentStatus::default(), 0, sampled.clone(), Format::Classic).unwrap();
        let lines = text.lines();
        let lines = lines.filter(|line| line.starts_with("flow_agent_program_"));
        lines.map(str::to_owned).collect()
    };
    let refused = Sampled {
        outcome: Outcome::NotPermitted,
        ..Sampled::default()
    };
    let states = |of: &str| {
        ["pending", "sampled", "not_permitted", "failed"].map(|state| {
            let is = f64::from(u8::from(state == of));
            format!("flow_agent_program_sampling{{state=\"{state}\"}} {is:?}")
        })
    };
    assert_eq!(families(&Sampled::default()), states("pending"));
    assert_eq!(families(&refused), states("not_permitted"));
    let runs = Runs {
        count: 8,
        time: Duration::from_micros(2),
    };
    let sampled = families(&Sampled {
        outcome: Outcome::Sampled,
        length: Duration::from_millis(250),
        by_hook: [("xdp", runs)].into(),
    });
    assert_eq!(sampled[..4], states("sampled"));
    assert_eq!(
        sampled[4..],
        [
            "flow_agent_program_sampled_seconds_total 0.25",
            r#"flow_agent_program_runs_total{hook="xdp"} 8"#,
            r#"flow_agent_program_run_seconds_total{hook="xdp"} 0.000002"#,
        ]
    );
}
