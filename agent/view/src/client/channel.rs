//! A channel to an agent. It strips the details from a status: tonic panics if they are not base64
//! (`Status::from_header_map` of 0.14.9), anyone may answer with that, and nothing here reads them. It also reports why
//! a TLS connection ended before the request was sent; hyper reports only that it ended.

use std::{
    error::Error as StdError,
    io,
    task::{Context, Poll},
};

use http_body_util::BodyExt as _;
use hyper::body::Frame;
use tls::client::LastWords;
use tonic::{
    body::Body,
    codegen::{
        BoxFuture, Bytes, Service,
        http::{HeaderValue, Request, Response, header::AUTHORIZATION},
    },
    transport::Channel,
};

const DETAILS: &str = "grpc-status-details-bin";

#[derive(Clone)]
pub(super) struct AgentChannel {
    channel: Channel,
    last_words: LastWords,
    /// Sent with each request.
    shown: Option<HeaderValue>,
}

impl AgentChannel {
    pub(super) fn new(channel: Channel, last_words: LastWords, shown: Option<HeaderValue>) -> Self {
        Self {
            channel,
            last_words,
            shown,
        }
    }
}

impl Service<Request<Body>> for AgentChannel {
    type Response = Response<Body>;
    type Error = Box<dyn StdError + Send + Sync>;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(shown) = &self.shown {
            request.headers_mut().insert(AUTHORIZATION, shown.clone());
        }
        let answering = self.channel.call(request);
        let last_words = self.last_words.clone();
        Box::pin(async move {
            let mut answer = answering.await.map_err(|error| match last_words.get() {
                Some(words) => io::Error::other(words).into(),
                None => Self::Error::from(error),
            })?;
            // If an answer has no message, its headers are the trailers.
            answer.headers_mut().remove(DETAILS);
            Ok(answer.map(|body| Body::new(body.map_frame(without_details))))
        })
    }
}

fn without_details(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        trailers.remove(DETAILS);
    }
    frame
}
