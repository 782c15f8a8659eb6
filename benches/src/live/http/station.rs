//! The agent under the requests: a wire comes in; what it and its programs cost meanwhile, and what it
//! lost, go out.

use std::time::Duration;

use anyhow::Result;
use lab::Process;

use super::{Bench, Measures, account::Ledger, client::Plan, latency_of};
use crate::live::{
    cost::{CpuMeter, cpu_percent, programs_during},
    program::{Agent, watch},
};
use crate::resident::Resident;

/// An agent as it is by default, with one consumer, that scans often enough to be seen in a window.
pub struct Station<'a> {
    bench: &'a Bench<'a>,
    ledger: Ledger<'a>,
    _consumer: Process,
    pub agent: Agent,
}

/// Two scans and the consumer's start are over by then.
const SETTLE: Duration = Duration::from_millis(2500);

impl<'a> Station<'a> {
    pub fn new(bench: &'a Bench<'a>) -> Result<Self> {
        let host = &bench.lab.agent;
        let ledger = Ledger::open(host)?;
        let binary = bench.settings.agent;
        let agent = Agent::start(host, binary, &["--scan-interval", "1s"], bench.interrupt)?;
        let consumer = watch(binary, &agent.address())?;
        // What it costs to come up is not what it costs to run.
        bench.interrupt.sleep(SETTLE)?;
        Ok(Self {
            bench,
            ledger,
            _consumer: consumer,
            agent,
        })
    }

    /// Latency, and what the agent's process costs meanwhile.
    pub fn load(&mut self, plan: &Plan) -> Result<Measures> {
        let pid = self.agent.pid();
        let meter = CpuMeter::start([pid])?;
        let outcome = self.bench.load(plan)?;
        let cpu_percent = meter.percent()?;
        let mut measures = latency_of(&outcome);
        measures.push(("agent_cpu_percent", cpu_percent));
        measures.push(("resident_bytes", Resident::of(pid)?.now_bytes as f64));
        Ok(measures)
    }

    /// What the agent's programs cost, in half the time.
    pub fn programs(&mut self, plan: &Plan) -> Result<Measures> {
        let plan = Plan {
            window: plan.window / 2,
            ..*plan
        };
        let programs = self.agent.program_ids()?;
        let (cost, elapsed, outcome) = programs_during(&programs, || self.bench.load(&plan))?;
        Ok(vec![
            (
                "programs_cpu_percent",
                cpu_percent(cost.run_time_ns, elapsed),
            ),
            (
                "program_ns_per_request",
                cost.run_time_ns as f64 / outcome.answered.max(1) as f64,
            ),
            (
                "program_runs_per_request",
                cost.runs as f64 / outcome.answered.max(1) as f64,
            ),
        ])
    }

    /// Lets the agent catch up, takes its account and ends it.
    pub fn close(self) -> Result<Measures> {
        const PATIENCE: Duration = Duration::from_secs(15);
        let bench = self.bench;
        let loss = self.ledger.close(
            bench.settings.agent,
            &self.agent.address(),
            PATIENCE,
            bench.interrupt,
        )?;
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
