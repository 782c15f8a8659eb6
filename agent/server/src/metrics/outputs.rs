//! Metrics of the outputs: records sent, refused and lost.

use std::fmt;

use proto::{OutputStatus, RecordSum};

use super::{
    Shown,
    families::{Families, Help, Labels},
    seconds,
};

impl Shown {
    pub(super) fn outputs(&self, families: &mut Families<'_>) -> fmt::Result {
        let by_fate = |count: fn(RecordSum) -> u64| {
            let mut series = Vec::new();
            for output in &self.status.outputs {
                for (fate, sum) in [
                    ("sent", output.sent),
                    ("refused", output.refused),
                    ("lost", output.lost),
                    ("left_out", output.left_out),
                ] {
                    let mut labels = output_labels(output);
                    labels.push(("fate", fate.to_owned()));
                    series.push((labels, count(sum.unwrap_or_default())));
                }
            }
            series
        };
        families.counter(
            Help("flow_agent_output_records", "Records by outcome"),
            by_fate(|sum| sum.records),
        )?;
        families.counter(
            Help("flow_agent_output_packets", "Packets that they report"),
            by_fate(|sum| sum.packets),
        )?;
        families.counter(
            Help("flow_agent_output_bytes", "Layer-2 bytes that they report"),
            by_fate(|sum| sum.bytes),
        )?;
        let outputs = self.status.outputs.iter();
        families.gauge(
            Help(
                "flow_agent_output_queued_records",
                "Records that wait to be sent, or that are not acknowledged or answered yet",
            ),
            outputs.clone().map(|output| {
                let queued = output.queued.unwrap_or_default();
                (output_labels(output), queued.records as f64)
            }),
        )?;
        families.gauge(
            Help(
                "flow_agent_output_failing",
                "1 if the last message did not arrive",
            ),
            outputs
                .clone()
                .map(|output| (output_labels(output), f64::from(u8::from(output.failing)))),
        )?;
        families.counter(
            Help(
                "flow_agent_output_failures",
                "How often the output began to fail",
            ),
            outputs.map(|output| (output_labels(output), output.failures)),
        )?;
        self.output_spools(families)?;
        self.output_certificates(families)?;
        self.departed_outputs(families)
    }

    /// Series of the outputs that keep batches on disk.
    fn output_spools(&self, families: &mut Families<'_>) -> fmt::Result {
        let outputs = self.status.outputs.iter();
        let spooled = outputs.filter_map(|output| Some((output, output.spool.as_ref()?)));
        families.gauge(
            Help(
                "flow_agent_output_spool_bytes",
                "Disk space that the spool takes",
            ),
            spooled
                .clone()
                .map(|(output, spool)| (output_labels(output), spool.bytes as f64)),
        )?;
        let waiting = spooled
            .clone()
            .filter(|(_, spool)| spool.oldest_unix_ns != 0);
        families.gauge(
            Help(
                "flow_agent_output_spool_oldest_time_seconds",
                "Unix time at which the oldest unacknowledged batch was queued",
            ),
            waiting.map(|(output, spool)| (output_labels(output), seconds(spool.oldest_unix_ns))),
        )?;
        families.gauge(
            Help(
                "flow_agent_output_spool_failing",
                "1 if the disk cannot be used, so that batches wait in memory only",
            ),
            spooled.map(|(output, spool)| {
                let is_failing = !spool.error.is_empty();
                (output_labels(output), f64::from(u8::from(is_failing)))
            }),
        )
    }

    /// Series of the outputs that use TLS.
    fn output_certificates(&self, families: &mut Families<'_>) -> fmt::Result {
        let outputs = self.status.outputs.iter();
        let secured = outputs.filter_map(|output| Some((output, output.tls.as_ref()?)));
        let shown = secured.clone().filter(|(_, tls)| tls.client_certificate);
        families.gauge(
            Help(
                "flow_agent_output_certificate_expiry_time_seconds",
                "Unix time at which the output's client certificate expires",
            ),
            shown.map(|(output, tls)| (output_labels(output), seconds(tls.not_after_unix_ns))),
        )?;
        families.gauge(
            Help(
                "flow_agent_output_certificate_reload_failing",
                "1 if its changed TLS files cannot be used, so the files read before stay in force",
            ),
            secured.map(|(output, tls)| {
                let is_failing = !tls.reload_error.is_empty();
                (output_labels(output), f64::from(u8::from(is_failing)))
            }),
        )
    }

    /// Outputs removed from the settings have no series, so that reloads do not accumulate series. Their sums stay.
    fn departed_outputs(&self, families: &mut Families<'_>) -> fmt::Result {
        let departed = self.status.departed_outputs.unwrap_or_default();
        let by_fate = |count: fn(RecordSum) -> u64| {
            let fates = [
                ("sent", departed.sent),
                ("refused", departed.refused),
                ("lost", departed.lost),
                ("left_out", departed.left_out),
            ];
            fates.map(|(fate, sum)| {
                let labels = vec![("fate", fate.to_owned())];
                (labels, count(sum.unwrap_or_default()))
            })
        };
        families.counters([(
            Help(
                "flow_agent_departed_outputs",
                "Outputs that the settings no longer name",
            ),
            departed.outputs,
        )])?;
        families.counter(
            Help(
                "flow_agent_departed_output_records",
                "Their records by outcome",
            ),
            by_fate(|sum| sum.records),
        )?;
        families.counter(
            Help(
                "flow_agent_departed_output_packets",
                "Packets that these report",
            ),
            by_fate(|sum| sum.packets),
        )?;
        families.counter(
            Help(
                "flow_agent_departed_output_bytes",
                "Layer-2 bytes that these report",
            ),
            by_fate(|sum| sum.bytes),
        )?;
        let queued = departed.queued.unwrap_or_default();
        families.gauges([(
            Help(
                "flow_agent_departed_output_queued_records",
                "Their records that still wait to be sent, or that are not acknowledged or answered yet",
            ),
            queued.records as f64,
        )])
    }
}

fn output_labels(output: &OutputStatus) -> Labels {
    vec![
        ("output", output.name.clone()),
        ("kind", output.kind.clone()),
    ]
}
