//! The listeners' side: certificate, key and client CAs, read from files and read again when these change.

use std::{fmt, path::PathBuf, sync::Arc};

use rustls::{
    ServerConfig, ServerConnection,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    sign::SingleCertAndKey,
};
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};
use webpki::EndEntityCert;

use super::{
    ALPN_H2, VERSIONS,
    pem::{self, FileFault, Identity, Use, Validity, expired_instead},
    provider,
};
use crate::{
    identity,
    reload::{FromFiles, Reloadable, Stamps},
};

/// The files that the settings name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate, followed by its chain to the CA.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients must have a certificate from one of these CAs.
    pub client_ca: Option<PathBuf>,
}

/// The contents of the files at one time.
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

    /// Reads all files. Fails, and names the file, if one cannot be used.
    pub fn read(self) -> Result<ServerTls, FileFault> {
        // Take the stamps first, so that the next check notices a write during the read.
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
        // Connections last long, and a resumed one would skip the check of the client's certificate.
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

/// The identity of a client whose certificate was verified: the first DNS name in its subject alternative names that
/// can be a host's. The common name is ignored (RFC 9525, 2).
pub fn name_of_client(connection: &ServerConnection) -> Option<identity::Identity> {
    let certificate = connection.peer_certificates()?.first()?;
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    certificate
        .valid_dns_names()
        .find_map(identity::Identity::named)
}

/// The TLS configuration of all TCP listeners.
pub type ReloadableServerTls = Reloadable<ServerTls>;

/// The status of that configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub validity: Validity,
    pub asks_for_certificates: bool,
    pub fault: Option<String>,
}

impl ReloadableServerTls {
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.state().contents.config))
    }

    pub fn status(&self) -> Status {
        let state = self.state();
        Status {
            validity: state.contents.validity,
            asks_for_certificates: state.contents.files.client_ca.is_some(),
            fault: state.fault.clone(),
        }
    }
}

impl FromFiles for ServerTls {
    type Fault = FileFault;

    fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    fn stamps_now(&self) -> Stamps {
        self.files.stamps()
    }

    fn reread(&self) -> Result<Self, FileFault> {
        self.files.clone().read()
    }

    fn has_same_files(&self, other: &Self) -> bool {
        self.files == other.files
    }

    fn reason_to_keep(&self, before: &Self) -> Option<String> {
        let path = &self.files.certificate;
        expired_instead(path, self.validity, Some(before.validity))
    }

    fn log_first(&self) {
        self.log("TCP listeners speak TLS");
    }

    fn log_reloaded(&self) {
        self.log("read the certificate again");
    }

    fn log_kept(&self, fault: &str) {
        warn!(
            not_after = pem::shown(self.validity.end()),
            "keeping the certificate as read before: {fault}"
        );
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
