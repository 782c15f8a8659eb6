//! The connecting side: trusts the system's CAs or those of a file, sends a client certificate if it has one, and
//! explains failures in words that help.

use std::{
    env, io,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use hyper_util::rt::TokioIo;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, Error as TlsError, RootCertStore,
    client::Resumption,
    pki_types::{InvalidDnsNameError, ServerName, UnixTime},
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::codegen::{Service, http::Uri};

use super::{
    VERSIONS, of_tls,
    pem::{self, FileFault, Identity, Use, Validity},
    provider,
};
use crate::reload::Stamps;

/// The files that the settings name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The trusted CAs; without it the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate and its key: both or neither.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl ClientFiles {
    /// Reads the files. `alpn` lists the protocols to offer, the preferred one first. Fails if a file cannot be used.
    pub fn read(&self, alpn: &[&[u8]]) -> Result<ClientConfig, FileFault> {
        self.read_all(alpn).map(|(config, _)| config)
    }

    /// The same, and the facts about the client certificate.
    pub(super) fn read_all(
        &self,
        alpn: &[&[u8]],
    ) -> Result<(ClientConfig, Option<Shown>), FileFault> {
        let provider = provider();
        let roots = match &self.ca {
            Some(path) => pem::roots(path)?,
            None => of_the_system()?,
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder
            .with_protocol_versions(&VERSIONS)
            .expect("ring knows both versions")
            .with_root_certificates(roots);
        let (mut config, shown) = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let identity = Identity::read(certificate, key, &provider)?;
                let resolver =
                    rustls::sign::SingleCertAndKey::from(Arc::unwrap_or_clone(identity.key));
                let shown = Shown {
                    validity: identity.validity,
                    warnings: identity.warnings,
                };
                let config = builder.with_client_cert_resolver(Arc::new(resolver));
                (config, Some(shown))
            }
            _ => (builder.with_no_client_auth(), None),
        };
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        config.resumption = Resumption::disabled();
        Ok((config, shown))
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The stamps of the files. Without a CA file, the stamps of the system's CAs.
    pub(super) fn stamps(&self) -> Stamps {
        let cas = match &self.ca {
            Some(path) => vec![path.clone()],
            None => places_of_the_system(),
        };
        Stamps::of(cas.iter().chain(&self.certificate).chain(&self.key))
    }
}

/// Facts about the client certificate.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub validity: Validity,
    pub warnings: Vec<String>,
}

/// The places where [`of_the_system`] finds CAs.
fn places_of_the_system() -> Vec<PathBuf> {
    let probed = openssl_probe::probe();
    let mut places = probed.cert_dir;
    places.extend(probed.cert_file);
    if let Some(folders) = env::var_os("SSL_CERT_DIR") {
        places.extend(env::split_paths(&folders));
    }
    places
}

/// The system's CAs. A broken one is skipped, as other programs do.
fn of_the_system() -> Result<RootCertStore, FileFault> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(FileFault::new(
            Use::Ca,
            "this system has no CAs that it trusts (package ca-certificates): name a file of them",
        ));
    }
    Ok(roots)
}

/// Why a connection could not be made.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("the address {0} has no host")]
    NoHost(Uri),
    #[error("no certificate can have the name {host}")]
    BadName {
        host: String,
        source: InvalidDnsNameError,
    },
    #[error("cannot connect")]
    Tcp(#[source] io::Error),
    #[error("its certificate is not from a CA that is trusted here")]
    Untrusted,
    /// The message explains it.
    #[error("{0}")]
    Handshake(String),
    /// The server closed the connection. It may have no room.
    #[error("it ended the handshake")]
    Ended,
}

/// Connects by TCP and TLS to the host and port of a URI.
#[derive(Clone)]
pub struct Connector {
    tls: TlsConnector,
    last_words: LastWords,
}

/// Why the last connection ended after its handshake, if the server said so. A caller that waits for a response may
/// only see that the connection ended.
#[derive(Clone, Debug, Default)]
pub struct LastWords(Arc<Mutex<Option<String>>>);

impl LastWords {
    fn set(&self, words: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }

    pub fn get(&self) -> Option<BrokenOff> {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        words.clone().map(BrokenOff)
    }
}

impl Connector {
    pub fn new(config: ClientConfig) -> Self {
        Self {
            tls: Arc::new(config).into(),
            last_words: LastWords::default(),
        }
    }

    /// The reasons for all connections of this connector and its clones.
    pub fn last_words(&self) -> LastWords {
        self.last_words.clone()
    }

    async fn connect(self, uri: Uri) -> Result<TokioIo<Stream>, ConnectError> {
        let (Some(host), port) = (uri.host(), uri.port_u16().unwrap_or(443)) else {
            return Err(ConnectError::NoHost(uri));
        };
        // A URI has an IPv6 address in brackets.
        let host = host.trim_matches(['[', ']']);
        let tcp = TcpStream::connect((host, port)).await;
        let tcp = tcp.map_err(ConnectError::Tcp)?;
        tcp.set_nodelay(true).map_err(ConnectError::Tcp)?;
        self.over(tcp, host).await.map(TokioIo::new)
    }

