//! Options before variables, variables before the file, the file before the defaults; and files with faults.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use lab::{Lab, privilege::is_root_or_skip};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    filters::in_force,
    support::{Agent, BINARY, flow_agent},
};

fn written(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

/// The binary without this process's settings.
fn binary(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLOW_AGENT_") {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

fn stdout(output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The result of a command that cannot read the settings, and of a start with them.
const FAILED: i32 = 1;
const REFUSED: i32 = 2;

fn refusal(exit_status: i32, output: &Output) -> String {
    assert_eq!(output.status.code(), Some(exit_status));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_check_without_a_file_looks_at_what_run_would_take() {
    // They are valid only together, as in a service with both.
    let (_folder, file) = written("xdp_mode = 'generic'\n");
    let path = file.to_str().unwrap();
    let mut check = binary(&["config", "check"]);
    check.env("FLOW_AGENT_CONFIG", path);
    let error = refusal(FAILED, &check.output().unwrap());
    assert!(error.contains("--ingress-hook tc"), "{error}");
    check.env("FLOW_AGENT_INGRESS_HOOK", "xdp");
    let told = stdout(check.output().unwrap());
    assert_eq!(
        told,
        format!("{path}: ok, 1 setting, and 1 from the environment\n")
    );
    let (_folder, other) = written("max_flows = 5\n");
    check.args(["--config", other.to_str().unwrap()]);
    let told = stdout(check.output().unwrap());
    let other = other.display();
    assert_eq!(
        told,
        format!("{other}: ok, 1 setting, and 1 from the environment\n")
    );
}

/// The output of the commands that read a file of settings.
fn refused_by_all_readers(file: &str) -> [String; 3] {
    [
        (REFUSED, &["run", "--config", file][..]),
        (FAILED, &["config", "check", "--config", file]),
        (FAILED, &["config", "show", "--config", file]),
    ]
    .map(|(exit_status, arguments)| refusal(exit_status, &binary(arguments).output().unwrap()))
}

/// A number, a time, a choice, a text, a list and a switch.
const FILE: &str = "\
early_scan = 10
linger = '1s'
direction = 'ingress'
log = 'agent=debug,info'
filter = ['exclude dst port 1', 'exclude dst port 2']
xdp_without_tags = true
";
const VARIABLES: [(&str, &str); 6] = [
    ("FLOW_AGENT_EARLY_SCAN", "20"),
    ("FLOW_AGENT_LINGER", "2s"),
    ("FLOW_AGENT_DIRECTION", "egress"),
    ("FLOW_AGENT_LOG", "agent=info,info"),
    ("FLOW_AGENT_FILTER", "exclude dst port 3"),
    ("FLOW_AGENT_XDP_WITHOUT_TAGS", "false"),
];

#[test]
fn an_option_comes_before_a_variable_before_the_file_before_the_default() {
    if !is_root_or_skip(
        "agent::an_option_comes_before_a_variable_before_the_file_before_the_default",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    // A switch without effect is refused, which shows the value in force.
    let (_folder, with_switch) = written(FILE);
    let file = with_switch.to_str().unwrap();
    // Without the refusal the command would still end, since there is no such interface.
    let mut refused = binary(&["run", "--interface", "none", "--config", file]);
    let refused = refusal(REFUSED, &refused.output().unwrap());
    assert!(
        refused.contains("--xdp-without-tags does nothing") && refused.contains("config.toml:6:1)"),
        "{refused}"
    );
    let (_folder, file) = written(&FILE.replace("xdp_without_tags = true\n", ""));

    let in_layers = |file: Option<&Path>, variables: &[(&str, &str)], options: &[&str]| {
        let mut command = flow_agent(&lab.agent);
        command.envs(variables.iter().copied());
        let named = file.map(|file| ["--config", file.to_str().unwrap()]);
        let options = [named.as_ref().map_or(&[][..], |named| &named[..]), options].concat();
        let agent = Agent::start_by(command, &lab.agent.interface, &options);
        let status = agent.status(&lab.agent);
        let rules = in_force(&lab, &agent.address());
        agent.stop();
        let settings = &status["settings"];
        let number = |name: &str| settings[name].as_u64().unwrap();
        let hooks: Vec<&str> = status["hooks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|hook| hook["hook"].as_str().unwrap())
            .collect();
        (
            number("early_scan_percent"),
            number("linger_ns") / 1_000_000_000,
            hooks.join(" "),
            rules
                .lines()
                .filter(|line| !line.starts_with('#'))
                .collect::<Vec<_>>()
                .join(";"),
        )
    };
    let all = |early_scan, linger, hooks: &str, rules: &str| {
        (early_scan, linger, hooks.to_owned(), rules.to_owned())
    };
    let options = [
        "--early-scan=30",
        "--linger=3s",
        "--direction=both",
        "--filter=exclude dst port 4",
    ];
    let both = "tc_ingress tc_egress";
    assert_eq!(in_layers(None, &[], &[]), all(50, 5, both, ""));
    assert_eq!(
        in_layers(Some(&file), &[], &[]),
        all(10, 1, "tc_ingress", "exclude dst port 1;exclude dst port 2")
    );
    assert_eq!(
        in_layers(Some(&with_switch), &VARIABLES, &[]),
        all(20, 2, "tc_egress", "exclude dst port 3")
    );
    assert_eq!(
        in_layers(Some(&with_switch), &VARIABLES, &options),
        all(30, 3, both, "exclude dst port 4")
    );
    // An option switches on what a variable switches off, and off what the file switches on.
    let mut refused = binary(&["run", "--xdp-without-tags", "--interface", "none"]);
    let refused = refusal(REFUSED, &refused.envs(VARIABLES).output().unwrap());
    assert!(refused.contains("does nothing"), "{refused}");
    let off = in_layers(Some(&with_switch), &[], &["--xdp-without-tags=false"]);
    assert_eq!(off.0, 10);
}

#[test]
fn what_is_in_force_is_shown_with_where_it_came_from() {
    let (_folder, file) = written(FILE);
    let file = file.to_str().unwrap();
    let show = |arguments: &[&str]| {
        let mut command = binary(&["config", "show"]);
        command.args(arguments).env("FLOW_AGENT_CONFIG", file);
        command
            .env("FLOW_AGENT_LINGER", "2s")
            .env("FLOW_AGENT_XDP_WITHOUT_TAGS", "false");
        stdout(command.output().unwrap())
    };
    let text = show(&[]);
    for line in [
        &format!("# settings file: {file}"),
        &format!("early_scan = 10  # {file}:1:1"),
        "linger = \"2s\"  # FLOW_AGENT_LINGER",
        &format!("log = \"agent=debug,info\"  # {file}:4:1"),
        &format!("filter = [\"exclude dst port 1\",\"exclude dst port 2\"]  # {file}:5:1"),
        "xdp_without_tags = false  # FLOW_AGENT_XDP_WITHOUT_TAGS",
        "max_flows = 500000  # default",
        "# filter_file has no value  # default",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
    }
    let json: Value = serde_json::from_str(&show(&["--output", "json"])).unwrap();
    assert_eq!(json["file"], file);
    assert_eq!(
        json["settings"]["linger"],
        serde_json::json!({ "value": "2s", "source": "variable", "place": "FLOW_AGENT_LINGER" })
    );
    let settings = json["settings"].as_object().unwrap();
    assert_eq!(settings.len(), text.lines().count() - 1, "{text}");
}

#[test]
fn a_fault_in_the_file_is_told_with_its_place_by_run_and_by_check() {
    for (text, told) in [
        (
            "linger = '1s'\nscan_intervall = '1s'\n",
            ":2:1: no setting has this name; did you mean scan_interval?\n  scan_intervall = '1s'\n  \
             ^^^^^^^^^^^^^^\n",
        ),
        (
            "linger = 'soon'\n",
            ":1:10: expected number at 0; expected a time such as 500ms, 10s or 1h 30m\n  linger = \
             'soon'\n           ^^^^^^\n",
        ),
    ] {
        let (_folder, file) = written(text);
        let file = file.to_str().unwrap();
        for error in refused_by_all_readers(file) {
            assert_eq!(error, format!("flow-agent: {file}{told}"));
        }
    }
}

/// systemd does not restart a service that exits with status 2. With the other status it would retry forever.
#[test]
fn what_no_agent_can_start_with_is_refused_by_run_and_by_check() {
    let (_folder, rules) = written(&"exclude all\n".repeat(1025));
    let rules = rules.display();
    let many = "'exclude all', ".repeat(1100);
    let path = format!("unix:/tmp/{}", "a".repeat(103));
    for (text, told) in [
        (
            "listen = ['collector.example:50051']".to_owned(),
            "config.toml:2:11: the name collector.example is not looked up".to_owned(),
        ),
        (
            format!("listen = ['{path}']"),
            "config.toml:2:11: the path has 108 bytes".to_owned(),
        ),
        (
            format!("filter = [{many}]"),
            "1100 filter rules; a set has at most 1024".to_owned(),
        ),
        (
            format!("filter_file = '{rules}'"),
            "1025 filter rules; a set has at most 1024".to_owned(),
        ),
        (
            "filter_file = '/nonexistent/rules'".to_owned(),
            "read the filter rules in /nonexistent/rules: No such file".to_owned(),
        ),
        (
            "max_interfaces = 2\ninterface = ['a', 'b', 'c']".to_owned(),
            "3 interfaces are named, and --max-interfaces is 2".to_owned(),
        ),
        (
            "interface = ['a', 'b']\nexclude_interface = ['b']".to_owned(),
            "b is named both by --interface and by --exclude-interface".to_owned(),
        ),
    ] {
        let (_folder, file) = written(&format!("linger = '1s'\n{text}\n"));
        let file = file.to_str().unwrap();
        for error in refused_by_all_readers(file) {
            assert!(error.contains(&told), "{error}");
            assert!(error.contains(&format!("{file}:2:")), "{error}");
        }
    }
}

#[test]
fn a_misspelt_variable_is_refused() {
    let variable = ("FLOW_AGENT_SCAN_INTERVALL", "1s");
    let told = "flow-agent: FLOW_AGENT_SCAN_INTERVALL: no setting has this variable; did you mean \
                FLOW_AGENT_SCAN_INTERVAL?\n";
    let (_folder, file) = written("");
    let file = file.to_str().unwrap();
    let with_variable = |arguments: &[&str], variable: (&str, &str)| {
        let mut command = binary(arguments);
        command.env("FLOW_AGENT_CONFIG", file);
        command.env(variable.0, variable.1).output().unwrap()
    };
    for (exit_status, arguments) in [
        (REFUSED, &["run", "--interface", "nowhere7"][..]),
        (FAILED, &["config", "show"]),
    ] {
        let error = refusal(exit_status, &with_variable(arguments, variable));
        assert_eq!(error, told);
    }
    let checked = with_variable(&["check", "--interface", "lo"], variable);
    let checked = String::from_utf8(checked.stdout).unwrap();
    assert!(
        checked.contains("did you mean FLOW_AGENT_SCAN_INTERVAL?"),
        "{checked}"
    );
    // It ignores variables of other commands, and empty ones.
    for variable in [
        ("FLOW_AGENT_WATCH_LIMIT", "7"),
        ("FLOW_AGENT_SCAN_INTERVALL", ""),
    ] {
        stdout(with_variable(&["config", "show"], variable));
    }
}

#[test]
fn a_file_is_checked_and_a_missing_one_is_an_error() {
    let check = |file: &Path| {
        let mut command = binary(&["config", "check", "--config", file.to_str().unwrap()]);
        command.output().unwrap()
    };
    let (folder, file) = written("max_flows = 5\nlinger = '1s'\n");
    let ok = stdout(check(&file));
    assert_eq!(ok, format!("{}: ok, 2 settings\n", file.display()));
    fs::write(&file, "ingress_hook = 'xdp'\ndirection = 'egress'\n").unwrap();
    let error = refusal(FAILED, &check(&file));
    assert!(
        error.contains("config.toml:2:1, ") && error.contains("config.toml:1:1)"),
        "{error}"
    );
    fs::write(&file, "filter_file = '/nonexistent/rules'\n").unwrap();
    let error = refusal(FAILED, &check(&file));
    assert!(error.contains("/nonexistent/rules"), "{error}");
    let gone = folder.path().join("gone");
    for error in [
        refusal(FAILED, &check(&gone)),
        refusal(
            REFUSED,
            &binary(&["run", "--config", gone.to_str().unwrap()])
                .output()
                .unwrap(),
        ),
    ] {
        assert!(
            error.starts_with("flow-agent: there is no file of settings at "),
            "{error}"
        );
    }
}

#[test]
fn the_schema_and_the_example_are_written() {
    let schema = stdout(binary(&["config", "schema"]).output().unwrap());
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let example = stdout(binary(&["config", "example"]).output().unwrap());
    let in_example = example
        .lines()
        .filter_map(|line| line.strip_prefix('#')?.split_once(" = "));
    let mut in_example: Vec<&str> = in_example.map(|(name, _)| name).collect();
    in_example.sort_unstable();
    let in_schema = schema["properties"].as_object().unwrap().keys();
    assert_eq!(in_schema.collect::<Vec<_>>(), in_example);
    assert!(in_example.contains(&"interface"), "{in_example:?}");
}

/// In its own mount namespace, where /etc has nothing else.
#[test]
fn the_default_file_is_read_if_it_exists() {
    if !is_root_or_skip("agent::the_default_file_is_read_if_it_exists") {
        return;
    }
    let show = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec"]).arg(format!(
            "mount -t tmpfs none /etc; mkdir /etc/flow-agent; {script} exec \"$0\" config show"
        ));
        let shell = binary(&[]);
        for (name, value) in shell.get_envs() {
            assert!(value.is_none());
            command.env_remove(name);
        }
        stdout(command.arg(BINARY).output().unwrap())
    };
    let text = show("echo 'max_flows = 7' > /etc/flow-agent/config.toml;");
    assert!(
        text.contains("max_flows = 7  # /etc/flow-agent/config.toml:1:1\n"),
        "{text}"
    );
    let text = show("");
    assert!(text.starts_with("# no settings file\n"), "{text}");
    assert!(text.contains("max_flows = 500000  # default\n"), "{text}");
}
