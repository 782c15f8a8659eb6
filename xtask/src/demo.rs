//! A demonstration: sends real traffic between two namespaces and shows it as a gRPC consumer sees it.

use std::{
    env,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    Agent, Lab, LabOptions, Process,
    traffic::{self, IpVersion},
};

use crate::{
    setup::{Purpose, setup},
    workspace::{as_root, build_agent, seconds},
};

const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
pub struct Arguments {
    /// How long to show the flows
    #[arg(long, default_value = "15s", value_parser = seconds)]
    duration: Duration,
    /// An agent that is already built
    #[arg(long)]
    agent: Option<PathBuf>,
}

pub fn demo(arguments: &Arguments) -> Result<ExitCode> {
    let agent = if let Some(agent) = &arguments.agent {
        agent.clone()
    } else {
        setup(Purpose::Demo)?;
        build_agent("dev")?
    };
    if !lab::privilege::is_root() {
        let ourselves = env::current_exe().context("find this program")?;
        let duration = format!("{}s", arguments.duration.as_secs());
        let mut command = as_root(&ourselves);
        let error = command
            .args(["demo", "--duration", &duration, "--agent"])
            .arg(&agent)
            .exec();
        return Err(error).context("start sudo, since network namespaces need root");
    }
    show(&agent, arguments.duration)?;
    Ok(ExitCode::SUCCESS)
}

/// Leaves nothing behind, since the lab and the processes clean up after themselves.
fn show(agent: &Path, duration: Duration) -> Result<()> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .context("listen for signals")?;
    }
    let lab = Lab::new(LabOptions {
        addresses: true,
        offloads: true,
        ..LabOptions::default()
    })?;
    let interface = &lab.agent.interface;

    eprintln!(
        "demo: flow-agent watches {interface}, where {} answers {}",
        lab.agent.ipv4, lab.peer.ipv4
    );
    let settings = ["--scan-interval", "1s", "--output", "none"];
    let mut running = Agent::begin(lab.agent.command(agent), interface, &settings)?;
    running.wait_until_counting(PATIENCE, || {
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(())
    })?;

    let stop = AtomicBool::new(false);
    let shown = thread::scope(|scope| {
        scope.spawn(|| converse(&lab, &stop));
        let shown = watch(agent, &running.address(), duration, &interrupted);
        stop.store(true, Ordering::Relaxed);
        shown
    });
    let log = running.log()?;
    let stopped = running.stop(PATIENCE);
    shown.with_context(|| format!("the agent's log: {}", log.trim()))?;
    stopped
}

/// Runs a gRPC consumer in a process of its own, on the terminal.
fn watch(agent: &Path, socket: &str, duration: Duration, interrupted: &AtomicBool) -> Result<()> {
    let duration_text = format!("{}s", duration.as_secs());
    let mut watch = Process::spawn(process::Command::new(agent).args([
        "watch",
        "--connect",
        socket,
        "--output",
        "table",
        "--duration",
        &duration_text,
    ]))?;
    let deadline = Instant::now() + duration + PATIENCE;
    loop {
        if let Some(status) = watch.exited()? {
            let wanted = status.success() || interrupted.load(Ordering::Relaxed);
            ensure!(wanted, "flow-agent watch ended with {status}");
            return Ok(());
        }
        if interrupted.load(Ordering::Relaxed) || Instant::now() > deadline {
            watch.terminate(PATIENCE)?;
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Repeats TCP, UDP and ICMP echo traffic over both IP versions until stopped.
fn converse(lab: &Lab, stop: &AtomicBool) {
    let round = || -> Result<()> {
        for version in [IpVersion::V4, IpVersion::V6] {
            traffic::tcp(&lab.peer, &lab.agent, version, 8080, 500_000)?;
            traffic::udp(&lab.peer, &lab.agent, version, 5353, 20, 300)?;
            traffic::ping(&lab.peer, &lab.agent, version, 3)?;
            // A connection that the agent's own host opens.
            traffic::tcp(&lab.agent, &lab.peer, version, 9090, 20_000)?;
        }
        Ok(())
    };
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = round() {
            eprintln!("demo: {error:#}");
            return;
        }
        thread::sleep(PAUSE);
    }
}
