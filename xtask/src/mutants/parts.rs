//! The files that cargo-mutants changes, and the tests that must notice.

/// The files that cargo-mutants changes.
pub const FILES: &[&str] = &[
    "agent-common/src/**/*.rs",
    "agent/rules/src/**/*.rs",
    "agent/flows/src/**/*.rs",
    "agent/proto/src/**/*.rs",
    "agent/hub/src/**/*.rs",
    "agent/server/src/**/*.rs",
    "agent/src/scan.rs",
    "agent/src/scan/**/*.rs",
    "agent/collector/src/**/*.rs",
    "agent/view/src/query.rs",
    "agent/view/src/query/**/*.rs",
    "agent/exporters/src/clickhouse.rs",
    "agent/exporters/src/clickhouse/**/*.rs",
    "agent/exporters/src/delivery.rs",
    "agent/exporters/src/delivery/**/*.rs",
    "agent/exporters/src/kafka.rs",
    "agent/exporters/src/kafka/**/*.rs",
    "agent/tls/src/**/*.rs",
];

/// Files whose faults are caught by the same tests.
pub struct Part {
    pub name: &'static str,
    /// The common prefix of its files' paths. A file belongs to the first part that matches.
    pub path: &'static str,
    pub package: &'static str,
    /// The packages with tests that must fail.
    pub tests_of: &'static [&'static str],
    /// The test binaries to build, as arguments of `cargo test`. Behind `--` they would apply only to the test runs,
    /// and each fault would link every test of the package.
    pub binaries: &'static [&'static str],
    /// Parts of the names of the tests to run; empty for all tests.
    pub tests: &'static [&'static str],
    pub needs_root: bool,
    /// Further arguments of cargo-mutants.
    pub arguments: &'static [&'static str],
}

pub const PARTS: [Part; 11] = [
    Part {
        name: "agent-common",
        path: "agent-common/",
        package: "agent-common",
        // The corpus reads every frame with this parser.
        tests_of: &["agent-common", "corpus"],
        binaries: &["--tests"],
        tests: &[],
        needs_root: false,
        arguments: &[],
    },
    // A scan needs the kernel and real packets. These are the fewest tests that notice every fault.
    Part {
        name: "scan",
        path: "agent/src/scan",
        package: "agent",
        tests_of: &["agent"],
        binaries: &["--lib", "--test=agent"],
        tests: &[
            "scan::",
            "snapshots::",
            "metrics::traffic",
            "a_closed_flow_ends_when_the_linger_is_over",
            "a_connection_with_used_ports_is_a_flow_of_its_own",
            "both_directions_are_one_flow_from_the_sender_of_the_syn",
            "a_full_table_keeps_what_it_has_and_counts_what_it_refuses",
            "a_set_with_a_fault_is_refused_as_a_whole_and_the_old_one_stays",
            "a_renamed_interface_is_told_by_its_new_name",
            "a_fragment_joins_no_datagram_of_an_interface_that_has_left",
            "the_status_tells_what_the_scans_found_and_took",
            "packets_of_an_unknown_interface_are_counted_as_such",
            "ten_tables_of_new_flows_in_one_interval_are_all_counted",
            "all_that_generic_xdp_counts_is_inexact",
            "super_frames_of_a_virtual_machine_are_counted_at_tc",
            "an_offload_that_is_switched_on_under_xdp_marks_the_account",
        ],
        needs_root: true,
        // A fault that stops all scans makes a test wait until it is killed.
        arguments: &["--timeout-multiplier=5"],
    },
    // Consumers on real sockets. Most need neither privileges nor the kernel programs; the others skip themselves
    // without root.
    Part {
        name: "server",
        path: "agent/server/",
        package: "server",
        tests_of: &["server", "hub", "agent"],
        binaries: &["--lib", "--test=agent"],
        tests: &[
            "tests::",
            "stream::",
            "tls::",
            "lifecycle::passed",
            "admission::",
            "snapshots::",
            "collect::consumers",
            "collect::limits",
            "collect::tokens",
            "metrics::",
        ],
        needs_root: false,
        arguments: &[],
    },
    // Calls of agents on real sockets, and full disks. The tests with full disks skip themselves without root.
    Part {
        name: "collector",
        path: "agent/collector/",
        package: "collector",
        tests_of: &["collector", "agent"],
        binaries: &["--lib", "--test=agent"],
        tests: &[
            "tests::",
            "collect::calls",
            "collect::consumers",
            "collect::limits",
            "collect::tokens",
            "collect::pairs",
            "a_collector_that_stops_has_stored_what_it_took_and_tells_agents_to_go",
            "what_a_full_disk_does_not_take_is_not_acknowledged_and_goes_to_another_collector",
        ],
        needs_root: false,
        arguments: &[],
    },
    Part {
        name: "query",
        path: "agent/view/src/query",
        package: "view",
        tests_of: &["view"],
        binaries: &["--lib"],
        tests: &["query::"],
        needs_root: false,
        arguments: &[],
    },
    Part {
        name: "outputs",
        path: "agent/exporters/",
        package: "exporters",
        tests_of: &["exporters", "view", "agent"],
        binaries: &["--lib", "--test=agent"],
        tests: &[
            "tests::",
            "outputs::collector",
            "outputs::spool",
            "collect::kafka",
        ],
        needs_root: false,
        arguments: &[],
    },
    // The encoder's tests hold rules against records, too.
    units("rules", "agent/rules/", &["rules", "flows"]),
    // The encoder's tests compare written with read batches, and the collector's tests cover batches that no agent
    // sends. Others use its parts.
    units(
        "proto",
        "agent/proto/",
        &[
            "proto",
            "flows",
            "formats",
            "collector",
            "exporters",
            "server",
            "view",
        ],
    ),
    units("flows", "agent/flows/", &["flows"]),
    units("hub", "agent/hub/", &["hub", "server"]),
    units(
        "tls",
        "agent/tls/",
        &["tls", "exporters", "server", "collector"],
    ),
];

