//! Metrics and probes of a collector.

use std::{fmt, time::Duration};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use proto::{
    CollectedStream, CollectorStatus, ConversationsStatus, PairsStatus, PathStatus, StoreStatus,
};
use sys::{clock, process_memory};

use super::{
    Format, consumers, encoded,
    families::{Families, Help, Labels},
    health::Verdict,
    http::Site,
    process,
};

/// `status` returns the current status without its streams, and their sums instead: there may be thousands of streams.
pub struct CollectorSite<S> {
    pub status: S,
}

/// Sums over all streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamSums {
    pub connected: u64,
    pub away: u64,
    /// The earliest of the connected agents' last stored scan ends, that is, of the agent furthest behind. Unix time in
    /// nanoseconds.
    pub earliest_unix_ns: Option<u64>,
    pub held_back_ns: u64,
}

impl StreamSums {
    pub fn add(&mut self, stream: &CollectedStream, is_connected: bool) {
        self.held_back_ns += stream.held_back_ns;
        if !is_connected {
            self.away += 1;
            return;
        }
        self.connected += 1;
        let end = Some(stream.window_end_unix_ns).filter(|&end| end != 0);
        self.earliest_unix_ns = self.earliest_unix_ns.into_iter().chain(end).min();
    }
}

impl<S> Site for CollectorSite<S>
where
    S: Fn() -> (CollectorStatus, StreamSums) + Send + Sync + 'static,
{
    const INDEX: &str = "flow-agent collect\n\
                         /metrics  for Prometheus\n\
                         /healthz  200 as long as it answers\n\
                         /readyz   200 while every store takes what comes, else 503\n";

    fn metrics(&self, format: Format) -> Result<String, fmt::Error> {
        let (status, streams) = (self.status)();
        let shown = Shown {
            status,
            streams,
            cpu_ns: clock::process_cpu().as_nanos() as u64,
            resident_bytes: process_memory::resident_bytes(),
            format,
        };
        encoded(shown, format)
    }

    fn lives(&self) -> Verdict {
        Verdict::Well("it collects".to_owned())
    }

    fn is_ready(&self) -> Verdict {
        let (status, streams) = (self.status)();
        match status.stores.iter().find(|store| store.failing) {
            Some(store) => Verdict::Unwell(format!(
                "{}={} does not take what comes: {}",
                store.kind, store.address, store.last_error
            )),
            None => Verdict::Well(format!("agents connected: {}", streams.connected)),
        }
    }
}

#[derive(Debug)]
struct Shown {
    status: CollectorStatus,
    streams: StreamSums,
    cpu_ns: u64,
    resident_bytes: u64,
    format: Format,
}

impl Collector for Shown {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::new(encoder, self.format);
        let Self {
            status,
            cpu_ns,
            resident_bytes,
            ..
        } = self;
        let labels = vec![("version", status.version.clone())];
        families.gauge(
            Help("flow_agent_collect_build_info", "Always 1"),
            [(labels, 1.0)],
        )?;
        agents(&mut families, &self.streams)?;
        let is_failing = !status.tokens_reload_error.is_empty();
        families.gauges([(
            Help(
                "flow_agent_collect_tokens_reload_failing",
                "1 if the changed token file cannot be used, so the tokens read before stay in force",
            ),
            f64::from(u8::from(is_failing)),
        )])?;
        stores(&mut families, &status.stores)?;
        if let Some(of_pairs) = &status.pairs {
            pairs(&mut families, of_pairs)?;
        }
        if let Some(made) = &status.conversations {
            conversations(&mut families, made)?;
        }
        let server = status.server.clone().unwrap_or_default();
        consumers(&mut families, status.consumers.len(), &server)?;
        let started = status.started_unix_ns;
        process(&mut families, *resident_bytes, started, *cpu_ns)
    }
}

