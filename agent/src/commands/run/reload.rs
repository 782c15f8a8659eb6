//! SIGHUP: reads the settings again, applies the ones that can change without losing a packet, and reports which others
//! need a restart.

use std::{collections::BTreeMap, convert::Infallible, fs, io::IsTerminal as _, path::Path};

use anyhow::{Context as _, Error, Result, ensure};
use exporters::Outputs;
use formats::Format;
use kernel::{attach, interfaces::everywhere::Everywhere, netns::Namespace};
use proto::SettingsInForce;
use rules::{Rule, fault};
use server::{
    Limits,
    active_rules::{Author, ReplaceError, Rules as _, Stopping},
};
use sha1::{Digest as _, Sha1};
use sys::background;
use tls::server::ReloadableServerTls;
use tokio::{
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
    sync::{oneshot, watch},
};

use crate::{
    agent::Config,
    changes::{Change, Changes},
    commands::settings::{DEFAULT_FILE, Layers, Setting, Settings},
    log_filter::LogControl,
    memory_limit::Needs,
    rules::RunningRules,
    service_manager::ServiceManager,
};

/// The settings that a running agent can change. [`Reload::take_over`] applies them.
pub const TAKEN_OVER: [&str; 13] = [
    "interface",
    "exclude_interface",
    "filter",
    "filter_file",
    "scan_interval",
    "idle_timeout",
    "linger",
    "report_interval",
    "lease",
    "max_consumers",
    "max_connections",
    "output",
    "log",
];

/// Stands for no settings file at all, not even [`DEFAULT_FILE`].
const NO_FILE: &str = "/dev/null";

/// Receives SIGHUP. On a terminal the signal ends the process as usual, unless a settings file is named.
pub(super) struct Reload {
    hangup: Option<Signal>,
    layers: Layers,
    in_force: Settings,
    /// The settings in force, as clients can read them.
    told: watch::Sender<SettingsInForce>,
    log: LogControl,
    is_service: bool,
    /// The rules of these settings. A client may have set others since.
    configured: Configured,
    stdout: Option<Format>,
}

/// The configured rules, for comparison at the next reload.
#[derive(PartialEq, Eq)]
struct Configured([u8; 20]);

impl Configured {
    fn of(rules: &[Rule]) -> Self {
        let mut digest = Sha1::new();
        for rule in rules {
            digest.update(rule.to_string());
            digest.update("\n");
        }
        Self(digest.finalize().into())
    }
}

/// The handles that change the running agent.
pub(super) struct Running {
    pub rules: RunningRules,
    pub changes: Changes,
    pub limits: watch::Sender<Limits>,
    pub outputs: Outputs,
    pub tls: Option<ReloadableServerTls>,
    /// The namespaces that the agent counts in.
    pub namespaces: Vec<Namespace>,
    /// For the settings in force.
    pub needs: Needs,
}

impl Reload {
    /// `is_service` says whether a service manager started the agent.
    pub(super) fn listen(
        layers: Layers,
        settings: Settings,
        log: LogControl,
        is_service: bool,
    ) -> Result<Self> {
        let has_file = settings.args.filter_file.is_some() || settings.args.config.is_some();
        let has_use = has_file || !std::io::stdin().is_terminal();
        let hangup = has_use.then(|| signal(SignalKind::hangup()).context("handle SIGHUP"));
        Ok(Self {
            hangup: hangup.transpose()?,
            layers,
            told: watch::Sender::new(SettingsInForce::from(&settings)),
            in_force: settings,
            log,
            is_service,
            configured: Configured::of(&[]),
            stdout: None,
        })
    }

    /// The settings in force, as they change.
    pub(super) fn settings(&self) -> watch::Receiver<SettingsInForce> {
        self.told.subscribe()
    }

    /// The configuration to start with.
    pub(super) fn config(&mut self) -> Result<Config> {
        let mut config = self.in_force.config()?;
        self.configured = Configured::of(&config.rules);
        self.stdout = config.stdout;
        // At boot the network may come up after the service. A person at a terminal is better served by an error.
        config.selection.waits = self.is_service;
        Ok(config)
    }

    /// Reads the settings again at every SIGHUP, including one that came since [`Reload::listen`]. Dropping the
    /// returned value stops this.
    pub(super) fn start(
        mut self,
        mut running: Running,
        manager: ServiceManager,
    ) -> Result<oneshot::Sender<Infallible>> {
        let (goes_on, ended) = oneshot::channel();
        let Some(mut hangup) = self.hangup.take() else {
            return Ok(goes_on);
        };
        let reloading = async move {
            while hangup.recv().await.is_some() {
                let reloading = manager.reloading().await;
                let outcome = self.take_over(&mut running).await;
                if outcome.as_ref().is_err_and(is_stopping) {
                    return;
                }
                let outcome = outcome.map_err(|error| fault::in_one_line(&error));
                if let Err(fault) = &outcome {
                    tracing::warn!(
                        "keeping the settings: {fault}; fix it and reload again (SIGHUP)"
                    );
                }
                reloading.done(outcome).await;
            }
        };
        // On its own thread: a reload reads files, may compile a million networks, and asks the kernel, which may wait
        // for a lock. As a task it would block a worker thread that wakes the scans.
        let until_the_end = async move {
            tokio::select! {
                () = reloading => {}
                _ = ended => {}
            }
        };
        let runtime = Handle::current();
        background::start("reload", move || runtime.block_on(until_the_end))
            .context("start the thread that reads the settings again")?;
        Ok(goes_on)
    }

