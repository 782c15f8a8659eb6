//! Tests that the service's unit allows what the settings may need: memory, open files, and time to stop.

use std::{fs, path::Path, time::Duration};

use hub::DEFAULT_DRAIN_TIMEOUT;
use kernel::limits;
use server::{Limits, MAX_DRAIN_TIMEOUTS};

use crate::{
    agent::{Config, room_for_interfaces},
    commands::settings::{Layers, schema::schema},
    log_queue::LOG_FLUSH_TIMEOUT,
    memory_limit::Needs,
    scan::DETACH_PATIENCE,
};

const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/flow-agent.service");
const SETTINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/settings.md");

/// Time for the last scan. A million flows take less than a second on an idle machine.
const LAST_SCAN: Duration = Duration::from_secs(5);

/// The number in a unit setting that occurs once and ends with `suffix`.
fn number(name: &str, suffix: &str) -> u64 {
    let unit = fs::read_to_string(UNIT).unwrap();
    let values = unit.lines().filter_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix('=')?;
        value.strip_suffix(suffix)?.parse().ok()
    });
    let [value] = values.collect::<Vec<_>>()[..] else {
        panic!("one {name}=NUMBER{suffix} in {UNIT}");
    };
    value
}

fn defaults() -> Config {
    let settings = Layers::of_a_file(Path::new("/dev/null")).read().unwrap();
    settings.config().unwrap()
}

/// The largest value of a setting.
fn most(setting: &str) -> usize {
    let most = schema()["properties"][setting]["maximum"].as_u64();
    most.unwrap_or_else(|| panic!("{setting} has a maximum")) as usize
}

#[test]
fn the_units_memory_is_enough_for_the_default_settings() {
    let limit = number("MemoryMax", "M") << 20;
    // As `Environment=` in the unit has it, and a collector that may ask for a report interval.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let output = "[[output]]\nkind = 'collector'\naddress = 'http://a:1'\n";
    fs::write(&file, output).unwrap();
    let config = Config {
        carry_over: true,
        ..Layers::of_a_file(&file).read().unwrap().config().unwrap()
    };
    // On larger machines the agent warns at its start.
    for cpus in 1..=512 {
        for have_patterns in [false, true] {
            let interfaces = room_for_interfaces(1, have_patterns, cpus);
            let most = Needs::of(&config, interfaces, cpus).most();
            assert!(
                most <= limit,
                "{most} bytes of {limit} with {cpus} CPUs, patterns: {have_patterns}"
            );
        }
    }
}

#[test]
fn what_waits_for_reports_and_each_output_need_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let most = |settings: &str| {
        fs::write(&file, settings).unwrap();
        let settings = Layers::of_a_file(&file).read().unwrap();
        Needs::of(&settings.config().unwrap(), 64, 2).most()
    };
    let waiting = "report_interval = '1m'\n";
    let one = format!("{waiting}output = ['parquet=/a']\n");
    let two = format!("{waiting}output = ['parquet=/a', 'parquet=/b']\n");
    let needed = ["", waiting, &one, &two].map(most);
    assert!(needed.is_sorted_by(|less, more| less < more), "{needed:?}");
    let to_collector = |more: &str| {
        let address = "kind = 'collector'\naddress = 'http://a:1'";
        most(&format!("[[output]]\n{address}\n{more}"))
    };
    let [may_ask, may_not] = ["", "max_report_interval = '0s'\n"].map(to_collector);
    assert_eq!(may_ask - may_not, needed[1] - needed[0]);
}

/// systemd passes the names of all stored descriptors in one environment variable. If it were longer than the kernel allows
/// (`MAX_ARG_STRLEN`), the service could not start again.
#[test]
fn the_names_of_all_stored_descriptors_fit_into_one_variable() {
    const MAX_VARIABLE_BYTES: u64 = 128 << 10;
    /// `carry-map.`, a UUID, a dot, and 15 bytes for what it is.
    const LONGEST_NAME_BYTES: u64 = 62;
    let most = number("FileDescriptorStoreMax", "");
    let needed = "LISTEN_FDNAMES=".len() as u64 + most * (LONGEST_NAME_BYTES + 1);
    assert!(needed < MAX_VARIABLE_BYTES, "{needed} bytes");
}

/// In one network namespace, with a Unix socket and a TCP address.
#[test]
fn the_units_open_files_are_enough_whatever_the_settings() {
    let limit = number("LimitNOFILE", "");
    let hooks = most("max_interfaces") * defaults().attach.directions.count();
    let limits = Limits {
        max_connections: most("max_connections") as u32,
        ..Limits::default()
    };
    let needed = limits::needed(hooks, 1, true) + limits.files(2) as u64;
    assert!(needed <= limit, "{needed} files of {limit}");
}

/// Stdout is flushed after consumers and outputs are.
#[test]
fn systemd_waits_longer_for_the_end_than_the_agent_for_its_consumers() {
    let timeout = Duration::from_secs(number("TimeoutStopSec", "s"));
    let told = DEFAULT_DRAIN_TIMEOUT * MAX_DRAIN_TIMEOUTS + DEFAULT_DRAIN_TIMEOUT;
    let needed = DETACH_PATIENCE + LAST_SCAN + told + LOG_FLUSH_TIMEOUT;
    assert!(needed <= timeout, "{needed:?} of {timeout:?}");
}

/// Each namespace has four threads: for interface events, attaching, detaching and the place of VLAN tags. The rest are
/// the workers, the log and blocking calls.
#[test]
fn the_units_tasks_are_enough_for_as_many_namespaces_as_the_settings_promise() {
    const THREADS_PER_NAMESPACE: u64 = 4;
    const NAMESPACES: u64 = 50;
    const OTHERS: u64 = 50;
    let limit = number("TasksMax", "");
    let promise = fs::read_to_string(SETTINGS).unwrap().replace('\n', " ");
    for part in [
        "as long as the first, four threads, and".to_owned(),
        format!("The unit's `TasksMax={limit}` is enough for fifty."),
    ] {
        assert!(promise.contains(&part), "{part}");
    }
    let needed = NAMESPACES * THREADS_PER_NAMESPACE + OTHERS;
    assert!(needed <= limit, "{needed} threads of {limit}");
}
