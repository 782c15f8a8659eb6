//! Serves the metrics and the probes. Generates the text at most once per second.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue},
};
use sys::log_limit::LogLimit;
use tokio::{net::TcpListener, time::Instant};

use super::{
    Format,
    connections::{self, PATIENCE},
    health::Verdict,
    names,
};

/// A text younger than this is sent again.
const FRESH: Duration = Duration::from_secs(1);

const PLAIN: &str = "text/plain; charset=utf-8";
/// The content to serve.
pub trait Site: Send + Sync + 'static {
    /// The text at `/`.
    const INDEX: &str;

    /// The current metrics.
    fn metrics(&self, format: Format) -> Result<String, fmt::Error>;

    /// For `/healthz`.
    fn lives(&self) -> Verdict;

    /// For `/readyz`.
    fn is_ready(&self) -> Verdict;
}

/// A bound listener that is not served yet.
pub struct MetricsListener(TcpListener);

impl MetricsListener {
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let bound = TcpListener::bind(address).await.with_context(|| {
            format!("cannot serve metrics on {address}: stop what listens there, or choose another --metrics")
        })?;
        let address = bound
            .local_addr()
            .context("ask for the address of the metrics")?;
        // Port 0 asks the kernel for a free one.
        tracing::info!(url = %format_args!("http://{address}/metrics"), "serving metrics");
        Ok(Self(bound))
    }

    /// Serves until it is dropped.
    pub async fn serve(self, site: impl Site) -> Infallible {
        let page = Page::new(site);
        connections::accept(&self.0, PATIENCE, move |request| page.answer(request)).await
    }
}

/// The source of the answers.
struct Page<S> {
    site: S,
    /// The last text of each format, and when it was generated.
    made: Mutex<BTreeMap<Format, (Instant, Bytes)>>,
    refusals: Mutex<LogLimit>,
}

impl<S: Site> Page<S> {
    fn new(site: S) -> Self {
        Self {
            site,
            made: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            answer
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        if let Some(name) = names::foreign(request) {
            return self.refuse(&name);
        }
        match request.uri().path() {
            "/metrics" => self.metrics(format(request)),
            "/healthz" => health_response(self.site.lives()),
            "/readyz" => health_response(self.site.is_ready()),
            "/" => plain(StatusCode::OK, S::INDEX),
            _ => plain(
                StatusCode::NOT_FOUND,
                "there is /metrics, /healthz and /readyz\n",
            ),
        }
    }

    fn refuse(&self, name: &str) -> Response<Full<Bytes>> {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(requests) = refusals.event() {
            tracing::warn!(
                name,
                requests,
                "requests for metrics are refused: they name another host"
            );
        }
        plain(
            StatusCode::MISDIRECTED_REQUEST,
            "not a name of this host: use its address, localhost, or its own name\n",
        )
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
        let text = Bytes::from(self.site.metrics(format)?);
        made.insert(format, (Instant::now(), text.clone()));
        Ok(text)
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

fn health_response(verdict: Verdict) -> Response<Full<Bytes>> {
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
    use std::sync::Arc;

    use http_body_util::BodyExt as _;
    use proto::AgentStatus;
    use tokio::sync::watch;

    use super::{
        super::{agent::AgentSite, health::Health, programs::Sampler},
        *,
    };

    #[tokio::test]
    async fn a_probe_is_answered_with_503_when_the_agent_is_unwell() {
        let (counting, counts) = watch::channel(false);
        let (serving, stopping) = watch::channel(());
        let page_since = |started| {
            Page::new(AgentSite {
                status: AgentStatus::default,
                health: Arc::new(Health::new(counts.clone(), stopping.clone(), started)),
                sampler: Sampler::new(Arc::new(|_| Ok(None))),
            })
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
        // No status has reported an interval, so only the grace period applies.
        let silent = page_since(Instant::now() - Duration::from_hours(1));
        let (status, why) = asked_of(&silent, "/healthz").await;
        assert_eq!(status, 503, "{why}");
        assert!(why.starts_with("no scan has ended for"), "{why}");
    }
}
