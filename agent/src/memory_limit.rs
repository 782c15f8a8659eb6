//! Holds what the settings let the agent take against the memory limit of its control group, since the kernel ends a
//! process that exceeds that.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    agent::Config, asks::MAX_SNAPSHOT_BYTES, hub::DEFAULT_QUEUED_BYTES, kernel::pages::Size,
    output::human,
};

/// As docs/memory.md has them.
const PAGE_BYTES_PER_FLOW: u64 = 171;
/// While one of the two grows or shrinks, its new windows are there beside the old ones.
const PAGES: u64 = 3;
const BYTES_PER_FLOW_BEHIND: u64 = 200;
const TRACKED_BYTES_PER_FLOW: u64 = 176;
/// What waits for the report interval.
const WAITING_BYTES_PER_FLOW: u64 = 40;
/// While a table grows, the smaller one is there, too.
const GROWTH: u64 = 2;
const BYTES_PER_FRAGMENT: u64 = 150;
const TUNNEL_BYTES_PER_FLOW: u64 = 160;
/// A record with all that it can have is twice as long, and one of IPv4 without a tunnel shorter.
const SNAPSHOT_BYTES_PER_FLOW: u64 = 150;
/// Its account, on each CPU.
const BYTES_PER_INTERFACE: u64 = 4144;
/// Beside its queue.
const BYTES_PER_OUTPUT: u64 = 42 << 20;
/// The process before it has a flow.
const BASE_BYTES: u64 = 32 << 20;

const HIERARCHIES: &str = "/sys/fs/cgroup";

/// Says so if the limit is lower than what the agent may take with room for so many interfaces on so many CPUs. Filter
/// rules are not in that.
pub fn warn_if_too_low(config: &Config, max_interfaces: u32, possible_cpus: usize) {
    // Without control groups there is no limit.
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(limit) = limit(&groups, Path::new(HIERARCHIES)) else {
        return;
    };
    let most = most(config, max_interfaces, possible_cpus);
    if most > limit {
        tracing::warn!(
            "with these settings the agent may take {}, and the memory limit of its control group is {}: raise the \
             limit (MemoryMax= in the unit), or lower --max-flows, --max-tracked-flows or --max-interfaces",
            human::bytes(most),
            human::bytes(limit)
        );
    }
}

/// What the agent may take with many flows and consumers that do not read.
pub(crate) fn most(config: &Config, max_interfaces: u32, possible_cpus: usize) -> u64 {
    let flows = u64::from(config.max_flows);
    let tunnels = if config.decapsulate { flows } else { 0 };
    let tracked = config.replica.max_flows as u64;
    let waiting = if config.replica.report_interval.is_zero() {
        0
    } else {
        tracked
    };
    let accounts = u64::from(max_interfaces) * possible_cpus as u64 * BYTES_PER_INTERFACE;
    flows * PAGES * PAGE_BYTES_PER_FLOW
        + 2 * u64::from(Size::behind_flows(config.max_flows)) * BYTES_PER_FLOW_BEHIND
        + (tracked * TRACKED_BYTES_PER_FLOW + waiting * WAITING_BYTES_PER_FLOW) * GROWTH
        + u64::from(config.max_fragments) * BYTES_PER_FRAGMENT
        + tunnels * TUNNEL_BYTES_PER_FLOW
        + 2 * DEFAULT_QUEUED_BYTES
        + config.outputs.len() as u64 * BYTES_PER_OUTPUT
        + MAX_SNAPSHOT_BYTES.min(tracked * SNAPSHOT_BYTES_PER_FLOW)
        + accounts
        + BASE_BYTES
}

/// The lowest limit of the groups that `/proc/self/cgroup` names, and of those that they are in. `None` if there is
/// none.
fn limit(groups: &str, hierarchies: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => (hierarchies.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (hierarchies.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group = root.join(path.trim_start_matches('/'));
        let within = |group: &&Path| group.starts_with(&root);
        let groups = group.ancestors().take_while(within);
        groups.filter_map(|group| read(group.join(file))).min()
    });
    limits.min()
}

/// Without a limit there is no such file, or it has the word `max`.
fn read(file: PathBuf) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_a_group_and_those_around_it_counts() {
        let hierarchies = tempfile::tempdir().unwrap();
        let root = hierarchies.path();
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("system.slice/memory.max", "5000\n");
        write("system.slice/agent.service/memory.max", "max\n");
        write("memory/a/memory.limit_in_bytes", "7000\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        for (groups, expected) in [
            ("0::/system.slice/agent.service\n", Some(5000)),
            ("0::/\n", None),
            ("5:cpu,memory:/a/b\n1:name=systemd:/x\n0::/\n", Some(7000)),
            ("5:cpuset:/a\n", None),
            ("", None),
        ] {
            assert_eq!(limit(groups, root), expected, "{groups}");
        }
    }
}
