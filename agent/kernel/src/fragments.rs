//! The fragmented datagrams whose ports the programs remember for their later fragments.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use agent_common::{FlowKey, InterfaceId};
use anyhow::{Context as _, Result, ensure};
use aya::maps::MapData;

use super::{bpf, memory::map_memory_bytes};

/// Entries read by one system call.
const BATCH_ENTRIES: usize = 1024;

/// A key begins with the flow. Only the programs use the rest of the key and the values.
const KEY_LEN_BYTES: usize = size_of::<FlowKey>() + 8;
const VALUE_LEN_BYTES: usize = 16;

/// The map of datagrams. The programs write it; the kernel evicts the least recently used entry.
pub struct Fragments {
    pub map: MapData,
    kernel_memory_bytes: u64,
}

impl Fragments {
    /// Fails if the map's key or value size is not the one expected here.
    pub fn new(map: MapData) -> Result<Self> {
        let info = map.info().context("ask for the map of fragments")?;
        let lengths = [info.key_size(), info.value_size()].map(|length| length as usize);
        ensure!(
            lengths == [KEY_LEN_BYTES, VALUE_LEN_BYTES],
            "the entries of the map of fragments have other lengths: {lengths:?}"
        );
        Ok(Self {
            kernel_memory_bytes: map_memory_bytes(&map),
            map,
        })
    }

    /// The kernel allocates all of it when the map is created.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.kernel_memory_bytes
    }

    /// Removes the datagrams of these interfaces, which the programs must no longer know. Another interface may get one
    /// of these indexes while a datagram is still remembered.
    pub fn forget(&self, interfaces: &BTreeSet<InterfaceId>) -> Result<()> {
        self.for_each(|map, key| {
            if !interfaces.contains(&interface_of(key)) {
                return Ok(());
            }
            // The kernel may have evicted it meanwhile.
            bpf::delete_if_there(map, key)
        })
        .context("forget the fragments of an interface that has left")
    }

    fn for_each(
        &self,
        mut visit: impl FnMut(BorrowedFd<'_>, &[u8; KEY_LEN_BYTES]) -> io::Result<()>,
    ) -> io::Result<()> {
        let map = self.map.fd().as_fd();
        let mut keys = vec![[0; KEY_LEN_BYTES]; BATCH_ENTRIES];
        let mut values = vec![[0_u8; VALUE_LEN_BYTES]; BATCH_ENTRIES];
        let mut cursor = None;
        loop {
            let (count, last) = match bpf::read_batch(map, &mut cursor, &mut keys, &mut values) {
                Ok(batch) => batch,
                // A bucket has more entries than the buffers hold.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    let room = keys.len() * 2;
                    keys.resize(room, [0; KEY_LEN_BYTES]);
                    values.resize(room, [0; VALUE_LEN_BYTES]);
                    continue;
                }
                Err(error) => return Err(error),
            };
            for key in &keys[..count] {
                visit(map, key)?;
            }
            if last {
                return Ok(());
            }
        }
    }
}

fn interface_of(key: &[u8; KEY_LEN_BYTES]) -> InterfaceId {
    let number = |at: usize| {
        let bytes = key[at..].first_chunk();
        u32::from_ne_bytes(*bytes.expect("a key is longer than a flow's"))
    };
    InterfaceId {
        netns: number(std::mem::offset_of!(FlowKey, netns)),
        ifindex: number(std::mem::offset_of!(FlowKey, ifindex)),
    }
}

#[cfg(test)]
mod tests {
    use lab::privilege::is_root_or_skip;

    use super::*;
    use crate::load::{Kernel, LoadSettings};

    #[test]
    fn the_datagrams_of_these_interfaces_alone_are_forgotten() {
        /// More than one batch reads, and far fewer than the map has room for.
        const DATAGRAMS: u32 = 3000;
        if !is_root_or_skip("kernel::the_datagrams_of_these_interfaces_alone_are_forgotten") {
            return;
        }
        let kernel = Kernel::load(&LoadSettings {
            min_flows: 16,
            max_flows: 16,
            max_fragments: 65_536,
            sample_rate: 1,
            ..LoadSettings::smallest(vec![0])
        })
        .unwrap();
        let fragments = &kernel.fragments;
        let interfaces =
            [(1, 7), (1, 8), (2, 7)].map(|(netns, ifindex)| InterfaceId { netns, ifindex });
        for number in 0..DATAGRAMS {
            for InterfaceId { netns, ifindex } in interfaces {
                let mut key = [0; KEY_LEN_BYTES];
                let mut write = |at: usize, value: u32| {
                    key[at..at + 4].copy_from_slice(&value.to_ne_bytes());
                };
                write(std::mem::offset_of!(FlowKey, netns), netns);
                write(std::mem::offset_of!(FlowKey, ifindex), ifindex);
                write(size_of::<FlowKey>(), number);
                let map = fragments.map.fd().as_fd();
                bpf::update_by_bytes(map, &key, &[0; VALUE_LEN_BYTES]).unwrap();
            }
        }
        let remembered = || {
            let mut found = interfaces.map(|_| 0);
            let count = |_: BorrowedFd<'_>, key: &_| {
                let id = interface_of(key);
                found[interfaces.iter().position(|known| *known == id).unwrap()] += 1;
                Ok(())
            };
            fragments.for_each(count).unwrap();
            found
        };
        assert_eq!(remembered(), [DATAGRAMS; 3]);
        fragments.forget(&BTreeSet::from([interfaces[0]])).unwrap();
        assert_eq!(remembered(), [0, DATAGRAMS, DATAGRAMS]);
        fragments.forget(&BTreeSet::from(interfaces)).unwrap();
        assert_eq!(remembered(), [0; 3]);
    }
}
