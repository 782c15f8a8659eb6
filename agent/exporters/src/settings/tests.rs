use std::time::Duration;

use super::*;
use crate::delivery::Spooling;

pub(super) fn read(text: &str) -> Result<Vec<OutputArg>, String> {
    let read: Result<OutputArgs, _> = text.parse();
    read.map(|args| args.0).map_err(|refused| {
        let key = refused.key.clone().unwrap_or_default();
        format!("{key}: {refused}")
    })
}

#[test]
fn a_text_has_one_wish_or_several() {
    let read = read("table,jsonl=/a=b,none").unwrap();
    let [
        OutputArg::Stdout(Format::Table),
        OutputArg::Output(output),
        OutputArg::Nothing,
    ] = &read[..]
    else {
        panic!("{read:?}");
    };
    assert_eq!(
        (output.kind(), output.address()),
        (Kind::Jsonl, "/a=b".to_owned())
    );
    assert_eq!(output.selection, Selection::default());
}

#[test]
fn a_table_sets_what_its_kind_has() {
    let table = r#"{"kind": "jsonl", "address": "/a", "only_ended": true, "min_bytes": 5,
        "rotate_after": "1h 30m", "rotate_bytes": 7, "keep_files": 2, "keep_bytes": 9,
        "compression": "gzip", "name": "archive", "filter": "include port 443; exclude all"}"#;
    let read = read(table).unwrap();
    let [OutputArg::Output(output)] = &read[..] else {
        panic!("{read:?}")
    };
    let rotation = Rotation {
        bytes: 7,
        after: Duration::from_mins(90),
        files: 2,
        total_bytes: 9,
        compression: Compression::Gzip,
    };
    let expected = Output {
        name: Some("archive".to_owned()),
        target: Target::Jsonl {
            path: "/a".into(),
            rotation,
        },
        selection: Selection {
            filter: "include port 443; exclude all".parse().unwrap(),
            only_ended: true,
            min_bytes: 5,
        },
    };
    assert_eq!(*output, expected);
}

#[test]
fn ipfix_goes_to_a_host_or_into_a_file() {
    for address in [
        "udp://collector:4739",
        "tcp://[2001:db8::1]:4739",
        "/a/flows.ipfix",
    ] {
        let read = read(&format!("ipfix={address}")).unwrap();
        let [OutputArg::Output(output)] = &read[..] else {
            panic!("{read:?}")
        };
        assert_eq!(
            (output.kind(), output.address().as_str()),
            (Kind::Ipfix, address)
        );
    }
    let other = r#"{"kind": "ipfix", "address": "udp://a:1", "uniflow": true, "octets": "layer2",
        "template_refresh": "5s", "message_bytes": 512, "observation_domain": 7, "enterprise_number": 64123}"#;
    assert_ne!(read(other).unwrap(), read("ipfix=udp://a:1").unwrap());
}