/// Agents choose their own names, so they have no series.
fn agents(families: &mut Families<'_>, streams: &StreamSums) -> fmt::Result {
    let now = clock::unix_of_boot_ns(clock::boot_now_ns());
    let behind = streams.earliest_unix_ns.map(|end| now.saturating_sub(end));
    families.gauge(
        Help(
            "flow_agent_collect_held_back_seconds",
            "Total time that agents waited because they sent more records than --max-agent-records allows, over the agents still known",
        ),
        [(Labels::new(), Duration::from_nanos(streams.held_back_ns).as_secs_f64())],
    )?;
    families.gauges([
        (
            Help(
                "flow_agent_collect_connected_agents",
                "Agents that are connected",
            ),
            streams.connected as f64,
        ),
        (
            Help(
                "flow_agent_collect_away_agents",
                "Agents that called within a day and are not connected",
            ),
            streams.away as f64,
        ),
        (
            Help(
                "flow_agent_collect_most_behind_seconds",
                "Age of the last stored scan of the connected agent that is furthest behind",
            ),
            Duration::from_nanos(behind.unwrap_or(0)).as_secs_f64(),
        ),
    ])
}

fn stores(families: &mut Families<'_>, stores: &[StoreStatus]) -> fmt::Result {
    let labels = |store: &StoreStatus| -> Labels {
        vec![
            ("kind", store.kind.clone()),
            ("address", store.address.clone()),
        ]
    };
    let sums = || {
        let stores = stores.iter();
        stores.map(|store| (labels(store), store.stored.unwrap_or_default()))
    };
    families.counter(
        Help(
            "flow_agent_collect_stored_records",
            "Records that a store has",
        ),
        sums().map(|(labels, sum)| (labels, sum.records)),
    )?;
    families.counter(
        Help(
            "flow_agent_collect_stored_packets",
            "Packets that they report",
        ),
        sums().map(|(labels, sum)| (labels, sum.packets)),
    )?;
    families.counter(
        Help(
            "flow_agent_collect_stored_bytes",
            "Layer-2 bytes that they report",
        ),
        sums().map(|(labels, sum)| (labels, sum.bytes)),
    )?;
    families.gauge(
        Help(
            "flow_agent_collect_store_failing",
            "1 if the latest batches could not be stored",
        ),
        stores
            .iter()
            .map(|store| (labels(store), f64::from(u8::from(store.failing)))),
    )?;
    families.counter(
        Help(
            "flow_agent_collect_store_failures",
            "How often a store began to fail",
        ),
        stores.iter().map(|store| (labels(store), store.failures)),
    )
}

fn conversations(families: &mut Families<'_>, made: &ConversationsStatus) -> fmt::Result {
    let by_grade = [
        ("proven", made.proven),
        ("both_seen", made.both_seen),
        ("one_end", made.one_end),
        ("no_end", made.no_end),
    ];
    let by_grade = by_grade.map(|(grade, count)| (vec![("grade", grade.to_owned())], count));
    families.counter(
        Help(
            "flow_agent_conversations",
            "Conversations that were quiet, by how much is known of them",
        ),
        by_grade,
    )?;
    families.counters([(
        Help(
            "flow_agent_conversations_not_written",
            "Conversations that could not be written to the file",
        ),
        made.not_written,
    )])
}

/// Sums of exact reports only.
fn pairs(families: &mut Families<'_>, pairs: &PairsStatus) -> fmt::Result {
    let by_path = |count: fn(&PathStatus) -> u64| {
        pairs.paths.iter().map(move |path| {
            let labels: Labels = vec![
                ("from", path.from_hostname.clone()),
                ("to", path.to_hostname.clone()),
            ];
            (labels, count(path))
        })
    };
    for (help, count) in [
        (
            Help(
                "flow_agent_path_sent_packets",
                "Packets that one agent saw leave and another one should have seen arrive",
            ),
            (|path| path.sent_packets) as fn(&PathStatus) -> u64,
        ),
        (
            Help("flow_agent_path_lost_packets", "Those that did not arrive"),
            |path| path.lost_packets,
        ),
        (
            Help(
                "flow_agent_path_surplus_packets",
                "Packets that arrived and had not left, such as fragments that were made on the way",
            ),
            |path| path.surplus_packets,
        ),
        (
            Help(
                "flow_agent_path_inexact_reports",
                "Reports whose loss is unknown; their packets are in no sum",
            ),
            |path| path.inexact,
        ),
        (
            Help(
                "flow_agent_path_going_on_reports",
                "Reports of continuing flows; their packets enter the sums once the flow is quiet",
            ),
            |path| path.going_on,
        ),
    ] {
        families.counter(help, by_path(count))?;
    }
    families.gauges([(
        Help("flow_agent_pairs_flows", "Flows that are followed"),
        pairs.flows as f64,
    )])?;
    families.counters([
        (
            Help(
                "flow_agent_pairs_not_followed_records",
                "Records of flows that found no room to be followed",
            ),
            pairs.not_followed,
        ),
        (
            Help(
                "flow_agent_pairs_unpaired_flows",
                "Times a flow became quiet that only one agent had seen",
            ),
            pairs.unpaired,
        ),
        (
            Help(
                "flow_agent_pairs_not_written_reports",
                "Reports that could not be written to the file",
            ),
            pairs.not_written,
        ),
    ])
}

