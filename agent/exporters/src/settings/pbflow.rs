//! Settings of netobserv's format.

use std::net::{IpAddr, UdpSocket};

use formats::{encoder::Encoder, pbflow::Pbflow};
use tls::{
    ALPN_H2,
    output::{OutputTls, ReloadableOutputTls},
    pem::FileFault,
};

use super::{
    HostPort, Kind, Refused, Table,
    tls::{HTTP, Way},
};
use crate::transport::{Endpoint, Grpc, Transport};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    to: HostPort,
    way: Way,
    /// `agent_ip` of the records; by default the address that this host sends from.
    agent_ip: Option<IpAddr>,
}

impl Target {
    /// The address in the settings.
    pub fn address(&self) -> String {
        format!("{}://{}", self.way.scheme(HTTP), self.to)
    }

    pub fn read_tls(&self) -> Result<Option<OutputTls>, FileFault> {
        self.way.read(ALPN_H2)
    }

    pub fn parts(&self, tls: Option<ReloadableOutputTls>) -> (Box<dyn Encoder>, Transport) {
        let endpoint = Endpoint::new(self.to.clone(), tls);
        let transport = Transport::Grpc(Grpc::new(endpoint));
        let agent_ip = self.agent_ip;
        let encoder = Pbflow::new(move || agent_ip.or_else(own_address));
        (Box::new(encoder), transport)
    }

    pub fn read(table: &Table, address: &str) -> Result<Self, Refused> {
        let agent_ip = table.text("agent_ip")?.map(|address| {
            let expected = || Refused::at("agent_ip", "expected an address, as 192.0.2.1");
            address.parse().map_err(|_| expected())
        });
        let expected = || Refused::at("address", format!("expected {}", Kind::Pbflow.addresses()));
        let (way, rest) = Way::of(table, address, HTTP)?.ok_or_else(expected)?;
        let to = HostPort::read(rest).ok_or_else(expected)?;
        way.refuse_host(&to.host)?;
        Ok(Self {
            to,
            way,
            agent_ip: agent_ip.transpose()?,
        })
    }
}

/// The address that the kernel would send from over the default route. Connecting a UDP socket sends nothing.
fn own_address() -> Option<IpAddr> {
    // Documentation addresses that no host has (RFC 5737, RFC 3849).
    let ways = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    ways.into_iter().find_map(|(from, to)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_own_address_is_one_of_this_host() {
        let Some(address) = own_address() else {
            // Without a default route there is none.
            return;
        };
        UdpSocket::bind((address, 0)).unwrap();
    }
}
