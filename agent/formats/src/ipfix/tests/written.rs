//! Messages written out, byte by byte and field by field. With `FLOW_AGENT_WRITE` in the environment the files are
//! written anew.

use std::{env, fs, path::Path};

use super::*;

fn settings() -> Settings {
    Settings {
        // Half of the records would be options otherwise.
        octets: Octets::Ip,
        ..Settings::stream()
    }
}

/// The second message, without the options that only the first one has.
fn is_written(name: &str, settings: Settings, batch: &FlowBatch, flows: &[FlowRecord]) {
    let mut encoder = encoder(settings);
    let mut collector = Collector::default();
    read(
        &mut collector,
        &send(
            &mut encoder,
            &FlowBatch {
                scan_id: 1,
                ..FlowBatch::default()
            },
            &[],
        ),
    );
    collector.text.clear();
    let messages = send(&mut encoder, batch, flows);
    read(&mut collector, &messages);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ipfix/tests/messages");
    let file = folder.join(format!("{name}.hex"));
    let text = collector.text.trim_start();
    if env::var_os("FLOW_AGENT_WRITE").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&file, text).unwrap();
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, expected, "{}", file.display());
    let bytes = expected.lines().flat_map(|line| {
        let (hex, _) = line.split_once('#').unwrap_or_default();
        hex.split_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
    });
    assert_eq!(bytes.collect::<Vec<u8>>(), messages.concat());
}

#[test]
fn flows_are_as_written() {
    let batch = flows::batch(1);
    for (name, flow) in [
        ("tcp", flows::tcp()),
        ("udp_with_tags", flows::udp_with_tags()),
        ("ping6", flows::ping6()),
        ("in_vxlan", flows::in_vxlan()),
        ("fragments", flows::fragments()),
    ] {
        is_written(name, settings(), &batch, &[flow]);
    }
}

#[test]
fn one_direction_each_is_as_written() {
    let uniflow = Settings {
        is_biflow: false,
        end_records: true,
        octets: Octets::Layer2,
        ..settings()
    };
    for (name, flow) in [
        ("uniflow_tcp", flows::tcp()),
        ("uniflow_ping6", flows::ping6()),
        ("uniflow_fragments", flows::fragments()),
        ("uniflow_quiet", flows::quiet()),
    ] {
        is_written(name, uniflow.clone(), &flows::batch(1), &[flow]);
    }
}

#[test]
fn options_are_as_written() {
    let batch = FlowBatch {
        sample_rate: 100,
        interfaces: vec![
            flows::interface(7, "eth0"),
            flows::interface(8, "wlp0s20f3"),
        ],
        ..flows::last_batch(2)
    };
    is_written("options", settings(), &batch, &[]);
}

#[test]
fn interfaces_of_several_namespaces_are_told_apart_as_written() {
    let mut other = flows::interface(7, "eth0");
    other.netns = 4_026_532_000;
    let batch = FlowBatch {
        interfaces: vec![flows::interface(7, "eth0"), other],
        ..flows::batch(1)
    };
    is_written("namespaces", settings(), &batch, &[flows::tcp()]);
}
