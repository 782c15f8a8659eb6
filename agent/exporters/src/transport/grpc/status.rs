//! Interprets a call's status, and decides whether to send the message again, by the rules of OpenTelemetry's protocol
//! (OTLP, "Failures").

use std::time::Duration;

use anyhow::anyhow;
use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use formats::harmless::one_line;
use prost::Message as _;
use tonic::{
    Code, Status,
    codegen::http::{HeaderMap, StatusCode},
};

use crate::transport::{Failure, LONGEST_PAUSE};

const STATUS: &str = "grpc-status";
const DETAILS: &str = "grpc-status-details-bin";
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// Binary headers come with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The part of `google.rpc.Status` that we read.
#[derive(Clone, PartialEq, prost::Message)]
struct Details {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Checks the headers of a response. If they have no gRPC status, that comes in the trailers. A server that does not
/// speak gRPC has only an HTTP status, which maps to a gRPC one ("HTTP to gRPC Status Code Mapping").
pub(super) fn of_http(http: StatusCode, headers: &HeaderMap) -> Result<(), Failure> {
    if http == StatusCode::OK || headers.contains_key(STATUS) {
        return Ok(());
    }
    let code = match http.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    failure(code, &format!("HTTP {}", http.as_u16()), None)
}

/// Checks the gRPC status at the end of an answer.
pub(super) fn of_grpc(mut last: HeaderMap) -> Result<(), Failure> {
    // `Status::from_header_map` would panic if this is not base64.
    let details = last.remove(DETAILS);
    let Some(status) = Status::from_header_map(&last) else {
        return Err(anyhow!("the answer ends without a gRPC status").into());
    };
    let asked = details.and_then(|details| asked_pause(details.as_bytes()));
    failure(status.code(), status.message(), asked)
}

/// `asked` is the pause that the receiver asks for.
fn failure(code: Code, message: &str, asked: Option<Duration>) -> Result<(), Failure> {
    let may_pass = match code {
        Code::Ok => return Ok(()),
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => true,
        // Without a delay nothing promises that there will be room.
        Code::ResourceExhausted => asked.is_some(),
        Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::Internal
        | Code::Unauthenticated => false,
    };
    let why = reason(code, message);
    Err(if may_pass {
        Failure::Again {
            why: anyhow!(why),
            after: asked,
        }
    } else {
        Failure::Refused {
            why,
            is_unknown: code == Code::Unimplemented,
            is_invalid: code == Code::InvalidArgument,
        }
    })
}

/// The code as spelled in gRPC's specification, and the receiver's message, in one line.
fn reason(code: Code, message: &str) -> String {
    let mut told = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !told.is_empty() {
            told.push('_');
        }
        told.push(letter.to_ascii_uppercase());
    }
    let line = one_line(message);
    if !line.is_empty() {
        told.push_str(": ");
        told.push_str(&line);
    }
    told
}

/// The delay of a `RetryInfo`: zero if it has none, `None` if there is no `RetryInfo`.
fn asked_pause(details: &[u8]) -> Option<Duration> {
    let details = BASE64.decode(details).ok()?;
    let details = Details::decode(&*details).ok()?;
    let mut details = details.details.into_iter();
    let info = details.find(|any| any.type_url == RETRY_INFO)?;
    let delay = RetryInfo::decode(&*info.value).ok()?.retry_delay;
    let Delay { seconds, nanos } = delay.unwrap_or_default();
    let seconds = Duration::from_secs(seconds.try_into().unwrap_or_default());
    let nanos = Duration::from_nanos(nanos.try_into().unwrap_or_default());
    Some(seconds.saturating_add(nanos).min(LONGEST_PAUSE))
}
