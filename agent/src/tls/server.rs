//! The listeners' side: what they show and ask for, read from files and read again when these change.

use std::{
    convert::Infallible,
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls::{
    ServerConfig,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    sign::SingleCertAndKey,
};
use tokio::{sync::watch, task::spawn_blocking, time::sleep};
use tokio_rustls::TlsAcceptor;
use tracing::{error, info, warn};

use super::{
    ALPN_H2, VERSIONS,
    pem::{self, FileFault, Identity, Stamps, Use, Validity},
    provider,
};

/// How often the files are looked at. One that has changed is read when it has stayed the same until the next look, so
/// that whoever writes several is done.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Where the settings say that they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate, and behind it those that lead to its CA.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients need a certificate of one of these CAs.
    pub client_ca: Option<PathBuf>,
}

/// What was read from the files at one time.
#[derive(Clone)]
pub struct ServerTls {
    files: ServerFiles,
    stamps: Stamps,
    config: Arc<ServerConfig>,
    pub validity: Validity,
    pub warnings: Vec<String>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(formatter)
    }
}

impl ServerFiles {
    fn stamps(&self) -> Stamps {
        let paths = [&self.certificate, &self.key];
        Stamps::of(paths.into_iter().chain(&self.client_ca))
    }

    /// Reads them all. Fails, and names the file, if clients could not be served with them.
    pub fn read(self) -> Result<ServerTls, FileFault> {
        // Before they are read: what is written meanwhile is then seen at the next look.
        let stamps = self.stamps();
        let provider = provider();
        let identity = Identity::read(&self.certificate, &self.key, &provider)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder
            .with_protocol_versions(&VERSIONS)
            .expect("ring knows both versions");
        let builder = match &self.client_ca {
            Some(path) => {
                let roots = Arc::new(pem::roots(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = verifier.build().map_err(|error| {
                    FileFault::new(Use::Ca, format!("{}: {error}", path.display()))
                })?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let resolver = SingleCertAndKey::from(Arc::unwrap_or_clone(identity.key));
        let mut config = builder.with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![ALPN_H2.to_vec()];
        // Connections last, and one that were resumed would skip the look at the client's certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(ServerTls {
            files: self,
            stamps,
            config: Arc::new(config),
            validity: identity.validity,
            warnings: identity.warnings,
        })
    }
}

/// What is in force on all TCP listeners. Clones share it. Connections that are open keep what they began with.
#[derive(Debug, Clone)]
pub struct InForce(watch::Sender<State>);

#[derive(Debug)]
struct State {
    tls: ServerTls,
    /// The files that were read last, or could not be.
    judged: Stamps,
    /// Why those of now are not in force.
    fault: Option<String>,
}

/// What is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub validity: Validity,
    pub asks_for_certificates: bool,
    pub fault: Option<String>,
}

impl InForce {
    pub fn new(tls: ServerTls) -> Self {
        tls.log("TCP listeners speak TLS");
        Self(watch::Sender::new(State {
            judged: tls.stamps.clone(),
            tls,
            fault: None,
        }))
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0.borrow().tls.config))
    }

    pub fn told(&self) -> Told {
        let state = self.0.borrow();
        Told {
            validity: state.tls.validity,
            asks_for_certificates: state.tls.files.client_ca.is_some(),
            fault: state.fault.clone(),
        }
    }

    /// Takes over what was read at a reload of the settings. Does nothing if the settings name other files: these take
    /// a restart.
    pub fn replace(&self, tls: ServerTls) {
        let state = self.0.borrow();
        let is_same = state.tls.files == tls.files;
        let is_judged = state.judged == tls.stamps && state.fault.is_none();
        drop(state);
        if is_same && !is_judged {
            self.judge(tls.stamps.clone(), Ok(tls));
        }
    }

    /// Looks at the files for ever.
    pub async fn follow(self) -> Infallible {
        let mut last = self.0.borrow().judged.clone();
        loop {
            sleep(LOOK_INTERVAL).await;
            let (this, before) = (self.clone(), last.clone());
            // An error means that the process is ending.
            if let Ok(seen) = spawn_blocking(move || this.look(&before)).await {
                last = seen;
            }
        }
    }

    /// Reads the files if they have changed, and not since the `last` look. Returns what was seen.
    fn look(&self, last: &Stamps) -> Stamps {
        let state = self.0.borrow();
        let (files, judged) = (state.tls.files.clone(), state.judged.clone());
        drop(state);
        let stamps = files.stamps();
        if stamps == *last && stamps != judged {
            let read = files.read().map_err(|fault| fault.to_string());
            self.judge(stamps.clone(), read);
        }
        stamps
    }

    /// Puts what was read in force, or says once why it stays as it was.
    fn judge(&self, judged: Stamps, read: Result<ServerTls, String>) {
        let now = SystemTime::now();
        let before = self.0.borrow().tls.validity;
        let read = read.and_then(|tls| {
            if tls.validity.has_ended(now) && !before.has_ended(now) {
                let path = tls.files.certificate.display();
                let end = pem::shown(tls.validity.end());
                return Err(format!("the certificate in {path} expired at {end}"));
            }
            Ok(tls)
        });
        match &read {
            Ok(tls) => tls.log("the certificate has been read again"),
            Err(fault) => error!(
                not_after = pem::shown(before.end()),
                "the certificate stays as it was: {fault}"
            ),
        }
        self.0.send_modify(|state| {
            state.judged = judged;
            match read {
                Ok(tls) => {
                    state.tls = tls;
                    state.fault = None;
                }
                Err(fault) => state.fault = Some(fault),
            }
        });
    }
}

impl ServerTls {
    fn log(&self, what: &str) {
        info!(
            certificate = %self.files.certificate.display(),
            not_after = pem::shown(self.validity.end()),
            client_certificates = self.files.client_ca.is_some(),
            "{what}"
        );
        for warning in &self.warnings {
            warn!("{warning}");
        }
    }
}

#[cfg(test)]
mod tests;
