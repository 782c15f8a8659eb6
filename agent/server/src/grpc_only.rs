//! Passes gRPC requests on to the service. All other requests get a human-readable answer.
//!
//! HTTP/1.1 is accepted for that answer only. Requests that a browser can send must never reach the service, or a web
//! page could read a loopback port by DNS rebinding.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use futures_util::future::Either;
use tonic::{
    body::Body,
    codegen::{
        Service,
        http::{HeaderValue, Request, Response, StatusCode, Version, header::CONTENT_TYPE},
    },
};

const GRPC: &[u8] = b"application/grpc";
const ANSWER: &str = "A flow agent serves gRPC here (flow.v1.FlowAgent, HTTP/2). To see its flows: \
                      flow-agent watch --connect ADDRESS\n";

#[derive(Clone)]
pub(super) struct GrpcOnly<S>(pub S);

impl<S, B> Service<Request<B>> for GrpcOnly<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<Ready<Result<Response<Body>, Infallible>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let content_type = request.headers().get(CONTENT_TYPE);
        let is_grpc = content_type.is_some_and(|kind| kind.as_bytes().starts_with(GRPC));
        if is_grpc && request.version() == Version::HTTP_2 {
            Either::Right(self.0.call(request))
        } else {
            Either::Left(ready(Ok(answer())))
        }
    }
}

fn answer() -> Response<Body> {
    let mut response = Response::new(Body::new(ANSWER.to_owned()));
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, future::poll_fn};
    use http_body_util::BodyExt as _;

    use super::*;

    /// Answers with an empty body, once it is ready.
    struct Inner {
        is_ready: bool,
    }

    impl Service<Request<()>> for Inner {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            if self.is_ready {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            ready(Ok(Response::new(Body::empty())))
        }
    }

    #[tokio::test]
    async fn what_is_not_grpc_over_http2_is_told_what_is_served_here() {
        let mut service = GrpcOnly(Inner { is_ready: true });
        for (content_type, version, is_passed_on) in [
            (Some("application/grpc"), Version::HTTP_2, true),
            (Some("application/grpc+proto"), Version::HTTP_2, true),
            (Some("application/grpc"), Version::HTTP_11, false),
            (Some("text/html"), Version::HTTP_2, false),
            (None, Version::HTTP_2, false),
        ] {
            let mut request = Request::new(());
            *request.version_mut() = version;
            if let Some(kind) = content_type {
                let kind = HeaderValue::from_static(kind);
                request.headers_mut().insert(CONTENT_TYPE, kind);
            }
            let (head, body) = service.call(request).await.unwrap().into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let is_told = head.status == StatusCode::UNSUPPORTED_MEDIA_TYPE && body == ANSWER;
            assert_ne!(is_told, is_passed_on, "{content_type:?} {version:?}");
        }
    }

    #[test]
    fn it_is_ready_when_the_service_is() {
        for is_ready in [true, false] {
            let mut service = GrpcOnly(Inner { is_ready });
            let polled = poll_fn(|context| service.poll_ready(context)).now_or_never();
            assert_eq!(polled.is_some(), is_ready);
        }
    }
}