    /// Performs the handshake on a connection to this host, a name or an address.
    pub async fn over(&self, tcp: TcpStream, host: &str) -> Result<Stream, ConnectError> {
        let name = server_name(host)?;
        let connected = self.tls.connect(name, tcp).await;
        let stream = connected.map_err(|error| match of_tls(&error) {
            Some(TlsError::AlertReceived(AlertDescription::InternalError)) => ConnectError::Ended,
            // A bad signature means that another CA has the name of a trusted one.
            Some(TlsError::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => ConnectError::Untrusted,
            Some(tls) => ConnectError::Handshake(words(tls)),
            None if error.kind() == io::ErrorKind::UnexpectedEof => ConnectError::Ended,
            None => ConnectError::Tcp(error),
        })?;
        self.last_words.set(None);
        Ok(Stream {
            tls: stream,
            broken: None,
            last_words: self.last_words.clone(),
        })
    }
}

/// The host as a certificate would name it.
fn server_name(host: &str) -> Result<ServerName<'static>, ConnectError> {
    let name = ServerName::try_from(host.to_owned());
    name.map_err(|source| ConnectError::BadName {
        host: host.to_owned(),
        source,
    })
}

/// Whether a certificate can be for this host, a name or an address.
pub fn can_be_certified(host: &str) -> bool {
    server_name(host).is_ok()
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// Explains an error to somebody who can fix it.
fn words(error: &TlsError) -> String {
    if let TlsError::InvalidCertificate(error) = error {
        format!("its certificate is refused: {}", unfit(error))
    } else if let TlsError::AlertReceived(alert) = error {
        refused_by(*alert)
    } else if let TlsError::InvalidMessage(_) = error {
        "it does not speak TLS".to_owned()
    } else {
        error.to_string()
    }
}

/// Why a server's certificate is refused, and how to fix it.
fn unfit(error: &CertificateError) -> String {
    let shown = |time: UnixTime| pem::shown(SystemTime::UNIX_EPOCH + since_epoch(time));
    if let CertificateError::ExpiredContext { not_after, .. } = error {
        format!("it expired at {}: renew it", shown(*not_after))
    } else if let CertificateError::NotValidYetContext { not_before, .. } = error {
        let begin = shown(*not_before);
        format!("it is valid only from {begin}: check the clocks of both hosts")
    } else if let CertificateError::NotValidForNameContext { .. } = error {
        format!("{error}: connect by a name that it has")
    } else {
        error.to_string()
    }
}

fn since_epoch(time: UnixTime) -> Duration {
    Duration::from_secs(time.as_secs())
}

fn refused_by(alert: AlertDescription) -> String {
    let asks = matches!(
        alert,
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate
    );
    let refuses = matches!(
        alert,
        AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied
    );
    if asks {
        "it asks for a client's certificate: name one, and its key".to_owned()
    } else if refuses {
        format!("it refuses the client's certificate ({alert:?})")
    } else if alert == AlertDescription::NoApplicationProtocol {
        format!("it does not speak our version of HTTP there ({alert:?})")
    } else {
        format!("it ends the connection ({alert:?})")
    }
}

/// Why a connection ended after its handshake: the error inside an [`io::Error`].
#[derive(Debug, Error)]
#[error("{0}")]
pub struct BrokenOff(pub String);

/// A connection. With TLS 1.3 a server refuses a client's certificate only after the handshake. Reads and writes then
/// return the reason.
pub struct Stream {
    tls: TlsStream<TcpStream>,
    /// The error of a failed write, while the server's reason is still to be read.
    broken: Option<io::Error>,
    last_words: LastWords,
}

impl Stream {
    /// The error to return for a failed write. A server that refuses the client sends the reason and closes the
    /// connection, but the write only reports the closing.
    fn poll_why(&mut self, context: &mut Context<'_>, broken: io::Error) -> Poll<io::Error> {
        let mut bytes = [0; 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *self).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(Err(told)) if is_broken_off(&told) => return Poll::Ready(told),
                Poll::Ready(_) => return Poll::Ready(broken),
                // The kernel already has the end of the stream, so the read completes.
                Poll::Pending => {
                    self.broken = Some(broken);
                    return Poll::Pending;
                }
            }
        }
    }

    fn poll_written<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TlsStream<TcpStream>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let broken = match self.broken.take() {
            Some(broken) => broken,
            None => match write(Pin::new(&mut self.tls), context) {
                Poll::Ready(Err(broken)) => broken,
                written @ (Poll::Ready(Ok(_)) | Poll::Pending) => return written,
            },
        };
        self.poll_why(context, broken).map(Err)
    }
}

fn is_broken_off(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner
        .and_then(|inner| inner.downcast_ref::<BrokenOff>())
        .is_some()
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            tls, last_words, ..
        } = self.get_mut();
        let read = Pin::new(tls).poll_read(context, buffer);
        read.map_err(|error| match of_tls(&error) {
            Some(tls) => {
                let words = words(tls);
                last_words.set(Some(words.clone()));
                io::Error::new(error.kind(), BrokenOff(words))
            }
            None => error,
        })
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = |tls: Pin<&mut TlsStream<TcpStream>>, context: &mut Context<'_>| {
            tls.poll_write(context, bytes)
        };
        self.get_mut().poll_written(context, write)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = |tls: Pin<&mut TlsStream<TcpStream>>, context: &mut Context<'_>| {
            tls.poll_write_vectored(context, slices)
        };
        self.get_mut().poll_written(context, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.tls.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_written(context, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tls).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
