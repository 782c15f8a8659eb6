//! The cost of filter rules per packet: an agent without rules, and agents with more and more networks.

use std::{collections::BTreeSet, fmt::Write as _, fs};

use anyhow::{Context as _, Result};
use lab::Host;

use super::{
    bench::{Bench, Group, Labels, Lifetime, Plan, Setup, Station, labels, notes},
    flooded::Flooded,
    program::{Hook, Occupant},
    wire::Flood,
};

/// Networks, and `--sample`. In all arms but the last every packet still reaches the table, so only the rules differ.
/// The last arm samples most packets away.
const ARMS: [(&str, u32, &str); 5] = [
    ("no rules", 0, "1"),
    ("1 network", 1, "1"),
    ("100 networks", 100, "1"),
    ("1000 networks", 1000, "1"),
    ("1 flow in 100", 0, "100"),
];
const FLOWS: [u32; 2] = [1, 10_000];
const MAX_FLOWS: u32 = 100_000;

#[derive(clap::Args)]
pub struct Filters;

impl Bench for Filters {
    const NAME: &'static str = "filters";

    type Load = (Hook, Flood);

    fn plan(&self, setup: &Setup) -> Result<Plan<Self::Load>> {
        let packets = if setup.is_quick { 300_000 } else { 600_000 };
        let group = |hook, flows| {
            let flood = Flood {
                frame_len_bytes: 64,
                flows,
                packets,
                is_tcp: false,
            };
            Group::new(Lifetime::Rounds, ARMS.map(|arm| arm.0), &(hook, flood))
        };
        let hooks = [Hook::Tc, Hook::Xdp].into_iter();
        Ok(Plan {
            groups: hooks
                .flat_map(|hook| FLOWS.map(|flows| group(hook, flows)))
                .collect(),
            notes: notes(&NOTES),
        })
    }

    fn labels((hook, flood): &Self::Load) -> Labels {
        labels([
            ("hook", &hook.name()),
            ("frame_bytes", &flood.frame_len_bytes),
            ("flows", &flood.flows),
        ])
    }

    fn station(
        &self,
        arm: &str,
        &(hook, flood): &Self::Load,
        setup: &Setup,
    ) -> Result<Box<dyn Station>> {
        let flooded = Flooded::new(flood, |host| agent(arm, host, hook, setup))?;
        flooded.warm_up(&setup.interrupt)?;
        Ok(Box::new(flooded))
    }
}

const NOTES: [&str; 3] = [
    "Each network is a rule of its own, among the addresses of the traffic; a tenth of 10,000 flows \
     is in one of 1,000 networks. All rules include, so that every packet goes on to the table.",
    "1 flow in 100 is --sample 100 without rules: the other packets do not reach the table.",
    "program_ns_per_packet is the kernel's run_time_ns over run_cnt while BPF_ENABLE_STATS is on.",
];

fn agent(arm: &str, host: &Host, hook: Hook, setup: &Setup) -> Result<(Occupant, BTreeSet<u32>)> {
    let (_, networks, sample) = ARMS
        .into_iter()
        .find(|(name, ..)| *name == arm)
        .with_context(|| format!("no arm is called {arm}"))?;
    let file = tempfile::NamedTempFile::new().context("make a file for filter rules")?;
    fs::write(&file, rules(networks)).context("write filter rules")?;
    let path = file
        .path()
        .to_str()
        .context("the path of a temporary file")?;
    let settings = ["--sample", sample, "--filter-file", path];
    // A started agent has read its rules.
    Occupant::agent(host, hook, MAX_FLOWS, &settings, setup)
}

/// The generator varies the first two bytes of the source address.
fn rules(networks: u32) -> String {
    let mut rules = String::new();
    for number in 0..networks {
        // Writing to a String cannot fail.
        let _ = writeln!(
            rules,
            "include net {}.{}.0.0/16",
            number % 250,
            number / 250
        );
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_is_a_rule_of_its_own() {
        let rules = rules(1000);
        let different: BTreeSet<&str> = rules.lines().collect();
        assert_eq!(different.len(), 1000);
        assert!(different.contains("include net 249.3.0.0/16"));
    }
}
