//! Tables of single figures: the five in the README, and those that others publish too.

use std::collections::BTreeMap;

use anyhow::Result;

use super::{
    grid,
    markdown::{head, line},
    units,
};
use crate::live::result::{Row, Run};

/// A line of a table: its bench, a description, the labels that select the measurement, such as
/// `hook=tc; measure=cpu_percent; arm=agent`, and what to compare it with.
struct Headline(&'static str, &'static str, &'static str, Against);

#[derive(Clone, Copy)]
enum Against {
    /// Another arm of the same run, and a description of it.
    Arm(&'static str, &'static str),
    /// A published figure of another project, in the measure's own unit.
    Published(f64, &'static str),
}

use Against::{Arm, Published};

const IN_README: &[Headline] = &[
    Headline(
        "overhead",
        "a packet of one of 10,000 flows",
        "hook=tc; path=hit; flows=10000; measure=net_ns_per_packet; arm=agent",
        Arm(
            "arm=bare",
            "the least that a flow table in a kernel hash map takes",
        ),
    ),
    Headline(
        "overhead",
        "packets a second through one CPU, 64 bytes, TC",
        "hook=tc; path=hit; flows=1; frame_bytes=64; measure=packets_per_second; arm=agent",
        Arm("arm=nothing", "no agent"),
    ),
    Headline(
        "sweep",
        "CPU, kernel and process, 10,000 flows at 250,000 packets/s",
        "section=flows; flows=10000; measure=cpu_percent; arm=agent",
        Arm("arm=capture", "a packet capture (TPACKET_V3)"),
    ),
    SKYDIVE,
    Headline(
        "sweep",
        "memory a flow, kernel and process, 500,000 flows",
        "section=flows; flows=500000; measure=memory_bytes_per_flow; arm=agent",
        Arm("arm=capture", "a packet capture (TPACKET_V3)"),
    ),
];

const SKYDIVE: Headline = Headline(
    "sweep",
    "CPU of the process, 500,000 flows every 10 s",
    "section=table; table=500000; scan_interval=10s; measure=process_cpu_percent; arm=agent",
    Published(50.0, "Skydive: at most half a core"),
);

const PUBLISHED: &[Headline] = &[
    SKYDIVE,
    Headline(
        "userspace",
        "a flow in userspace, 500,000 flows: drain, replica, encoding",
        "table=kernel; profile=500k; measure=cpu_ns_per_flow; arm=drain_and_cycle",
        Published(9000.0, "a peer at 500,000 flows"),
    ),
    Headline(
        "userspace",
        "a flow in userspace, 50 peers on 8 ports: replica, encoding",
        "table=synthetic; profile=probectl; measure=cpu_ns_per_flow; arm=cycle",
        Published(1750.0, "probectl, the part that it measures"),
    ),
    Headline(
        "http",
        "programs' time an HTTP request",
        "measure=program_ns_per_request; arm=agent",
        Published(500.0, "Beyla, which sees requests and not packets"),
    ),
];

/// The table for the README. A figure that a host did not measure is n/a.
pub fn brief(runs: &[Run]) -> Result<String> {
    tables(runs, IN_README)
}

/// Our figures beside published ones.
pub fn published(runs: &[Run]) -> Result<String> {
    tables(runs, PUBLISHED)
}

/// A table for each host that measured at least one of the headlines.
fn tables(runs: &[Run], headlines: &[Headline]) -> Result<String> {
    let mut hosts: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        hosts.entry(run.host.slug()).or_default().push(run);
    }
    let mut out = String::new();
    let measured =
        |runs: &[&Run], headline: &Headline| runs.iter().any(|run| run.bench == headline.0);
    hosts.retain(|_, runs| headlines.iter().any(|headline| measured(runs, headline)));
    for runs in hosts.values() {
        if !out.is_empty() {
            out.push('\n');
        }
        head(
            &mut out,
            &["what", "flow-agent", "against", "ratio"].map(str::to_owned),
        );
        for headline in headlines {
            let run = runs.iter().find(|run| run.bench == headline.0);
            line(&mut out, &headline.cells(run.copied())?);
        }
    }
    Ok(out)
}

impl Headline {
    fn cells(&self, run: Option<&Run>) -> Result<[String; 4]> {
        let Self(_, title, labels, against) = *self;
        let none = || "n/a".to_owned();
        let find = |labels: &[&'static str]| match run {
            Some(run) => grid::row(run, labels),
            None => Ok(None),
        };
        let ours = find(&[labels])?;
        let measure = ours.map_or("", |row| &row.measure);
        let text = |row: &Row| Some(units::figure_with_unit(measure, row.figure()?));
        let (against, ratio) = match against {
            Arm(arm, words) => {
                let theirs = find(&[labels, arm])?;
                let ratio = ours
                    .zip(theirs)
                    .and_then(|(over, under)| over.ratio_to(under));
                let theirs = theirs.and_then(text).unwrap_or_else(none);
                (format!("{theirs}: {words}"), ratio.map(units::ratio))
            }
            Published(figure, words) => {
                let median = ours.and_then(Row::figure).map(|figure| figure.median);
                let theirs = units::with_unit(measure, figure);
                (
                    format!("published by others: {theirs}, {words}"),
                    median.map(|median| format!("**{:.2}**", median / figure)),
                )
            }
        };
        Ok([
            title.to_owned(),
            ours.and_then(text).unwrap_or_else(none),
            against,
            ratio.unwrap_or_else(none),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_stands_against_what_it_is_to_be_held_against() {
        let mut run = Run::new("overhead", false, 1).unwrap();
        let labels = [
            ("hook", "tc"),
            ("path", "hit"),
            ("flows", "10000"),
            ("frame_bytes", "64"),
        ];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let labels = BTreeMap::from(labels);
        run.add(&labels, "agent", "net_ns_per_packet", 90.0);
        run.add(&labels, "bare", "net_ns_per_packet", 100.0);
        let text = brief(&[run]).unwrap();
        let mut of_hits = text.lines().filter(|line| line.contains("10,000 flows"));
        let line = of_hits.next().unwrap();
        assert!(
            line.contains("90.0 ns") && line.contains("100 ns") && line.contains("**0.90**"),
            "{line}"
        );
        assert!(of_hits.next().unwrap().contains("n/a"));
    }

    #[test]
    fn the_readme_shows_five_figures_of_each_host_that_has_one() {
        const TABLE: usize = 2 + 5;
        let run = Run::new("overhead", false, 1).unwrap();
        let mut other = Run::new("outputs", false, 1).unwrap();
        other.host.cpu = "another".to_owned();
        let one = brief(&[run.clone(), other.clone()]).unwrap();
        assert_eq!(one.lines().count(), TABLE, "{one}");
        other.bench = "sweep".to_owned();
        let both = brief(&[run, other]).unwrap();
        let tables: Vec<_> = both.split("\n\n").collect();
        assert_eq!(tables.len(), 2, "{both}");
        assert!(
            tables.iter().all(|table| table.lines().count() == TABLE),
            "{both}"
        );
    }
}
