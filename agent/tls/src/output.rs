//! An output's side: CAs and client certificate, read from files and read again when these change.

use std::{fmt, sync::Arc};

use tracing::{error, info, warn};

use super::{
    client::{ClientFiles, Connector, Shown},
    pem::{self, FileFault, Validity, expired_instead},
};
use crate::reload::{FromFiles, Reloadable, Stamps};

/// The contents of the files at one time.
#[derive(Clone)]
pub struct OutputTls {
    /// The output's name, for logs.
    name: Arc<str>,
    files: ClientFiles,
    /// The protocol inside TLS, empty if it has no name.
    alpn: &'static [u8],
    stamps: Stamps,
    connector: Connector,
    shown: Option<Shown>,
}

impl fmt::Debug for OutputTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(formatter)
    }
}

impl OutputTls {
    /// Reads all files. Fails, and names the file, if one cannot be used.
    pub fn read(files: ClientFiles, alpn: &'static [u8]) -> Result<Self, FileFault> {
        // Take the stamps first, so that the next check notices a write during the read.
        let stamps = files.stamps();
        let spoken = Some(alpn).filter(|alpn| !alpn.is_empty());
        let (config, shown) = files.read_all(spoken.as_slice())?;
        Ok(Self {
            name: Arc::default(),
            files,
            alpn,
            stamps,
            connector: Connector::new(config),
            shown,
        })
    }

    /// Sets the name of the output.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    /// Facts about the files that may be intended, but deserve a look.
    pub fn warnings(&self) -> &[String] {
        self.shown.as_ref().map_or(&[], |shown| &shown.warnings)
    }

    fn not_after(&self) -> Option<String> {
        let shown = self.shown.as_ref()?;
        Some(pem::shown(shown.validity.end()))
    }

    fn log(&self, what: &str) {
        info!(output = &*self.name, not_after = self.not_after(), "{what}");
        for warning in self.warnings() {
            warn!(output = &*self.name, "{warning}");
        }
    }
}

/// The TLS configuration of an output's connections.
pub type ReloadableOutputTls = Reloadable<OutputTls>;

/// The status of that configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The validity of the client certificate, if there is one.
    pub validity: Option<Validity>,
    pub fault: Option<String>,
}

impl ReloadableOutputTls {
    pub fn connector(&self) -> Connector {
        self.state().contents.connector.clone()
    }

    pub fn status(&self) -> Status {
        let state = self.state();
        Status {
            validity: state.contents.shown.as_ref().map(|shown| shown.validity),
            fault: state.fault.clone(),
        }
    }
}

impl FromFiles for OutputTls {
    type Fault = FileFault;

    fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    fn stamps_now(&self) -> Stamps {
        self.files.stamps()
    }

    fn reread(&self) -> Result<Self, FileFault> {
        let read = Self::read(self.files.clone(), self.alpn)?;
        Ok(read.named(&self.name))
    }

    fn has_same_files(&self, other: &Self) -> bool {
        self.files == other.files
    }

    fn reason_to_keep(&self, before: &Self) -> Option<String> {
        let path = self.files.certificate.as_ref()?;
        let before = before.shown.as_ref().map(|shown| shown.validity);
        expired_instead(path, self.shown.as_ref()?.validity, before)
    }

    fn log_first(&self) {
        self.log("it speaks TLS");
    }

    fn log_reloaded(&self) {
        self.log("read its TLS files again");
    }

    fn log_kept(&self, fault: &str) {
        error!(
            output = &*self.name,
            "keeping its TLS files as read before: {fault}"
        );
    }
}
