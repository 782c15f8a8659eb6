use super::*;
use crate::proto::{Account, AgentIdentity, Hook, Interface, InterfacesStatus, ScanStatus};

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
            ..HookStatus::default()
        }],
        account: Some(account),
        interfaces: Some(InterfacesStatus {
            not_counted: 2,
            ..InterfacesStatus::default()
        }),
        scans: Some(ScanStatus {
            last_duration_ns: 2_500_000,
            ..ScanStatus::default()
        }),
        ..AgentStatus::default()
    }
}

#[test]
fn both_texts_have_the_same_samples() {
    let samples = |format| -> Vec<String> {
        let text = text(status(), 1_500_000_000, format).unwrap();
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
    let described = |format| text(status(), 0, format).unwrap();
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
