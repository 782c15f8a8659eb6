//! The listeners' side: what they show and ask for, read from files and read again when these change.

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
    in_force::{self, FromFiles, Stamps},
};

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

/// Who a client is whose certificate was verified: the first DNS name among its subject alternative names that can be that of a
/// host. The common name counts for nothing (RFC 9525, 2).
pub fn name_of_client(connection: &ServerConnection) -> Option<identity::Identity> {
    let certificate = connection.peer_certificates()?.first()?;
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    certificate
        .valid_dns_names()
        .find_map(identity::Identity::named)
}

/// What is in force on all TCP listeners.
pub type InForce = in_force::InForce<ServerTls>;

/// What is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub validity: Validity,
    pub asks_for_certificates: bool,
    pub fault: Option<String>,
}

impl InForce {
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.state().held.config))
    }

    pub fn told(&self) -> Told {
        let state = self.state();
        Told {
            validity: state.held.validity,
            asks_for_certificates: state.held.files.client_ca.is_some(),
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

    fn read_again(&self) -> Result<Self, FileFault> {
        self.files.clone().read()
    }

    fn is_of_the_same_files(&self, other: &Self) -> bool {
        self.files == other.files
    }

    fn yields_to(&self, before: &Self) -> Option<String> {
        let path = &self.files.certificate;
        expired_instead(path, self.validity, Some(before.validity))
    }

    fn tell_first(&self) {
        self.log("TCP listeners speak TLS");
    }

    fn tell_again(&self) {
        self.log("the certificate has been read again");
    }

    fn tell_kept(&self, fault: &str) {
        warn!(
            not_after = pem::shown(self.validity.end()),
            "the certificate stays as it was: {fault}"
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
