//! The CPU share that a service needs on a busy machine so that it scans a page before it is full. Measures the packets
//! that the table refuses beside services that use all the CPU they can get, for several CPU weights and nice values of
//! the agent.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{ControlGroup, Lab, Process, control_group::Version};

use super::{
    affinity::{RealTime, cpus, set_nice},
    bench::{
        Bench, Group, Labels, Lifetime, Measures, Plan, Setup, Station, labels, notes, station,
    },
    cost::CpuMeter,
    pacer::Pace,
    program::{Agent, PATIENCE},
    sender::Sender,
    status::{Account, sum},
};

/// A unit's `CPUWeight=` and `Nice=`.
struct Arm {
    name: &'static str,
    weight: u32,
    nice: i32,
}

/// A service's default, and alternatives.
const ARMS: [Arm; 4] = [
    Arm::new("weight 100", 100, 0),
    Arm::new("weight 200", 200, 0),
    Arm::new("weight 500", 500, 0),
    Arm::new("nice -10", 100, -10),
];
const BUSY_SERVICES: [usize; 3] = [1, 4, 16];
/// All of them new. A page is full after a third of a second, and its early scan begins after half of that.
const FLOWS_PER_SECOND: u64 = 200_000;
const MAX_FLOWS: u32 = 65_536;
const FRAME_LEN_BYTES: usize = 64;
const LOOK: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
pub struct Priority;

#[derive(Clone, Copy, Debug)]
pub struct Load {
    busy_services: usize,
}

impl Arm {
    const fn new(name: &'static str, weight: u32, nice: i32) -> Self {
        Self { name, weight, nice }
    }
}

impl Bench for Priority {
    const NAME: &'static str = "priority";

    type Load = Load;

    fn plan(&self, _: &Setup) -> Result<Plan<Load>> {
        let group = |busy_services| {
            let arms = ARMS.map(|arm| arm.name);
            Group::new(Lifetime::Turn, arms, &Load { busy_services })
        };
        Ok(Plan {
            groups: BUSY_SERVICES.map(group).into(),
            notes: notes(&NOTES),
        })
    }

    fn labels(load: &Load) -> Labels {
        labels([
            ("busy_services", &load.busy_services),
            ("new_flows_per_second", &FLOWS_PER_SECOND),
        ])
    }

    fn station(&self, arm: &str, load: &Load, setup: &Setup) -> Result<Box<dyn Station>> {
        let arm = ARMS.into_iter().find(|known| known.name == arm);
        let arm = arm.context("no arm has this name")?;
        let mut machine = Machine::new(&arm, load.busy_services, setup)?;
        Ok(station(move |setup| machine.measure(setup)))
    }
}

const NOTES: [&str; 3] = [
    "Each service is a control group. That of the agent has the weight of its arm (CPUWeight), the others have 100 \
     and a busy loop for each CPU. A thread of real time, which none of them holds up, sends UDP frames of 64 bytes \
     over a veth pair, each of them a flow of its own.",
    "The agent has --max-flows 65536 and otherwise its default settings, so a scan that begins more than a sixth of \
     a second late finds a page that refuses flows.",
    "refused_percent is what the table refused of the packets that the agent saw; agent_cpu_percent is the CPU time \
     of its process.",
];

/// An agent among busy services.
struct Machine {
    sender: Sender,
    agent: Agent,
    // Dropped before the groups, which wait for their processes to end.
    _busy: Vec<Process>,
    _groups: Vec<ControlGroup>,
    _lab: Lab,
}

impl Machine {
    fn new(arm: &Arm, busy_services: usize, setup: &Setup) -> Result<Self> {
        let lab = Lab::quiet()?;
        let settings = ["--max-flows", &MAX_FLOWS.to_string()];
        let mut agent = Agent::start(&lab.agent, &settings, setup)?;
        let group = service(arm.weight)?;
        group.write("cgroup.procs", &agent.pid().to_string())?;
        set_nice(agent.pid(), arm.nice)?;
        let mut groups = vec![group];
        let mut busy = Vec::new();
        for _ in 0..busy_services {
            let group = service(100)?;
            for _ in 0..cpus() {
                let mut command = Command::new("sh");
                let busy_loop = ["sh", "-c", "while :; do :; done"];
                busy.push(Process::spawn(group.run_by(&mut command).args(busy_loop))?);
            }
            groups.push(group);
        }
        Ok(Self {
            sender: Sender::new(&lab, FRAME_LEN_BYTES, None, Pace::NEW_FLOWS)?,
            agent,
            _busy: busy,
            _groups: groups,
            _lab: lab,
        })
    }

    fn measure(&mut self, setup: &Setup) -> Result<Measures> {
        let window = setup.window(Duration::from_secs(5));
        let _real_time = RealTime::begin()?;
        let before = self.agent.status()?.account;
        let cpu = CpuMeter::start([self.agent.pid()])?;
        let sending = |_: &_| {
            setup.interrupt.sleep(window)?;
            cpu.percent()
        };
        let (agent_cpu_percent, sent) = self.sender.during(FLOWS_PER_SECOND, sending)?;
        let reached = sent.packets_per_second();
        ensure!(
            reached >= FLOWS_PER_SECOND * 9 / 10,
            "the sender got too little CPU: {reached} of {FLOWS_PER_SECOND} flows a second, which asks nothing of the \
             agent (do other threads of real time run?)"
        );
        let after = self.settled(before.seen.packets + sent.packets, setup)?;
        let refused = sum(&after.not_inserted) - sum(&before.not_inserted);
        Ok(vec![
            (
                "refused_percent",
                100.0 * refused as f64 / sent.packets as f64,
            ),
            ("agent_cpu_percent", agent_cpu_percent),
            ("sent_per_second", reached as f64),
        ])
    }

    /// The account of a scan after the last packet.
    fn settled(&self, seen: u64, setup: &Setup) -> Result<Account> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let account = self.agent.status()?.account;
            if account.seen.packets >= seen || Instant::now() > deadline {
                let found = account.seen.packets;
                ensure!(found == seen, "{found} packets were seen, not {seen}");
                return Ok(account);
            }
            setup.interrupt.sleep(LOOK)?;
        }
    }
}

/// A control group with the weight that `CPUWeight=` would set.
fn service(weight: u32) -> Result<ControlGroup> {
    let group = ControlGroup::of("cpu", weight_file)?;
    let value = match group.version() {
        // The default of `cpu.shares` is 1024.
        Version::One => weight * 1024 / 100,
        Version::Two => weight,
    };
    group.write(weight_file(group.version()), &value.to_string())?;
    Ok(group)
}

fn weight_file(version: Version) -> &'static str {
    match version {
        Version::One => "cpu.shares",
        Version::Two => "cpu.weight",
    }
}
