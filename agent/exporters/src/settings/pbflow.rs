//! Settings of netobserv's format.

use tls::{
    ALPN_H2,
    output::{InForce, OutputTls},
    pem::FileFault,
};

use super::{
    HostPort, Kind, Refused, Table,
    tls::{HTTP, Way},
};
use crate::{
    encoder::Encoder,
    pbflow::{Pbflow, Settings},
    transport::{Endpoint, Grpc, Transport},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    to: HostPort,
    way: Way,
    settings: Settings,
}

impl Target {
    /// The address in the settings.
    pub fn address(&self) -> String {
        format!("{}://{}", self.way.scheme(HTTP), self.to)
    }

    pub fn read_tls(&self) -> Result<Option<OutputTls>, FileFault> {
        self.way.read(ALPN_H2)
    }

    pub fn parts(&self, tls: Option<InForce>) -> (Box<dyn Encoder>, Transport) {
        let endpoint = Endpoint::new(self.to.clone(), tls);
        let transport = Transport::Grpc(Grpc::new(endpoint));
        (Box::new(Pbflow::new(self.settings.clone())), transport)
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
            settings: Settings {
                agent_ip: agent_ip.transpose()?,
            },
        })
    }
}
