//! Passes gRPC requests on to the service. All others get an answer that a person can read.
//!
//! HTTP/1.1 is understood for that answer only. Nothing that a browser can send may reach the service, or a
//! web page could read a port on the loopback interface by DNS rebinding.

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