#[test]
fn otlp_has_the_protocol_that_its_address_suggests() {
    for (address, told) in [
        ("http://a", "http://a:4317"),
        ("http://a/", "http://a:4317"),
        ("http://a:4317", "http://a:4317"),
        ("http://[::1]", "http://[::1]:4317"),
        ("http://a:4318", "http://a:4318"),
        ("http://a:4318/", "http://a:4318"),
        ("http://a/otlp/", "http://a:4318/otlp"),
        ("http://a:80/otlp", "http://a:80/otlp"),
    ] {
        let read = read(&format!("otlp={address}")).unwrap();
        let [OutputArg::Output(output)] = &read[..] else {
            panic!("{read:?}")
        };
        assert_eq!(
            (output.kind(), output.address().as_str()),
            (Kind::Otlp, told)
        );
        let chosen = if told.contains('8') || told.ends_with("otlp") {
            "http"
        } else {
            "grpc"
        };
        for protocol in ["grpc", "http"] {
            let table =
                format!(r#"{{"kind": "otlp", "address": "{address}", "protocol": "{protocol}"}}"#);
            let as_said = self::read(&table);
            assert_eq!(as_said == Ok(read.clone()), protocol == chosen, "{table}");
        }
    }
    let other =
        r#"{"kind": "otlp", "address": "http://a", "metrics": false, "compression": "none"}"#;
    assert_ne!(read(other).unwrap(), read("otlp=http://a").unwrap());
}

#[test]
fn collectors_stand_in_for_each_other() {
    let table = r#"{"kind": "collector", "address": "http://a:1", "failover": "b:2, [::1]:3"}"#;
    for (text, told) in [
        ("collector=http://a:1", "http://a:1"),
        ("collector=https://a:1", "https://a:1"),
        (table, "http://a:1,b:2,[::1]:3"),
    ] {
        let read = read(text).unwrap();
        let [OutputArg::Output(output)] = &read[..] else {
            panic!("{read:?}")
        };
        assert_eq!(
            (output.kind(), output.address().as_str()),
            (Kind::Collector, told)
        );
    }
}

#[test]
fn a_collector_has_a_spool_of_a_gibibyte_unless_it_says_otherwise() {
    let spooling = |more: &str| {
        let table = format!(r#"{{"kind": "collector", "address": "http://a:1"{more}}}"#);
        let read = read(&table).unwrap();
        let [OutputArg::Output(output)] = &read[..] else {
            panic!("{read:?}")
        };
        let Target::Collector(target) = &output.target else {
            panic!("{output:?}")
        };
        target.collectors(None).spooling
    };
    assert_eq!(spooling(""), None);
    assert_eq!(spooling(r#", "spool": "" "#), None);
    let expected = |most_bytes| {
        Some(Spooling {
            folder: "/a".into(),
            most_bytes,
        })
    };
    assert_eq!(spooling(r#", "spool": "/a""#), expected(1 << 30));
    let more = r#", "spool": "/a", "spool_bytes": 16777216"#;
    assert_eq!(spooling(more), expected(16 << 20));
}

#[test]
fn parquet_goes_into_a_folder() {
    let table = r#"{"kind": "parquet", "address": "/a", "compression": "none"}"#;
    let read = read(table).unwrap();
    let [OutputArg::Output(output)] = &read[..] else {
        panic!("{read:?}")
    };
    assert_eq!(output.kind(), Kind::Parquet);
    assert_eq!(output.address(), "/a");
    let Target::Parquet { rotation, .. } = &output.target else {
        panic!("{output:?}")
    };
    assert_eq!(rotation.compression, Compression::None);
}

#[test]
fn what_is_refused_says_where_and_what_may_have_been_meant() {
    for (text, error) in [
        (
            "jsn",
            ": expected none, table, json, or KIND=ADDRESS (did you mean json?); kinds are",
        ),
        (
            "",
            ": expected none, table, json, or KIND=ADDRESS; kinds are",
        ),
        (
            "table,",
            ": expected none, table, json, or KIND=ADDRESS; kinds are",
        ),
        (
            "jsonnl=/a",
            "kind: no kind of output has this name (did you mean jsonl?)",
        ),
        ("jsonl=", "address: expected a path"),
        ("jsonl=/a.jsonl.zst", "address: .zst ends the names"),
        ("{", ": expected a table in JSON"),
        ("parquet=", "address: expected a folder"),
        ("parquet=s3://bucket", "address: expected a folder"),
        (
            r#"{"kind": "parquet", "address": "/a", "compression": "gzip"}"#,
            "compression: expected one of none, zstd",
        ),
        (r#"{"kind": "jsonl"}"#, ": an output needs address"),
        (
            r#"{"kind": "jsonl", "address": 5}"#,
            "address: expected a text in quotes",
        ),
        (
            r#"{"kind": "jsonl", "address": "/a", "filter": "include prot 5"}"#,
            "filter: no term begins like this",
        ),
        (
            r#"{"kind": "jsonl", "address": "/a", "keep_file": 5}"#,
            "keep_file: an output has no such setting (did you mean keep_files?)",
        ),
        ("ipfix=udp://a", "address: expected udp://HOST:PORT, tcp"),
        ("ipfix=udp://:1", "address: expected udp://HOST:PORT, tcp"),
        ("ipfix=tcp://a:0", "address: expected udp://HOST:PORT, tcp"),
        (
            "ipfix=tcp://::1:1",
            "address: expected udp://HOST:PORT, tcp",
        ),
        ("ipfix=http://a:1", "address: expected udp://HOST:PORT, tcp"),
        (
            r#"{"kind": "ipfix", "address": "udp://a:1", "keep_files": 1}"#,
            "keep_files: only files have such a setting",
        ),
        (
            r#"{"kind": "ipfix", "address": "tcp://a:1", "template_refresh": "5s"}"#,
            "template_refresh: only datagrams need templates again",
        ),
        (
            r#"{"kind": "ipfix", "address": "udp://a:1", "template_refresh": "5ms"}"#,
            "template_refresh: expected a time, \"1s\" or longer",
        ),
        (
            r#"{"kind": "ipfix", "address": "udp://a:1", "message_bytes": 511}"#,
            "message_bytes: expected a number, 512 or more",
        ),
        (
            r#"{"kind": "ipfix", "address": "udp://a:1", "octets": "all"}"#,
            "octets: expected one of ip, layer2",
        ),
        ("pbflow=http://a", "address: expected http://HOST:PORT"),
        ("pbflow=/a", "address: expected http://HOST:PORT"),
        ("pbflow=tcp://a:1", "address: expected http://HOST:PORT"),
        (
            r#"{"kind": "pbflow", "address": "http://a:1", "agent_ip": "a"}"#,
            "agent_ip: expected an address, as 192.0.2.1",
        ),
        (
            r#"{"kind": "jsonl", "address": "/a", "keep_files": 0}"#,
            "keep_files: expected a number, 1 or more",
        ),
        (
            r#"{"kind": "jsonl", "address": "/a", "rotate_after": "soon"}"#,
            "rotate_after: expected a time",
        ),
        (
            r#"{"kind": "ipfix", "address": "/a", "rotate_after": "999ms"}"#,
            "rotate_after: expected a time of a second or more",
        ),
        (
            r#"{"kind": "jsonl", "address": "/a", "compression": "xz"}"#,
            "compression: expected one of none, gzip, zstd",
        ),
    ] {
        assert_refused(text, error);
    }
}

#[test]
fn a_misspelt_key_is_told_before_the_one_that_it_makes_missing() {
    for (table, error) in [
        (
            r#"{"kind": "jsonl", "adress": "/a"}"#,
            "adress: an output has no such setting (did you mean address?)",
        ),
        (
            r#"{"knd": "jsonl", "address": "/a"}"#,
            "knd: an output has no such setting (did you mean kind?)",
        ),
    ] {
        assert_refused(table, error);
    }
}

#[test]
fn a_host_without_a_scheme_is_no_file_and_the_address_that_was_meant_is_told() {
    for (text, meant) in [
        (
            "ipfix=127.0.0.1:2055",
            "(did you mean udp://127.0.0.1:2055?)",
        ),
        ("ipfix=[::1]:2055", "(did you mean udp://[::1]:2055?)"),
        (
            "ipfix=collector:4739",
            "(did you mean udp://collector:4739?)",
        ),
        ("ipfix=127.0.0.1", "udp://HOST:PORT"),
        ("ipfix=::1", "udp://HOST:PORT"),
        ("ipfix=udp:127.0.0.1:2055", "udp://HOST:PORT"),
        ("ipfix=a:b", "needs a slash, as ./a:b"),
        ("jsonl=127.0.0.1:2055", "as ./127.0.0.1:2055"),
        ("jsonl=10.0.0.1", "as ./10.0.0.1"),
        ("parquet=a:1", "as ./a:1"),
        ("collector=a:4500", "(did you mean http://a:4500?)"),
        ("pbflow=a:1", "(did you mean http://a:1?)"),
        ("otlp=a:4317", "(did you mean http://a:4317?)"),
        ("kafka=a:9092", "(did you mean tcp://a:9092/TOPIC?)"),
        (
            "clickhouse=a:8123",
            "(did you mean http://a:8123/DATABASE/TABLE?)",
        ),
    ] {
        let refused = read(text).expect_err(text);
        assert!(refused.starts_with("address: expected "), "{refused}");
        assert!(refused.contains(meant), "{text}: {refused}");
    }
    for text in [
        "ipfix=./127.0.0.1:2055",
        "ipfix=/a/127.0.0.1:2055",
        "jsonl=a:1/flows.jsonl",
        "jsonl=flows.jsonl",
        "jsonl=1.jsonl",
        "parquet=flows",
    ] {
        assert!(read(text).is_ok(), "{text}");
    }
}

#[test]
fn no_address_has_a_host_that_cannot_be_one() {
    for scheme in [
        "ipfix=udp",
        "ipfix=tcp",
        "pbflow=http",
        "otlp=http",
        "collector=http",
    ] {
        for (host, error) in [
            ("a b", "the name of a host cannot have ' '"),
            ("a\tb", "the name of a host cannot have '\\t'"),
            ("a%20b", "the name of a host cannot have '%'"),
            ("a\"b", "the name of a host cannot have '\"'"),
            ("köln", "the name of a host cannot have 'ö'"),
            ("user@a", "outputs send no user and no password: leave out"),
            ("user:@a", "outputs send no user and no password: leave out"),
            ("b:secret@a", "outputs send no user and no password"),
            ("[a:b]", "expected "),
            ("[::1%]", "expected "),
        ] {
            let text = format!("{scheme}://{host}:1");
            assert_refused(&text, &format!("address: {error}"));
        }
        for host in [
            "a",
            "a-b.c_d.example",
            "192.0.2.1",
            "[::1]",
            "[fe80::1%eth0]",
        ] {
            let text = format!("{scheme}://{host}:1");
            assert!(read(&text).is_ok(), "{text}");
        }
    }
    assert_refused("otlp=http://a b", "address: the name of a host");
    assert_refused("otlp=http://user@a/b@c", "address: outputs send no user");
    assert!(read("otlp=http://a/b@c").is_ok());
    // Paths may have any characters.
    assert!(read("jsonl=/a b/c@d").is_ok());
}

#[test]
fn what_is_refused_of_collectors_says_where() {
    for (text, error) in [
        ("collector=http://a", "address: expected http://HOST:PORT"),
        ("collector=a:1", "address: expected http://HOST:PORT"),
        (
            r#"{"kind": "collector", "address": "http://a:1", "failover": "b"}"#,
            "failover: expected HOST:PORT, or several with commas",
        ),
        (
            r#"{"kind": "collector", "address": "http://a:1", "failover": "b:1,"}"#,
            "failover: expected HOST:PORT, or several with commas",
        ),
        (
            r#"{"kind": "collector", "address": "http://a:1", "failover": "b:1, a:1"}"#,
            "failover: a:1 is there twice",
        ),
        (
            r#"{"kind": "collector", "address": "http://a:1", "failover": "b c:1"}"#,
            "failover: the name of a host cannot have ' '",
        ),
        (
            r#"{"kind": "collector", "address": "http://a:1", "spool": "var/spool"}"#,
            "spool: expected the whole path, from /, of a folder, and not var/spool",
        ),
        (
            r#"{"kind": "collector", "address": "http://a:1", "spool_bytes": 20000000}"#,
            "spool_bytes: is for a spool, and there is none: set spool",
        ),
        (
            r#"{"kind": "collector", "address": "http://a:1", "spool": "/a", "spool_bytes": 1}"#,
            "spool_bytes: expected a number, 16777216 or more",
        ),
        (
            r#"{"kind": "collector", "address": "http://a:1", "max_sample_rate": 0}"#,
            "max_sample_rate: expected a number, 1 or more",
        ),
        (
            r#"{"kind": "collector", "address": "http://a:1", "max_sample_rate": 1000001}"#,
            "max_sample_rate: expected a number up to 1000000",
        ),
        (
            r#"{"kind": "jsonl", "address": "/a", "spool": "/b"}"#,
            "spool: jsonl has no such setting",
        ),
        (
            r#"{"kind": "collector", "address": "http://a:1", "only_ended": true}"#,
            "only_ended: collector has no such setting",
        ),
    ] {
        assert_refused(text, error);
    }
}

#[test]
fn requests_to_a_receiver_on_this_host_are_not_compressed_unless_that_is_asked_for() {
    for (host, default) in [
        ("localhost", "none"),
        ("127.0.0.1", "none"),
        ("[::1]", "none"),
        ("192.0.2.1", "gzip"),
        ("localhost.example", "gzip"),
    ] {
        let usual = read(&format!("otlp=http://{host}")).unwrap();
        for compression in ["none", "gzip"] {
            let asked = read(&format!(
                r#"{{"kind": "otlp", "address": "http://{host}", "compression": "{compression}"}}"#
            ));
            assert_eq!(asked.unwrap() == usual, compression == default, "{host}");
        }
    }
}

#[test]
fn what_is_refused_of_otlp_says_where() {
    for (text, error) in [
        ("otlp=a:4317", "address: expected http://HOST"),
        ("otlp=http://", "address: expected http://HOST"),
        ("otlp=http://a:b", "address: expected http://HOST"),
        ("otlp=http://a/b?c", "address: expected http://HOST"),
        ("otlp=https://", "address: expected http://HOST"),
        ("otlp=https://a:b", "address: expected http://HOST"),
        (
            "otlp=http://a:4318/v1/logs",
            "address: leave out /v1/logs: it is added",
        ),
        (
            r#"{"kind": "otlp", "address": "http://a/b", "protocol": "grpc"}"#,
            "address: gRPC has no path",
        ),
        (
            r#"{"kind": "otlp", "address": "http://a", "protocol": "https"}"#,
            "protocol: expected one of grpc, http",
        ),
        (
            r#"{"kind": "otlp", "address": "http://a", "compression": "zstd"}"#,
            "compression: expected one of none, gzip",
        ),
        (
            r#"{"kind": "otlp", "address": "http://a", "keep_files": 1}"#,
            "keep_files: otlp has no such setting",
        ),
    ] {
        assert_refused(text, error);
    }
}

fn assert_refused(text: &str, error: &str) {
    let refused = read(text).expect_err(text);
    assert!(refused.starts_with(error), "{text}: {refused}");
}

#[test]
fn outputs_of_one_kind_have_numbers() {
    let output = |text: &str| {
        let mut read = read(text).unwrap();
        let Some(OutputArg::Output(output)) = read.pop() else {
            panic!("{text}")
        };
        output
    };
    let plain = output("jsonl=/a");
    let taken = ["jsonl", "jsonl-3", "archive"];
    assert_eq!(free_name(&plain, |_| true), "jsonl");
    assert_eq!(free_name(&plain, |name| !taken.contains(&name)), "jsonl-2");
    let named = output(r#"{"kind":"jsonl","address":"/c","name":"archive"}"#);
    assert_eq!(
        free_name(&named, |name| !taken.contains(&name)),
        "archive-2"
    );
}
