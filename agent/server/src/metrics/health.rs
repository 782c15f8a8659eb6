//! Reports for probes whether the agent is alive and whether it counts.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use formats::human;
use proto::AgentStatus;
use tokio::{sync::watch, time::Instant};

/// How late a scan may be, beyond three intervals.
const GRACE: Duration = Duration::from_secs(10);

/// The answer to a probe, on one line.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Well(String),
    Unwell(String),
}

pub struct Health {
    /// Whether everything selected at the start is counted.
    counting: watch::Receiver<bool>,
    /// Its sender is dropped when the agent is about to stop.
    stopping: watch::Receiver<()>,
    scanned: Mutex<Scanned>,
}

/// The latest news of the scans.
#[derive(Clone, Copy)]
struct Scanned {
    count: u64,
    interval: Duration,
    /// When the last scan was reported; the start before the first one.
    at: Instant,
}

impl Health {
    /// `started` is when the wait for the first scan began.
    pub fn new(
        counting: watch::Receiver<bool>,
        stopping: watch::Receiver<()>,
        started: Instant,
    ) -> Self {
        Self {
            counting,
            stopping,
            scanned: Mutex::new(Scanned {
                count: 0,
                interval: Duration::ZERO,
                at: started,
            }),
        }
    }

    /// Takes a new status into account.
    pub fn note(&self, status: &AgentStatus) {
        let settings = status.settings.as_ref();
        let interval_ns = settings.map_or(0, |settings| settings.scan_interval_ns);
        let count = status.scans.as_ref().map_or(0, |scans| scans.count);
        let mut scanned = self.scanned.lock().unwrap_or_else(PoisonError::into_inner);
        let at = if count == scanned.count {
            scanned.at
        } else {
            Instant::now()
        };
        *scanned = Scanned {
            count,
            interval: Duration::from_nanos(interval_ns),
            at,
        };
    }

    /// Well as long as scans are reported.
    pub fn lives(&self) -> Verdict {
        let scanned = *self.scanned.lock().unwrap_or_else(PoisonError::into_inner);
        scanned.verdict(Instant::now())
    }

    /// Well while scans are reported and everything selected at the start is counted, until the agent stops.
    pub fn counts(&self) -> Verdict {
        if self.stopping.has_changed().is_err() {
            return Verdict::Unwell("the agent is about to stop".to_owned());
        }
        if !*self.counting.borrow() {
            return Verdict::Unwell("programs are being attached".to_owned());
        }
        self.lives()
    }
}

impl Scanned {
    fn verdict(self, now: Instant) -> Verdict {
        let since = now.saturating_duration_since(self.at);
        let limit = self.interval.saturating_mul(3).saturating_add(GRACE);
        if since > limit {
            let (since, interval) = (human::duration(since), human::duration(self.interval));
            return Verdict::Unwell(format!(
                "no scan has ended for {since}, and the interval is {interval}"
            ));
        }
        Verdict::Well(match self.count {
            0 => "the first scan is due".to_owned(),
            count => format!("{count} scans, the last {} ago", human::duration(since)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proto::{ScanStatus, Settings};

    use super::*;

    fn status(count: u64, interval: Duration) -> AgentStatus {
        AgentStatus {
            scans: Some(ScanStatus {
                count,
                ..ScanStatus::default()
            }),
            settings: Some(Settings {
                scan_interval_ns: interval.as_nanos() as u64,
                ..Settings::default()
            }),
            ..AgentStatus::default()
        }
    }

    #[test]
    fn it_lives_as_long_as_scans_come() {
        let (_counting, counting) = watch::channel(true);
        let (_serving, stopping) = watch::channel(());
        let health = Health::new(counting, stopping, Instant::now());
        let interval = Duration::from_secs(5);
        health.note(&status(0, interval));
        let first = *health.scanned.lock().unwrap();
        let after =
            |scanned: Scanned, seconds| scanned.verdict(scanned.at + Duration::from_secs(seconds));
        assert_eq!(
            after(first, 25),
            Verdict::Well("the first scan is due".to_owned())
        );
        assert!(matches!(after(first, 26), Verdict::Unwell(_)));

        health.note(&status(1, interval));
        let second = *health.scanned.lock().unwrap();
        assert!(second.at >= first.at);
        assert!(matches!(after(second, 25), Verdict::Well(_)));
        assert_eq!(
            after(second, 26),
            Verdict::Unwell("no scan has ended for 26s, and the interval is 5s".to_owned())
        );
        // A status without a new scan is no sign of life.
        health.note(&status(1, interval));
        assert_eq!(health.scanned.lock().unwrap().at, second.at);
    }

    #[test]
    fn it_counts_from_the_first_attachments_until_it_is_about_to_stop() {
        let (counting, counts) = watch::channel(false);
        let (serving, stopping) = watch::channel(());
        let health = Health::new(counts, stopping, Instant::now());
        health.note(&status(1, Duration::from_secs(1)));
        assert!(matches!(health.counts(), Verdict::Unwell(why) if why.contains("attached")));
        assert!(matches!(health.lives(), Verdict::Well(_)));
        counting.send_replace(true);
        assert!(matches!(health.counts(), Verdict::Well(_)));
        drop(serving);
        assert!(matches!(health.counts(), Verdict::Unwell(why) if why.contains("stop")));
        assert!(matches!(health.lives(), Verdict::Well(_)));
    }
}
