//! A demonstration: nothing comes in, real traffic between two namespaces and what a gRPC consumer
//! sees of it go out.

use std::{
    env, fs,
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
    Lab, LabOptions, Process,
    traffic::{self, IpVersion},
};

use crate::{
    setup::{Purpose, setup},
    workspace::{as_root, build_agent},
};

const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
pub struct Arguments {
    /// How long to show the flows, in seconds
    #[arg(long, default_value = "15s", value_parser = seconds)]
    duration: Duration,
    /// An agent that is already built
    #[arg(long)]
    agent: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration> {
    let number = text.strip_suffix('s').unwrap_or(text);
    Ok(Duration::from_secs(
        number.parse().context("a number of seconds, such as 15s")?,
    ))
}

pub fn demo(arguments: &Arguments) -> Result<ExitCode> {
    let agent = if let Some(agent) = &arguments.agent {
        agent.clone()
    } else {
        setup(Purpose::Demo)?;
        build_agent()?
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

/// Everything made here goes away when it returns: the lab, the processes and the socket's folder
/// each clean up after themselves.
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
    let folder = SocketFolder::new()?;
    let socket = format!("unix:{}", folder.socket().display());
    let interface = &lab.agent.interface;

    eprintln!(
        "demo: flow-agent watches {interface}, where {} answers {}",
        lab.agent.ipv4, lab.peer.ipv4
    );
    let mut running = Process::spawn(lab.agent.command(agent).args([
        "run",
        "--interface",
        interface,
        "--listen",
        &socket,
        "--scan-interval",
        "1s",
        "--output",
        "none",
    ]))?;
    await_socket(&mut running, &folder.socket(), &interrupted)?;

    let stop = AtomicBool::new(false);
    let shown = thread::scope(|scope| {
        scope.spawn(|| converse(&lab, &stop));
        let shown = watch(agent, &socket, duration, &interrupted);
        stop.store(true, Ordering::Relaxed);
        shown
    });
    let status = running.terminate(PATIENCE)?;
    shown?;
    ensure!(status.success(), "flow-agent ended with {status}");
    Ok(())
}

/// The agent listens once its programs are attached.
fn await_socket(agent: &mut Process, socket: &Path, interrupted: &AtomicBool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !socket.exists() {
        if let Some(status) = agent.exited()? {
            anyhow::bail!("flow-agent ended with {status}");
        }
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        ensure!(
            Instant::now() < deadline,
            "flow-agent does not listen after {PATIENCE:?}"
        );
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A gRPC consumer of its own process, on the terminal.
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

/// TCP, UDP and ICMP echo over both IP versions, again and again.
fn converse(lab: &Lab, stop: &AtomicBool) {
    let round = || -> Result<()> {
        for version in [IpVersion::V4, IpVersion::V6] {
            traffic::tcp(&lab.peer, &lab.agent, version, 8080, 500_000)?;
            traffic::udp(&lab.peer, &lab.agent, version, 5353, 20, 300)?;
            traffic::ping(&lab.peer, &lab.agent, version, 3)?;
            // A conversation that the agent's own host opens.
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

/// A folder for the socket that goes away with it.
struct SocketFolder(PathBuf);

impl SocketFolder {
    fn new() -> Result<Self> {
        let path = env::temp_dir().join(format!("flow-agent-demo-{}", process::id()));
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }

    fn socket(&self) -> PathBuf {
        self.0.join("flow-agent.sock")
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("demo: remove {}: {error}", self.0.display());
        }
    }
}
