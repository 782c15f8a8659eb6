//! `flow-agent run`: runs an agent with the given settings until a signal or `--duration` ends it.

use std::{error::Error, fmt, process::ExitCode};

use anyhow::{Context as _, Result};
use server::{PassedSockets, Stored};
use tokio::signal::unix::{SignalKind, signal};

use super::settings::{Layers, Settings};
use crate::{agent::Agent, log_filter::LogControl, service_manager::ServiceManager};

mod args;
pub(super) mod conflicts;
mod reload;

pub use args::{Args, Object, ReportInterval};
pub(super) use conflicts::Listening;
pub use conflicts::SettingsConflict;
pub use reload::TAKEN_OVER;
use reload::{Reload, Running};

/// Settings that cannot work until somebody changes them. The exit status is that of a refused option, so that a
/// service manager does not retry.
#[derive(Debug)]
pub struct RefusedSettings(pub anyhow::Error);

impl RefusedSettings {
    pub const EXIT_STATUS: u8 = 2;
}

impl fmt::Display for RefusedSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl Error for RefusedSettings {}

/// Runs with `settings`, which were read from `layers`. `log` changes the log filter.
pub async fn run(
    layers: Layers,
    settings: Settings,
    (passed, stored): (PassedSockets, Vec<Stored>),
    log: LogControl,
) -> Result<ExitCode> {
    let manager = ServiceManager::from_environment()?;
    // From here on SIGHUP does not end the process, even while the programs are being loaded.
    let mut reload = Reload::listen(layers, settings, log, manager.is_there())?;
    let config = reload.config().map_err(RefusedSettings)?;
    if config.tls.is_none() && !config.insecure_listen {
        passed
            .refuse_open()
            .map_err(|error| RefusedSettings(error.into()))?;
    }
    let agent = Agent::start(config, passed, stored).await?;
    let running = Running {
        rules: agent.rules(),
        changes: agent.changes(),
        limits: agent.limits(),
        outputs: agent.outputs(),
        tls: agent.tls(),
        namespaces: agent.namespaces(),
        needs: agent.needs(),
    };
    let in_force = reload.settings();
    let reloading = reload.start(running, manager.clone())?;
    // From here on a signal leads to a final scan.
    let stop = shutdown()?;
    // The agent holds accounts, which are too large for the caller's stack.
    let ended = Box::pin(agent.run(stop, manager, in_force)).await;
    drop(reloading);
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// Resolves at SIGTERM or SIGINT.
pub(super) fn shutdown() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
