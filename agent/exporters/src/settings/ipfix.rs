//! Settings of IPFIX: destination and form of records.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use formats::{
    encoder::Encoder,
    ipfix::{DEFAULT_TEMPLATE_REFRESH, Ipfix, Octets, REVERSE_ENTERPRISE, Settings},
};
use proto::AgentIdentity;

use super::{FILE_KEYS, HostPort, Kind, Refused, Table};
use crate::{
    domain::Claimed,
    files::{Rotated, Rotation, whole},
    transport::{Tcp, Transport, Udp},
};

/// Shorter messages might not hold one flow's records.
pub(super) const LEAST_MESSAGE_LEN_BYTES: u64 = 512;
/// With a shorter interval there would be nothing but templates.
const LEAST_REFRESH: Duration = Duration::from_secs(1);

/// An IPFIX output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    to: To,
    settings: Settings,
    /// The domain of flows; by default a number that no other agent has.
    observation_domain: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum To {
    Udp(HostPort),
    Tcp(HostPort),
    File { path: PathBuf, rotation: Rotation },
}

fn files(path: &Path, rotation: &Rotation) -> Rotated {
    Rotated::new(path.to_owned(), rotation.clone(), whole::ipfix)
}

impl Target {
    /// The address in the settings.
    pub fn address(&self) -> String {
        match &self.to {
            To::Udp(to) => format!("udp://{to}"),
            To::Tcp(to) => format!("tcp://{to}"),
            To::File { path, .. } => path.display().to_string(),
        }
    }

    pub fn files(&self) -> Option<Rotated> {
        match &self.to {
            To::Udp(_) | To::Tcp(_) => None,
            To::File { path, rotation } => Some(files(path, rotation)),
        }
    }

    /// `place` distinguishes this output from others, including those of other agents on this host.
    pub fn parts(&self, place: &str) -> (Box<dyn Encoder>, Transport) {
        let transport = match &self.to {
            To::Udp(to) => {
                let every = self.settings.template_refresh;
                let every = every.unwrap_or(DEFAULT_TEMPLATE_REFRESH);
                Transport::Udp(Udp::new(to.clone(), every))
            }
            To::Tcp(to) => Transport::Tcp(Tcp::new(to.clone())),
            To::File { path, rotation } => Transport::File(files(path, rotation)),
        };
        let (place, wished) = (place.to_owned(), self.observation_domain);
        // The claim lasts as long as the encoder.
        let mut claimed = None;
        let claim = move |agent: Option<&AgentIdentity>| {
            claimed.insert(Claimed::by(agent, &place, wished)).domains
        };
        let encoder = Ipfix::new(self.settings.clone(), claim);
        (Box::new(encoder), transport)
    }

    pub fn read(table: &Table, address: &str) -> Result<Self, Refused> {
        let expected = || Refused::at("address", format!("expected {}", Kind::Ipfix.addresses()));
        let host = |text: &str| HostPort::read(text).ok_or_else(expected);
        let to = if let Some(to) = address.strip_prefix("udp://") {
            To::Udp(host(to)?)
        } else if let Some(to) = address.strip_prefix("tcp://") {
            To::Tcp(host(to)?)
        } else if address.contains("://") {
            return Err(expected());
        } else {
            To::File {
                path: address.into(),
                rotation: table.rotation()?,
            }
        };
        if !matches!(to, To::File { .. })
            && let Some(key) = FILE_KEYS.iter().find(|key| table.0.contains_key(**key))
        {
            return Err(Refused::at(key, "only files have such a setting"));
        }
        let mut settings = match to {
            To::Udp(_) => Settings::datagrams(),
            To::Tcp(_) | To::File { .. } => Settings::stream(),
        };
        settings.is_biflow = !table.boolean("uniflow")?.unwrap_or_default();
        settings.end_records = table.boolean("end_records")?.unwrap_or_default();
        settings.octets = match table.text("octets")?.as_deref() {
            None | Some("ip") => Octets::Ip,
            Some("layer2") => Octets::Layer2,
            Some(_) => return Err(Refused::at("octets", "expected one of ip, layer2")),
        };
        if let Some(refresh) = table.time("template_refresh")? {
            if settings.template_refresh.is_none() {
                let message = "only datagrams need templates again";
                return Err(Refused::at("template_refresh", message));
            }
            if refresh < LEAST_REFRESH {
                let message = "expected a time, \"1s\" or longer";
                return Err(Refused::at("template_refresh", message));
            }
            settings.template_refresh = Some(refresh);
        }
        if let Some(bytes) = table.integer("message_bytes")? {
            let most = "expected a number, 65535 or less, without quotes";
            let bytes = u16::try_from(bytes).map_err(|_| Refused::at("message_bytes", most))?;
            settings.message_len_bytes = bytes.into();
        }
        let domain = table.integer("observation_domain")?.map(u32::try_from);
        let observation_domain = domain.transpose().map_err(|_| {
            let most = "expected a number, 4294967295 or less, without quotes";
            Refused::at("observation_domain", most)
        })?;
        if let Some(number) = table.integer("enterprise_number")? {
            let most = "expected a number, 4294967295 or less, without quotes";
            let number = u32::try_from(number);
            let number = number.map_err(|_| Refused::at("enterprise_number", most))?;
            if number == REVERSE_ENTERPRISE {
                let message = "29305 is that of reverse elements (RFC 5103): set one of your own";
                return Err(Refused::at("enterprise_number", message));
            }
            settings.enterprise = Some(number);
        }
        Ok(Self {
            to,
            settings,
            observation_domain,
        })
    }
}
