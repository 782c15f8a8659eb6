//! Requests over HTTP/1.1 with OTLP's rules for answers: which failures are worth a retry, and how long to wait.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use formats::{encoder::Call, harmless::one_line};
use http_body_util::Full;
use hyper::{
    Request, StatusCode,
    header::{self, HeaderMap},
};

use super::{Endpoint, Failure, LONGEST_PAUSE, PATIENCE, USER_AGENT};

mod requests;

pub(crate) use requests::{Answer, Requests};

const PROTOBUF: &str = "application/x-protobuf";

#[cfg(test)]
mod tests;

pub(crate) struct Http {
    requests: Requests,
    /// Precedes the path of each method.
    base_path: String,
}

impl Http {
    pub(crate) fn new(endpoint: Endpoint, base_path: String) -> Self {
        Self {
            requests: Requests::new(endpoint, PATIENCE),
            base_path,
        }
    }

    /// Host and port of the server.
    pub(super) fn address(&self) -> String {
        self.requests.address()
    }

    /// Sends a request and returns the answer.
    pub(super) async fn send(&mut self, message: &Bytes, call: Call) -> Result<Bytes, Failure> {
        let request = self.request(message, call)?;
        let Answer {
            status,
            headers,
            body,
        } = self.requests.send(request).await?;
        judged(status, &headers, body)
    }

    fn request(&self, message: &Bytes, call: Call) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::post(format!("{}{}", self.base_path, call.method))
            .header(header::HOST, self.requests.address())
            .header(header::CONTENT_TYPE, PROTOBUF)
            .header(header::USER_AGENT, USER_AGENT);
        if call.is_gzip {
            request = request.header(header::CONTENT_ENCODING, "gzip");
        }
        let body = Full::new(message.clone());
        request.body(body).context("make a request")
    }
}

/// Interprets a status (OTLP, "OTLP/HTTP Response"): few failures are worth a retry, and a rejected request is not sent
/// again.
fn judged(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Result<Bytes, Failure> {
    if status.is_success() {
        if body.is_empty() || is_protobuf(content_type(headers)) {
            return Ok(body);
        }
        let why = "what answers is no receiver of OTLP: it takes the request, and says so in another format";
        return Err(anyhow!(why).into());
    }
    let why = reason(status, headers, &body);
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Err(Failure::Again {
            why: anyhow!(why),
            after: asked_pause(headers),
        }),
        _ => Err(Failure::Refused {
            why,
            is_unknown: status == StatusCode::NOT_FOUND,
            is_invalid: false,
        }),
    }
}

fn content_type(headers: &HeaderMap) -> &str {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

/// Ignores parameters, for example of `application/x-protobuf; charset=utf-8`.
fn is_protobuf(kind: &str) -> bool {
    let (kind, _) = kind.split_once(';').unwrap_or((kind, ""));
    kind.trim().eq_ignore_ascii_case(PROTOBUF)
}

/// The status and the receiver's message, in one line.
fn reason(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> String {
    let kind = content_type(headers);
    let said = if is_protobuf(kind) {
        Status::said(body)
    } else if kind.starts_with("text/plain") || kind.starts_with("application/json") {
        String::from_utf8_lossy(body).into_owned()
    } else {
        String::new()
    };
    let said = one_line(&said);
    let separator = if said.is_empty() { "" } else { ": " };
    format!("HTTP {status}{separator}{said}")
}

/// `google.rpc.Status`, the body of error answers.
#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

impl Status {
    fn said(body: &[u8]) -> String {
        let status = <Self as prost::Message>::decode(body);
        status.unwrap_or_default().message
    }
}

/// The pause in `Retry-After`, which is in seconds or a date.
fn asked_pause(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = if let Ok(seconds) = text.parse() {
        Duration::from_secs(seconds)
    } else {
        let date = httpdate::parse_http_date(text).ok()?;
        date.duration_since(SystemTime::now()).unwrap_or_default()
    };
    Some(pause.min(LONGEST_PAUSE))
}
