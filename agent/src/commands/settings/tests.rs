use proto::SettingsInForce;
use serde_json::json;

use super::*;

fn settings(file: &str, arguments: &[&str]) -> Result<Settings> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, file).unwrap();
    let command = command().mut_args(|arg| arg.env(Resettable::Reset));
    let file = File::read(&path, &command)?;
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    Settings::read(&command, &arguments, Some(&file))
}

fn names() -> Vec<String> {
    Declared::all(&command()).map(|one| one.name()).collect()
}

#[test]
fn an_option_comes_before_the_file_and_this_before_the_default() {
    let settings = settings(
        "max_flows = 7\nlinger = '1s'\ndecapsulate = true\ninterface = ['a', 'b']\n",
        &["--max-flows", "8", "--decapsulate=false"],
    )
    .unwrap();
    let of = |name: &str| {
        let found = settings.values.iter().find(|setting| setting.name == name);
        let found = found.unwrap();
        let source = found.source.to_string();
        (
            found.value.clone(),
            source.rsplit('/').next().unwrap().to_owned(),
        )
    };
    assert_eq!(of("max_flows"), (json!(8), "command line".to_owned()));
    assert_eq!(of("decapsulate"), (json!(false), "command line".to_owned()));
    assert_eq!(of("linger"), (json!("1s"), "config.toml:2:1".to_owned()));
    assert_eq!(
        of("interface"),
        (json!(["a", "b"]), "config.toml:4:1".to_owned())
    );
    assert_eq!(of("early_scan"), (json!(50), "default".to_owned()));
    assert_eq!(of("filter_file"), (Value::Null, "default".to_owned()));
    assert_eq!(
        (settings.args.max_flows, settings.args.interface.len()),
        (8, 2)
    );
    assert_eq!(settings.args.linger, std::time::Duration::from_secs(1));
}

#[test]
fn contradicting_settings_are_told_with_where_they_come_from() {
    let refused = |file: &str, arguments: &[&str]| {
        let config = settings(file, arguments).unwrap().config();
        config.unwrap_err().to_string()
    };
    let error = refused("\n  xdp_mode = 'native'", &[]);
    assert!(error.starts_with("--xdp-mode does nothing with"), "{error}");
    let sources = error
        .split_once(" (ingress_hook: default, xdp_mode: ")
        .unwrap()
        .1;
    assert!(sources.ends_with("/config.toml:2:3)"), "{error}");
    let error = refused("", &["--xdp-mode", "native"]);
    assert!(error.ends_with("remove --xdp-mode"), "{error}");
}

#[test]
fn the_schema_has_every_setting_with_its_type_bounds_and_default() {
    let (command, schema) = (command(), schema::schema());
    let properties = schema["properties"].as_object().unwrap();
    let mut names = names();
    names.sort();
    assert_eq!(
        properties.keys().collect::<Vec<_>>(),
        names.iter().collect::<Vec<_>>()
    );
    assert_eq!(schema["additionalProperties"], false);
    for (name, property) in properties {
        let description = property["description"].as_str().unwrap();
        assert!(
            !description.is_empty() && !description.contains(" --"),
            "{name}: {description}"
        );
    }
    let without_text = |name: &str| {
        let mut property = properties[name].clone();
        property.as_object_mut().unwrap().remove("description");
        property
    };
    let setting = |name: &str| Declared::all(&command).find(|one| one.name() == name);
    let pattern = |name: &str| setting(name).unwrap().pattern().unwrap();
    assert_eq!(
        without_text("early_scan"),
        json!({ "type": "integer", "minimum": 0, "maximum": 99, "default": 50 })
    );
    assert_eq!(
        without_text("max_flows"),
        json!({ "type": "integer", "minimum": 1, "maximum": 100_000_000, "default": 500_000 })
    );
    assert_eq!(
        without_text("direction"),
        json!({ "type": "string", "enum": ["both", "ingress", "egress"], "default": "both" })
    );
    assert_eq!(
        without_text("decapsulate"),
        json!({ "type": "boolean", "default": false })
    );
    assert_eq!(
        without_text("interface"),
        json!({
            "type": "array", "items": { "type": "string", "pattern": pattern("interface") },
            "minItems": 0, "default": [],
        })
    );
    assert_eq!(
        without_text("filter_file"),
        json!({ "type": "string", "pattern": pattern("filter_file") })
    );
    assert_eq!(
        without_text("linger"),
        json!({ "type": "string", "pattern": pattern("linger"), "default": "5s" })
    );
}

#[test]
fn the_packaged_file_is_the_example() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/config.toml");
    let packaged = std::fs::read_to_string(path).unwrap();
    assert!(
        packaged == example::example(),
        "the options have changed: cargo run -p agent -- config example > deploy/config.toml"
    );
}

#[test]
fn the_example_has_every_setting_and_can_be_read_with_or_without_its_comments() {
    let example = example::example();
    assert!(
        settings(&example, &[])
            .unwrap()
            .values
            .iter()
            .all(|one| one.source == Source::Default)
    );
    assert!(
        example.lines().all(|line| line.chars().count() <= 100),
        "{example}"
    );
    let mut uncommented = String::new();
    for line in example.lines() {
        let setting = line
            .strip_prefix('#')
            .filter(|line| line.starts_with(char::is_alphabetic));
        uncommented += setting.unwrap_or(line);
        uncommented += "\n";
    }
    let settings = settings(&uncommented, &[]).unwrap();
    for setting in settings.values {
        assert!(
            matches!(setting.source, Source::File { .. }),
            "{}",
            setting.name
        );
    }
}

#[test]
fn what_is_shown_is_a_file_that_sets_the_same() {
    let file =
        "log = \"warn,agent::scan=debug\"\nfilter = [\"exclude on w\\u007fg\"]\nearly_scan = 7\n";
    let shown = settings(file, &["--linger", "2s"]).unwrap();
    let mut told = SettingsInForce::from(&shown);
    let text = show::text(&told);
    assert!(
        text.contains("early_scan = 7  # /") && text.contains("config.toml:3:1\n"),
        "{text}"
    );
    assert!(text.contains("linger = \"2s\"  # command line\n"), "{text}");
    assert!(
        text.contains("# filter_file has no value  # default\n"),
        "{text}"
    );
    assert!(!text.contains('\u{7f}'), "{text}");
    let again = settings(&text, &[]).unwrap();
    for (before, after) in shown.values.iter().zip(&again.values) {
        assert_eq!((&before.name, &before.value), (&after.name, &after.value));
    }
    let json = show::json(&told);
    let of = |name: &str| json["settings"][name].clone();
    assert_eq!(
        of("linger"),
        json!({ "value": "2s", "source": "command_line" })
    );
    assert_eq!(
        of("max_flows"),
        json!({ "value": 500_000, "source": "default" })
    );
    assert_eq!(of("early_scan")["source"], "file");
    assert!(
        of("early_scan")["place"]
            .as_str()
            .unwrap()
            .ends_with("config.toml:3:1")
    );

    let max_flows = told.settings.iter_mut();
    let max_flows = max_flows.filter(|setting| setting.name == "max_flows");
    max_flows.for_each(|setting| setting.wanted = "1000".to_owned());
    let text = show::text(&told);
    let line = "max_flows = 500000  # default; a restart makes it 1000\n";
    assert!(text.contains(line), "{text}");
    let json = show::json(&told);
    assert_eq!(json["settings"]["max_flows"]["wanted"], 1000);
}
