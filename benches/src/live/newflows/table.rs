//! The table of an agent on its own wire, and its losses at a given rate of new flows.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::Lab;

use super::{Load, inside::Inside, search::Step};
use crate::live::{
    bench::Setup, interrupt::Interrupt, pacer::Pace, program::Agent, sender::Sender,
};

const FRAME_LEN_BYTES: usize = 64;
/// How often a step reads the agent's maps.
const LOOK: Duration = Duration::from_millis(2);
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(8);
/// Pages that a step with early scans fills up to the mark, if time allows.
const FILLS: u64 = 4;

pub struct Table {
    load: Load,
    /// The mark, in percent of the table; 0 turns early scans off.
    early_scan: u32,
    sender: Sender,
    inside: Inside,
    _agent: Agent,
    lab: Lab,
}

/// When a step without a loss ends.
enum End {
    /// At the page's next flip, the end of the window in which the step began.
    Flip,
    After(Duration),
}

impl Table {
    pub fn new(load: Load, early_scan: u32, setup: &Setup) -> Result<Self> {
        let lab = Lab::quiet()?;
        let settings = [
            "--max-flows",
            &load.table.to_string(),
            "--scan-interval",
            &humantime::format_duration(load.interval).to_string(),
            "--early-scan",
            &early_scan.to_string(),
        ];
        let mut agent = Agent::start(&lab.agent, &settings, setup)?;
        agent.keep_off_sender()?;
        let mut table = Self {
            load,
            early_scan,
            sender: Sender::new(&lab, FRAME_LEN_BYTES, None, Pace::NEW_FLOWS)?,
            inside: Inside::of(agent.pid())?,
            _agent: agent,
            lab,
        };
        if early_scan == 0 {
            table.await_flip(&setup.interrupt)?;
        }
        Ok(table)
    }

    /// The first rate to try: with early scans, a full table per interval or more; without them, half a table per
    /// interval.
    pub fn first_rate(&self) -> u64 {
        let in_time = u64::from(self.load.table) / self.load.interval.as_secs().max(1);
        if self.early_scan == 0 {
            in_time / 2
        } else {
            in_time.max(100_000)
        }
    }

    /// Sends at the rate until a flow is lost, or until the end: a whole window, or with early scans a number of filled
    /// pages.
    pub fn step(&mut self, flows_per_second: u64, interrupt: &Interrupt) -> Result<Step> {
        let end = if self.early_scan == 0 {
            End::Flip
        } else {
            let mark = u64::from(self.load.table) * u64::from(self.early_scan) / 100;
            let fills = Duration::from_millis(1000 * FILLS * mark / flows_per_second);
            End::After(fills.clamp(SHORTEST, LONGEST))
        };
        let (seen_before, refused_before) = self.inside.seen_and_refused();
        let page = self.inside.page()?;
        let Self { sender, inside, .. } = self;
        let ((), sent) = sender.during(flows_per_second, |_| {
            let started = Instant::now();
            loop {
                interrupt.sleep(LOOK)?;
                let is_over = match end {
                    End::Flip => inside.page()? != page,
                    End::After(time) => started.elapsed() >= time,
                };
                if is_over || inside.seen_and_refused().1 > refused_before {
                    return Ok(());
                }
            }
        })?;
        let (seen, refused) = self.settled(seen_before + sent.packets, interrupt)?;
        ensure!(
            seen - seen_before == sent.packets,
            "{} packets were sent, {} were seen",
            sent.packets,
            seen - seen_before
        );
        let lost = refused - refused_before;
        if self.early_scan == 0 {
            if self.inside.page()? == page {
                self.await_flip(interrupt)?;
            }
        } else if lost > 0 {
            // Wait until the table is empty again.
            interrupt.sleep(SHORTEST)?;
        }
        Ok(Step {
            reached: sent.packets_per_second(),
            lost,
        })
    }

    /// Waits for packets that are still queued.
    fn settled(&mut self, expected: u64, interrupt: &Interrupt) -> Result<(u64, u64)> {
        let deadline = Instant::now() + SHORTEST;
        loop {
            let (seen, refused) = self.inside.seen_and_refused();
            if seen >= expected || Instant::now() > deadline {
                return Ok((seen, refused));
            }
            interrupt.sleep(LOOK)?;
        }
    }

    fn await_flip(&mut self, interrupt: &Interrupt) -> Result<()> {
        let page = self.inside.page()?;
        while self.inside.page()? == page {
            interrupt.sleep(LOOK)?;
        }
        Ok(())
    }

    /// Fails if the account lacks a packet that the wire carried.
    pub fn check_account(&mut self) -> Result<()> {
        let (seen, _) = self.inside.seen_and_refused();
        let received = self.lab.agent.counters()?.rx_packets;
        ensure!(seen == received, "{seen} packets were seen of {received}");
        Ok(())
    }
}
