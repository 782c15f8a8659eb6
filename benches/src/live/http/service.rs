//! A server on its own wire, and the agents that run beside it. Measures the latency of the server's answers, the cost
//! of the agent and its programs, and the agent's losses.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use lab::{Lab, LabOptions, Process};

use super::{
    account::Ledger,
    client::{Outcome, Plan},
    part,
    starve::{QuotaGroup, Stopped},
};
use crate::live::{
    bench::{Measures, Setup},
    cost::{CpuMeter, programs_during},
    memory::Memory,
    program::Agent,
};

pub const SERVER_DELAY: Duration = Duration::from_millis(5);
/// The share of one CPU for the agent with a quota.
pub const QUOTA_PERCENT: u32 = 1;

pub struct Service {
    _server: Process,
    address: SocketAddr,
    lab: Lab,
    /// An error if this host does not support quotas.
    pub quota: Result<QuotaGroup>,
}

impl Service {
    pub fn new() -> Result<Self> {
        let lab = Lab::new(LabOptions {
            addresses: true,
            offloads: true,
            ..LabOptions::default()
        })?;
        let address = SocketAddr::from((lab.agent.ipv4, 8080));
        Ok(Self {
            _server: part::serve(&lab.agent, address, SERVER_DELAY)?,
            address,
            lab,
            quota: QuotaGroup::new(),
        })
    }

    /// A plan of requests to this service; the caller sets the rate.
    pub fn requests(&self, window: Duration) -> Plan {
        Plan {
            server: self.address,
            requests_per_second: 0,
            warm_up: Duration::from_millis(500),
            window,
            connections: 256,
        }
    }

    pub fn load(&self, plan: &Plan, setup: &Setup) -> Result<Outcome> {
        part::load(&self.lab.peer, plan, &setup.interrupt)
    }

    pub fn with_agent(&self, settings: &[&str], plan: &Plan, setup: &Setup) -> Result<Measures> {
        let mut watched = Watched::new(&self.lab, settings, setup)?;
        let mut measures = watched.load(|| self.load(plan, setup))?;
        let shorter = Plan {
            window: plan.window / 2,
            ..*plan
        };
        measures.extend(watched.programs(|| self.load(&shorter, setup))?);
        measures.extend(watched.close(setup)?);
        Ok(measures)
    }

    pub fn with_stopped_agent(&self, plan: &Plan, setup: &Setup) -> Result<Measures> {
        let mut watched = Watched::new(&self.lab, &[], setup)?;
        let stopped = Stopped::new(watched.agent.process())?;
        let outcome = self.load(plan, setup)?;
        drop(stopped);
        let mut measures = outcome.measures();
        measures.extend(watched.close(setup)?);
        Ok(measures)
    }

    pub fn with_quota(&self, plan: &Plan, setup: &Setup) -> Result<Measures> {
        let quota = self.quota.as_ref().ok().context("there is a quota group")?;
        let mut watched = Watched::new(&self.lab, &[], setup)?;
        let held = quota.hold(watched.agent.pid(), QUOTA_PERCENT)?;
        let mut measures = watched.load(|| self.load(plan, setup))?;
        drop(held);
        measures.extend(watched.close(setup)?);
        Ok(measures)
    }
}

impl Outcome {
    pub fn measures(&self) -> Measures {
        let us = |time: Duration| time.as_nanos() as f64 / 1e3;
        vec![
            ("latency_p50_us", us(self.latency.p50)),
            ("latency_p99_us", us(self.latency.p99)),
            ("latency_p999_us", us(self.latency.p999)),
            ("requests_per_second", self.requests_per_second),
            ("failed_requests", self.failed as f64),
        ]
    }
}

/// An agent with one consumer. It scans often enough for a window to include scans.
struct Watched<'a> {
    ledger: Ledger<'a>,
    _consumer: Process,
    agent: Agent,
}

impl<'a> Watched<'a> {
    fn new(lab: &'a Lab, settings: &[&str], setup: &Setup) -> Result<Self> {
        /// Enough for two scans and the start of the consumer.
        const SETTLE: Duration = Duration::from_millis(2500);
        let ledger = Ledger::open(&lab.agent)?;
        let settings = [&["--scan-interval", "1s"], settings].concat();
        let agent = Agent::start(&lab.agent, &settings, setup)?;
        let consumer = agent.watch()?;
        // Keep the cost of starting the agent out of the measurement.
        setup.interrupt.sleep(SETTLE)?;
        Ok(Self {
            ledger,
            _consumer: consumer,
            agent,
        })
    }

    /// Measures latency, and the cost of the agent's process during the load.
    fn load(&mut self, load: impl FnOnce() -> Result<Outcome>) -> Result<Measures> {
        let pid = self.agent.pid();
        let meter = CpuMeter::start([pid])?;
        let outcome = load()?;
        let cpu_percent = meter.percent()?;
        let mut measures = outcome.measures();
        measures.push(("agent_cpu_percent", cpu_percent));
        let memory = Memory::of(pid)?;
        measures.push(("resident_bytes", memory.resident_bytes as f64));
        Ok(measures)
    }

    /// Measures the cost of the agent's programs.
    fn programs(&mut self, load: impl FnOnce() -> Result<Outcome>) -> Result<Measures> {
        let programs = self.agent.program_ids()?;
        let (cost, outcome) = programs_during(&programs, load)?;
        let answered = outcome.answered.max(1) as f64;
        let mut measures = vec![
            ("programs_cpu_percent", cost.cpu_percent()),
            ("program_ns_per_request", cost.run_time_ns as f64 / answered),
            ("program_runs_per_request", cost.runs as f64 / answered),
        ];
        measures.extend(cost.ns_per_run().map(|ns| ("program_ns_per_run", ns)));
        Ok(measures)
    }

    /// Waits until the agent has scanned everything, reads its account and stops it.
    fn close(self, setup: &Setup) -> Result<Measures> {
        const PATIENCE: Duration = Duration::from_secs(15);
        let loss = self.ledger.close(&self.agent, PATIENCE, &setup.interrupt)?;
        self.agent.stop()?;
        Ok(vec![
            ("seen_packets", loss.seen as f64),
            ("unseen_packets", loss.unseen as f64),
            ("not_inserted_packets", loss.not_inserted as f64),
            ("missing_packets", loss.missing as f64),
            ("lost_records", loss.lost_records as f64),
        ])
    }
}
