//! `flow-agent audit`: compares a running agent's account with each interface's own counters, and explains the
//! differences.

use std::process::ExitCode;

use anyhow::Result;
use formats::{harmless, human};
use serde::Serialize;
use view::client;

use super::{
    answer::{self, Format},
    connect::Connect,
};

mod compare;

use compare::{Comparison, Figures, Verdict, compare};

/// Compare what the agent counted with the interfaces' own counters.
///
/// Exit status 1 if a difference has no explanation.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub connect: Connect,

    /// Text for people, or one JSON object.
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    pub output: Format,
}

#[derive(Serialize)]
struct Report {
    comparisons: Vec<Comparison>,
    /// Interfaces that have left, so that their counters cannot be compared.
    departed_interfaces: u64,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let target = args.connect.target()?;
    let agent = super::patiently(&target, client::status(&target)).await?;
    let report = Report {
        comparisons: agent.hooks.iter().map(compare).collect(),
        departed_interfaces: agent.interfaces.map_or(0, |interfaces| interfaces.departed),
    };
    let text = match args.output {
        Format::Text if report.comparisons.is_empty() && report.departed_interfaces == 0 => {
            "the agent is attached to no interface\n".to_owned()
        }
        Format::Text => {
            let left = report.departed_interfaces;
            let texts = report.comparisons.iter().map(text);
            let note = (left != 0)
                .then(|| format!("{left} interfaces have left, and cannot be compared any more\n"));
            texts.chain(note).collect()
        }
        Format::Json => answer::json(&report)?,
    };
    answer::show(text).await?;
    let verdicts = report
        .comparisons
        .iter()
        .map(|comparison| comparison.verdict);
    Ok(exit_code(verdicts))
}

fn exit_code(mut verdicts: impl Iterator<Item = Verdict>) -> ExitCode {
    if verdicts.any(|verdict| verdict == Verdict::Unexplained) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
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
    use super::*;

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
