//! A receiver that speaks TLS, and gRPC or HTTP inside, as the client asks. It takes all that it gets.

use std::{
    convert::Infallible,
    io::Read as _,
    sync::{Arc, Mutex},
    time::Instant,
};

use bytes::{Buf as _, Bytes, BytesMut};
use flate2::read::GzDecoder;
use h2::{RecvStream, server::SendResponse};
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use lab::{
    Lab,
    certificates::{Ca, Issued},
};
use prost::Message as _;
use proto::{ExportAck, FlowBatch};
use rustls::{
    RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
    version::{TLS12, TLS13},
};
use tokio::{net::TcpStream, sync::watch};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::super::{otlp::receiver::Request, serve::serve_each};

pub const H2: &[u8] = b"h2";
pub const HTTP1: &[u8] = b"http/1.1";
/// A call with many batches, each of which is acknowledged.
pub const EXPORT: &str = "/flow.v1.FlowCollector/Export";

const ANY_VERSION: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
const ONLY_TLS12: &[&SupportedProtocolVersion] = &[&TLS12];

/// The receiver's certificate, and the clients that it accepts.
pub fn identity(issued: &Issued, client_ca: Option<&Ca>) -> ServerConfig {
    with_versions(ANY_VERSION, issued, client_ca)
}

/// The same over TLS 1.2, with which a client's certificate is judged within the handshake.
pub fn identity_of_tls12(issued: &Issued, client_ca: Option<&Ca>) -> ServerConfig {
    with_versions(ONLY_TLS12, issued, client_ca)
}

