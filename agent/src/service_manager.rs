//! Notifies the service manager by `sd_notify(3)`: that the agent is ready, reloads or stops, that its main loop is
//! alive, and with a status line for people. [`is_restarting`] and [`most_stored`] ask systemd about the unit.
//!
//! No message blocks a scan: the owner of the socket may have stopped reading.

use std::{
    env,
    ffi::OsString,
    io, process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use formats::{harmless::harmless, human};
use proto::AgentStatus;
use sys::{clock, log_limit::LogLimit, notify_socket::NotifySocket};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

mod unit;

pub use unit::{is_restarting, most_stored};

/// How often to retry a message that must not be lost.
const RETRY: Duration = Duration::from_millis(50);
/// The shortest time between two status lines: the manager forwards each one to all of its listeners.
const LINE_AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Does nothing if no service manager started us.
#[derive(Clone, Default)]
pub struct ServiceManager(Option<Arc<Manager>>);

/// The parts of the status line.
struct Shown {
    /// How the agent is doing, as of the last scan.
    line: String,
    /// Why the last reload was refused.
    refused: Option<String>,
}

impl Default for Shown {
    fn default() -> Self {
        Self {
            line: "counting; no scan yet".to_owned(),
            refused: None,
        }
    }
}

impl Shown {
    fn status(&self) -> String {
        let refused = self.refused.as_ref();
        let refused = refused.map(|why| format!("; the reload was refused: {}", harmless(why)));
        format!("STATUS={}{}", self.line, refused.unwrap_or_default())
    }
}

struct Manager {
    socket: NotifySocket,
    /// If no keep-alive arrives for this long, the manager kills the agent.
    watchdog: Option<Duration>,
    is_ready: AtomicBool,
    /// The status line as last shown.
    shown: Mutex<Shown>,
    unsent: Mutex<LogLimit>,
}

impl ServiceManager {
    /// The manager that `NOTIFY_SOCKET` names, with the watchdog of `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub fn from_environment() -> Result<Self> {
        let Some(socket) = NotifySocket::from_environment(None)? else {
            return Ok(Self::default());
        };
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
        let watchdog = watchdog(
            variable("WATCHDOG_USEC"),
            variable("WATCHDOG_PID"),
            process::id(),
        )?;
        Ok(Self(Some(Arc::new(Manager {
            socket,
            watchdog,
            is_ready: AtomicBool::new(false),
            shown: Mutex::default(),
            unsent: Mutex::default(),
        }))))
    }

    /// Whether a service manager started us.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Reports that the agent counts.
    pub async fn ready(&self) {
        let Some(manager) = &self.0 else { return };
        let status = manager.show(|_| {});
        manager.insist(&format!("READY=1\n{status}")).await;
        manager.is_ready.store(true, Relaxed);
    }

    /// Reports a reload until [`Reloading::done`]. Does nothing while the manager still waits for the start: it would
    /// take the end of the reload for the end of the start.
    #[must_use]
    pub async fn reloading(&self) -> Reloading {
        let Some(manager) = self
            .0
            .as_ref()
            .filter(|manager| manager.is_ready.load(Relaxed))
        else {
            return Reloading(None);
        };
        let now_us = clock::monotonic().as_micros();
        manager
            .insist(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"))
            .await;
        Reloading(Some(Arc::clone(manager)))
    }

    /// Reports that the agent is ending.
    pub fn stopping(&self) {
        if let Some(manager) = &self.0 {
            manager.try_send("STOPPING=1");
        }
    }

    /// After each scan, sends a status line with the flows, the rate, the loss and the interfaces that are not counted,
    /// until the last status.
    pub async fn show(self, mut statuses: watch::Receiver<Arc<AgentStatus>>) {
        let Some(manager) = &self.0 else { return };
        let mut shown = (Instant::now(), Arc::clone(&statuses.borrow_and_update()));
        while statuses.changed().await.is_ok() {
            let status = Arc::clone(&statuses.borrow_and_update());
            let now = Instant::now();
            if scans(&status) == scans(&shown.1) {
                continue;
            }
            let line = line(&shown.1, &status, now - shown.0);
            manager.show(|shown| shown.line = line);
            manager.send_within(LINE_AT_MOST_EVERY).await;
            shown = (now, status);
            sleep(LINE_AT_MOST_EVERY).await;
        }
    }

    /// The watchdog for the main loop. The first keep-alive is due at once.
    pub fn watchdog(&self) -> Watchdog {
        let every = self
            .0
            .as_ref()
            .and_then(|manager| manager.watchdog)
            .map(|limit| limit / 4);
        Watchdog {
            manager: self.clone(),
            every: every.unwrap_or_default(),
            due: every.map(|_| Instant::now()),
        }
    }
}

/// A reload that the manager was notified of.
pub struct Reloading(Option<Arc<Manager>>);

impl Reloading {
    /// Ends the reload. On failure, `outcome` has the reason in one line.
    pub async fn done(self, outcome: Result<(), String>) {
        if let Some(manager) = self.0 {
            let status = manager.show(|shown| shown.refused = outcome.err());
            manager.insist(&format!("READY=1\n{status}")).await;
        }
    }
}

impl Manager {
    /// Sends without waiting. Logs a failure.
    fn try_send(&self, message: &str) {
        if let Err(error) = self.send(message) {
            self.log(message, &error);
        }
    }

    /// Sends the status line. Retries for so long, then logs a failure.
    async fn send_within(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        loop {
            let message = self.show(|_| {});
            match self.send(&message) {
                Ok(()) => return,
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
                {
                    sleep(RETRY).await;
                }
                Err(error) => return self.log(&message, &error),
            }
        }
    }

    /// Retries until the manager has room for the message.
    async fn insist(&self, message: &str) {
        loop {
            match self.send(message) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(RETRY).await,
                Err(error) => return self.log(message, &error),
            }
        }
    }

    /// Changes the status line. Returns the message that shows it.
    fn show(&self, change: impl FnOnce(&mut Shown)) -> String {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut shown);
        shown.status()
    }

    fn send(&self, message: &str) -> io::Result<()> {
        self.socket.send(message, None)
    }

    fn log(&self, message: &str, error: &io::Error) {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(notices) = unsent.event() {
            tracing::warn!(notice = message, notices, %error, "the service manager takes no messages");
        }
    }
}

