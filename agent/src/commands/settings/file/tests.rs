use std::{
    io::{self, Write as _},
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    process, thread,
};

use super::*;
use crate::commands::settings::command;

fn read(text: &str) -> Result<Vec<(String, Vec<String>, usize)>, String> {
    let entries = entries(text.as_bytes(), "config.toml", &command());
    let listed = |entries: BTreeMap<String, Entry>| {
        let entries = entries.into_iter();
        entries.map(|(id, entry)| (id, entry.texts, entry.line))
    };
    entries
        .map(|entries| listed(entries).collect())
        .map_err(|fault| fault.to_string())
}

/// The head of the error, the place in characters, and what is marked.
fn fault(text: &str) -> (String, String) {
    let error = read(text).expect_err(text);
    let [head, line, mark, ..] = error.lines().collect::<Vec<_>>()[..] else {
        panic!("three lines: {error}");
    };
    let marked = mark
        .chars()
        .zip(line.chars())
        .filter(|(mark, _)| *mark == '^')
        .map(|(_, character)| character)
        .collect();
    (head.to_owned(), marked)
}

#[test]
fn each_type_is_read_with_its_line() {
    let text = "\
# a comment
max_flows = 100_000
early_scan = 0x10
decapsulate = true

interface = [
    \"eth0\", # first
    '/^e{1,2}$/',
]
scan_interval = \"1m 30s\"
direction = 'ingress'
exclude_interface = []
";
    let read = read(text).unwrap();
    let expected = [
        ("decapsulate", &["true"][..], 4),
        ("direction", &["ingress"], 11),
        ("early_scan", &["16"], 3),
        ("exclude_interface", &[], 12),
        ("interface", &["eth0", "/^e{1,2}$/"], 6),
        ("max_flows", &["100000"], 2),
        ("scan_interval", &["1m 30s"], 10),
    ];
    for ((id, texts, line), expected) in read.iter().zip(expected) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!((id.as_str(), &texts[..], *line), expected);
    }
    assert_eq!(read.len(), expected.len());
}

#[test]
fn an_unknown_name_is_told_with_its_place_and_the_nearest() {
    for (text, head, marked) in [
        (
            "\nscan_intervall = \"1s\"",
            "2:1: no setting has this name; did you mean scan_interval?",
            "scan_intervall",
        ),
        (
            "  scan-interval = '1s'",
            "1:3: no setting has this name; did you mean scan_interval?",
            "scan-interval",
        ),
        (
            "colour = 1",
            "1:1: no setting has this name; `flow-agent config example` lists them",
            "colour",
        ),
        (
            "linger = '1s'\n[table]\nmax_flows = 5",
            "2:2: no setting has this name; `flow-agent config example` lists them (settings are \
             `name = value`, without tables)",
            "table",
        ),
        (
            "duration = '1s'",
            "1:1: a file cannot set the end of a run: give --duration or FLOW_AGENT_DURATION",
            "duration",
        ),
        (
            "config = 'x'",
            "1:1: a file of settings cannot name another one: give --config or FLOW_AGENT_CONFIG",
            "config",
        ),
    ] {
        let expected = (format!("config.toml:{head}"), marked.to_owned());
        assert_eq!(fault(text), expected, "{text}");
    }
}

#[test]
fn a_bad_value_is_told_with_its_place() {
    for (text, head, marked) in [
        (
            "scan_interval = \"soon\"",
            "1:17: expected number at 0; expected a time such as 500ms, 10s or 1h 30m",
            "\"soon\"",
        ),
        ("scan_interval = '1ms'", "1:17: at least 10ms", "'1ms'"),
        (
            "scan_interval = 10",
            "1:17: expected a text in quotes, as \"10s\"",
            "10",
        ),
        (
            "early_scan = 100",
            "1:14: expected a number from 0 to 99",
            "100",
        ),
        (
            "early_scan = -1",
            "1:14: expected a number from 0 to 99",
            "-1",
        ),
        (
            "max_flows = '5'",
            "1:13: expected a number from 1 to 100000000, without quotes",
            "'5'",
        ),
        (
            "decapsulate = 'true'",
            "1:15: expected true or false, without quotes",
            "'true'",
        ),
        (
            "direction = 'ingres'",
            "1:13: expected one of both, ingress, egress; did you mean ingress?",
            "'ingres'",
        ),
        (
            "interface = 'eth0'",
            "1:13: expected a list: put the values in brackets, as ['eth0']",
            "'eth0'",
        ),
        (
            "listen = []",
            "1:10: expected at least one value; without the setting its default holds",
            "[]",
        ),
        (
            "exclude_interface = [\n  'eth0', # ☃\n  3 ]",
            "3:3: expected a text in quotes",
            "3",
        ),
        (
            "filter = [\n  'exclude all',\n  \"exclude nets ::/0\"]",
            "3:12: no term begins like this; expected src, dst, net, host, port, proto, on, \
             ingress, egress, all, an address or a protocol",
            "nets",
        ),
        (
            "output = [\n  'none', 'otlp=http://user@a:4318']",
            "2:11: outputs send no user and no password: leave out everything up to the @",
            "'otlp=http://user@a:4318'",
        ),
        (
            "[[output]]\nkind = 'pbflow'\naddress = 'http://a b:1'",
            "3:11: the name of a host cannot have ' '",
            "'http://a b:1'",
        ),
        ("log = 'inof'", "1:7: there is no level 'inof'", "'inof'"),
        ("filter_file = ''", "1:15: ", "''"),
        (
            "max_flows = 5\nmax_flows = 6",
            "2:1: duplicate key",
            "max_flows",
        ),
        ("max_flows 5", "1:", ""),
        ("log = \"info", "1:", ""),
    ] {
        let (head_of, marked_of) = fault(text);
        let expected = format!("config.toml:{head}");
        assert!(head_of.starts_with(&expected), "{text}: {head_of}");
        assert!(
            marked.is_empty() || marked == marked_of,
            "{text}: {marked_of}"
        );
    }
}

