//! A consumer's own filter: removes records from its batches, and counts them.

use std::collections::HashMap;

use bytes::Bytes;
use hub::Volume;
use prost::{DecodeError, Message as _};
use proto::{
    DnsExchange, FlowBatch, FlowRecord, HostName, Interface,
    batch::fields::{DNS_EXCHANGES, Field, HOSTS, RECORDS, each_field},
    known_interfaces::KnownInterfaces,
    mentions::{Mentions, OfRecord},
};
use rules::{Known, Rule, fault::Fault, passes};
use tonic::Status;

/// The most rules of a stream, since they are applied one by one to each record.
const MAX_RULES: usize = 64;
const MAX_VALUES: usize = 1024;

const INTERFACES_TAG: u32 = 14;

/// Encodes the counts of removed records as fields of a batch.
pub(super) fn encode_left_out(left_out: Volume) -> Vec<u8> {
    FlowBatch::of_left_out(left_out.into()).encode_to_vec()
}

/// Reads the field if it is an interface. Interfaces precede the records of a batch.
pub(super) fn note(interfaces: &mut KnownInterfaces, field: &Field) -> Result<(), DecodeError> {
    if field.tag == INTERFACES_TAG {
        interfaces.note(&Interface::decode(field.message.clone())?);
    }
    Ok(())
}

/// The names of hosts that a batch has for its records, by id. They follow the records.
#[derive(Default)]
pub(super) struct Hosts(HashMap<u64, String>);

impl Hosts {
    /// The names of the record's ends.
    pub(super) fn of(&self, record: &FlowRecord) -> [&str; 2] {
        let name = |id: Option<u64>| Some(self.0.get(&id?)?.as_str());
        let ends = record.ends();
        ends.map(|end| name(end.host_id).unwrap_or_default())
    }
}

pub(super) struct StreamFilter {
    rules: Vec<Rule>,
    names_hosts: bool,
    /// Records removed since the stream began.
    left_out: Volume,
}

impl StreamFilter {
    /// `None` if there are no rules.
    pub(super) fn read(text: &str) -> Result<Option<Self>, Status> {
        let refused = |fault: Fault| Status::invalid_argument(fault.at("filter").to_string());
        let rules = rules::set(&[text.parse().map_err(refused)?]);
        let values = |rule: &Rule| {
            rule.nets.len()
                + rule.names.len()
                + rule.ports.len()
                + rule.protocols.len()
                + rule.interfaces.len()
        };
        if rules.len() > MAX_RULES || rules.iter().map(values).sum::<usize>() > MAX_VALUES {
            return Err(Status::invalid_argument(format!(
                "the filter of a stream has at most {MAX_RULES} rules and {MAX_VALUES} values in them"
            )));
        }
        let filter = Self {
            names_hosts: rules.iter().any(|rule| !rule.names.is_empty()),
            rules,
            left_out: Volume::default(),
        };
        Ok((!filter.rules.is_empty()).then_some(filter))
    }

    /// The names in a batch, if rules name hosts.
    pub(super) fn hosts(&self, body: &Bytes) -> Result<Hosts, DecodeError> {
        let mut hosts = Hosts::default();
        if self.names_hosts {
            each_field(body, |field| {
                if field.tag == HOSTS {
                    let host = HostName::decode(field.message)?;
                    hosts.0.insert(host.id, host.name);
                }
                Ok(())
            })?;
        }
        Ok(hosts)
    }

    pub(super) fn passes(
        &self,
        record: &FlowRecord,
        interfaces: &KnownInterfaces,
        hosts: &Hosts,
    ) -> bool {
        let known = Known {
            interface: interfaces.name(record),
            hosts: hosts.of(record),
        };
        passes(&self.rules, record, known)
    }

    /// The batch without the records that do not pass, and with the counts of all records removed so far. Also returns
    /// the counts for this batch alone.
    pub(super) fn apply(&mut self, body: &Bytes) -> Result<(Bytes, Volume), DecodeError> {
        let mut left_out = Volume::default();
        let mut passed = Vec::with_capacity(body.len());
        let mut interfaces = KnownInterfaces::default();
        let mut mentions = Mentions::default();
        let hosts = self.hosts(body)?;
        each_field(body, |field| {
            note(&mut interfaces, &field)?;
            if field.tag == RECORDS {
                let record = FlowRecord::decode(field.message.clone())?;
                if !self.passes(&record, &interfaces, &hosts) {
                    left_out += Volume::of_record(record.delta());
                    return Ok(());
                }
                mentions.note(OfRecord::new(&record));
            } else if field.tag == DNS_EXCHANGES {
                let flow = DnsExchange::decode(field.message.clone())?.flow();
                if !self.passes(&flow, &interfaces, &hosts) {
                    return Ok(());
                }
            }
            // These fields follow the records.
            if mentions.lack(&field)? {
                return Ok(());
            }
            passed.extend_from_slice(&body[field.whole]);
            Ok(())
        })?;
        // Protobuf merges concatenated messages.
        self.left_out += left_out;
        passed.extend(encode_left_out(self.left_out));
        // A small result must not hold a large buffer.
        passed.shrink_to_fit();
        Ok((passed.into(), left_out))
    }
}