/// Keeps the manager's watchdog alive from the loop that owns it. If the loop hangs, the manager restarts the agent.
pub struct Watchdog {
    manager: ServiceManager,
    /// A quarter of the manager's limit, so that a busy machine may be late.
    every: Duration,
    /// `None` without a watchdog.
    due: Option<Instant>,
}

impl Watchdog {
    /// Waits until [`Watchdog::feed`] has something to do. May be dropped before it resolves.
    pub async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Sends a keep-alive if one is due.
    pub fn feed(&mut self) {
        let now = Instant::now();
        if self.due.is_some_and(|due| due <= now)
            && let Some(manager) = &self.manager.0
        {
            manager.try_send("WATCHDOG=1");
            self.due = Some(now + self.every);
        }
    }
}

/// The limit in microseconds, unless it is for another process.
fn watchdog(usec: Option<OsString>, pid: Option<OsString>, own: u32) -> Result<Option<Duration>> {
    let number = |name: &str, value: Option<OsString>| -> Result<Option<u64>> {
        let Some(value) = value else { return Ok(None) };
        let number = value.to_str().and_then(|text| text.parse().ok());
        let number = number.with_context(|| format!("{name}={} is not a number", value.display()));
        number.map(Some)
    };
    let is_ours = number("WATCHDOG_PID", pid)?.is_none_or(|pid| pid == u64::from(own));
    let limit = number("WATCHDOG_USEC", usec)?.filter(|&limit| limit > 0 && is_ours);
    Ok(limit.map(Duration::from_micros))
}

fn scans(status: &AgentStatus) -> u64 {
    status.scans.as_ref().map_or(0, |scans| scans.count)
}

/// The packets that this process has counted. An earlier one counted the others at another time.
fn seen(status: &AgentStatus) -> u64 {
    let account = status.account.as_ref();
    let carried_over = status.carried_over.as_ref();
    let seen = proto::pair(account.and_then(|account| account.seen)).packets;
    seen.saturating_sub(carried_over.map_or(0, |carried| carried.seen_packets))
}

/// The status line: tracked flows, packets per second since the earlier status, packets that the table has refused, and
/// the selected interfaces and names that are not counted.
fn line(earlier: &AgentStatus, status: &AgentStatus, elapsed: Duration) -> String {
    let account = status.account.as_ref();
    let refused = account.map_or(0, |account| account.not_inserted_sum().packets);
    let counted = seen(status).saturating_sub(seen(earlier));
    let rate = u128::from(counted) * 1_000_000_000 / elapsed.as_nanos().max(1);
    let flows = status.replica.as_ref().map_or(0, |replica| replica.tracked);
    let loss = match refused {
        0 => "no packet lost".to_owned(),
        refused => format!(
            "{} packets lost ({:.3} %)",
            human::count(refused),
            refused as f64 * 100.0 / proto::pair(account.and_then(|one| one.seen)).packets as f64
        ),
    };
    let interfaces = status.interfaces.as_ref();
    let uncounted = match interfaces.map_or(0, |interfaces| interfaces.not_counted) {
        0 => String::new(),
        1 => ", 1 interface not counted".to_owned(),
        interfaces => format!(", {interfaces} interfaces not counted"),
    };
    let absent = interfaces.map_or_else(String::new, absent);
    let idle = if status.hooks.is_empty() {
        "no interface is counted; "
    } else {
        ""
    };
    format!(
        "{idle}{} flow{}, {} packet{}/s, {loss}{uncounted}{absent}",
        human::count(flows),
        if flows == 1 { "" } else { "s" },
        human::count(u64::try_from(rate).unwrap_or(u64::MAX)),
        if rate == 1 { "" } else { "s" }
    )
}

