//! The services that gRPC's own tools expect of every server: reflection, which lists the others, and health.
//!
//! Their streams take consumers' places, so that their memory is bounded together with the consumers'.

use std::{convert::Infallible, future::Future, pin::Pin};

use anyhow::{Context as _, Result};
use futures_util::stream;
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use tokio::{sync::watch, task::AbortHandle};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Service,
        http::{HeaderMap, Request, Response},
    },
};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tonic_reflection::{pb, server::Builder};

use super::{answer, request::MAX_REQUEST_BYTES};

const HEALTH: &str = "grpc.health.v1.Health";
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
/// Used by tools that are some years old.
const OLD_REFLECTION: &str = "grpc.reflection.v1alpha.ServerReflection";

type Answered = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

pub struct StandardServices {
    /// The services of flow.proto that the process serves.
    ours: &'static [&'static str],
    reporter: HealthReporter,
    /// The task that reports the agent healthy once it counts.
    telling: AbortHandle,
    health: Call,
    reflection: Call,
    old_reflection: Call,
    stopped: watch::Receiver<()>,
}

/// Answers the requests of one service.
type Call = Box<dyn Fn(Request<Body>) -> Answered + Send + Sync>;

/// A request that one of these services answers.
pub struct StandardCall<'a> {
    call: &'a Call,
    /// Whether it answers with a stream, which has no end of its own.
    pub is_stream: bool,
}

impl StandardServices {
    /// Serves reflection and health for the services `ours`, which become healthy once `counting` is true. Their
    /// streams end when the sender of `stopped` is dropped.
    pub async fn new(
        ours: &'static [&'static str],
        mut counting: watch::Receiver<bool>,
        stopped: watch::Receiver<()>,
    ) -> Result<Self> {
        let reporter = HealthReporter::new();
        set_all(&reporter, ours, ServingStatus::NotServing).await;
        let told = reporter.clone();
        let telling = tokio::spawn(async move {
            // Otherwise the agent ends before it counts.
            if counting.wait_for(|counts| *counts).await.is_ok() {
                set_all(&told, ours, ServingStatus::Serving).await;
            }
        });
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()));
        let reflection = described(ours).build_v1();
        let reflection = reflection.context("read our own descriptors")?;
        let old_reflection = described(ours).build_v1alpha();
        let old_reflection = old_reflection.context("read our own descriptors")?;
        Ok(Self {
            ours,
            reporter,
            telling: telling.abort_handle(),
            health: call(health.max_decoding_message_size(MAX_REQUEST_BYTES)),
            reflection: call(reflection.max_decoding_message_size(MAX_REQUEST_BYTES)),
            old_reflection: call(old_reflection.max_decoding_message_size(MAX_REQUEST_BYTES)),
            stopped,
        })
    }

    /// Reports the agent as unhealthy from here on. Watchers get this before their streams end.
    pub async fn stop(&self) {
        self.telling.abort();
        set_all(&self.reporter, self.ours, ServingStatus::NotServing).await;
    }

    pub fn find(&self, path: &str) -> Option<StandardCall<'_>> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        let (call, is_stream) = match service {
            HEALTH => (&self.health, method == "Watch"),
            REFLECTION => (&self.reflection, true),
            OLD_REFLECTION => (&self.old_reflection, true),
            _ => return None,
        };
        Some(StandardCall { call, is_stream })
    }

    /// `kept` is dropped with the answer's body.
    pub async fn answer<T: Send + 'static>(
        &self,
        call: StandardCall<'_>,
        request: Request<Body>,
        kept: T,
    ) -> Response<Body> {
        let answer = (call.call)(request).await;
        if answer.is_end_stream() {
            // An error, with its trailers in the headers. Another body would not end with them.
            return answer;
        }
        answer.map(|body| until_stop(body, self.stopped.clone(), kept))
    }
}

/// The empty name stands for the whole process.
async fn set_all(health: &HealthReporter, ours: &[&str], status: ServingStatus) {
    for service in ours.iter().chain([&""]) {
        health.set_service_status(*service, status).await;
    }
}

