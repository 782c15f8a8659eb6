//! The line of a DNS exchange.

use std::net::IpAddr;

use proto::{DnsExchange, FlowBatch, Interface, dns_codes};
use serde::Serialize;

use super::Origin;
use crate::{human, time::UtcTime};

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct DnsLine<'a> {
    #[cfg_attr(test, schemars(extend("const" = "dns")))]
    r#type: &'static str,
    #[serde(flatten)]
    origin: Option<Origin<'a>>,
    scan_id: u64,
    batch: u32,
    stream_seq: u64,
    /// The number in its batch.
    exchange: u32,
    interface: Option<&'a str>,
    ifindex: u32,
    netns: u32,
    netns_name: Option<&'a str>,
    client_addr: Option<IpAddr>,
    client_port: u32,
    server_addr: Option<IpAddr>,
    name: &'a str,
    record_type: String,
    asked: UtcTime,
    /// `null` without an answer, like the code.
    waited_ns: Option<u64>,
    code: Option<String>,
    truncated: bool,
    addrs: Vec<Option<IpAddr>>,
}

impl<'a> DnsLine<'a> {
    pub(super) fn new(
        batch: &'a FlowBatch,
        exchange: &'a DnsExchange,
        number: u32,
        interface: Option<&'a Interface>,
    ) -> Self {
        let code = |number: u32| {
            let name = u16::try_from(number).ok().and_then(dns_codes::code);
            name.unwrap_or_else(|| number.to_string())
        };
        let record_type = u16::try_from(exchange.record_type).unwrap_or(u16::MAX);
        let addrs = exchange.addrs.iter();
        Self {
            r#type: "dns",
            origin: Origin::of(batch),
            scan_id: batch.scan_id,
            batch: batch.batch_index,
            stream_seq: batch.stream_seq,
            exchange: number,
            interface: interface.map(|interface| interface.name.as_str()),
            ifindex: exchange.ifindex,
            netns: exchange.netns,
            netns_name: interface
                .map(|interface| interface.netns_name.as_str())
                .filter(|name| !name.is_empty()),
            client_addr: human::address(&exchange.client_addr),
            client_port: exchange.client_port,
            server_addr: human::address(&exchange.server_addr),
            name: &exchange.name,
            record_type: dns_codes::record_type(record_type),
            asked: UtcTime::new(exchange.asked_unix_ns),
            waited_ns: exchange.waited_ns,
            code: exchange.code.map(code),
            truncated: exchange.truncated,
            addrs: addrs.map(|address| human::address(address)).collect(),
        }
    }
}