#[cfg(test)]
mod tests {
    use proto::RecordSum;

    use super::*;

    fn site(status: CollectorStatus) -> impl Site {
        CollectorSite {
            status: move || {
                let mut sums = StreamSums::default();
                for stream in &status.streams {
                    sums.add(stream, stream.connected);
                }
                (status.clone(), sums)
            },
        }
    }

    fn status() -> CollectorStatus {
        CollectorStatus {
            version: "1.2.3".to_owned(),
            streams: vec![
                CollectedStream {
                    connected: true,
                    ..CollectedStream::default()
                },
                CollectedStream::default(),
            ],
            stores: vec![StoreStatus {
                kind: "jsonl".to_owned(),
                address: "/a".to_owned(),
                stored: Some(RecordSum {
                    records: 1,
                    packets: 2,
                    bytes: 3,
                }),
                ..StoreStatus::default()
            }],
            pairs: Some(PairsStatus {
                paths: vec![PathStatus {
                    from_hostname: "here".to_owned(),
                    to_hostname: "th\"ere".to_owned(),
                    sent_packets: 100,
                    lost_packets: 7,
                    inexact: 1,
                    ..PathStatus::default()
                }],
                unpaired: 5,
                ..PairsStatus::default()
            }),
            ..CollectorStatus::default()
        }
    }

    #[test]
    fn stores_agents_and_paths_have_series() {
        let text = site(status()).metrics(Format::Classic).unwrap();
        for line in [
            "flow_agent_collect_build_info{version=\"1.2.3\"} 1.0",
            "flow_agent_collect_connected_agents 1.0",
            "flow_agent_collect_away_agents 1.0",
            "flow_agent_collect_stored_packets_total{kind=\"jsonl\",address=\"/a\"} 2",
            "flow_agent_collect_store_failing{kind=\"jsonl\",address=\"/a\"} 0.0",
            "flow_agent_path_sent_packets_total{from=\"here\",to=\"th\\\"ere\"} 100",
            "flow_agent_path_lost_packets_total{from=\"here\",to=\"th\\\"ere\"} 7",
            "flow_agent_pairs_unpaired_flows_total 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }

    #[test]
    fn the_connected_agent_that_is_furthest_behind_is_told() {
        let now = clock::unix_of_boot_ns(clock::boot_now_ns());
        let stream = |connected, behind_s: u64| CollectedStream {
            connected,
            window_end_unix_ns: now - Duration::from_secs(behind_s).as_nanos() as u64,
            ..CollectedStream::default()
        };
        let status = CollectorStatus {
            // No scan of the last one has been stored yet.
            streams: vec![
                stream(true, 40),
                stream(true, 1000),
                stream(false, 100_000),
                CollectedStream {
                    connected: true,
                    ..CollectedStream::default()
                },
            ],
            ..status()
        };
        let text = site(status).metrics(Format::Classic).unwrap();
        let (_, behind) = text
            .split_once("\nflow_agent_collect_most_behind_seconds ")
            .unwrap();
        let behind: f64 = behind.lines().next().unwrap().parse().unwrap();
        assert!((1000.0..10_000.0).contains(&behind), "{behind}");
    }

    #[test]
    fn a_collector_is_ready_as_long_as_every_store_takes_what_comes() {
        assert_eq!(
            site(status()).is_ready(),
            Verdict::Well("agents connected: 1".to_owned())
        );
        let mut status = status();
        status.stores[0].failing = true;
        status.stores[0].last_error = "no space".to_owned();
        assert_eq!(
            site(status).is_ready(),
            Verdict::Unwell("jsonl=/a does not take what comes: no space".to_owned())
        );
    }
}
