//! Explains filter rules and how they decide about given packets.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use formats::harmless;
use rules::{Compiled, Explained, Probe, Rule, Verdict};
use serde::Serialize;

use crate::commands::refused;

/// A JSON line.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line<'a> {
    Rule(&'a Explained),
    Packet(&'a Verdict),
}

/// Explains rules, and how they decide about packets.
pub(super) fn explain(rules: &[Rule], probes: &[Probe], as_json: bool) -> Result<String> {
    if rules.is_empty() && !probes.is_empty() {
        return Err(refused(anyhow!(
            "there are no rules to try --flow on: give them with --filter or --filter-file"
        )));
    }
    // Refuse rules that fit in no set, as the agent does when it starts.
    Compiled::new(rules, &[])?;
    let explained = rules::explain(rules);
    let mut verdicts = Vec::new();
    for probe in probes {
        verdicts.extend(probe.verdicts(rules)?);
    }
    if as_json {
        let rules = explained.iter().map(Line::Rule);
        let mut text = String::new();
        for line in rules.chain(verdicts.iter().map(Line::Packet)) {
            text += &harmless::json(&serde_json::to_string(&line)?);
            text.push('\n');
        }
        return Ok(text);
    }
    let mut text = String::new();
    write_rules(&mut text, &explained)?;
    write_packets(&mut text, &verdicts)?;
    Ok(harmless::lines(text.lines()))
}

fn write_rules(text: &mut String, explained: &[Explained]) -> Result<()> {
    let width = explained.len().to_string().len();
    for rule in explained {
        writeln!(text, "{:>width$}  {}", rule.number, rule.rule)?;
        for note in &rule.notes {
            writeln!(text, "{:width$}    {note}", "")?;
        }
    }
    let last = explained.last();
    let rest = if last.is_some_and(|last| last.rule == "exclude all") {
        "nothing else is counted"
    } else {
        "what no rule matches is counted"
    };
    writeln!(text, "{:width$}  {rest}", "")?;
    Ok(())
}

fn write_packets(text: &mut String, verdicts: &[Verdict]) -> Result<()> {
    let width = verdicts.iter().map(|verdict| verdict.packet.len()).max();
    let width = width.unwrap_or_default();
    for (index, verdict) in verdicts.iter().enumerate() {
        let gap = if index == 0 { "\n" } else { "" };
        let what = match verdict.is_counted {
            Some(true) => "counted",
            Some(false) => "left out",
            None => "depends",
        };
        let comma = if verdict.is_counted.is_some() {
            ","
        } else {
            ""
        };
        let why = match (verdict.is_counted, verdict.rule) {
            (None, _) => "on the interface's name: add on NAME to --flow".to_owned(),
            (Some(_), Some(rule)) => format!("by rule {rule}"),
            (Some(_), None) => "no rule matches".to_owned(),
        };
        writeln!(text, "{gap}{:<width$}  {what}{comma} {why}", verdict.packet)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Vec<Rule> {
        rules::set(&[text.parse().unwrap()])
    }

    #[test]
    fn rules_are_numbered_and_packets_come_with_their_answers() {
        let rules = set("include net 10.1.0.0/16; exclude net 10.1.2.0/24; exclude all");
        let probe: Probe = "10.2.0.1:1 > 10.3.0.1:2 udp ingress".parse().unwrap();
        let text = explain(&rules, &[probe], false).unwrap();
        assert_eq!(
            text,
            "1  include net 10.1.0.0/16\n\
             2  exclude net 10.1.2.0/24\n     never decides: rule 1 matches all that it does\n\
             3  exclude all\n   nothing else is counted\n\n\
             10.2.0.1:1 > 10.3.0.1:2 udp ingress  left out, by rule 3\n\
             10.3.0.1:2 > 10.2.0.1:1 udp egress   left out, by rule 3\n"
        );
    }

    #[test]
    fn a_rule_for_one_direction_comes_with_what_that_is_of_a_flow() {
        let rules = set("exclude port 53 ingress");
        let probe: Probe = "10.2.0.1:1 > 10.3.0.1:53 udp ingress".parse().unwrap();
        let text = explain(&rules, std::slice::from_ref(&probe), false).unwrap();
        let note = "a plain flow arrives in one direction and leaves in the other; at a mirror port and \
                    on loopback both arrive";
        assert!(text.contains(note), "{text}");
        let packets = "\
             10.2.0.1:1 > 10.3.0.1:53 udp ingress  left out, by rule 1\n\
             10.3.0.1:53 > 10.2.0.1:1 udp egress   counted, no rule matches\n";
        assert!(text.ends_with(packets), "{text}");
        let json = explain(&rules, &[probe], true).unwrap();
        assert!(json.lines().next().unwrap().contains(note), "{json}");
    }

    #[test]
    fn a_json_line_says_what_it_is() {
        let rules = set("exclude net 10.1.0.0/16");
        let probe: Probe = "10.1.0.1:1 > 10.3.0.1:2 udp egress".parse().unwrap();
        let text = explain(&rules, &[probe], true).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(
            lines[..2],
            [
                serde_json::json!({
                    "type": "rule", "number": 1, "rule": "exclude net 10.1.0.0/16", "notes": [],
                }),
                serde_json::json!({
                    "type": "packet", "packet": "10.1.0.1:1 > 10.3.0.1:2 udp egress",
                    "is_counted": false, "rule": 1,
                }),
            ]
        );
    }
}