fn described(ours: &[&'static str]) -> Builder<'static> {
    let mut builder = Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        // By itself, each of the two describes itself alone.
        .register_encoded_file_descriptor_set(pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(pb::v1alpha::FILE_DESCRIPTOR_SET);
    for service in ours.iter().chain(&[HEALTH, REFLECTION, OLD_REFLECTION]) {
        builder = builder.with_service_name(*service);
    }
    builder
}

fn call<S>(service: S) -> Call
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
{
    Box::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move {
            match service.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    })
}

/// The same body, cut off when the agent stops, so that watchers do not delay the stop.
fn until_stop<T: Send + 'static>(body: Body, stopped: watch::Receiver<()>, kept: T) -> Body {
    let state = Some((body, stopped, kept));
    let frames = stream::unfold(state, |state| async {
        let (mut body, mut stopped, kept) = state?;
        tokio::select! {
            // Send the reports from before the stop.
            biased;
            frame = body.frame() => Some((frame?, Some((body, stopped, kept)))),
            _ = stopped.changed() => Some((Ok(Frame::trailers(stopping())), None)),
        }
    });
    Body::new(StreamBody::new(frames))
}

fn stopping() -> HeaderMap {
    answer::trailers(Err(Status::unavailable("the agent stops")))
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use pb::v1::{
        ServerReflectionRequest, ServerReflectionResponse,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    use prost::Message as _;
    use tokio::sync::oneshot;

    use super::*;

    async fn services() -> (watch::Sender<()>, StandardServices) {
        let (serving, stopped) = watch::channel(());
        let counting = watch::channel(true).1;
        let services = StandardServices::new(&["flow.v1.FlowAgent"], counting, stopped).await;
        (serving, services.unwrap())
    }

    #[tokio::test]
    async fn only_their_own_paths_are_theirs_and_streams_are_told_apart() {
        let (_serving, services) = services().await;
        for (path, is_stream) in [
            ("/grpc.health.v1.Health/Check", Some(false)),
            ("/grpc.health.v1.Health/Watch", Some(true)),
            (
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                Some(true),
            ),
            (
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                Some(true),
            ),
            ("/flow.v1.FlowAgent/Observe", None),
            ("/grpc.health.v1.Health", None),
            ("", None),
        ] {
            let found = services.find(path);
            assert_eq!(found.map(|call| call.is_stream), is_stream, "{path}");
        }
    }

    /// The answers to these requests, of one of the versions of reflection.
    async fn reflected(service: &str, requests: &[MessageRequest]) -> Vec<MessageResponse> {
        let (_serving, services) = services().await;
        let mut asked = Vec::new();
        for request in requests {
            let request = ServerReflectionRequest {
                host: String::new(),
                message_request: Some(request.clone()),
            };
            asked.push(0);
            asked.extend((request.encoded_len() as u32).to_be_bytes());
            request.encode(&mut asked).unwrap();
        }
        let path = format!("/{service}/ServerReflectionInfo");
        let request = Request::post(&path).header("content-type", "application/grpc");
        let request = request.body(Body::new(Full::from(asked))).unwrap();
        let call = services.find(&path).unwrap();
        let body = services.answer(call, request, ()).await.into_body();
        let answered = body.collect().await.unwrap().to_bytes();
        let mut rest = &answered[..];
        let mut told = Vec::new();
        while let Some((head, behind)) = rest.split_first_chunk::<5>() {
            let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let response = ServerReflectionResponse::decode(&behind[..len]).unwrap();
            told.push(response.message_response.unwrap());
            rest = &behind[len..];
        }
        told
    }

    #[tokio::test]
    async fn reflection_describes_each_service_that_it_lists() {
        // The messages of both versions have the same form.
        for version in [REFLECTION, OLD_REFLECTION] {
            let listed = reflected(version, &[MessageRequest::ListServices(String::new())]).await;
            let [MessageResponse::ListServicesResponse(listed)] = &listed[..] else {
                panic!("{listed:?}")
            };
            let names = listed.service.iter().map(|service| service.name.clone());
            let names: Vec<_> = names.collect();
            let expected = ["flow.v1.FlowAgent", HEALTH, REFLECTION, OLD_REFLECTION];
            assert_eq!(names, expected, "{version}");
            let wanted = names.into_iter().map(MessageRequest::FileContainingSymbol);
            for described in reflected(version, &wanted.collect::<Vec<_>>()).await {
                let is_file = matches!(described, MessageResponse::FileDescriptorResponse(_));
                assert!(is_file, "{version}: {described:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_body_without_end_ends_when_the_agent_stops_and_lets_go_of_what_it_kept() {
        let (serving, stopped) = watch::channel(());
        let (kept, dropped) = oneshot::channel::<()>();
        let endless = Body::new(StreamBody::new(stream::pending::<
            Result<Frame<bytes::Bytes>, Status>,
        >()));
        let body = until_stop(endless, stopped, kept);
        drop(serving);
        let collected = body.collect().await.unwrap();
        let trailers = collected.trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "14");
        assert!(dropped.await.is_err());
    }

    #[tokio::test]
    async fn whoever_watches_the_health_hears_that_the_agent_stops_before_the_stream_ends() {
        const SERVING: u8 = 1;
        const NOT_SERVING: u8 = 2;
        let (serving, services) = services().await;
        let path = "/grpc.health.v1.Health/Watch";
        // One message without fields: the agent as a whole.
        let request = Request::post(path).header("content-type", "application/grpc");
        let request = request
            .body(Body::new(Full::from([0; 5].as_slice())))
            .unwrap();
        let call = services.find(path).unwrap();
        let mut body = services.answer(call, request, ()).await.into_body();
        let mut told = Vec::new();
        while told.last() != Some(&SERVING) {
            let frame = body.frame().await.unwrap().unwrap();
            told.extend(frame.into_data().unwrap().last());
        }
        services.stop().await;
        drop(serving);
        let frame = body.frame().await.unwrap().unwrap();
        let message = frame.into_data().unwrap_or_else(|end| panic!("{end:?}"));
        assert_eq!(message.last(), Some(&NOT_SERVING));
        let end = body.frame().await.unwrap().unwrap();
        assert_eq!(end.into_trailers().unwrap()["grpc-status"], "14");
    }
}