/// With escapes, the characters of a rule are not those of the file.
#[test]
fn a_fault_in_a_text_with_escapes_is_at_the_whole_text() {
    let (head, marked) = fault(r#"filter = ["exclude\tnets ::/0"]"#);
    assert!(head.contains("1:11: no term begins"), "{head}");
    assert_eq!(marked, r#""exclude\tnets ::/0""#);
}

#[test]
fn the_first_fault_is_told() {
    let (head, _) = fault("zzz = 1\naaa = 2\n");
    assert!(head.starts_with("config.toml:1:1: "), "{head}");
}

#[test]
fn what_is_no_text_is_refused_with_its_place() {
    let fault = entries(
        b"# \xe2\x98\x83\nlog = 'gr\xfcn'",
        "config.toml",
        &command(),
    );
    let fault = fault.unwrap_err().to_string();
    assert!(
        fault.starts_with("config.toml:2:10: the byte 0xfc is not UTF-8"),
        "{fault}"
    );
}

#[test]
fn a_file_without_an_end_and_one_that_is_missing_are_refused() {
    let error = File::read(Path::new("/dev/zero"), &command()).unwrap_err();
    assert!(error.to_string().contains("more than the 1 MiB"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gone.toml");
    let error = File::read(&path, &command()).unwrap_err().to_string();
    assert!(
        error.starts_with("there is no file of settings at "),
        "{error}"
    );
    assert!(File::read_if_exists(&path, &command()).unwrap().is_none());
    let error = File::read_if_exists(folder.path(), &command()).unwrap_err();
    assert!(
        error.to_string().starts_with("read the settings in "),
        "{error}"
    );
}

#[test]
fn a_table_is_an_output_and_a_fault_in_it_is_told_at_its_place() {
    let text = "\
[[output]]
kind = 'jsonl'
address = '/a'
min_bytes = 5

[[output]]
kind = \"jsonl\"
address = \"/b\"
";
    let read = read(text).unwrap();
    let [(id, texts, 1)] = &read[..] else {
        panic!("{read:?}")
    };
    let expected = [
        r#"{"address":"/a","kind":"jsonl","min_bytes":5}"#,
        r#"{"address":"/b","kind":"jsonl"}"#,
    ];
    assert_eq!(
        (id.as_str(), &texts[..]),
        ("output", &expected.map(str::to_owned)[..])
    );

    let table = "[[output]]\nkind = 'jsonl'\naddress = '/a'\n";
    for (more, head, marked) in [
        (
            "keep_file = 1",
            "4:1: an output has no such setting (did you mean keep_files?)",
            "keep_file",
        ),
        (
            "keep_files = -1",
            "4:14: expected a number, 1 or more, without quotes",
            "-1",
        ),
        (
            "only_ended = 1",
            "4:14: expected true or false, without quotes",
            "1",
        ),
        (
            "name = []",
            "4:8: expected a text in quotes, a number, true or false",
            "[]",
        ),
    ] {
        let (told, mark) = fault(&format!("{table}{more}"));
        assert_eq!(
            (told.as_str(), mark.as_str()),
            (format!("config.toml:{head}").as_str(), marked)
        );
    }
}

#[test]
fn a_pipe_is_read_if_this_process_has_it_and_a_named_one_is_not_waited_for() {
    let command = command();
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"linger = '7s'\n").unwrap();
    drop(writer);
    let path = format!("/dev/fd/{}", reader.as_raw_fd());
    let file = File::read(path.as_ref(), &command).unwrap();
    assert_eq!(file.entries["linger"].texts, ["7s"]);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let made = process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let writer = thread::spawn({
        let path = path.clone();
        move || fs::write(path, "linger = '7s'\n")
    });
    let error = File::read(&path, &command).unwrap_err().to_string();
    assert!(error.contains("pipe is a pipe"), "{error}");
    // Lets the writer go, whose text fits into the pipe.
    let mut options = fs::File::options();
    let reader = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    writer.join().unwrap().unwrap();
    drop(reader);
}
