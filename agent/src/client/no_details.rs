//! A channel that leaves out the details of a status: tonic panics if they are not base64 (`Status::from_header_map` of
//! 0.14.9), anybody may answer, and nothing here reads them.

use std::task::{Context, Poll};

use http_body_util::BodyExt as _;
use hyper::body::Frame;
use tonic::{
    body::Body,
    codegen::{
        BoxFuture, Bytes, Service,
        http::{Request, Response},
    },
    transport::{self, Channel},
};

const DETAILS: &str = "grpc-status-details-bin";

#[derive(Clone)]
pub(super) struct NoDetails(pub Channel);

impl Service<Request<Body>> for NoDetails {
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answering = self.0.call(request);
        Box::pin(async {
            let mut answer = answering.await?;
            // Where an answer has no message its headers are the trailers.
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
