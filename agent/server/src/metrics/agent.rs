//! Metrics and probes of an agent.

use std::{convert::Infallible, fmt, sync::Arc};

use proto::AgentStatus;
use sys::clock;
use tokio::sync::watch;

use super::{
    Format,
    health::{Health, Verdict},
    http::{MetricsListener, Site},
    programs::{Sampler, TimePrograms},
    text,
};

/// `status` returns the current status.
pub(super) struct AgentSite<S> {
    pub status: S,
    pub health: Arc<Health>,
    pub sampler: Sampler,
}

impl<S> Site for AgentSite<S>
where
    S: Fn() -> AgentStatus + Send + Sync + 'static,
{
    const INDEX: &str = "flow-agent\n\
                         /metrics  for Prometheus\n\
                         /healthz  200 as long as scans come, else 503\n\
                         /readyz   200 while everything that was selected at the start is counted, else 503\n";

    fn metrics(&self, format: Format) -> Result<String, fmt::Error> {
        let cpu_ns = clock::process_cpu().as_nanos() as u64;
        text((self.status)(), cpu_ns, self.sampler.sampled(), format)
    }

    fn lives(&self) -> Verdict {
        self.health.lives()
    }

    fn is_ready(&self) -> Verdict {
        self.health.counts()
    }
}

/// Serves until it is dropped. `status` returns the current status, and `statuses` changes after each scan. The metrics
/// include the run times of the programs.
pub async fn serve<S>(
    (listener, time_programs): (MetricsListener, TimePrograms),
    status: S,
    health: Health,
    mut statuses: watch::Receiver<Arc<AgentStatus>>,
) -> Infallible
where
    S: Fn() -> AgentStatus + Send + Sync + 'static,
{
    let health = Arc::new(health);
    health.note(&statuses.borrow_and_update());
    let site = AgentSite {
        status,
        health: Arc::clone(&health),
        sampler: Sampler::new(time_programs),
    };
    let hears = async {
        while statuses.changed().await.is_ok() {
            health.note(&statuses.borrow_and_update());
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        never = hears => never,
        never = listener.serve(site) => never,
    }
}
