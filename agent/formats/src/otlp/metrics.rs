//! The agent's account and the output's losses as cumulative sums.

use std::sync::Arc;

use agent_common::{HookAccount, Pair, Reason};
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{InstrumentationScope, KeyValue, any_value::Value},
    metrics::v1::{
        AggregationTemporality, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
        metric::Data, number_data_point,
    },
    resource::v1::Resource,
};
use proto::{
    Interface, RecordSum,
    accounts::{AccountOfHook, Accounts},
};

use super::{
    attribute,
    record::{io_direction, short},
    text,
};

/// Most hooks per request. A hook has some ten points of 150 bytes.
const HOOKS_IN_A_REQUEST: usize = 256;

/// The metrics of one scan, and how many of them were sent.
pub(super) struct ScanMetrics {
    accounts: Arc<Accounts>,
    lost: Losses,
    /// The scan ID and the batch index.
    place: (u64, u32),
    hooks: usize,
    /// The last request contains all that was left.
    is_last: bool,
}

/// An output's losses since the start time that receivers get with them. The start is reset as for
/// [`Series`](proto::accounts::Series).
#[derive(Clone, Copy, Default)]
pub(super) struct Losses {
    since_unix_ns: Option<u64>,
    before: RecordSum,
    sum: RecordSum,
}

impl Losses {
    /// Updates the losses with the total at the end of a scan.
    fn until(self, accounts: &Accounts, sum: RecordSum) -> Self {
        match self.since_unix_ns {
            Some(since) if since < accounts.until_unix_ns => Self { sum, ..self },
            since => Self {
                // Outputs start without losses, also after a reload.
                since_unix_ns: Some(accounts.window_start_unix_ns),
                before: since.map(|_| self.sum).unwrap_or_default(),
                sum,
            },
        }
    }

    fn growth(self) -> RecordSum {
        let mut growth = self.sum;
        growth -= self.before;
        growth
    }
}

/// Packets and bytes with their attributes.
struct Point {
    attributes: Vec<KeyValue>,
    since_unix_ns: u64,
    count: Pair,
}

impl ScanMetrics {
    /// `lost` is the state from the last metrics sent.
    pub fn new(accounts: Arc<Accounts>, lost: Losses, batch: &proto::FlowBatch) -> Self {
        Self {
            lost: lost.until(&accounts, batch.lost()),
            accounts,
            place: (batch.scan_id, batch.batch_index),
            hooks: 0,
            is_last: false,
        }
    }

    pub fn place(&self) -> (u64, u32) {
        self.place
    }

    pub fn lost(&self) -> Losses {
        self.lost
    }

