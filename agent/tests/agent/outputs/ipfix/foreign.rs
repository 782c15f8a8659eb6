//! Datagrams as libraries in Python and Rust read them.

use super::*;

/// A program's output for the messages in a file.
fn printed(command: &mut Command, file: &Path) -> Value {
    let output = command.arg(file).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn sums(printed: &Value) -> Sums {
    let number = |name: &str| printed[name].as_u64().unwrap();
    assert_ne!(number("interfaces"), 0, "{printed}");
    Sums {
        packets: number("packets"),
        layer2: number("layer2"),
        octets: number("octets"),
    }
}

#[test]
fn netflow_of_python_has_every_flow_of_one_direction_each() {
    const TEST: &str = "agent::netflow_of_python_has_every_flow_of_one_direction_each";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some(python) = install::netflow_or_skip(TEST) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let script = install::python_folder().join("netflow_sums.py");
    let read = |file: &Path| printed(Command::new(&python).arg(&script), file);
    let file = folder.path().join("uniflow");
    let output = udp(r#", "uniflow": true, "template_refresh": "1s""#);
    let (sent, report) = received(&lab, &output, 1_400, &file);
    let uniflow = read(&file);
    assert_eq!(sums(&uniflow), sent);
    assert_eq!(uniflow["flows"], uniflow_records(&report));
    let rates = uniflow["rates"].as_array().unwrap();
    assert!(!rates.is_empty() && rates.iter().all(|rate| *rate == 1));
}

/// It mistakes a reverse element for the forward one, and keeps one of the two. So a biflow's sums match neither
/// direction, and the documentation says that it needs `uniflow`.
#[test]
fn netflow_of_python_has_every_record_of_both_directions() {
    const TEST: &str = "agent::netflow_of_python_has_every_record_of_both_directions";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some(python) = install::netflow_or_skip(TEST) else {
        return;
    };
    let lab = Lab::quiet().unwrap();
    let folder = TempDir::new().unwrap();
    let script = install::python_folder().join("netflow_sums.py");
    let file = folder.path().join("biflow");
    let (_, report) = received(&lab, &udp(""), 1_400, &file);
    let biflow = printed(Command::new(&python).arg(&script), &file);
    assert_eq!(biflow["flows"], biflow_records(&report));
}

#[test]
fn netflow_parser_has_every_flow() {
    const TEST: &str = "agent::netflow_parser_has_every_flow";
    if !is_root_or_skip(TEST) {
        return;
    }
    let Some(parser) = install::netflow_parser_or_skip(TEST) else {
        return;
    };
    for (more, records) in [
        ("", biflow_records as fn(&Report) -> usize),
        (r#", "uniflow": true"#, uniflow_records),
        (ENTERPRISE, biflow_records),
    ] {
        let lab = Lab::quiet().unwrap();
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("flows");
        let (sent, report) = received(&lab, &udp(more), 1_400, &file);
        let read = printed(&mut Command::new(&parser), &file);
        assert_eq!(sums(&read), sent, "{more}");
        assert_eq!(read["flows"], records(&report), "{more}");
    }
}
