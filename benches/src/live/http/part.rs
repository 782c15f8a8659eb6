//! Runs server and client as separate processes, so that neither shares a thread with the harness.
//!
//! Each is this same program, started with a hidden command.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    num::NonZeroU64,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::Subcommand;
use lab::{Host, Process};
use rustix::thread::set_current_timer_slack;

use super::{
    client::{self, Outcome, Plan},
    server::Server,
};
use crate::live::{affinity, interrupt::Interrupt};

#[derive(Subcommand)]
pub enum Part {
    #[command(hide = true)]
    HttpServer {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long, value_parser = humantime::parse_duration)]
        delay: Duration,
    },
    #[command(hide = true)]
    HttpClient {
        #[arg(long)]
        server: SocketAddr,
        #[arg(long)]
        requests_per_second: u32,
        #[arg(long, value_parser = humantime::parse_duration)]
        warm_up: Duration,
        #[arg(long, value_parser = humantime::parse_duration)]
        window: Duration,
        #[arg(long)]
        connections: usize,
    },
}

impl Part {
    /// The work of the process that [`serve`] or [`load`] starts.
    pub fn play(&self) -> Result<()> {
        // The default timer slack lets sleeps end up to 50 µs late.
        set_current_timer_slack(NonZeroU64::new(1)).context("set the timer slack")?;
        match *self {
            Self::HttpServer { listen, delay } => {
                // Server and client each get their own CPU if there are two, the same one in every round.
                affinity::pin(0)?;
                let listener =
                    TcpListener::bind(listen).with_context(|| format!("bind {listen}"))?;
                tell("listening")?;
                Server::new(listener, delay)?.run()
            }
            Self::HttpClient {
                server,
                requests_per_second,
                warm_up,
                window,
                connections,
            } => {
                affinity::pin(affinity::cpus() - 1)?;
                let outcome = client::run(Plan {
                    server,
                    requests_per_second,
                    warm_up,
                    window,
                    connections,
                })?;
                tell(&serde_json::to_string(&outcome).context("encode the outcome")?)
            }
        }
    }
}

fn tell(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{line}").context("write to stdout")?;
    stdout.flush().context("write to stdout")
}

/// Returns once the server listens.
pub fn serve(host: &Host, listen: SocketAddr, delay: Duration) -> Result<Process> {
    let mut command = part(host, "http-server")?;
    command.args(["--listen", &listen.to_string()]);
    command.args(["--delay", &humantime::format_duration(delay).to_string()]);
    let mut process = Process::spawn(&mut command)?;
    let stdout = process.child().stdout.take().context("stdout is a pipe")?;
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .context("wait for the server")?;
    ensure!(line.trim() == "listening", "the server did not start");
    Ok(process)
}

/// Sends the requests of the plan and waits until the client has finished.
pub fn load(host: &Host, plan: &Plan, interrupt: &Interrupt) -> Result<Outcome> {
    let time = |time| humantime::format_duration(time).to_string();
    let mut command = part(host, "http-client")?;
    command
        .args(["--server", &plan.server.to_string()])
        .args([
            "--requests-per-second",
            &plan.requests_per_second.to_string(),
        ])
        .args(["--warm-up", &time(plan.warm_up)])
        .args(["--window", &time(plan.window)])
        .args(["--connections", &plan.connections.to_string()]);
    let mut process = Process::spawn(&mut command)?;
    let status = loop {
        interrupt.sleep(Duration::from_millis(20))?;
        if let Some(status) = process.exited()? {
            break status;
        }
    };
    ensure!(status.success(), "the client ended with {status}");
    let mut text = String::new();
    process
        .child()
        .stdout
        .take()
        .context("stdout is a pipe")?
        .read_to_string(&mut text)
        .context("read the client's outcome")?;
    serde_json::from_str(&text).context("parse the client's outcome")
}

fn part(host: &Host, name: &str) -> Result<Command> {
    let program = std::env::current_exe().context("find this program")?;
    let mut command = host.command(program);
    command
        .arg(name)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    Ok(command)
}