    /// On failure, nothing has changed.
    async fn take_over(&mut self, running: &mut Running) -> Result<()> {
        let Running {
            rules,
            changes,
            limits,
            outputs,
            tls,
            namespaces,
            needs,
        } = running;
        let read = self.read()?;
        let mut config = read.config()?;
        // A running agent waits for interfaces that left, so it also waits for ones that have yet to appear.
        config.selection.waits = true;
        let times = config.times();
        ensure!(
            config.stdout == self.stdout,
            "flows on stdout cannot begin, end or change their form while the agent runs: leave that in output as \
             it is, or restart"
        );
        if self.is_changed(&read, &["interface", "exclude_interface"]) {
            let selected = Everywhere::look(namespaces)?.select(&config.selection)?;
            attach::with_hooks(selected, &config.selection, config.attach)?;
        }

        outputs.refuse_unwritable(&config.outputs).await?;
        let needed = needs.reloaded(&config);
        // The rules come first: nothing else that is applied here can be refused.
        self.take_over_rules(config.rules, rules).await?;
        changes.make(Change::Times(times)).await??;
        // Even if the selection is unchanged: this retries hooks that were refused, and restores hooks that were
        // removed.
        changes.make(Change::Selection(config.selection)).await??;
        if std::mem::replace(needs, needed) != needed {
            needed.warn_if_limit_is_low();
        }
        limits.send_modify(|limits| {
            limits.max_consumers = config.limits.max_consumers;
            limits.max_connections = config.limits.max_connections;
        });
        outputs.replace(config.outputs);
        if let (Some(reloadable), Some(read)) = (tls, config.tls) {
            reloadable.replace(read);
        }
        if read.args.log != self.in_force.args.log {
            self.log.set(&read.args.log)?;
        }
        warn_of_replaced(namespaces);
        self.note(read);
        Ok(())
    }

    /// Rules that a client has set stay until the rules of the settings change.
    async fn take_over_rules(&mut self, read: Vec<Rule>, running: &RunningRules) -> Result<()> {
        let configured = Configured::of(&read);
        if configured == self.configured {
            return Ok(());
        }
        let before = running.active().rules;
        let is_empty = read.is_empty();
        running.replace(read, Author::Settings).await?;
        self.configured = configured;
        if is_empty && before > 0 {
            tracing::warn!(
                before,
                "no filter rules were found, every packet is counted from here on"
            );
        }
        Ok(())
    }

    fn is_changed(&self, read: &Settings, names: &[&str]) -> bool {
        let mut settings = self.in_force.values.iter().zip(&read.values);
        settings.any(|(old, new)| names.contains(&&*new.name) && old.value != new.value)
    }

    /// Fails if a file can be read only once, such as a pipe: a second read would find nothing.
    fn read(&self) -> Result<Settings> {
        let named = self.layers.named_file()?;
        let default = || {
            self.in_force
                .file
                .as_deref()
                .map(|_| Path::new(DEFAULT_FILE))
        };
        if let Some(path) = named.as_deref().or_else(default)
            && path != Path::new(NO_FILE)
        {
            ensure_regular(path, "the settings")?;
        }
        let settings = self.layers.read()?;
        if let Some(path) = &settings.args.filter_file {
            ensure_regular(path, "the filter rules")?;
        }
        Ok(settings)
    }

    /// Logs which settings have changed, and which of them need a restart. The latter are logged at every SIGHUP until
    /// they are changed back.
    fn note(&mut self, read: Settings) {
        let mut wanted = BTreeMap::new();
        for (old, new) in self.in_force.values.iter_mut().zip(read.values) {
            if old.value == new.value {
                old.source = new.source;
                continue;
            }
            let Setting {
                name,
                value,
                source,
            } = &new;
            if TAKEN_OVER.contains(&name.as_str()) {
                tracing::info!(setting = name, from = %old.value, to = %value, %source, "a setting has changed");
                *old = new;
            } else {
                tracing::warn!(
                    setting = name,
                    in_force = %old.value,
                    wanted = %value,
                    %source,
                    "this setting needs a restart"
                );
                wanted.insert(new.name, new.value.to_string());
            }
        }
        self.in_force.args.log = read.args.log;
        self.in_force.args.interface = read.args.interface;
        self.in_force.file = read.file;
        let mut told = SettingsInForce::from(&self.in_force);
        for setting in &mut told.settings {
            setting.wanted = wanted.remove(&setting.name).unwrap_or_default();
        }
        self.told.send_replace(told);
        tracing::info!("read the settings again");
    }
}

/// Warns if a namespace's name has moved to another namespace: the agent keeps counting in the namespaces of its start.
fn warn_of_replaced(namespaces: &[Namespace]) {
    for namespace in namespaces {
        if let Err(error) = namespace.check_name() {
            tracing::warn!("{error:#}: to count there takes a restart");
        }
    }
}

/// Whether the error only says that the agent is about to stop.
fn is_stopping(error: &Error) -> bool {
    let replacing = error.downcast_ref::<ReplaceError>();
    error.is::<Stopping>() || matches!(replacing, Some(ReplaceError::Stopping(_)))
}

fn ensure_regular(path: &Path, what: &str) -> Result<()> {
    let metadata =
        fs::metadata(path).with_context(|| format!("look at {what} in {}", path.display()))?;
    ensure!(
        metadata.is_file(),
        "{} is no regular file, {what} could be read only once; start with a file to have it read again",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("filters");
        fs::write(&path, "").unwrap();
        ensure_regular(&path, "the filter rules").unwrap();
        let error = ensure_regular(Path::new("/dev/null"), "the filter rules").unwrap_err();
        assert!(
            error.to_string().starts_with("/dev/null is no regular"),
            "{error}"
        );
        let gone = ensure_regular(&folder.path().join("gone"), "the settings").unwrap_err();
        assert!(format!("{gone:#}").contains("No such file"), "{gone:#}");
    }
}
