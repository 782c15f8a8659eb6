//! The fields of a flow's line that say who sent its packets. A name of its own for each end, since a line is flat.

use serde::Serialize;

use crate::cgroups::Sender;

/// Who sent the source's packets.
#[derive(Serialize)]
pub(super) struct OfSource<'a> {
    #[serde(rename = "src_cgroup_id")]
    cgroup_id: u64,
    #[serde(rename = "src_cgroup")]
    cgroup: Option<&'a str>,
    #[serde(rename = "src_unit")]
    unit: Option<&'a str>,
    #[serde(rename = "src_slice")]
    slice: Option<&'a str>,
    #[serde(rename = "src_container_id")]
    container_id: Option<&'a str>,
    #[serde(rename = "src_container_runtime")]
    container_runtime: Option<&'a str>,
}

impl<'a> From<Sender<'a>> for OfSource<'a> {
    fn from(sender: Sender<'a>) -> Self {
        Self {
            cgroup_id: sender.cgroup_id,
            cgroup: sender.path(),
            unit: sender.unit(),
            slice: sender.slice(),
            container_id: sender.container_id(),
            container_runtime: sender.container_runtime(),
        }
    }
}

/// Who sent the destination's packets.
#[derive(Serialize)]
pub(super) struct OfDestination<'a> {
    #[serde(rename = "dst_cgroup_id")]
    cgroup_id: u64,
    #[serde(rename = "dst_cgroup")]
    cgroup: Option<&'a str>,
    #[serde(rename = "dst_unit")]
    unit: Option<&'a str>,
    #[serde(rename = "dst_slice")]
    slice: Option<&'a str>,
    #[serde(rename = "dst_container_id")]
    container_id: Option<&'a str>,
    #[serde(rename = "dst_container_runtime")]
    container_runtime: Option<&'a str>,
}

impl<'a> From<Sender<'a>> for OfDestination<'a> {
    fn from(sender: Sender<'a>) -> Self {
        Self {
            cgroup_id: sender.cgroup_id,
            cgroup: sender.path(),
            unit: sender.unit(),
            slice: sender.slice(),
            container_id: sender.container_id(),
            container_runtime: sender.container_runtime(),
        }
    }
}
