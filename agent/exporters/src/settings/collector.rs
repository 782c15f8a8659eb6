//! Settings of collectors that speak our own interface.

use std::{path::PathBuf, time::Duration};

use agent_common::sample;
use tls::{
    ALPN_H2,
    output::{OutputTls, ReloadableOutputTls},
    pem::FileFault,
    token::TokenFile,
};

use super::{
    HostPort, Kind, Refused, Table, host,
    tls::{HTTP, Way},
};
use crate::{
    delivery::{Collectors, Spooling},
    throttle::Throttle,
    transport::Endpoint,
};

/// Default for `max_report_interval`. A report every five minutes is still soon enough for a dashboard, and takes a
/// thirtieth of the work of one every ten seconds.
const MAX_REPORT_INTERVAL: Duration = Duration::from_mins(5);

/// A list of collectors. The first that answers gets all batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    all: Vec<HostPort>,
    way: Way,
    spooling: Option<Spooling>,
    max_throttle: Throttle,
    token: Option<TokenFile>,
}

impl Target {
    /// The address in the settings.
    pub fn address(&self) -> String {
        let all: Vec<_> = self.all.iter().map(HostPort::to_string).collect();
        format!("{}://{}", self.way.scheme(HTTP), all.join(","))
    }

    pub fn read_tls(&self) -> Result<Option<OutputTls>, FileFault> {
        self.way.read(ALPN_H2)
    }

    pub fn token_warning(&self) -> Option<String> {
        self.token.as_ref().and_then(TokenFile::warning)
    }

    pub fn collectors(&self, tls: Option<&ReloadableOutputTls>) -> Collectors {
        let endpoint = |to: &HostPort| Endpoint::new(to.clone(), tls.cloned());
        Collectors {
            endpoints: self.all.iter().map(endpoint).collect(),
            spooling: self.spooling.clone(),
            max_throttle: self.max_throttle,
            token: self.token.clone(),
        }
    }

    /// Whether the collectors may ask the agent to report less often.
    pub fn may_ask(&self) -> bool {
        !self.max_throttle.report_interval.is_zero()
    }

    pub fn read(table: &Table, address: &str) -> Result<Self, Refused> {
        let expected = || {
            let addresses = Kind::Collector.addresses();
            Refused::at("address", format!("expected {addresses}"))
        };
        let (way, rest) = Way::of(table, address, HTTP)?.ok_or_else(expected)?;
        let first = HostPort::read(rest).ok_or_else(expected)?;
        way.refuse_host(&first.host)?;
        let all = host::with_failover(table, &way, first)?;
        let spooling = spooling_of(table)?;
        let max_report_interval = table.time_or_zero("max_report_interval")?;
        Ok(Self {
            all,
            way,
            spooling,
            max_throttle: Throttle {
                report_interval: max_report_interval.unwrap_or(MAX_REPORT_INTERVAL),
                sample_rate: max_sample_rate_of(table)?,
            },
            token: table.given("token_file")?.map(TokenFile::new),
        })
    }
}

fn max_sample_rate_of(table: &Table) -> Result<u32, Refused> {
    const KEY: &str = "max_sample_rate";
    let rate = table.integer(KEY)?.unwrap_or(1);
    let rate = u32::try_from(rate)
        .ok()
        .filter(|rate| *rate <= sample::MOST_RATE);
    rate.ok_or_else(|| {
        let message = format!("expected a number up to {}", sample::MOST_RATE);
        Refused::at(KEY, message)
    })
}

fn spooling_of(table: &Table) -> Result<Option<Spooling>, Refused> {
    let most_bytes = table.integer("spool_bytes")?;
    let Some(folder) = table.given("spool")? else {
        return match most_bytes {
            Some(_) => Err(Refused::at(
                "spool_bytes",
                "is for a spool, and there is none: set spool",
            )),
            None => Ok(None),
        };
    };
    let folder = PathBuf::from(folder);
    if !folder.is_absolute() {
        let message = format!(
            "expected the whole path, from /, of a folder, and not {}",
            folder.display()
        );
        return Err(Refused::at("spool", message));
    }
    Ok(Some(Spooling {
        folder,
        most_bytes: most_bytes.unwrap_or(1 << 30),
    }))
}