fn with_versions(
    versions: &[&'static SupportedProtocolVersion],
    issued: &Issued,
    client_ca: Option<&Ca>,
) -> ServerConfig {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(versions).unwrap();
    let builder = match client_ca {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            let certificate = CertificateDer::from_pem_file(ca.file()).unwrap();
            roots.add(certificate).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
        None => builder.with_no_client_auth(),
    };
    let certificate = CertificateDer::from_pem_file(&issued.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(&issued.key).unwrap();
    let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
    config.alpn_protocols = vec![H2.into(), HTTP1.into()];
    config
}

/// A client's part of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shaken {
    pub alpn: Vec<u8>,
    /// Its certificate.
    pub client: Option<Vec<u8>>,
}

#[derive(Clone)]
pub struct Receiver {
    pub port: u16,
    identity: watch::Sender<Arc<ServerConfig>>,
    /// The handshake of each connection, or why it failed.
    handshakes: Arc<Mutex<Vec<Result<Shaken, String>>>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    /// Listens on the agent's host, by names and addresses that stand for 127.0.0.1.
    pub fn start(lab: &Lab, identity: ServerConfig) -> Self {
        let mut receiver = Self {
            port: 0,
            identity: watch::Sender::new(Arc::new(identity)),
            handshakes: Arc::default(),
            requests: Arc::default(),
        };
        let serving = receiver.clone();
        let address = serve_each(lab, move |stream| serving.clone().serve(stream));
        receiver.port = address.port();
        receiver
    }

    /// Shows another certificate from here on, and ends all connections.
    pub fn becomes(&self, identity: ServerConfig) {
        self.identity.send_replace(Arc::new(identity));
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub fn handshakes(&self) -> Vec<Result<Shaken, String>> {
        self.handshakes.lock().unwrap().clone()
    }

    async fn serve(self, stream: TcpStream) {
        let mut identity = self.identity.subscribe();
        let config = Arc::clone(&identity.borrow_and_update());
        let accepted = TlsAcceptor::from(config).accept(stream).await;
        let shaken = match &accepted {
            Ok(stream) => Ok(told(stream)),
            Err(error) => Err(error.to_string()),
        };
        self.handshakes.lock().unwrap().push(shaken);
        let Ok(stream) = accepted else { return };
        let is_http1 = stream.get_ref().1.alpn_protocol() == Some(HTTP1);
        let serving = async {
            if is_http1 {
                self.serve_http1(stream).await;
            } else {
                self.serve_grpc(stream).await;
            }
        };
        tokio::select! {
            () = serving => {}
            _ = identity.changed() => {}
        }
    }

    fn note(&self, path: &str, is_gzip: bool, body: &[u8]) {
        let body = if is_gzip {
            unpacked(body)
        } else {
            body.to_vec()
        };
        self.requests.lock().unwrap().push(Request {
            path: path.to_owned(),
            is_gzip,
            body,
            at: Instant::now(),
        });
    }

    async fn serve_http1(&self, stream: TlsStream<TcpStream>) {
        let taken = service_fn(async |request: http::Request<Incoming>| {
            let (head, body) = request.into_parts();
            let is_gzip = head.headers.contains_key("content-encoding");
            // The agent may have gone.
            if let Ok(body) = body.collect().await {
                self.note(head.uri.path(), is_gzip, &body.to_bytes());
            }
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
        let server = hyper::server::conn::http1::Builder::new();
        let _ = server.serve_connection(TokioIo::new(stream), taken).await;
    }

    async fn serve_grpc(&self, stream: TlsStream<TcpStream>) {
        let Ok(mut connection) = h2::server::handshake(stream).await else {
            return;
        };
        while let Some(Ok((request, answer))) = connection.accept().await {
            let this = self.clone();
            tokio::spawn(async move {
                let (head, mut body) = request.into_parts();
                assert_eq!(head.uri.scheme_str(), Some("https"));
                let path = head.uri.path();
                if path == EXPORT {
                    // The agent may have gone.
                    let _ = this.acknowledge_each(body, answer).await;
                    return;
                }
                let mut buffer = BytesMut::new();
                while receive(&mut body, &mut buffer).await {}
                if let Some((is_packed, message)) = next_message(&mut buffer) {
                    this.note(path, is_packed, &message);
                    // The agent may have gone.
                    let _ = take(answer);
                }
            });
        }
    }

    /// Takes batches until the agent has sent the last one.
    async fn acknowledge_each(
        &self,
        mut batches: RecvStream,
        mut answer: SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        let mut acknowledgements = answer.send_response(Response::new(()), false)?;
        let mut buffer = BytesMut::new();
        while receive(&mut batches, &mut buffer).await {
            while let Some((is_packed, message)) = next_message(&mut buffer) {
                self.note(EXPORT, is_packed, &message);
                let batch = FlowBatch::decode(message).unwrap();
                let ack = ExportAck {
                    last_seq: batch.stream_seq,
                    ..ExportAck::default()
                };
                let ack = ack.encode_to_vec();
                let framed = [&[0, 0, 0, 0, ack.len() as u8], &ack[..]].concat();
                acknowledgements.send_data(framed.into(), false)?;
            }
        }
        acknowledgements.send_trailers(ended_with("0"))
    }
}

/// More of the bytes that a client sends. Returns whether there were any.
async fn receive(body: &mut RecvStream, buffer: &mut BytesMut) -> bool {
    let Some(Ok(data)) = body.data().await else {
        return false;
    };
    body.flow_control().release_capacity(data.len()).unwrap();
    buffer.extend_from_slice(&data);
    true
}

/// Takes a complete message, which follows a byte that says whether it is compressed, and its length.
fn next_message(buffer: &mut BytesMut) -> Option<(bool, Bytes)> {
    let (&[is_packed, ref length @ ..], rest) = buffer.split_first_chunk::<5>()?;
    let length = u32::from_be_bytes(*length.first_chunk()?) as usize;
    if rest.len() < length {
        return None;
    }
    buffer.advance(5);
    Some((is_packed == 1, buffer.split_to(length).freeze()))
}

fn told(stream: &TlsStream<TcpStream>) -> Shaken {
    let (_, tls) = stream.get_ref();
    let client = tls.peer_certificates().and_then(|chain| chain.first());
    Shaken {
        alpn: tls.alpn_protocol().unwrap_or_default().to_vec(),
        client: client.map(|certificate| certificate.to_vec()),
    }
}

/// Answers with an empty message.
fn take(mut answer: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let mut body = answer.send_response(Response::new(()), false)?;
    body.send_data(Bytes::from_static(&[0; 5]), false)?;
    body.send_trailers(ended_with("0"))
}

/// The trailers of a call that ends with this status.
pub fn ended_with(status: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    trailers
}

fn unpacked(body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    GzDecoder::new(body).read_to_end(&mut whole).unwrap();
    whole
}
