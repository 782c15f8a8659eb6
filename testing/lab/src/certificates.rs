//! Certificates for TLS tests: a CA and the certificates that it issues, as files in a temporary folder.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

const HOUR: Duration = Duration::from_hours(1);

pub struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// A certificate and its key.
#[derive(Debug, Clone)]
pub struct Issued {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Ca {
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "a CA of a test");
        let ca = Self {
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)?,
            folder: TempDir::with_prefix("flow-agent-").context("make a folder for a CA")?,
        };
        replace(&ca.file(), &pem("CERTIFICATE", ca.issuer.der()))?;
        Ok(ca)
    }

    /// The CA's own certificate.
    pub fn file(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// The path of a file in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Issues a certificate for a host (a name or an address), valid at present. Its files are called `name` and
    /// replace existing ones.
    pub fn issue(&self, name: &str, host: &str) -> Result<Issued> {
        let now = SystemTime::now();
        self.issue_for(name, host, [now - HOUR, now + 24 * HOUR])
    }

    pub fn issue_for(&self, name: &str, host: &str, validity: [SystemTime; 2]) -> Result<Issued> {
        let mut params = CertificateParams::new([host.to_owned()])?;
        let [not_before, not_after] = validity;
        params.not_before = not_before.into();
        params.not_after = not_after.into();
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let issued = Issued {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
        };
        replace(&issued.certificate, &pem("CERTIFICATE", certificate.der()))?;
        replace(&issued.key, &pem("PRIVATE KEY", key.serialized_der()))?;
        Ok(issued)
    }
}

/// Replaces a file atomically, as programs do that renew certificates. Only its owner can read it.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    let failed = || format!("write {}", path.display());
    fs::write(&new, text).with_context(failed)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).with_context(failed)?;
    fs::rename(&new, path).with_context(failed)
}

/// PEM as in RFC 7468.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let mut lines = vec![format!("-----BEGIN {label}-----")];
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, others) = rest.split_at(rest.len().min(64));
        lines.push(line.to_owned());
        rest = others;
    }
    lines.push(format!("-----END {label}-----\n"));
    lines.join("\n")
}
