//! Outputs that speak TLS: trust, client certificates, the fate of flows meanwhile, and replaced certificates.

use std::{
    collections::HashMap,
    fs, thread,
    time::{Duration, SystemTime},
};

use lab::certificates::{Ca, Issued, replace};
use prost::Message as _;
use proto::{FlowBatch, FlowRecord};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::*;
use crate::support::{BINARY, Report, flow_agent};
use receiver::{EXPORT, H2, HTTP1, Receiver, identity, identity_of_tls12};

mod files;
pub mod receiver;
mod renewed;
mod trust;

/// An output that speaks TLS, and what it speaks inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    OtlpGrpc,
    OtlpHttp,
    Pbflow,
    Collector,
}

const WAYS: [Way; 4] = [Way::OtlpGrpc, Way::OtlpHttp, Way::Pbflow, Way::Collector];

/// Concurrently, since they mostly wait.
fn by_each_way(test: impl Fn(Way) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        for way in WAYS {
            scope.spawn(move || test(way));
        }
    });
}

impl Way {
    fn kind(self) -> &'static str {
        match self {
            Self::OtlpGrpc | Self::OtlpHttp => "otlp",
            Self::Pbflow => "pbflow",
            Self::Collector => "collector",
        }
    }

    fn alpn(self) -> &'static [u8] {
        match self {
            Self::OtlpGrpc | Self::Pbflow | Self::Collector => H2,
            Self::OtlpHttp => HTTP1,
        }
    }

    /// The output's settings. It sends only flows.
    fn output(self, host: &str, port: u16, files: &Files) -> String {
        let kind = self.kind();
        let mut table = serde_json::json!({
            "kind": kind,
            "address": format!("https://{host}:{port}"),
        });
        if kind == "otlp" {
            let protocol = if self == Self::OtlpHttp {
                "http"
            } else {
                "grpc"
            };
            table["protocol"] = protocol.into();
            table["metrics"] = false.into();
            // As for a receiver on another host.
            table["compression"] = "gzip".into();
        }
        let path = |path: &Path| path.to_str().unwrap().into();
        table["tls_ca"] = path(&files.ca);
        if let Some(Issued { certificate, key }) = &files.own {
            table["tls_client_certificate"] = path(certificate);
            table["tls_client_key"] = path(key);
        }
        table.to_string()
    }

    fn start(self, lab: &Lab, host: &str, receiver: &Receiver, files: &Files) -> Agent {
        let output = self.output(host, receiver.port, files);
        Agent::start(lab, &["--output", "json", "--output", &output])
    }

    /// The packets and bytes that the receiver got, in both directions.
    fn got(self, receiver: &Receiver) -> Pair {
        let requests = receiver.requests();
        match self {
            Self::OtlpGrpc => {
                let path = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
                assert!(requests.iter().all(|one| one.path == path && one.is_gzip));
                let records = requests.iter().flat_map(otlp::records);
                otlp::reported(&records.collect::<Vec<_>>())
            }
            Self::OtlpHttp => {
                assert!(requests.iter().all(|one| one.is_gzip));
                otlp::reported(&otlp::logs(&requests))
            }
            Self::Pbflow => {
                let path = "/pbflow.Collector/Send";
                assert!(requests.iter().all(|one| one.path == path));
                requests.iter().map(|one| pbflow_sum(&one.body)).sum()
            }
            Self::Collector => {
                assert!(requests.iter().all(|one| one.path == EXPORT));
                // One that is not acknowledged in time comes again.
                let batches = requests.iter().map(|one| {
                    let batch = FlowBatch::decode(&one.body[..]).unwrap();
                    ((batch.stream_id, batch.stream_seq), batch)
                });
                let batches = batches.collect::<HashMap<_, _>>().into_values();
                let records = batches.flat_map(|batch| batch.records);
                records.map(|record| FlowRecord::delta(&record)).sum()
            }
        }
    }

    fn status(self, agent: &Agent, lab: &Lab) -> Value {
        output(agent, lab, self.kind())
    }

    fn wait_until_sent(self, agent: &Agent, lab: &Lab, sent: Pair) {
        wait_until("all is sent", || {
            fates(&self.status(agent, lab), sent)["sent"] == sent
        });
    }
}

/// The files that an output's settings name.
struct Files {
    ca: PathBuf,
    own: Option<Issued>,
}

impl Files {
    fn trusting(ca: &Ca) -> Self {
        Self {
            ca: ca.file(),
            own: None,
        }
    }

    fn with(ca: &Ca, own: &Issued) -> Self {
        Self {
            ca: ca.file(),
            own: Some(own.clone()),
        }
    }
}

/// A part of netobserv's messages.
#[derive(Clone, PartialEq, prost::Message)]
struct Records {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Record>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Record {
    #[prost(uint64, tag = "8")]
    bytes: u64,
    #[prost(uint64, tag = "9")]
    packets: u64,
}

fn pbflow_sum(message: &[u8]) -> Pair {
    let records = Records::decode(message).unwrap().entries;
    let pair = |record: Record| Pair {
        packets: record.packets,
        bytes: record.bytes,
    };
    records.into_iter().map(pair).sum()
}

/// The certificate in a file.
fn der(issued: &Issued) -> Vec<u8> {
    let certificate = CertificateDer::from_pem_file(&issued.certificate);
    certificate.unwrap().to_vec()
}

/// How often the log says something.
fn told(report: &Report, words: &str) -> usize {
    report.log.matches(words).count()
}
