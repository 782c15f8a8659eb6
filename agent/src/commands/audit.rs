//! `flow-agent audit`: compares a running agent's account with each interface's own counters, and explains the
//! differences.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use formats::{harmless, human};
use proto::AgentStatus;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use view::client::{self, ClientError, Target};

use super::{
    NOTHING,
    answer::{self, Format},
    connect::Connect,
    of_an_agent, patiently, scan_first,
};

mod compare;

use compare::{Comparison, Figures, Verdict, compare};

/// How long the status may take to show a scan that is over.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// Compare what the agent counted with the interfaces' own counters.
///
/// On its Unix socket the agent scans first; over TCP the figures are those of its last scan. Exit status 1 if a difference has
/// no explanation, 3 if an interface was not scanned yet.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub connect: Connect,

    /// Text for people, or one JSON object.
    #[arg(
        short = 'o',
        long,
        value_name = "FORMAT",
        value_enum,
        default_value = "text"
    )]
    pub output: Format,
}

#[derive(Serialize)]
struct Report {
    comparisons: Vec<Comparison>,
    /// Interfaces that have left, so that their counters cannot be compared.
    departed_interfaces: u64,
    /// Whether the agent has scanned at all. Until then it may still be attaching.
    #[serde(skip)]
    has_scanned: bool,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let target = args.connect.target()?;
    let mut report = Report::of(scanned(&target).await?);
    if report.has(Verdict::NotScanned) {
        // A hook that was attached during a scan waits for the next one.
        report = Report::of(scanned(&target).await?);
    }
    let text = match args.output {
        Format::Text if report.comparisons.is_empty() && !report.has_scanned => {
            "not scanned yet: ask again after a scan\n".to_owned()
        }
        Format::Text if report.comparisons.is_empty() && report.departed_interfaces == 0 => {
            "the agent is not attached to any interface\n".to_owned()
        }
        Format::Text => {
            let left = report.departed_interfaces;
            let texts = report.comparisons.iter().map(text);
            let note = (left != 0)
                .then(|| format!("{left} interfaces have left and can no longer be compared\n"));
            texts.chain(note).collect()
        }
        Format::Json => answer::json(&report)?,
    };
    answer::show(text).await?;
    Ok(ExitCode::from(report.exit_status()))
}

impl Report {
    fn of(status: AgentStatus) -> Self {
        Self {
            comparisons: status.hooks.iter().map(compare).collect(),
            departed_interfaces: status.interfaces.map_or(0, |all| all.departed),
            has_scanned: status.scans.is_some_and(|scans| scans.count > 0),
        }
    }

    fn has(&self, verdict: Verdict) -> bool {
        let mut all = self.comparisons.iter();
        all.any(|comparison| comparison.verdict == verdict)
    }

    fn exit_status(&self) -> u8 {
        if self.has(Verdict::Unexplained) {
            1
        } else if self.has(Verdict::NotScanned) || !self.has_scanned {
            NOTHING
        } else {
            0
        }
    }
}

/// The status after a scan that begins here, or after the last one if this client may not request one.
async fn scanned(target: &Target) -> Result<AgentStatus> {
    let scan_id = scan_first(target).await?.unwrap_or_default();
    let shown = patiently(target, status_of(target, scan_id)).await;
    let instead = format!(
        "it has no interfaces to compare with; give the address of an agent, or see what agents lost on the way to it \
         with `flow-agent status --connect {target}`"
    );
    of_an_agent(target, shown, &instead).await
}

/// The status that shows this scan. It follows the scan by a moment.
async fn status_of(target: &Target, scan_id: u64) -> Result<AgentStatus, ClientError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let status = client::status(target).await?;
        let count = status.scans.as_ref().map_or(0, |scans| scans.count);
        // Another agent may have taken the place of the one that scanned.
        if count >= scan_id || Instant::now() > until {
            return Ok(status);
        }
        sleep(LOOK).await;
    }
}

