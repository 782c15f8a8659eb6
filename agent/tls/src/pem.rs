//! Reads certificates and keys from PEM files (RFC 7468), and explains a file's faults.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls::{
    Error as TlsError, InconsistentKeys, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem, pem::PemObject as _},
    sign::CertifiedKey,
};
use sys::regular_file;
use thiserror::Error;
use webpki::{EndEntityCert, KeyUsage};

/// A file of all public CAs has some 200 KB.
const MOST_BYTES: u64 = 1 << 20;

/// The purpose of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Certificate,
    Key,
    Ca,
}

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct FileFault {
    pub of: Use,
    message: String,
}

impl FileFault {
    pub(super) fn new(of: Use, message: impl Into<String>) -> Self {
        Self {
            of,
            message: message.into(),
        }
    }
}

/// The validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Since the Unix epoch.
    pub not_before: Duration,
    pub not_after: Duration,
}

impl Validity {
    pub fn has_ended(&self, now: SystemTime) -> bool {
        self.end() < now
    }

    /// Why the certificate is not valid at `now`.
    fn fault(&self, now: SystemTime) -> Option<String> {
        let begin = time(self.not_before);
        if self.has_ended(now) {
            let end = shown(self.end());
            Some(format!("expired at {end}: the other side will refuse it"))
        } else if begin > now {
            let begin = shown(begin);
            Some(format!(
                "is valid only from {begin}: until then the other side will refuse it"
            ))
        } else {
            None
        }
    }

    pub fn end(&self) -> SystemTime {
        time(self.not_after)
    }
}

/// Cannot overflow: a certificate ends in the year 9999 at the latest.
fn time(since_epoch: Duration) -> SystemTime {
    SystemTime::UNIX_EPOCH + since_epoch
}

/// The fault of an expired certificate, if it would replace a valid one or none.
pub fn expired_instead(
    path: &Path,
    validity: Validity,
    before: Option<Validity>,
) -> Option<String> {
    let now = SystemTime::now();
    let was_valid = before.is_none_or(|before| !before.has_ended(now));
    (validity.has_ended(now) && was_valid).then(|| {
        let (path, end) = (path.display(), shown(validity.end()));
        format!("the certificate in {path} expired at {end}")
    })
}

/// Formats a time by RFC 3339.
pub fn shown(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// A certificate with its chain to the CA, and its key.
#[derive(Debug)]
pub struct Identity {
    pub key: Arc<CertifiedKey>,
    pub validity: Validity,
    /// Facts that may be intended, but deserve a look.
    pub warnings: Vec<String>,
}

impl Identity {
    /// Fails unless the key belongs to the first certificate.
    pub fn read(
        certificate: &Path,
        key: &Path,
        provider: &CryptoProvider,
    ) -> Result<Self, FileFault> {
        let chain = certificates(certificate, Use::Certificate)?;
        let of_certificate = |error: &dyn std::fmt::Display| {
            let path = certificate.display();
            FileFault::new(Use::Certificate, format!("{path}: {error}"))
        };
        let validity = validity(&chain[0]).map_err(|error| of_certificate(&error))?;
        let (der, mode) = private_key(key)?;
        let certified = CertifiedKey::from_der(chain, der, provider);
        let certified = certified.map_err(|error| {
            let key = key.display();
            if let TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) = error {
                let certificate = certificate.display();
                let message = format!("{key} is not the key of the certificate in {certificate}");
                FileFault::new(Use::Key, message)
            } else if let TlsError::InvalidCertificate(error) = error {
                of_certificate(&error)
            } else {
                FileFault::new(Use::Key, format!("{key}: {error}"))
            }
        })?;
        let mut warnings = Vec::from_iter(regular_file::open_to_all(key, "this key", mode));
        if let Some(fault) = validity.fault(SystemTime::now()) {
            warnings.push(format!(
                "the certificate in {} {fault}",
                certificate.display()
            ));
        }
        Ok(Self {
            key: Arc::new(certified),
            validity,
            warnings,
        })
    }
}

/// The CAs of a file.
pub fn roots(path: &Path) -> Result<RootCertStore, FileFault> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, Use::Ca)? {
        roots
            .add(certificate)
            .map_err(|error| FileFault::new(Use::Ca, format!("{}: {error}", path.display())))?;
    }
    Ok(roots)
}

/// The certificates of a file, at least one.
fn certificates(path: &Path, of: Use) -> Result<Vec<CertificateDer<'static>>, FileFault> {
    let (text, _) = read(path, of)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let certificates = certificates.map_err(|error| no_pem(path, of, &error))?;
    if certificates.is_empty() {
        let path = path.display();
        let message = format!("{path} has no certificate (PEM, -----BEGIN CERTIFICATE-----)");
        return Err(FileFault::new(of, message));
    }
    Ok(certificates)
}

/// The key, and the mode of its file.
fn private_key(path: &Path) -> Result<(PrivateKeyDer<'static>, u32), FileFault> {
    let (text, mode) = read(path, Use::Key)?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        if !matches!(error, pem::Error::NoItemsFound) {
            return no_pem(path, Use::Key, &error);
        }
        let is_encrypted = String::from_utf8_lossy(&text).contains("BEGIN ENCRYPTED PRIVATE KEY");
        let path = path.display();
        FileFault::new(
            Use::Key,
            if is_encrypted {
                format!(
                    "the key in {path} has a passphrase, which nobody is there to enter: openssl pkey -in {path} \
                         removes it"
                )
            } else {
                format!("{path} has no private key (PEM, -----BEGIN PRIVATE KEY-----)")
            },
        )
    })?;
    Ok((key, mode))
}

fn no_pem(path: &Path, of: Use, error: &pem::Error) -> FileFault {
    FileFault::new(
        of,
        format!("{} is not a complete PEM file: {error}", path.display()),
    )
}

/// The contents and the mode of a regular file.
fn read(path: &Path, of: Use) -> Result<(Vec<u8>, u32), FileFault> {
    regular_file::read(path, MOST_BYTES)
        .map_err(|error| FileFault::new(of, format!("{}: {error}", path.display())))
}

/// webpki reveals the start and the end of a certificate's validity only in the errors outside that period.
fn validity(certificate: &CertificateDer<'_>) -> Result<Validity, webpki::Error> {
    let parsed = EndEntityCert::try_from(certificate)?;
    let at = |time: Duration| {
        let time = UnixTime::since_unix_epoch(time);
        let usage = KeyUsage::server_auth();
        let checked = parsed.verify_for_usage(&[], &[], &[], time, usage, None, None);
        checked.err()
    };
    let not_before = at(Duration::ZERO);
    let not_before = if let Some(webpki::Error::CertNotValidYet { not_before, .. }) = not_before {
        not_before.as_secs()
    } else {
        0
    };
    let ended = at(Duration::from_secs(u64::MAX));
    let Some(webpki::Error::CertExpired { not_after, .. }) = ended else {
        return Err(ended.unwrap_or(webpki::Error::BadDer));
    };
    let not_after = not_after.as_secs();
    Ok(Validity {
        not_before: Duration::from_secs(not_before),
        not_after: Duration::from_secs(not_after),
    })
}

#[cfg(test)]
mod tests;
