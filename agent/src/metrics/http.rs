//! Serves the metrics and the probes, with no more than one new text a second.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue},
};
use tokio::{net::TcpListener, sync::watch, time::Instant};

use super::{
    Format,
    connections::{self, PATIENCE},
    health::{Health, Verdict},
    programs::Sampler,
    text,
};
use crate::{clock, kernel::run_times::RunTimes, proto::AgentStatus};

/// A text that is no older is sent again.
const FRESH: Duration = Duration::from_secs(1);

const PLAIN: &str = "text/plain; charset=utf-8";
const INDEX: &str = "flow-agent\n\
                     /metrics  for Prometheus\n\
                     /healthz  200 as long as scans come, else 503\n\
                     /readyz   200 while everything that was selected at the start is counted, else 503\n";

/// A bound listener that is not served yet.
pub struct MetricsListener {
    listener: TcpListener,
    run_times: RunTimes,
}

impl MetricsListener {
    /// What is served has the run times of these programs, too.
    pub async fn bind(address: SocketAddr, run_times: RunTimes) -> Result<Self> {
        let bound = TcpListener::bind(address).await.with_context(|| {
            format!("cannot serve metrics on {address}: stop what listens there, or choose another --metrics")
        })?;
        let address = bound
            .local_addr()
            .context("ask for the address of the metrics")?;
        // Port 0 asks the kernel for a free one.
        tracing::info!(url = %format_args!("http://{address}/metrics"), "serving metrics");
        Ok(Self {
            listener: bound,
            run_times,
        })
    }
}

/// What the answers are made of.
struct Page<S> {
    /// Gives the status at this moment.
    status: S,
    health: Health,
    sampler: Sampler,
    /// The last text of each format, and when it was made.
    made: Mutex<BTreeMap<Format, (Instant, Bytes)>>,
}

impl<S: Fn() -> AgentStatus> Page<S> {
    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            answer
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        match request.uri().path() {
            "/metrics" => self.metrics(format(request)),
            "/healthz" => told(self.health.lives()),
            "/readyz" => told(self.health.counts()),
            "/" => plain(StatusCode::OK, INDEX),
            _ => plain(
                StatusCode::NOT_FOUND,
                "there is /metrics, /healthz and /readyz\n",
            ),
        }
    }

    fn metrics(&self, format: Format) -> Response<Full<Bytes>> {
        match self.text(format) {
            Ok(text) => response(StatusCode::OK, format.content_type(), text),
            Err(fmt::Error) => plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the metrics could not be written\n",
            ),
        }
    }

    fn text(&self, format: Format) -> Result<Bytes, fmt::Error> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, text)) = made.get(&format)
            && at.elapsed() <= FRESH
        {
            return Ok(text.clone());
        }
        let cpu_ns = clock::process_cpu().as_nanos() as u64;
        let sampled = self.sampler.sampled();
        let text = Bytes::from(text((self.status)(), cpu_ns, sampled, format)?);
        made.insert(format, (Instant::now(), text.clone()));
        Ok(text)
    }
}

/// Answers until it is dropped. `status` gives the status at this moment, and `statuses` tells of each scan.
pub async fn serve<S>(
    MetricsListener {
        listener,
        run_times,
    }: MetricsListener,
    status: S,
    health: Health,
    mut statuses: watch::Receiver<Arc<AgentStatus>>,
) -> Infallible
where
    S: Fn() -> AgentStatus + Send + Sync + 'static,
{
    let page = Arc::new(Page {
        status,
        health,
        sampler: Sampler::new(run_times),
        made: Mutex::default(),
    });
    page.health.note(&statuses.borrow_and_update());
    let hears = {
        let page = Arc::clone(&page);
        async move {
            while statuses.changed().await.is_ok() {
                page.health.note(&statuses.borrow_and_update());
            }
            std::future::pending::<Infallible>().await
        }
    };
    let accepts = connections::accept(&listener, PATIENCE, move |request| page.answer(request));
    tokio::select! {
        never = hears => never,
        never = accepts => never,
    }
}

fn format<B>(request: &Request<B>) -> Format {
    let accepted = request.headers().get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    if accepted.any(|value| value.contains("application/openmetrics-text")) {
        Format::OpenMetrics
    } else {
        Format::Classic
    }
}

fn told(verdict: Verdict) -> Response<Full<Bytes>> {
    match verdict {
        Verdict::Well(line) => plain(StatusCode::OK, line + "\n"),
        Verdict::Unwell(line) => plain(StatusCode::SERVICE_UNAVAILABLE, line + "\n"),
    }
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    response(status, PLAIN, text.into())
}

fn response(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn a_probe_is_answered_with_503_when_the_agent_is_unwell() {
        let (counting, counts) = watch::channel(false);
        let (serving, stopping) = watch::channel(());
        let page_since = |started| Page {
            status: AgentStatus::default,
            health: Health::new(counts.clone(), stopping.clone(), started),
            sampler: Sampler::new(RunTimes::default()),
            made: Mutex::default(),
        };
        let page = page_since(Instant::now());
        let asked_of = async |page: &Page<_>, path| {
            let answer = page.answer(&Request::get(path).body(()).unwrap());
            let status = answer.status().as_u16();
            let text = answer.into_body().collect().await.unwrap().to_bytes();
            (status, String::from_utf8(text.into()).unwrap())
        };
        let asked = async |path| asked_of(&page, path).await;
        let first = "the first scan is due\n";
        let attaching = "programs are being attached\n";
        assert_eq!(asked("/healthz").await, (200, first.to_owned()));
        assert_eq!(asked("/readyz").await, (503, attaching.to_owned()));
        counting.send_replace(true);
        assert_eq!(asked("/readyz").await, (200, first.to_owned()));
        drop(serving);
        let stopping = "the agent is about to stop\n";
        assert_eq!(asked("/readyz").await, (503, stopping.to_owned()));
        assert_eq!(asked("/healthz").await.0, 200);
        // Nothing has told of an interval, so that only the grace is left.
        let silent = page_since(Instant::now() - Duration::from_hours(1));
        let (status, why) = asked_of(&silent, "/healthz").await;
        assert_eq!(status, 503, "{why}");
        assert!(why.starts_with("no scan has ended for"), "{why}");
    }
}
