//! The memory limit of the control group that this process runs in.

use std::{
    fs,
    path::{Path, PathBuf},
};

const HIERARCHIES: &str = "/sys/fs/cgroup";

/// The memory limit of this process's control group or of one above it, in bytes; `None` without a limit.
pub fn memory_of_this_process() -> Option<u64> {
    // Without control groups there is no limit.
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit(&groups, Path::new(HIERARCHIES))
}

/// The lowest limit of the groups that `/proc/self/cgroup` names and of their parents. `None` if there is none.
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

/// Without a limit the file is missing or contains `max`.
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
