//! What users of a service notice of the agent on its host: HTTP requests at a steady rate, each
//! answered after a constant time, and how long they take with nothing, with the agent, and with an
//! agent that gets no CPU.

use std::{collections::BTreeMap, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use lab::{Lab, LabOptions, Process};

use super::{
    difference::Difference,
    reference,
    result::{Row, Run},
    rounds::{Interrupt, Progress, order},
};

mod account;
mod calibration;
mod client;
mod latency;
mod message;
mod part;
mod ready;
mod server;
mod starve;
mod station;

use client::{Outcome, Plan};
pub use part::Part;
use starve::{QuotaGroup, Stopped};
use station::Station;

const PORT: u16 = 8080;
const SERVER_DELAY: Duration = Duration::from_millis(5);
const CONNECTIONS: usize = 256;
const WARM_UP: Duration = Duration::from_millis(500);
/// Of one CPU, for the agent with a quota.
const QUOTA_PERCENT: u32 = 1;

pub struct Settings<'a> {
    pub agent: &'a Path,
    pub rounds: u32,
    pub quick: bool,
    /// Of each measurement.
    pub window: Duration,
    /// How long the agent is stopped.
    pub stopped_window: Duration,
    /// Found out where it is not given.
    pub requests_per_second: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Nothing,
    Agent,
    /// What is held against the stopped agent: nothing, for as long.
    NothingAsLong,
    /// By SIGSTOP.
    Stopped,
    /// Held to [`QUOTA_PERCENT`].
    Quota,
}

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Agent => "agent",
            Self::NothingAsLong => "nothing as long",
            Self::Stopped => "stopped",
            Self::Quota => "quota",
        }
    }
}

pub fn run(settings: &Settings, interrupt: &Interrupt) -> Result<Run> {
    let mut run = Run::new("http", settings.quick, settings.rounds)?;
    let mut bench = Bench::new(settings, interrupt)?;
    let mut arms = vec![Arm::Nothing, Arm::Agent, Arm::NothingAsLong, Arm::Stopped];
    match &bench.quota {
        Ok(_) => arms.push(Arm::Quota),
        Err(error) => run.notes.push(format!("quota: n/a, since {error:#}.")),
    }
    let mut progress = Progress::new(1 + settings.rounds as usize * arms.len());
    progress.step("how many requests a second the machine holds without the agent");
    bench.find_rate()?;
    let labels = bench.labels();
    for round in 0..settings.rounds {
        run.add(&labels, "reference", "step_ns", reference::step_ns());
        for index in order(arms.len(), round) {
            let arm = arms[index];
            progress.step(&format!("round {}: {}", round + 1, arm.name()));
            let measured = bench.measure(arm);
            for (measure, value) in measured.with_context(|| format!("measure {}", arm.name()))? {
                run.add(&labels, arm.name(), measure, value);
            }
        }
    }
    run.notes.extend(bench.notes());
    Ok(run)
}

/// What each arm adds to the latency without an agent.
pub fn differences(run: &Run) -> Vec<(&Row, Difference)> {
    let control = |arm: &str| match arm {
        "agent" | "quota" => Some(Arm::Nothing),
        "stopped" => Some(Arm::NothingAsLong),
        _ => None,
    };
    run.rows
        .iter()
        .filter(|row| row.measure.starts_with("latency_"))
        .filter_map(|row| {
            let control = control(&row.arm)?.name();
            let without = run.row(&row.scenario, control, &row.measure)?;
            Some((row, row.difference_to(without)?))
        })
        .collect()
}

/// One wire and one server for all arms; the agent comes and goes with its arm.
struct Bench<'a> {
    settings: &'a Settings<'a>,
    interrupt: &'a Interrupt,
    plan: Plan,
    /// Whether the machine held the plan's rate when it was tried.
    is_held: bool,
    _server: Process,
    lab: Lab,
    quota: Result<QuotaGroup>,
}

