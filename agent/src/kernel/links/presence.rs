//! Interfaces that are watched come in; which of them have left this network namespace goes out.

use std::collections::BTreeSet;

use anyhow::Result;

use super::{LinkSocket, netlink::errno};

/// Remembers what is gone: an index is not given anew to what comes back under the same name.
pub struct Presence {
    socket: LinkSocket,
    gone: BTreeSet<u32>,
}

impl Presence {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<Self> {
        Ok(Self {
            socket: LinkSocket::open()?,
            gone: BTreeSet::new(),
        })
    }

    /// Looks after one interface; warns once that it is gone.
    pub fn look(&mut self, ifindex: u32, name: &str) {
        if self.gone.contains(&ifindex) {
            return;
        }
        if let Err(error) = self.socket.counters(ifindex)
            && errno(&error) == Some(libc::ENODEV)
        {
            tracing::warn!(
                interface = name,
                ifindex,
                "the interface is gone and counts no more; should it come back, restart the agent"
            );
            self.gone.insert(ifindex);
        }
    }

    pub fn is_gone(&self, ifindex: u32) -> bool {
        self.gone.contains(&ifindex)
    }
}
