//! A `flow-agent` whose programs pause between their steps. A race that normally occurs once in millions of packets
//! occurs here with every other packet. Only tests start it.

use std::process::ExitCode;

use agent::{
    commands::{
        run::{self, Object},
        settings::Layers,
        status,
    },
    log_filter::LogControl,
};
use anyhow::{Context as _, Result};
use clap::Parser;

static PAUSED: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/flow-agent-ebpf"));

#[derive(Parser)]
enum Command {
    /// The subcommands are those of `flow-agent`.
    Run(Box<run::Args>),
    Status(status::Args),
}

fn main() -> Result<ExitCode> {
    let command = Command::parse();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    match command {
        Command::Run(_) => {
            let layers = Layers::of_this_process();
            let mut settings = layers.read()?;
            settings.args.object = Object(PAUSED);
            runtime.block_on(Box::pin(run::run(
                layers,
                settings,
                Default::default(),
                LogControl::fixed(),
            )))
        }
        Command::Status(arguments) => runtime.block_on(status::run(arguments)),
    }
}