type Measures = Vec<(&'static str, f64)>;

impl<'a> Bench<'a> {
    fn new(settings: &'a Settings, interrupt: &'a Interrupt) -> Result<Self> {
        let lab = Lab::new(LabOptions {
            addresses: true,
            offloads: true,
            ..LabOptions::default()
        })?;
        let address = SocketAddr::from((lab.agent.ipv4, PORT));
        Ok(Self {
            settings,
            interrupt,
            plan: Plan {
                server: address,
                requests_per_second: settings.requests_per_second.unwrap_or_default(),
                warm_up: WARM_UP,
                window: settings.window,
                connections: CONNECTIONS,
            },
            is_held: true,
            _server: part::serve(&lab.agent, address, SERVER_DELAY)?,
            lab,
            quota: QuotaGroup::new(),
        })
    }

    fn find_rate(&mut self) -> Result<()> {
        if self.settings.requests_per_second.is_none() {
            let found = calibration::find(&self.plan, |plan| self.load(plan))?;
            self.plan.requests_per_second = found.requests_per_second;
            self.is_held = found.is_held;
        }
        Ok(())
    }

    fn load(&self, plan: &Plan) -> Result<Outcome> {
        part::load(&self.lab.peer, plan, self.interrupt)
    }

    /// For as long as the agent is stopped.
    fn long_plan(&self) -> Plan {
        Plan {
            window: self.settings.stopped_window,
            ..self.plan
        }
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let rate = self.plan.requests_per_second.to_string();
        BTreeMap::from([
            ("offered_requests_per_second".to_owned(), rate),
            (
                "response_bytes".to_owned(),
                message::BODY_LEN_BYTES.to_string(),
            ),
            (
                "server_delay_ms".to_owned(),
                SERVER_DELAY.as_millis().to_string(),
            ),
            ("connections".to_owned(), CONNECTIONS.to_string()),
        ])
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "A request's latency begins when it was due, not when it was sent, so that a stall counts \
             for every request that came into it; a failed request counts as two seconds."
                .to_owned(),
            "Client, server, agent and its consumer share this host's CPUs; client and server are \
             pinned, each to one of its own where there are two."
                .to_owned(),
            "A difference is the median of the rounds' differences, its interval that of the sign test."
                .to_owned(),
            "The server's delay is part of every latency. CPU is in percent of one core."
                .to_owned(),
            "programs_cpu_percent and program_ns_per_request, of both directions and with \
             acknowledgements, are taken in a window of their own, since the statistics cost time \
             themselves."
                .to_owned(),
            format!(
                "stopped: the agent gets SIGSTOP before the first request and SIGCONT after the last \
                 ({} s); quota: it is held to {QUOTA_PERCENT} % of one CPU meanwhile. Afterwards all \
                 that the interface counted is held against the agent's account.",
                self.settings.stopped_window.as_secs()
            ),
        ];
        if !self.is_held {
            notes.push("The machine did not hold even this rate in the calibration.".to_owned());
        }
        notes
    }

    fn measure(&self, arm: Arm) -> Result<Measures> {
        // What the arm before left to the kernel, such as the memory of its maps, is gone by then.
        self.interrupt.sleep(Duration::from_millis(500))?;
        match arm {
            Arm::Nothing => Ok(latency_of(&self.load(&self.plan)?)),
            Arm::NothingAsLong => Ok(latency_of(&self.load(&self.long_plan())?)),
            Arm::Agent => {
                let mut station = Station::new(self)?;
                let mut measures = station.load(&self.plan)?;
                measures.extend(station.programs(&self.plan)?);
                measures.extend(station.close()?);
                Ok(measures)
            }
            Arm::Stopped => {
                let plan = self.long_plan();
                let mut station = Station::new(self)?;
                let stopped = Stopped::new(station.agent.process())?;
                let outcome = self.load(&plan)?;
                drop(stopped);
                let mut measures = latency_of(&outcome);
                measures.extend(station.close()?);
                Ok(measures)
            }
            Arm::Quota => {
                let quota = self.quota.as_ref().ok().context("there is a quota group")?;
                let mut station = Station::new(self)?;
                let held = quota.hold(station.agent.pid(), QUOTA_PERCENT)?;
                let mut measures = station.load(&self.plan)?;
                drop(held);
                measures.extend(station.close()?);
                Ok(measures)
            }
        }
    }
}

fn latency_of(outcome: &Outcome) -> Measures {
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    vec![
        ("latency_p50_us", us(outcome.latency.p50)),
        ("latency_p99_us", us(outcome.latency.p99)),
        ("latency_p999_us", us(outcome.latency.p999)),
        ("requests_per_second", outcome.requests_per_second),
        ("failed_requests", outcome.failed as f64),
    ]
}
