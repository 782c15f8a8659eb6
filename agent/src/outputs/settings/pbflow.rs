//! What the settings say about netobserv's format.

use super::{HostPort, Kind, Refused, Table};
use crate::outputs::{
    encoder::Encoder,
    pbflow::{Pbflow, Settings},
    transport::{Grpc, Transport},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    to: HostPort,
    settings: Settings,
}

impl Target {
    /// As in the settings.
    pub fn address(&self) -> String {
        format!("http://{}", self.to)
    }

    pub fn parts(&self) -> (Box<dyn Encoder>, Transport) {
        let transport = Transport::Grpc(Grpc::new(self.to.clone()));
        (Box::new(Pbflow::new(self.settings.clone())), transport)
    }

    pub fn read(table: &Table, address: &str) -> Result<Self, Refused> {
        let agent_ip = table.text("agent_ip")?.map(|address| {
            let expected = || Refused::at("agent_ip", "expected an address, as 192.0.2.1");
            address.parse().map_err(|_| expected())
        });
        Ok(Self {
            to: HostPort::read_http(Kind::Pbflow, address)?,
            settings: Settings {
                agent_ip: agent_ip.transpose()?,
            },
        })
    }
}