    /// The next request. Returns the same one until [`ScanMetrics::mark_sent`] is called.
    pub fn request(
        &mut self,
        resource: Resource,
        scope: InstrumentationScope,
    ) -> ExportMetricsServiceRequest {
        let rest = &self.accounts.hooks[self.hooks..];
        self.is_last = rest.len() <= HOOKS_IN_A_REQUEST;
        let (mut seen, mut fates) = (Vec::new(), Vec::new());
        for hook in rest.iter().take(HOOKS_IN_A_REQUEST) {
            let since = hook.since_unix_ns;
            add_points(&of_hook(hook), since, &hook.account, &mut seen, &mut fates);
        }
        let since = self.accounts.since_unix_ns;
        if self.is_last {
            let others = &self.accounts.others;
            add_points(&[], since, others, &mut seen, &mut fates);
        }
        let mut metrics = Vec::new();
        let seen_by_hooks = "What the programs saw.";
        metrics.extend(self.both("flow.account.seen", seen_by_hooks, seen));
        let fate = "What became of what was seen. The sum of all fates is what was seen.";
        metrics.extend(self.both("flow.account.fate", fate, fates));
        if self.is_last {
            metrics.extend(self.departed(since));
            metrics.extend(self.losses());
        }
        ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(resource),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope),
                    metrics,
                    schema_url: String::new(),
                }],
                schema_url: String::new(),
            }],
        }
    }

    /// Marks the last request as sent. Returns whether it was the final one.
    pub fn mark_sent(&mut self) -> bool {
        self.hooks += HOOKS_IN_A_REQUEST;
        self.is_last
    }

    /// Whether another request follows the last one.
    pub fn has_more(&self) -> bool {
        !self.is_last
    }

    fn both(&self, name: &str, description: &str, points: Vec<Point>) -> [Metric; 2] {
        let (packets, bytes) = points
            .into_iter()
            .map(|one| {
                let packets =
                    self.point(one.attributes.clone(), one.since_unix_ns, one.count.packets);
                let bytes = self.point(one.attributes, one.since_unix_ns, one.count.bytes);
                (packets, bytes)
            })
            .unzip();
        [
            sum(&format!("{name}.packets"), description, "{packet}", packets),
            sum(&format!("{name}.bytes"), description, "By", bytes),
        ]
    }

    /// Counts of interfaces that are gone. Adding them to the series of existing interfaces would count them twice.
    fn departed(&self, since_unix_ns: u64) -> impl Iterator<Item = Metric> {
        let (mut seen, mut fates) = (Vec::new(), Vec::new());
        let departed = &self.accounts.departed;
        add_points(&[], since_unix_ns, departed, &mut seen, &mut fates);
        let description = "What the programs saw at interfaces that have left.";
        let seen = self.both("flow.account.departed.seen", description, seen);
        let description = "What became of what was seen at interfaces that have left.";
        let fates = self.both("flow.account.departed.fate", description, fates);
        seen.into_iter().chain(fates)
    }

    fn losses(&self) -> [Metric; 3] {
        let RecordSum {
            records,
            packets,
            bytes,
        } = self.lost.growth();
        let since = self.lost.since_unix_ns.unwrap_or_default();
        let lost = |what: &str, unit: &str, value: u64| {
            let description = "What this output lost, in its queue or behind it.";
            let name = format!("flow.output.lost.{what}");
            sum(
                &name,
                description,
                unit,
                vec![self.point(Vec::new(), since, value)],
            )
        };
        [
            lost("records", "{record}", records),
            lost("packets", "{packet}", packets),
            lost("bytes", "By", bytes),
        ]
    }

    fn point(&self, attributes: Vec<KeyValue>, since_unix_ns: u64, value: u64) -> NumberDataPoint {
        NumberDataPoint {
            attributes,
            start_time_unix_nano: since_unix_ns,
            time_unix_nano: self.accounts.until_unix_ns,
            value: Some(number_data_point::Value::AsInt(value.cast_signed())),
            ..NumberDataPoint::default()
        }
    }
}

fn sum(name: &str, description: &str, unit: &str, data_points: Vec<NumberDataPoint>) -> Metric {
    Metric {
        name: name.to_owned(),
        description: description.to_owned(),
        unit: unit.to_owned(),
        data: Some(Data::Sum(Sum {
            data_points,
            aggregation_temporality: AggregationTemporality::Cumulative.into(),
            is_monotonic: true,
        })),
        ..Metric::default()
    }
}

fn of_hook(hook: &AccountOfHook) -> Vec<KeyValue> {
    let Interface {
        ifindex,
        name,
        netns,
        netns_name,
        ..
    } = &hook.interface;
    let mut attributes = vec![
        text("network.interface.name", short(name)),
        text("network.io.direction", io_direction(hook.direction)),
        number("flow.interface.index", *ifindex),
        number("flow.netns.id", *netns),
    ];
    if !netns_name.is_empty() {
        attributes.push(text("flow.netns.name", short(netns_name)));
    }
    attributes
}

fn number(key: &str, value: u32) -> KeyValue {
    attribute(key, Value::IntValue(value.into()))
}

/// Adds the points of one account. Fates other than `flows` are omitted while they are zero.
fn add_points(
    of: &[KeyValue],
    since_unix_ns: u64,
    account: &HookAccount,
    seen: &mut Vec<Point>,
    fates: &mut Vec<Point>,
) {
    seen.push(Point {
        attributes: of.to_vec(),
        since_unix_ns,
        count: account.get(Reason::Seen),
    });
    let mut fate = |fate: &str, reason: Reason, of_a_kind: bool| {
        let count = account.get(reason);
        if count == Pair::default() && reason != Reason::Flows {
            return;
        }
        let mut attributes = of.to_vec();
        attributes.push(text("flow.fate", fate));
        if of_a_kind {
            attributes.push(text("flow.reason", reason.name()));
        }
        fates.push(Point {
            attributes,
            since_unix_ns,
            count,
        });
    };
    fate("flows", Reason::Flows, false);
    fate("filtered", Reason::Filtered, false);
    fate("sampled_out", Reason::SampledOut, false);
    for &reason in Reason::UNPARSED {
        fate("unparsed", reason, true);
    }
    for &reason in Reason::NOT_INSERTED {
        fate("not_inserted", reason, true);
    }
}
