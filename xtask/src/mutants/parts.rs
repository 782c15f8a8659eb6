//! Which files cargo-mutants changes, and which tests have to notice.

/// The files that cargo-mutants changes.
pub const FILES: &[&str] = &[
    "agent-common/src/**/*.rs",
    "agent/src/filter.rs",
    "agent/src/filter/**/*.rs",
    "agent/src/replica.rs",
    "agent/src/replica/**/*.rs",
    "agent/src/batch.rs",
    "agent/src/batch/**/*.rs",
    "agent/src/hub.rs",
    "agent/src/hub/**/*.rs",
    "agent/src/server.rs",
    "agent/src/server/**/*.rs",
    "agent/src/scan.rs",
    "agent/src/scan/**/*.rs",
    "agent/src/collector/**/*.rs",
    "agent/src/query.rs",
    "agent/src/query/**/*.rs",
    "agent/src/outputs/clickhouse.rs",
    "agent/src/outputs/clickhouse/**/*.rs",
    "agent/src/outputs/delivery.rs",
    "agent/src/outputs/delivery/**/*.rs",
    "agent/src/outputs/kafka.rs",
    "agent/src/outputs/kafka/**/*.rs",
    "agent/src/token.rs",
    "agent/src/in_force.rs",
    "agent/src/tls/**/*.rs",
];

/// Files whose faults the same tests have to notice.
pub struct Part {
    pub name: &'static str,
    /// How the paths of its files begin. A file belongs to the first part that fits.
    pub path: &'static str,
    pub package: &'static str,
    /// The packages whose tests have to fail.
    pub tests_of: &'static [&'static str],
    /// Their binaries with those tests, as arguments of `cargo test`. Behind `--` they would apply to the
    /// test runs alone, and each fault would link every test of the package.
    pub binaries: &'static [&'static str],
    /// Parts of the names of the tests to run; if empty, all tests.
    pub tests: &'static [&'static str],
    pub needs_root: bool,
    /// Further arguments of cargo-mutants.
    pub arguments: &'static [&'static str],
}

pub const PARTS: [Part; 7] = [
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
    // A scan needs the kernel and real packets. These are as few tests as notice every fault.
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
        // With a fault that stops all scans, a test waits until it is killed.
        arguments: &["--timeout-multiplier=5"],
    },
    // Consumers on real sockets. Most need neither privilege nor the kernel's programs; the others skip themselves
    // without root.
    Part {
        name: "server",
        path: "agent/src/server",
        package: "agent",
        tests_of: &["agent"],
        binaries: &["--lib", "--test=agent"],
        tests: &[
            "server::",
            "hub::",
            "client::",
            "stream::",
            "tls::",
            "lifecycle::passed",
            "doors::",
            "snapshots::",
            "collect::consumers",
            "collect::limits",
            "collect::tokens",
        ],
        needs_root: false,
        arguments: &[],
    },
    // Agents' calls on real sockets, and disks that are full. Without root those skip themselves.
    Part {
        name: "collector",
        path: "agent/src/collector/",
        package: "agent",
        tests_of: &["agent"],
        binaries: &["--lib", "--test=agent"],
        tests: &[
            "collector::",
            "collect::calls",
            "collect::consumers",
            "collect::limits",
            "collect::pairs",
            "a_collector_that_stops_has_stored_what_it_took_and_tells_agents_to_go",
            "what_a_full_disk_does_not_take_is_not_acknowledged_and_goes_to_another_collector",
        ],
        needs_root: false,
        arguments: &[],
    },
    Part {
        name: "query",
        path: "agent/src/query",
        package: "agent",
        tests_of: &["agent"],
        binaries: &["--lib"],
        tests: &["query::"],
        needs_root: false,
        arguments: &[],
    },
    Part {
        name: "outputs",
        path: "agent/src/outputs/",
        package: "agent",
        tests_of: &["agent"],
        binaries: &["--lib", "--test=agent"],
        tests: &[
            "outputs::clickhouse::",
            "outputs::delivery::",
            "outputs::kafka::",
            "outputs::collector",
            "outputs::spool",
            "query::",
            "collect::kafka",
        ],
        needs_root: false,
        arguments: &[],
    },
    Part {
        name: "agent",
        path: "agent/",
        package: "agent",
        tests_of: &["agent"],
        binaries: &["--lib"],
        tests: &[],
        needs_root: false,
        arguments: &[],
    },
];

/// Which part a file or a pattern belongs to.
pub fn part_of(file: &str) -> Option<&'static str> {
    let part = PARTS.iter().find(|part| file.starts_with(part.path));
    part.map(|part| part.name)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::workspace::root;

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

    /// Whether a part's package has a file or a folder of that name, with tests or beside them.
    fn is_module(part: &Part, name: &str) -> bool {
        let path = name.trim_end_matches("::").replace("::", "/");
        let package = root().join(part.package);
        let places = ["src", "tests/agent"].map(|place| package.join(place).join(&path));
        places
            .iter()
            .any(|place| place.is_dir() || place.with_extension("rs").is_file())
    }

    #[test]
    fn every_file_has_a_part_and_every_test_of_a_part_exists() {
        for file in FILES {
            assert!(part_of(file).is_some(), "{file}");
        }
        for part in PARTS {
            let folder = root().join(part.package).join("tests");
            for name in part.tests {
                let test = format!("#[test]\nfn {name}() {{");
                let exists = sources(&folder).contains(&test) || is_module(&part, name);
                assert!(exists, "{name}");
            }
        }
    }
}