/// A crate whose faults are caught by unit tests.
const fn units(
    package: &'static str,
    path: &'static str,
    tests_of: &'static [&'static str],
) -> Part {
    Part {
        name: package,
        path,
        package,
        tests_of,
        binaries: &["--lib"],
        tests: &[],
        needs_root: false,
        arguments: &[],
    }
}

/// The part of a file or a pattern.
pub fn part_of(file: &str) -> Option<&'static str> {
    let part = PARTS.iter().find(|part| file.starts_with(part.path));
    part.map(|part| part.name)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::workspace::{package_folder, root};

    fn sources(folder: &Path) -> String {
        let mut text = String::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                text += &sources(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text += &fs::read_to_string(path).unwrap();
            }
        }
        text
    }

    /// Whether a package with a part's tests has a module of that name, as a file or a folder.
    fn is_module(part: &Part, name: &str) -> bool {
        let path = name.trim_end_matches("::").replace("::", "/");
        let places = part.tests_of.iter().flat_map(|package| {
            ["src", "tests/agent"].map(|place| package_folder(package).join(place).join(&path))
        });
        places
            .into_iter()
            .any(|place| place.is_dir() || place.with_extension("rs").is_file())
    }

    #[test]
    fn every_file_has_a_part_and_every_test_of_a_part_exists() {
        for file in FILES {
            assert!(part_of(file).is_some(), "{file}");
            let place = root().join(file.split("**").next().unwrap_or(file));
            assert!(place.exists(), "no source fits {file}");
        }
        for part in PARTS {
            let tests = sources(&package_folder("agent").join("tests"));
            for name in part.tests {
                let test = format!("#[test]\nfn {name}() {{");
                // Unit tests are in modules of this name.
                let exists = name == &"tests::" || tests.contains(&test) || is_module(&part, name);
                assert!(exists, "{name}");
            }
        }
    }
}
