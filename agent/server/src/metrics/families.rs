//! Writes metric families in either of Prometheus' text formats.

use std::{collections::BTreeMap, fmt};

use prometheus_client::{
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder, NoLabelSet,
    },
    metrics::MetricType,
};
use proto::{Count, Durations};

/// A text format for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// Prometheus' older format, 0.0.4. A counter's family has the same name as its samples.
    Classic,
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

impl Format {
    fn write_counter<V: EncodeCounterValue + EncodeGaugeValue>(
        self,
        series: &mut MetricEncoder<'_>,
        value: &V,
    ) -> fmt::Result {
        match self {
            Self::OpenMetrics => series.encode_counter::<NoLabelSet, _, u64>(value, None),
            // `encode_gauge` writes name and value without a suffix.
            Self::Classic => series.encode_gauge(value),
        }
    }
}

/// A family's name without the counter suffix, and its help text.
#[derive(Clone, Copy)]
pub struct Help<'a>(pub &'static str, pub &'a str);

pub type Labels = Vec<(&'static str, String)>;

/// Writes one family after another.
pub struct Families<'a> {
    encoder: DescriptorEncoder<'a>,
    format: Format,
}

impl<'a> Families<'a> {
    pub fn new(encoder: DescriptorEncoder<'a>, format: Format) -> Self {
        Self { encoder, format }
    }

    pub fn gauge(
        &mut self,
        Help(name, help): Help<'_>,
        series: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let encoder = &mut self.encoder;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in series {
            if labels.is_empty() {
                family.encode_gauge(&value)?;
            } else {
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    /// Gauges without labels.
    pub fn gauges(&mut self, all: impl IntoIterator<Item = (Help<'static>, f64)>) -> fmt::Result {
        for (help, value) in all {
            self.gauge(help, [(Labels::new(), value)])?;
        }
        Ok(())
    }

    pub fn counter<V: EncodeCounterValue + EncodeGaugeValue>(
        &mut self,
        Help(name, help): Help<'_>,
        series: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        let whole_name = match self.format {
            Format::OpenMetrics => name.to_owned(),
            Format::Classic => format!("{name}_total"),
        };
        let kind = MetricType::Counter;
        let mut family = (self.encoder).encode_descriptor(&whole_name, help, None, kind)?;
        for (labels, value) in series {
            if labels.is_empty() {
                self.format.write_counter(&mut family, &value)?;
            } else {
                let mut series = family.encode_family(&labels)?;
                self.format.write_counter(&mut series, &value)?;
            }
        }
        Ok(())
    }

    /// Counters without labels.
    pub fn counters(&mut self, all: impl IntoIterator<Item = (Help<'static>, u64)>) -> fmt::Result {
        for (help, value) in all {
            self.counter(help, [(Labels::new(), value)])?;
        }
        Ok(())
    }

    /// A histogram of durations, in seconds.
    pub fn histogram(&mut self, Help(name, help): Help<'_>, durations: &Durations) -> fmt::Result {
        let kind = MetricType::Histogram;
        let bounds = durations.bounds_ns.iter().map(|&bound| bound as f64 / 1e9);
        let bounds = bounds.chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(durations.counts.iter().copied()).collect();
        let (sum, count) = (durations.sum_ns as f64 / 1e9, durations.counts.iter().sum());
        (self.encoder)
            .encode_descriptor(name, help, None, kind)?
            .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    /// Packets and bytes of the same series.
    pub fn traffic(
        &mut self,
        packets: Help<'_>,
        bytes: Help<'_>,
        all: &BTreeMap<Labels, Count>,
    ) -> fmt::Result {
        let series = all.iter();
        self.counter(
            packets,
            series
                .clone()
                .map(|(labels, count)| (labels.clone(), count.packets)),
        )?;
        self.counter(
            bytes,
            series.map(|(labels, count)| (labels.clone(), count.bytes)),
        )
    }

    /// Packets and bytes, by reason. `which` follows "Packets ".
    pub fn by_reason(
        &mut self,
        [packets, bytes]: [&'static str; 2],
        which: &str,
        counts: impl IntoIterator<Item = (String, Count)>,
    ) -> fmt::Result {
        let counts: Vec<(Labels, Count)> = counts
            .into_iter()
            .map(|(reason, count)| (vec![("reason", reason)], count))
            .collect();
        let all = counts.iter().cloned();
        let help = format!("Packets {which}");
        self.counter(
            Help(packets, &help),
            all.map(|(labels, count)| (labels, count.packets)),
        )?;
        let help = format!("Layer-2 bytes without FCS of packets {which}");
        let all = counts.into_iter();
        self.counter(
            Help(bytes, &help),
            all.map(|(labels, count)| (labels, count.bytes)),
        )
    }
}
