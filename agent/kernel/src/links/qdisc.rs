//! How many packets the queueing discipline of each interface dropped.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use super::{
    LinkSocket,
    netlink::{Message, attributes, field},
};

// linux/rtnetlink.h, linux/pkt_sched.h, linux/gen_stats.h.
const TCMSG_LEN_BYTES: usize = 20;
const TC_H_ROOT: u32 = u32::MAX;
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;

impl LinkSocket {
    /// The drops of each root qdisc, including its classes, by ifindex. An interface without a queue has no root qdisc.
    pub fn qdisc_drops(&mut self) -> Result<BTreeMap<u32, u64>> {
        let request = Message {
            kind: libc::RTM_GETQDISC,
            body: vec![0; TCMSG_LEN_BYTES],
        };
        let mut drops = BTreeMap::new();
        for answer in self.netlink.dump(&request).context("list qdiscs")? {
            if let Some((ifindex, dropped)) = root_drops(&answer.body).context("read a qdisc")? {
                drops.insert(ifindex, dropped);
            }
        }
        Ok(drops)
    }
}

/// Reads the drops of a root qdisc from `struct tcmsg` and the `struct gnet_stats_queue` in its attributes.
fn root_drops(body: &[u8]) -> Result<Option<(u32, u64)>> {
    if u32::from_ne_bytes(field(body, 12)?) != TC_H_ROOT {
        return Ok(None);
    }
    let ifindex = u32::from_ne_bytes(field(body, 4)?);
    let find = |bytes, wanted| attributes(bytes).find(|(kind, _)| *kind == wanted);
    let outer = body.get(TCMSG_LEN_BYTES..).unwrap_or_default();
    let Some((_, stats)) = find(outer, TCA_STATS2) else {
        return Ok(None);
    };
    let Some((_, queue)) = find(stats, TCA_STATS_QUEUE) else {
        return Ok(None);
    };
    let dropped = u32::from_ne_bytes(field(queue, 8)?);
    Ok(Some((ifindex, dropped.into())))
}

/// Drops since `before`. A qdisc that was added later began at zero.
pub fn dropped_since(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    let (before, after) = (before.unwrap_or_default(), after?);
    Some(after.checked_sub(before).unwrap_or(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_qdiscs_of_this_namespace_can_be_listed() {
        LinkSocket::open().unwrap().qdisc_drops().unwrap();
    }

    #[test]
    fn a_qdisc_that_is_another_one_counts_from_zero() {
        assert_eq!(dropped_since(Some(3), Some(10)), Some(7));
        assert_eq!(dropped_since(None, Some(10)), Some(10));
        assert_eq!(dropped_since(Some(100), Some(10)), Some(10));
        assert_eq!(dropped_since(Some(100), None), None);
    }
}
