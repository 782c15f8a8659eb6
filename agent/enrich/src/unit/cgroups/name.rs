//! Derives the systemd unit and the container from a cgroup's path.
//!
//! systemd: <https://systemd.io/CONTROL_GROUP_INTERFACE>. Container runtimes name a container's cgroup by its id. If
//! systemd makes the cgroup, they add a prefix of their own; otherwise it is often below a folder of their own.

use proto::{Cgroup, limits::MAX_CGROUP_PATH_BYTES};

/// Units that processes run in, by the end of their name.
const UNITS: [&str; 5] = [".service", ".scope", ".socket", ".mount", ".swap"];

const SLICE: &str = ".slice";

/// The prefix of a container id, and its runtime. A prefix that starts with another prefix comes before it.
const PREFIXES: [(&str, &str); 6] = [
    ("docker-", "docker"),
    ("libpod-payload-", "podman"),
    ("libpod-", "podman"),
    ("cri-containerd-", "containerd"),
    ("nerdctl-", "containerd"),
    ("crio-", "cri-o"),
];

const CONTAINER_ID_LEN: usize = 64;

/// `path` begins at the root of the hierarchy.
pub(super) fn cgroup(id: u64, path: &str) -> Cgroup {
    let (slice, unit) = unit(path);
    let (container_id, container_runtime) = container(path).unwrap_or_default();
    Cgroup {
        id,
        path: if path.len() > MAX_CGROUP_PATH_BYTES {
            String::new()
        } else {
            path.to_owned()
        },
        unit: unit.to_owned(),
        slice: slice.to_owned(),
        container_id: container_id.to_owned(),
        container_runtime: container_runtime.to_owned(),
    }
}

/// The slice and the unit. As in systemd, slices come first, and the unit is the first part that is not a slice.
/// Everything below belongs to the unit.
pub(super) fn unit(path: &str) -> (&str, &str) {
    let mut slice = "";
    for part in parts(path) {
        // systemd escapes a name with `_` if the kernel could take it for one of its own files.
        let part = part.strip_prefix('_').unwrap_or(part);
        if part.ends_with(SLICE) {
            slice = part;
        } else if UNITS.iter().any(|end| part.ends_with(end)) {
            return (slice, part);
        } else {
            break;
        }
    }
    (slice, "")
}

/// The id and the runtime of the outermost container. The container itself names everything below.
fn container(path: &str) -> Option<(&str, &str)> {
    let mut above = "";
    for part in parts(path) {
        if let Some(found) = named(part, above) {
            return Some(found);
        }
        above = part;
    }
    None
}

fn named<'a>(part: &'a str, above: &str) -> Option<(&'a str, &'static str)> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    for (prefix, runtime) in PREFIXES {
        if let Some(id) = name.strip_prefix(prefix)
            && is_id(id)
        {
            return Some((id, runtime));
        }
    }
    let runtime = if above == "docker" { "docker" } else { "" };
    is_id(part).then_some((part, runtime))
}

fn is_id(text: &str) -> bool {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == CONTAINER_ID_LEN && text.bytes().all(is_digit)
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn units_and_slices_are_those_that_systemd_names() {
        for (path, slice, unit) in [
            ("/", "", ""),
            ("/init.scope", "", "init.scope"),
            (
                "/system.slice/nginx.service",
                "system.slice",
                "nginx.service",
            ),
            ("/system.slice/ssh.socket", "system.slice", "ssh.socket"),
            ("/system.slice", "system.slice", ""),
            (
                "/system.slice/system-getty.slice/getty@tty1.service",
                "system-getty.slice",
                "getty@tty1.service",
            ),
            (
                "/user.slice/user-1000.slice/session-3.scope",
                "user-1000.slice",
                "session-3.scope",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/editor.service",
                "user-1000.slice",
                "user@1000.service",
            ),
            (
                "/system.slice/postgresql@15-main.service/sub",
                "system.slice",
                "postgresql@15-main.service",
            ),
            (
                "/system.slice/_cgroup.service",
                "system.slice",
                "cgroup.service",
            ),
            ("/docker/abc", "", ""),
            ("/kubepods/besteffort/pod1/x.service", "", ""),
        ] {
            let cgroup = cgroup(7, path);
            assert_eq!((cgroup.id, cgroup.path.as_str()), (7, path));
            assert_eq!(
                (cgroup.slice.as_str(), cgroup.unit.as_str()),
                (slice, unit),
                "{path}"
            );
            assert_eq!(
                (
                    cgroup.container_id.as_str(),
                    cgroup.container_runtime.as_str()
                ),
                ("", ""),
                "{path}"
            );
        }
    }

    #[test]
    fn containers_are_those_of_the_runtimes() {
        let kubernetes = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice";
        for (path, runtime) in [
            (format!("/system.slice/docker-{ID}.scope"), "docker"),
            (format!("/docker/{ID}"), "docker"),
            (format!("/docker/{ID}/init"), "docker"),
            (
                format!("/machine.slice/libpod-{ID}.scope/container"),
                "podman",
            ),
            (
                format!("/user.slice/user-1.slice/user@1.service/user.slice/libpod-{ID}.scope"),
                "podman",
            ),
            (
                format!("/system.slice/web.service/libpod-payload-{ID}"),
                "podman",
            ),
            (
                format!("{kubernetes}/cri-containerd-{ID}.scope"),
                "containerd",
            ),
            (format!("{kubernetes}/crio-{ID}.scope"), "cri-o"),
            (format!("/system.slice/nerdctl-{ID}.scope"), "containerd"),
            (format!("/kubepods/burstable/pod2/{ID}"), ""),
        ] {
            let cgroup = cgroup(1, &path);
            assert_eq!(
                (
                    cgroup.container_id.as_str(),
                    cgroup.container_runtime.as_str()
                ),
                (ID, runtime),
                "{path}"
            );
        }
        let inner = ID.replace('0', "f");
        let nested = cgroup(
            1,
            &format!("/system.slice/docker-{ID}.scope/docker/{inner}"),
        );
        assert_eq!(nested.container_id, ID);
        assert_eq!(nested.unit, format!("docker-{ID}.scope"));
    }

    #[test]
    fn a_path_that_is_too_long_is_not_kept_and_its_unit_is() {
        let long = format!(
            "/system.slice/a.service{}",
            "/x".repeat(MAX_CGROUP_PATH_BYTES)
        );
        let cgroup = cgroup(1, &long);
        assert_eq!(
            (cgroup.path.as_str(), cgroup.unit.as_str()),
            ("", "a.service")
        );
    }

    #[test]
    fn what_only_looks_like_a_container_is_none() {
        for path in [
            format!("/machine.slice/libpod-conmon-{ID}.scope"),
            format!("/machine.slice/crio-conmon-{ID}.scope"),
            format!("/system.slice/docker-{}.scope", &ID[1..]),
            format!("/system.slice/docker-{}.scope", ID.to_uppercase()),
            format!("/{ID}0"),
        ] {
            assert_eq!(cgroup(1, &path).container_id, "", "{path}");
        }
    }
}
