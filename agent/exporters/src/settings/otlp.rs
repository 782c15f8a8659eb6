//! Settings of OTLP: destination, protocol and content.

use std::sync::Arc;

use formats::{
    encoder::Encoder,
    otlp::{Otlp, Protocol, Settings},
};
use proto::accounts::Accounts;
use tls::{
    ALPN_H2, ALPN_HTTP1,
    output::{OutputTls, ReloadableOutputTls},
    pem::FileFault,
    stays_here,
};
use tokio::sync::watch;

use super::{
    HostPort, Kind, Refused, Table,
    tls::{HTTP, Way},
};
use crate::transport::{Endpoint, Grpc, Http, Transport};

/// OTLP's default ports.
const GRPC_PORT: u16 = 4317;
const HTTP_PORT: u16 = 4318;

/// An OTLP output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    to: HostPort,
    way: Way,
    /// Precedes OTLP's paths over HTTP. Empty, or begins with a slash and does not end with one.
    base_path: String,
    settings: Settings,
}

impl Target {
    /// The address in the settings.
    pub fn address(&self) -> String {
        let scheme = self.way.scheme(HTTP);
        format!("{scheme}://{}{}", self.to, self.base_path)
    }

    pub fn read_tls(&self) -> Result<Option<OutputTls>, FileFault> {
        self.way.read(match self.settings.protocol {
            Protocol::Grpc => ALPN_H2,
            Protocol::Http => ALPN_HTTP1,
        })
    }

    pub fn parts(
        &self,
        accounts: watch::Receiver<Arc<Accounts>>,
        tls: Option<ReloadableOutputTls>,
    ) -> (Box<dyn Encoder>, Transport) {
        let endpoint = Endpoint::new(self.to.clone(), tls);
        let transport = match self.settings.protocol {
            Protocol::Grpc => Transport::Grpc(Grpc::new(endpoint)),
            Protocol::Http => Transport::Http(Http::new(endpoint, self.base_path.clone())),
        };
        let accounts = move || Arc::clone(&accounts.borrow());
        let encoder = Otlp::new(self.settings.clone(), accounts);
        (Box::new(encoder), transport)
    }

    pub fn read(table: &Table, address: &str) -> Result<Self, Refused> {
        let wrong = |message: &str| Refused::at("address", message);
        let expected = || Refused::at("address", format!("expected {}", Kind::Otlp.addresses()));
        let (way, rest) = Way::of(table, address, HTTP)?.ok_or_else(expected)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let base_path = path.trim_end_matches('/');
        if base_path.ends_with("/v1/logs") || base_path.ends_with("/v1/metrics") {
            return Err(wrong("leave out /v1/logs: it is added to the address"));
        }
        let has_odd_letters = base_path
            .bytes()
            .any(|byte| !byte.is_ascii_graphic() || b"?#".contains(&byte));
        if has_odd_letters {
            return Err(expected());
        }
        let protocol = table.text("protocol")?;
        let to = HostPort::read(authority);
        let protocol = match protocol.as_deref() {
            Some("grpc") if !base_path.is_empty() => {
                return Err(wrong(
                    "gRPC has no path: leave it out, or choose protocol http",
                ));
            }
            Some("grpc") => Protocol::Grpc,
            Some("http") => Protocol::Http,
            Some(_) => return Err(Refused::at("protocol", "expected one of grpc, http")),
            None if !base_path.is_empty() => Protocol::Http,
            None if to.as_ref().is_some_and(|to| to.port == HTTP_PORT) => Protocol::Http,
            None => Protocol::Grpc,
        };
        let port = match protocol {
            Protocol::Grpc => GRPC_PORT,
            Protocol::Http => HTTP_PORT,
        };
        let to = to.or_else(|| HostPort::read(&format!("{authority}:{port}")));
        let compression = table.text("compression")?;
        let gzip = match compression.as_deref() {
            None | Some("gzip") => true,
            Some("none") => false,
            Some(_) => return Err(Refused::at("compression", "expected one of none, gzip")),
        };
        let to = to.ok_or_else(expected)?;
        // To a receiver on this host, compressing costs both more than it saves.
        let gzip = gzip && (compression.is_some() || !stays_here(&to.host));
        way.refuse_host(&to.host)?;
        Ok(Self {
            to,
            way,
            base_path: base_path.to_owned(),
            settings: Settings {
                protocol,
                gzip,
                metrics: table.boolean("metrics")?.unwrap_or(true),
            },
        })
    }
}
