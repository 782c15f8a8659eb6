//! Lists the flowtables of nftables. They forward packets of known connections right after TC ingress of their devices
//! (`nf_flow_offload_ip_hook`, 6.1 to 6.19), so a device that stands on one of these never sees them arrive.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context as _, Result};

use crate::{
    links::netlink::{Message, NetlinkSocket, attributes, field},
    netns::Namespace,
};

const NETLINK_NETFILTER: isize = 12;

// linux/netfilter/nfnetlink.h and nf_tables.h: the subsystem is in the upper byte.
const NEW_FLOWTABLE: u16 = 10 * 256 + 22;
const GET_FLOWTABLE: u16 = 10 * 256 + 23;
/// `struct nfgenmsg`.
const HEADER_LEN_BYTES: usize = 4;
const HOOK: u16 = 3;
const FLAGS: u16 = 7;
const DEVICES: u16 = 3;
const DEVICE_NAME: u16 = 1;
const IN_HARDWARE: u32 = 1;

/// The devices of a network namespace that flowtables may take packets from.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    pub devices: BTreeSet<String>,
    /// Devices of flowtables that offload connections to hardware (`flags offload`).
    pub in_hardware: BTreeSet<String>,
}

impl Offloaded {
    /// Asks only if the module is loaded, since asking would load it.
    pub fn of(namespace: &Namespace) -> Result<Self> {
        if !Path::new("/sys/module/nf_flow_table").exists() {
            return Ok(Self::default());
        }
        namespace.enter(|| Self::ask().context("list the flowtables of nftables"))
    }

    fn ask() -> Result<Self> {
        let request = Message {
            kind: GET_FLOWTABLE,
            body: vec![0; HEADER_LEN_BYTES],
        };
        let mut socket = NetlinkSocket::open(NETLINK_NETFILTER)?;
        socket.fold(&request, |all: &mut Self, answer| {
            if answer.kind == NEW_FLOWTABLE {
                all.add(&answer.body)?;
            }
            Ok(())
        })
    }

    fn add(&mut self, table: &[u8]) -> Result<()> {
        let table = table.get(HEADER_LEN_BYTES..).unwrap_or_default();
        let within = |bytes, wanted| attributes(bytes).filter(move |(kind, _)| *kind == wanted);
        let flags = within(table, FLAGS).map(|(_, flags)| field(flags, 0));
        // The flags are in network byte order.
        let flags = flags.last().transpose()?.map_or(0, u32::from_be_bytes);
        for (_, hook) in within(table, HOOK) {
            for (_, devices) in within(hook, DEVICES) {
                for (_, name) in within(devices, DEVICE_NAME) {
                    let name = String::from_utf8_lossy(name);
                    let name = name.trim_end_matches('\0').to_owned();
                    if flags & IN_HARDWARE != 0 {
                        self.in_hardware.insert(name.clone());
                    }
                    self.devices.insert(name);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::netlink::push_attribute;

    const NESTED: u16 = 1 << 15;

    fn table(devices: &[&str], flags: Option<u32>) -> Vec<u8> {
        let (mut names, mut hook, mut table) = (Vec::new(), Vec::new(), vec![0; HEADER_LEN_BYTES]);
        for device in devices {
            push_attribute(&mut names, DEVICE_NAME, format!("{device}\0").as_bytes());
        }
        push_attribute(&mut hook, 1, &0u32.to_be_bytes());
        push_attribute(&mut hook, DEVICES | NESTED, &names);
        push_attribute(&mut table, 1, b"filter\0");
        push_attribute(&mut table, HOOK | NESTED, &hook);
        if let Some(flags) = flags {
            push_attribute(&mut table, FLAGS, &flags.to_be_bytes());
        }
        table
    }

    #[test]
    fn a_flowtable_names_its_devices_and_whether_the_hardware_has_them() {
        let mut all = Offloaded::default();
        all.add(&table(&["eth0", "eth1"], None)).unwrap();
        all.add(&table(&["eth1"], Some(IN_HARDWARE | 2))).unwrap();
        all.add(&table(&[], Some(2))).unwrap();
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let expected = Offloaded {
            devices: names(&["eth0", "eth1"]),
            in_hardware: names(&["eth1"]),
        };
        assert_eq!(all, expected);
    }
}