fn absent(interfaces: &proto::InterfacesStatus) -> String {
    let more = u64::from(interfaces.absent).saturating_sub(1);
    match (interfaces.absent_names.first(), more) {
        (None, _) => String::new(),
        (Some(name), 0) => format!(", no interface {}", harmless(name)),
        (Some(name), more) => format!(", no interface {} and {more} more", harmless(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(scans: u64, seen: u64, lost: u64) -> AgentStatus {
        let packets = |packets| proto::Count { packets, bytes: 0 };
        AgentStatus {
            scans: Some(proto::ScanStatus {
                count: scans,
                ..proto::ScanStatus::default()
            }),
            replica: Some(proto::ReplicaStatus {
                tracked: 1200,
                ..proto::ReplicaStatus::default()
            }),
            account: Some(proto::Account {
                seen: Some(packets(seen)),
                not_inserted: [("table_full".to_owned(), packets(lost))].into(),
                ..proto::Account::default()
            }),
            hooks: vec![proto::HookStatus::default()],
            ..AgentStatus::default()
        }
    }

    #[test]
    fn the_line_has_flows_rate_and_loss() {
        let shown = |lost| {
            line(
                &status(1, 1000, 0),
                &status(2, 4000, lost),
                Duration::from_secs(2),
            )
        };
        assert_eq!(shown(0), "1.2k flows, 1.5k packets/s, no packet lost");
        assert_eq!(
            shown(40),
            "1.2k flows, 1.5k packets/s, 40 packets lost (1.000 %)"
        );
    }

    #[test]
    fn the_rate_leaves_out_what_an_earlier_process_counted() {
        let now = AgentStatus {
            carried_over: Some(proto::CarriedOver {
                seen_packets: 100_000,
                ..proto::CarriedOver::default()
            }),
            ..status(1, 103_000, 0)
        };
        assert_eq!(
            line(&status(0, 0, 0), &now, Duration::from_secs(2)),
            "1.2k flows, 1.5k packets/s, no packet lost"
        );
    }

    #[test]
    fn the_line_says_how_many_interfaces_are_not_counted() {
        let shown = |not_counted| {
            let interfaces = proto::InterfacesStatus {
                not_counted,
                ..proto::InterfacesStatus::default()
            };
            let now = AgentStatus {
                interfaces: Some(interfaces),
                ..status(2, 1000, 0)
            };
            line(&status(1, 1000, 0), &now, Duration::from_secs(2))
        };
        let others = "1.2k flows, 0 packets/s, no packet lost";
        assert_eq!(shown(0), others);
        let waiting = AgentStatus {
            hooks: Vec::new(),
            ..status(2, 1001, 0)
        };
        assert_eq!(
            line(&status(1, 1000, 0), &waiting, Duration::from_secs(1)),
            "no interface is counted; 1.2k flows, 1 packet/s, no packet lost"
        );
        assert_eq!(shown(1), format!("{others}, 1 interface not counted"));
        assert_eq!(shown(16), format!("{others}, 16 interfaces not counted"));
    }

    #[test]
    fn the_line_names_an_interface_that_is_not_here() {
        let shown = |absent, name: &str| {
            let interfaces = proto::InterfacesStatus {
                absent,
                absent_names: vec![name.to_owned()],
                ..proto::InterfacesStatus::default()
            };
            let now = AgentStatus {
                interfaces: Some(interfaces),
                ..status(2, 1000, 0)
            };
            line(&status(1, 1000, 0), &now, Duration::from_secs(2))
        };
        let others = "1.2k flows, 0 packets/s, no packet lost";
        assert_eq!(shown(1, "eth7"), format!("{others}, no interface eth7"));
        assert_eq!(
            shown(3, "eth7"),
            format!("{others}, no interface eth7 and 2 more")
        );
    }

    #[test]
    fn a_watchdog_is_for_the_process_that_it_names() {
        let limit =
            |usec: &str, pid: Option<&str>| watchdog(Some(usec.into()), pid.map(OsString::from), 7);
        let second = Some(Duration::from_secs(1));
        assert_eq!(limit("1000000", None).unwrap(), second);
        assert_eq!(limit("1000000", Some("7")).unwrap(), second);
        assert_eq!(limit("1000000", Some("8")).unwrap(), None);
        assert_eq!(limit("0", None).unwrap(), None);
        assert_eq!(watchdog(None, Some("7".into()), 7).unwrap(), None);
        assert!(
            limit("soon", None)
                .unwrap_err()
                .to_string()
                .contains("WATCHDOG_USEC=soon")
        );
    }
}
