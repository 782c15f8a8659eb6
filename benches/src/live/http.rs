//! The effect of the agent on the users of a service: HTTP requests at a steady rate, each answered after a constant
//! time. Measures their latency without an agent, with the agent, with every enrichment, and with an agent that gets no
//! CPU, and the cost of the programs.

use std::{path::PathBuf, rc::Rc, time::Duration};

use anyhow::{Context as _, Result};

use self::{
    client::Plan as Requests,
    service::{QUOTA_PERCENT, SERVER_DELAY, Service},
};
use super::{
    bench::{Bench, Group, Labels, Lifetime, Plan, Setup, Station, labels, notes, station},
    difference::Difference,
    program::{ENRICH, version_of},
    result::{Row, Run},
    rounds::say,
};

mod account;
mod calibration;
mod client;
mod latency;
mod message;
mod part;
mod ready;
mod server;
mod service;
mod starve;

pub use part::Part;

#[derive(Default, clap::Args)]
pub struct Http {
    /// Instead of 10,000, or what the machine holds
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests_per_second: Option<u32>,
    /// Without the agents that get no CPU, whose turns take 30 seconds each, so that there is time for more rounds
    #[arg(long)]
    only_running: bool,
    /// Another flow-agent, such as one of an older version, that takes turns with the one that is measured
    #[arg(long, value_name = "FLOW_AGENT")]
    beside: Option<PathBuf>,
}

/// Requests to one service. Each arm starts and stops its agent beside it.
#[derive(Clone)]
pub struct Load {
    service: Rc<Service>,
    requests: Requests,
    /// For the arms with a stopped agent.
    long_requests: Requests,
    beside: Option<PathBuf>,
}

impl Bench for Http {
    const NAME: &'static str = "http";

    type Load = Load;

    fn sections(&self) -> Vec<String> {
        let only = self.only_running.then(|| "only-running".to_owned());
        only.into_iter().collect()
    }

    /// It takes six rounds for an interval that covers 95 %.
    fn rounds(is_quick: bool) -> u32 {
        if is_quick { 3 } else { 6 }
    }

    fn plan(&self, setup: &Setup) -> Result<Plan<Load>> {
        let what_is = |agent: &PathBuf| -> Result<String> {
            let version = version_of(agent)?;
            Ok(format!("beside is {}, version {version}.", agent.display()))
        };
        let beside = self.beside.as_ref().map(what_is).transpose()?;
        let service = Service::new()?;
        let stopped = setup.window(Duration::from_secs(30));
        let mut notes = notes(&NOTES);
        notes.extend(beside);
        notes.extend((!self.only_running).then(|| format!(
            "stopped: the agent gets SIGSTOP before the first request and SIGCONT after the last \
             ({} s); quota: it is held to {QUOTA_PERCENT} % of one CPU meanwhile. Afterwards all \
             that the interface counted is held against the agent's account.",
            stopped.as_secs()
        )));
        let mut requests = service.requests(setup.window(Duration::from_secs(7)));
        if let Some(given) = self.requests_per_second {
            requests.requests_per_second = given;
        } else {
            say("how many requests a second the machine holds without the agent");
            let found = calibration::find(&requests, |requests| service.load(requests, setup))?;
            requests.requests_per_second = found.requests_per_second;
            if !found.is_held {
                notes
                    .push("The machine did not hold even this rate in the calibration.".to_owned());
            }
        }
        let mut arms = vec!["nothing", "agent", ENRICHED];
        arms.extend(self.beside.as_ref().map(|_| BESIDE));
        if !self.only_running {
            arms.extend([AS_LONG, "stopped"]);
            match &service.quota {
                Ok(_) => arms.push("quota"),
                Err(error) => notes.push(format!("quota: n/a, since {error:#}.")),
            }
        }
        let load = Load {
            service: Rc::new(service),
            requests,
            long_requests: Requests {
                window: stopped,
                ..requests
            },
            beside: self.beside.clone(),
        };
        Ok(Plan {
            groups: vec![Group::new(Lifetime::Rounds, arms, &load)],
            notes,
        })
    }

    fn labels(load: &Load) -> Labels {
        let Requests {
            requests_per_second,
            connections,
            ..
        } = load.requests;
        labels([
            ("offered_requests_per_second", &requests_per_second),
            ("response_bytes", &message::BODY_LEN_BYTES),
            ("server_delay_ms", &SERVER_DELAY.as_millis()),
            ("connections", &connections),
        ])
    }

    fn station(&self, arm: &str, load: &Load, _: &Setup) -> Result<Box<dyn Station>> {
        let (arm, load) = (arm.to_owned(), load.clone());
        Ok(station(move |setup| {
            let Load {
                service,
                requests,
                long_requests,
                beside,
            } = &load;
            // Let the kernel finish cleaning up after the previous arm, such as freeing the memory of its maps.
            setup.interrupt.sleep(Duration::from_millis(500))?;
            match arm.as_str() {
                "agent" => service.with_agent(&[], requests, setup),
                ENRICHED => service.with_agent(ENRICH, requests, setup),
                BESIDE => {
                    let mut setup = setup.clone();
                    setup.agent = beside.clone().context("there is another agent")?;
                    service.with_agent(&[], requests, &setup)
                }
                "stopped" => service.with_stopped_agent(long_requests, setup),
                "quota" => service.with_quota(requests, setup),
                AS_LONG => Ok(service.load(long_requests, setup)?.measures()),
                _ => Ok(service.load(requests, setup)?.measures()),
            }
        }))
    }
}

/// An agent with every enrichment.
const ENRICHED: &str = "enriched";

/// The agent of `--beside`.
const BESIDE: &str = "beside";

/// The control for the stopped agent: no agent, for the same time.
const AS_LONG: &str = "nothing as long";

const NOTES: [&str; 6] = [
    "A request's latency begins when it was due, not when it was sent, so that a stall counts \
     for every request that came into it; a failed request counts as two seconds.",
    "Client, server, agent and its consumer share this host's CPUs; client and server are \
     pinned, each to one of its own where there are two.",
    "A difference is the median of the rounds' differences, its interval that of the sign test.",
    "The server's delay is part of every latency. CPU is in percent of one core.",
    "programs_cpu_percent and program_ns_per_request, of both directions and with \
     acknowledgements, are taken in a window of their own, since the statistics cost time \
     themselves; a run of a program has a part of that in it.",
    "enriched: an agent with --enrich unit,process,tcp,rtt,dns,icmp. In each direction, scan and flow the first packet is asked for its socket, which \
     all have here: on a veth those that arrive bring the sender's. Connections live for many scans of a second each.",
];

/// The latency that each arm adds, compared with no agent.
pub fn differences(run: &Run) -> Vec<(&Row, Difference)> {
    let control = |arm: &str| match arm {
        "agent" | "quota" | ENRICHED | BESIDE => Some("nothing"),
        "stopped" => Some(AS_LONG),
        _ => None,
    };
    run.rows
        .iter()
        .filter(|row| row.measure.starts_with("latency_"))
        .filter_map(|row| {
            let without = run.row(&row.scenario, control(&row.arm)?, &row.measure)?;
            Some((row, Difference::between(row, without)?))
        })
        .collect()
}
