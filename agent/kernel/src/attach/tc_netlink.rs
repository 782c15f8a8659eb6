//! The netlink messages that add, list and remove BPF filters on a clsact qdisc, each at its own priority and
//! handle.

use std::{
    collections::BTreeMap,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use agent_common::Direction;
use anyhow::{Context as _, Result};
use aya_obj::generated::{
    self, TC_H_CLSACT, TC_H_MAJ_MASK, TC_H_MIN_EGRESS, TC_H_MIN_INGRESS, TCA_BPF_FLAG_ACT_DIRECT,
    tcmsg,
};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::links::netlink::{Message, NetlinkSocket, attributes, field, push_attribute};

const TCMSG_LEN_BYTES: usize = size_of::<tcmsg>();
/// The handle of every clsact qdisc.
const TC_H_CLSACT_HANDLE: u32 = TC_H_CLSACT & TC_H_MAJ_MASK;
const TCA_KIND: u16 = generated::TCA_KIND as u16;
const TCA_OPTIONS: u16 = generated::TCA_OPTIONS as u16;
const TCA_BPF_FD: u16 = generated::TCA_BPF_FD as u16;
const TCA_BPF_NAME: u16 = generated::TCA_BPF_NAME as u16;
const TCA_BPF_FLAGS: u16 = generated::TCA_BPF_FLAGS as u16;
const ETH_P_ALL: u16 = libc::ETH_P_ALL as u16;

/// Where a filter is. No two filters can be at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub ifindex: u32,
    pub direction: Direction,
    pub priority: u16,
    pub handle: u32,
}

/// A socket that changes the filters of the network namespace it was opened in.
pub(super) struct TcSocket {
    netlink: NetlinkSocket,
}

impl TcSocket {
    pub(super) fn open() -> Result<Self> {
        let netlink = NetlinkSocket::open(NETLINK_ROUTE).context("reach the kernel's TC")?;
        Ok(Self { netlink })
    }

    /// The qdisc for ingress filters of each interface, by ifindex: its kind, `clsact` or `ingress`.
    pub(super) fn filter_qdiscs(&mut self) -> Result<BTreeMap<u32, String>> {
        let request = Message {
            kind: libc::RTM_GETQDISC,
            body: vec![0; TCMSG_LEN_BYTES],
        };
        let mut qdiscs = BTreeMap::new();
        for answer in self.netlink.dump(&request).context("list qdiscs")? {
            let body = &answer.body;
            if u32::from_ne_bytes(field(body, 12)?) == TC_H_CLSACT {
                let ifindex = u32::from_ne_bytes(field(body, 4)?);
                qdiscs.insert(ifindex, text(attribute(body, TCA_KIND)));
            }
        }
        Ok(qdiscs)
    }

    /// Adds a clsact qdisc. Fails with EEXIST if the interface has one, or has an `ingress` qdisc instead.
    pub(super) fn add_clsact(&mut self, ifindex: u32) -> Result<()> {
        let mut body = header(ifindex, TC_H_CLSACT_HANDLE, TC_H_CLSACT, 0);
        push_attribute(&mut body, TCA_KIND, b"clsact\0");
        let request = Message {
            kind: libc::RTM_NEWQDISC,
            body,
        };
        self.netlink.change(request, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a filter in direct-action mode. Fails with EEXIST if the place is taken.
    pub(super) fn add(&mut self, place: Place, program: BorrowedFd<'_>, name: &str) -> Result<()> {
        self.put(place, program, name, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Puts a filter in the place of another one: each packet passes one of the two (`cls_bpf_change`). Fails with
    /// ENOENT if the place is free.
    pub(super) fn replace(
        &mut self,
        place: Place,
        program: BorrowedFd<'_>,
        name: &str,
    ) -> Result<()> {
        self.put(place, program, name, NLM_F_REPLACE)
    }

    fn put(&mut self, place: Place, program: BorrowedFd<'_>, name: &str, flags: u16) -> Result<()> {
        let mut options = Vec::new();
        push_attribute(&mut options, TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes());
        let name = [name.as_bytes(), b"\0"].concat();
        push_attribute(&mut options, TCA_BPF_NAME, &name);
        let direct_action = TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes();
        push_attribute(&mut options, TCA_BPF_FLAGS, &direct_action);
        let mut body = place.header();
        push_attribute(&mut body, TCA_KIND, b"bpf\0");
        push_attribute(&mut body, TCA_OPTIONS, &options);
        let request = Message {
            kind: libc::RTM_NEWTFILTER,
            body,
        };
        self.netlink.change(request, flags)
    }

    /// Removes one filter. Fails if it is gone.
    pub(super) fn remove(&mut self, place: Place) -> Result<()> {
        let request = Message {
            kind: libc::RTM_DELTFILTER,
            body: place.header(),
        };
        self.netlink.change(request, 0)
    }

    /// The BPF filters of one priority on one side of an interface, with their names. The kernel leaves out other
    /// priorities (`tcf_chain_dump`, 5.10), which may have thousands.
    pub(super) fn list(
        &mut self,
        ifindex: u32,
        direction: Direction,
        priority: u16,
    ) -> Result<Vec<(Place, String)>> {
        let every = Place {
            ifindex,
            direction,
            priority,
            handle: 0,
        };
        let request = Message {
            kind: libc::RTM_GETTFILTER,
            body: every.header(),
        };
        let mut filters = Vec::new();
        for answer in self.netlink.dump(&request).context("list filters")? {
            let body = &answer.body;
            let options = attribute(body, TCA_OPTIONS);
            if text(attribute(body, TCA_KIND)) != "bpf" {
                continue;
            }
            let place = Place {
                ifindex,
                direction,
                priority: (u32::from_ne_bytes(field(body, 16)?) >> 16) as u16,
                handle: u32::from_ne_bytes(field(body, 8)?),
            };
            let name = attributes(options).find(|(kind, _)| *kind == TCA_BPF_NAME);
            filters.push((place, text(name.map_or(&[], |(_, name)| name))));
        }
        Ok(filters)
    }
}

fn parent(direction: Direction) -> u32 {
    match direction {
        Direction::Ingress => TC_H_MAJ_MASK | TC_H_MIN_INGRESS,
        Direction::Egress => TC_H_MAJ_MASK | TC_H_MIN_EGRESS,
    }
}

impl Place {
    fn header(self) -> Vec<u8> {
        let protocol_be = u32::from(ETH_P_ALL.to_be());
        let info = u32::from(self.priority) << 16 | protocol_be;
        header(self.ifindex, self.handle, parent(self.direction), info)
    }
}

/// `struct tcmsg`.
fn header(ifindex: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for number in [ifindex, handle, parent, info] {
        body.extend(number.to_ne_bytes());
    }
    body
}

/// The value of an attribute after the `tcmsg`; empty if it is absent.
fn attribute(body: &[u8], wanted: u16) -> &[u8] {
    let bytes = body.get(TCMSG_LEN_BYTES..).unwrap_or_default();
    let found = attributes(bytes).find(|(kind, _)| *kind == wanted);
    found.map_or(&[], |(_, value)| value)
}

fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
