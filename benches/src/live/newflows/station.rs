//! An agent on a wire of its own and a sender of new flows: a rate comes in, what the table lost at it
//! goes out.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::Lab;

use super::{
    inside::Inside,
    search::Step,
    sender::{Sender, Sent},
};
use crate::live::{affinity, program::Agent, rounds::Interrupt, wire::sender_cpu};

/// How the agent under test is set.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub table: u32,
    pub interval: Duration,
    /// In percent of the table; 0 is off.
    pub early_scan: u32,
}

/// How often a step looks at the agent's maps.
const LOOK: Duration = Duration::from_millis(2);
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(8);
/// Pages that a step with early scans fills up to their mark, where time allows.
const FILLS: u64 = 4;

pub struct Station {
    setting: Setting,
    sender: Sender,
    inside: Inside,
    agent: Agent,
    lab: Lab,
}

/// When a step ends if nothing is lost.
enum End {
    /// With the window that it began with: at the page's next flip.
    Flip,
    After(Duration),
}

impl Station {
    pub fn new(binary: &Path, setting: Setting, interrupt: &Interrupt) -> Result<Self> {
        let lab = Lab::quiet()?;
        let table = setting.table.to_string();
        let interval = format!("{}ms", setting.interval.as_millis());
        let early = setting.early_scan.to_string();
        let settings = [
            "--max-flows",
            &table,
            "--scan-interval",
            &interval,
            "--early-scan",
            &early,
        ];
        let mut agent = Agent::start(&lab.agent, binary, &settings, interrupt)?;
        if let Some(cpu) = sender_cpu() {
            affinity::keep_off(agent.pid(), cpu)?;
        }
        let inside = Inside::of(agent.pid())?;
        let mut station = Self {
            setting,
            sender: Sender::new(&lab)?,
            inside,
            agent,
            lab,
        };
        if setting.early_scan == 0 {
            station.await_flip(interrupt)?;
        }
        Ok(station)
    }

    /// A rate to begin with: what the table can take in an interval, or more where it need not wait.
    pub fn first_rate(&self) -> u64 {
        let in_time = u64::from(self.setting.table) / self.setting.interval.as_secs().max(1);
        if self.setting.early_scan == 0 {
            in_time / 2
        } else {
            in_time.max(100_000)
        }
    }

    /// Sends at the rate until something is lost, or for a whole window, or with early scans until
    /// some pages have filled.
    pub fn step(&mut self, flows_per_second: u64, interrupt: &Interrupt) -> Result<Step> {
        let end = if self.setting.early_scan == 0 {
            End::Flip
        } else {
            let mark = u64::from(self.setting.table) * u64::from(self.setting.early_scan) / 100;
            let fills = Duration::from_millis(1000 * FILLS * mark / flows_per_second);
            End::After(fills.clamp(SHORTEST, LONGEST))
        };
        let (seen_before, refused_before) = self.inside.seen_and_refused()?;
        let page = self.inside.page()?;
        let Self { sender, inside, .. } = self;
        let sent = under_new_flows(sender, flows_per_second, || {
            let started = Instant::now();
            loop {
                interrupt.sleep(LOOK)?;
                let is_over = match end {
                    End::Flip => inside.page()? != page,
                    End::After(time) => started.elapsed() >= time,
                };
                if is_over || inside.seen_and_refused()?.1 > refused_before {
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
        if self.setting.early_scan == 0 {
            if self.inside.page()? == page {
                self.await_flip(interrupt)?;
            }
        } else if lost > 0 {
            // Until the table is empty again.
            interrupt.sleep(SHORTEST)?;
        }
        Ok(Step {
            reached: sent.packets_per_second(),
            lost,
        })
    }

    /// Waits for packets that are still in a queue.
    fn settled(&mut self, expected: u64, interrupt: &Interrupt) -> Result<(u64, u64)> {
        let deadline = Instant::now() + SHORTEST;
        loop {
            let (seen, refused) = self.inside.seen_and_refused()?;
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

    /// Ends the agent, whose account has to hold every packet that the wire carried.
    pub fn end(mut self) -> Result<()> {
        let (seen, _) = self.inside.seen_and_refused()?;
        let received = self.lab.agent.counters()?.rx_packets;
        ensure!(seen == received, "{seen} packets were seen of {received}");
        self.agent.stop()
    }
}

/// Sends while `work` runs.
fn under_new_flows(
    sender: &mut Sender,
    flows_per_second: u64,
    work: impl FnOnce() -> Result<()>,
) -> Result<Sent> {
    /// Also where `work` fails or panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sending = scope.spawn(|| sender.run(flows_per_second, sender_cpu(), &stop));
        let end = Stop(&stop);
        let result = work();
        drop(end);
        let sent = match sending.join() {
            Ok(sent) => sent.context("send")?,
            Err(panicked) => std::panic::resume_unwind(panicked),
        };
        result.map(|()| sent)
    })
}
