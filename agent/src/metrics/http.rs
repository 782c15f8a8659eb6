//! Serves the metrics and the probes over HTTP/1.1.
//!
//! What strangers can take is bounded: a few connections at a time, one request and some seconds for each, and no
//! more than one new text a second.

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
    body::Incoming,
    header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{Instant, sleep, timeout},
};

use super::{
    Format,
    health::{Health, Verdict},
    programs::Sampler,
    text,
};
use crate::{clock, kernel::run_times::RunTimes, proto::AgentStatus};

const MAX_CONNECTIONS: usize = 16;
/// For a connection, from its first byte to its last.
const PATIENCE: Duration = Duration::from_secs(10);
const MAX_HEAD_BYTES: usize = 16 << 10;
/// A text that is no older is sent again.
const FRESH: Duration = Duration::from_secs(1);
/// After a failure to accept, as when no file is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

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
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
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
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accepts = async {
        loop {
            let place = Arc::clone(&places).acquire_owned().await;
            match listener.accept().await {
                Ok((connection, _)) => {
                    let page = Arc::clone(&page);
                    tokio::spawn(async move {
                        converse(connection, &page).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection for metrics");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        never = hears => never,
        never = accepts => never,
    }
}

/// One request, if it comes and its answer is read in time.
async fn converse<S: Fn() -> AgentStatus>(connection: TcpStream, page: &Page<S>) {
    let answer = service_fn(async |request| Ok::<_, Infallible>(page.answer(&request)));
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(connection), answer);
    // Whoever asked has left, is too slow, or speaks no HTTP.
    let _ = timeout(PATIENCE, conversation).await;
}

fn format(request: &Request<Incoming>) -> Format {
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
