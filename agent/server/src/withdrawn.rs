//! An answer that ends when the token of its request is withdrawn.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tls::token::{ReloadableTokens, known::Shown};
use tonic::{Status, body::Body, codegen::http::Response};

use super::answer::trailers;

pub fn status() -> Status {
    Status::unauthenticated("the token of this call was withdrawn")
}

struct Ended {
    /// `None` once it has ended.
    body: Option<Body>,
    withdrawn: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The same answer, but it ends with `UNAUTHENTICATED` once this token is withdrawn.
pub fn ended_with(
    answer: Response<Body>,
    tokens: ReloadableTokens,
    shown: Shown,
) -> Response<Body> {
    answer.map(|body| {
        if body.is_end_stream() {
            return body;
        }
        Body::new(Ended {
            body: Some(body),
            withdrawn: Box::pin(tokens.withdrawn(shown)),
        })
    })
}

impl http_body::Body for Ended {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        if this.withdrawn.as_mut().poll(context).is_ready() {
            // Dropping the body also ends the work behind it.
            this.body = None;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers(Err(status()))))));
        }
        let frame = ready!(Pin::new(body).poll_frame(context));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::default, Body::size_hint)
    }
}