fn text(comparison: &Comparison) -> String {
    let Comparison {
        interface,
        netns_name,
        direction,
        hook,
        mode,
        ours,
        ..
    } = comparison;
    let interface = human::interface(netns_name, interface);
    let verdict = verdict(comparison);
    let mut lines = vec![
        format!("{interface} {direction} ({hook} by {mode}): {verdict}"),
        format!(
            "  ours        {} packets, {} bytes",
            ours.packets, ours.bytes
        ),
    ];
    if let (Some(least), Some(most)) = (comparison.interface_least, comparison.interface_most) {
        let packets = range(least.packets, most.packets);
        let bytes = range(least.bytes, most.bytes);
        lines.push(format!("  interface   {packets} packets, {bytes} bytes"));
    }
    if let Some(difference) = comparison.difference {
        lines.push(format!("  difference  {}", signed(difference)));
    }
    let explanations = comparison.explanations.iter();
    lines.extend(explanations.map(|explanation| format!("  - {explanation}")));
    harmless::lines(&lines)
}

fn verdict(comparison: &Comparison) -> String {
    match comparison.verdict {
        Verdict::Exact => "exact".to_owned(),
        Verdict::Explained => "explained".to_owned(),
        Verdict::Unexplained => {
            format!(
                "unexplained {}",
                signed(comparison.unexplained.unwrap_or_default())
            )
        }
        Verdict::NotScanned => "not scanned yet".to_owned(),
        Verdict::Unknown => "unknown".to_owned(),
    }
}

fn range(least: i64, most: i64) -> String {
    if least == most {
        least.to_string()
    } else {
        format!("{least} to {most}")
    }
}

fn signed(figures: Figures) -> String {
    format!("{:+} packets, {:+} bytes", figures.packets, figures.bytes)
}

#[cfg(test)]
mod tests {
    use proto::HookStatus;

    use super::*;

    #[test]
    fn what_is_not_scanned_yet_is_neither_a_fault_nor_a_success() {
        use Verdict::{Exact, Explained, NotScanned, Unexplained, Unknown};
        let after = |has_scanned, verdicts: &[Verdict]| {
            let comparisons = verdicts.iter().map(|&verdict| Comparison {
                verdict,
                ..compare(&HookStatus::default())
            });
            let report = Report {
                comparisons: comparisons.collect(),
                departed_interfaces: 0,
                has_scanned,
            };
            report.exit_status()
        };
        let status = |verdicts: &[Verdict]| after(true, verdicts);
        // It is still attaching.
        assert_eq!(after(false, &[]), NOTHING);
        assert_eq!(status(&[]), 0);
        assert_eq!(status(&[Exact, Explained, Unknown]), 0);
        assert_eq!(status(&[Exact, NotScanned]), NOTHING);
        assert_eq!(status(&[NotScanned, Unexplained, Exact]), 1);
    }

    #[test]
    fn the_text_gives_both_counts_the_difference_and_the_verdict() {
        let comparison = Comparison {
            interface: "eth0".to_owned(),
            ifindex: 2,
            netns: 5,
            netns_name: String::new(),
            direction: "ingress",
            hook: "tc_ingress",
            mode: "tcx",
            ours: Figures {
                packets: 10,
                bytes: 1000,
            },
            interface_least: Some(Figures {
                packets: 12,
                bytes: 1200,
            }),
            interface_most: Some(Figures {
                packets: 13,
                bytes: 1300,
            }),
            difference: Some(Figures {
                packets: -2,
                bytes: -200,
            }),
            explanations: vec!["because".to_owned()],
            unexplained: Some(Figures {
                packets: -2,
                bytes: -200,
            }),
            verdict: Verdict::Unexplained,
        };
        let expected = "\
eth0 ingress (tc_ingress by tcx): unexplained -2 packets, -200 bytes
  ours        10 packets, 1000 bytes
  interface   12 to 13 packets, 1200 to 1300 bytes
  difference  -2 packets, -200 bytes
  - because
";
        assert_eq!(text(&comparison), expected);
        assert_eq!(
            serde_json::to_value(&comparison).unwrap()["verdict"],
            "unexplained"
        );
    }
}
