//! The agents of this network namespace tell each other apart: a number goes out that no other living
//! agent has.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

use anyhow::{Context as _, Result, bail};

const MAX_INSTANCES: u16 = 64;

/// A number, held until the value is dropped or the process ends, whatever ends it.
///
/// It is the name of an abstract Unix socket. Those live in the network namespace, as the filters
/// do: agents in two containers with the host's network see each other's, though not each other's
/// files.
pub(super) struct Instance {
    pub number: u16,
    _socket: UnixDatagram,
}

impl Instance {
    /// The lowest number that is free.
    pub(super) fn claim_any() -> Result<Self> {
        for number in 1..=MAX_INSTANCES {
            if let Some(instance) = Self::claim(number)? {
                return Ok(instance);
            }
        }
        bail!("{MAX_INSTANCES} agents run in this network namespace already: stop one of them")
    }

    /// `None` where a living agent has the number.
    pub(super) fn claim(number: u16) -> Result<Option<Self>> {
        let name = format!("flow-agent/clsact/{number}");
        let socket = SocketAddr::from_abstract_name(&name)
            .and_then(|address| UnixDatagram::bind_addr(&address));
        match socket {
            Ok(socket) => Ok(Some(Self {
                number,
                _socket: socket,
            })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => {
                Err(error).with_context(|| format!("claim the abstract Unix socket {name}"))
            }
        }
    }
}
