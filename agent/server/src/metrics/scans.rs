//! Metrics of scans: how often, how late and how long.

use std::fmt;

use super::{
    Shown,
    families::{Families, Help, Labels},
    seconds,
};

impl Shown {
    pub(super) fn scans(&self, families: &mut Families<'_>) -> fmt::Result {
        let scans = self.status.scans.clone().unwrap_or_default();
        let settings = self.status.settings.unwrap_or_default();
        families.counters([
            (Help("flow_agent_scans", "Scans of the flow table"), scans.count),
            (
                Help(
                    "flow_agent_early_scans",
                    "Scans before the interval was over, since a page was filling or an interface left",
                ),
                scans.early,
            ),
            (
                Help(
                    "flow_agent_late_scans",
                    "Scans that took longer than the interval, so that the next one was late",
                ),
                scans.late,
            ),
        ])?;
        families.gauges([
            (
                Help(
                    "flow_agent_scan_interval_seconds",
                    "The interval that is set",
                ),
                seconds(settings.scan_interval_ns),
            ),
            (
                Help(
                    "flow_agent_last_scan_duration_seconds",
                    "How long the last scan took",
                ),
                seconds(scans.last_duration_ns),
            ),
            (
                Help(
                    "flow_agent_last_flip_wait_seconds",
                    "The part of it in which programs may still have held the old page",
                ),
                seconds(scans.last_flip_wait_ns),
            ),
        ])?;
        families.counter(
            Help("flow_agent_scan_cpu_seconds", "CPU time of the scans"),
            [(Labels::new(), seconds(scans.cpu_ns))],
        )?;
        families.counter(
            Help(
                "flow_agent_lapsed_seconds",
                "Time in which the programs counted nothing, since no scan had renewed their lease",
            ),
            [(Labels::new(), seconds(scans.lapsed_ns))],
        )?;
        families.histogram(
            Help(
                "flow_agent_scan_duration_seconds",
                "How long the scans took",
            ),
            &scans.durations.unwrap_or_default(),
        )?;
        families.histogram(
            Help(
                "flow_agent_flip_wait_seconds",
                "The part of it in which programs may still have held the old page",
            ),
            &scans.flip_waits.unwrap_or_default(),
        )?;
        families.histogram(
            Help(
                "flow_agent_scan_lateness_seconds",
                "How late scans began, for those due at the end of the interval",
            ),
            &scans.lateness.unwrap_or_default(),
        )
    }
}