#[cfg(test)]
mod tests {
    use proto::Endpoint;

    use super::*;

    fn record(port: u32, ifindex: u32) -> FlowRecord {
        FlowRecord {
            src: Some(Endpoint {
                addr: Bytes::from_static(&[10, 0, 0, 1]),
                port: Some(5000),
                delta_packets: 1,
                delta_bytes: 100,
                total_packets: 7,
                ..Endpoint::default()
            }),
            dst: Some(Endpoint {
                addr: Bytes::from_static(&[10, 0, 0, 2]),
                port: Some(port),
                delta_packets: 2,
                delta_bytes: 300,
                ..Endpoint::default()
            }),
            protocol: 6,
            ifindex,
            netns: 9,
            ..FlowRecord::default()
        }
    }

    fn exchange(ifindex: u32) -> DnsExchange {
        DnsExchange {
            client_addr: vec![10, 0, 0, 1],
            server_addr: vec![10, 0, 0, 53],
            client_port: 5000,
            ifindex,
            netns: 9,
            ..DnsExchange::default()
        }
    }

    #[test]
    fn exchanges_of_the_dns_pass_as_their_flows_do() {
        for (rules, expected) in [
            ("include port 53 on eth2; exclude all", vec![exchange(2)]),
            ("include proto tcp; exclude all", vec![]),
            ("exclude net 10.0.0.1/32", vec![]),
            ("exclude port 443", vec![exchange(1), exchange(2)]),
        ] {
            let mut filter = StreamFilter::read(rules).unwrap().unwrap();
            let body = batch().encode_to_vec().into();
            let filtered = FlowBatch::decode(filter.apply(&body).unwrap().0).unwrap();
            assert_eq!(filtered.dns_exchanges, expected, "{rules}");
        }
    }

    fn batch() -> FlowBatch {
        let interface = |ifindex: u32| Interface {
            ifindex,
            name: format!("eth{ifindex}"),
            netns: 9,
            ..Interface::default()
        };
        FlowBatch {
            scan_id: 4,
            batch_index: 1,
            last_of_scan: true,
            table_occupancy: Some(3),
            interfaces: vec![interface(1), interface(2)],
            records: vec![record(80, 1), record(443, 1), record(443, 2)],
            account: Some(proto::Account::default()),
            tracked_flows: Some(5),
            sample_rate: 10,
            dns_exchanges: vec![exchange(1), exchange(2)],
            ..FlowBatch::default()
        }
    }

    #[test]
    fn records_that_do_not_pass_are_counted_and_all_else_stays() {
        let mut filter = StreamFilter::read("include port 443 on eth2; exclude all").unwrap();
        let filter = filter.as_mut().unwrap();
        let body = batch().encode_to_vec().into();
        for times in [1, 2] {
            let filtered = FlowBatch::decode(filter.apply(&body).unwrap().0).unwrap();
            let expected = FlowBatch {
                records: vec![record(443, 2)],
                dns_exchanges: Vec::new(),
                left_out_records: 2 * times,
                left_out_packets: 6 * times,
                left_out_bytes: 800 * times,
                ..batch()
            };
            assert_eq!(filtered, expected);
        }
    }

    #[test]
    fn records_pass_by_the_names_that_follow_them() {
        let named = |port, host_id| {
            let record = record(port, 1);
            FlowRecord {
                dst: Some(Endpoint {
                    host_id,
                    ..record.dst().clone()
                }),
                ..record
            }
        };
        let host = |id, name: &str| HostName {
            id,
            name: name.to_owned(),
        };
        let batch = FlowBatch {
            records: vec![named(1, Some(7)), named(2, Some(8)), named(3, None)],
            hosts: vec![host(7, "a.example"), host(8, "b.example")],
            dns_exchanges: vec![exchange(1)],
            ..FlowBatch::default()
        };
        let body = batch.encode_to_vec().into();
        for (text, ports) in [
            ("host b.example", vec![2]),
            ("host *.example", vec![1, 2]),
            ("exclude host a.example", vec![2, 3]),
        ] {
            let mut filter = StreamFilter::read(text).unwrap().unwrap();
            let filtered = FlowBatch::decode(filter.apply(&body).unwrap().0).unwrap();
            let passed = filtered.records.iter();
            let passed: Vec<_> = passed.map(|record| record.dst().port.unwrap()).collect();
            assert_eq!(passed, ports, "{text}");
        }
    }

    #[test]
    fn a_filter_that_cannot_be_read_or_is_too_large_is_refused_with_its_place() {
        let refused = |text: &str| {
            let status = StreamFilter::read(text).err().unwrap();
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            status.message().to_owned()
        };
        let told = refused("exclude port 80; drop all");
        assert!(told.contains("filter:18"), "{told}");
        assert!(refused(&"exclude all;".repeat(65)).contains("at most 64 rules"));
        let ports = (0..1025).map(|port| port.to_string()).collect::<Vec<_>>();
        let rule = format!("exclude port {}", ports.join(","));
        assert!(refused(&rule).contains("1024 values"));
        assert!(StreamFilter::read(" ; ").unwrap().is_none());
    }
}
