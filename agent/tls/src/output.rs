//! An output's side: what it trusts and shows, read from files and read again when these change.

use std::{fmt, sync::Arc};

use tracing::{error, info, warn};

use super::{
    client::{ClientFiles, Connector, Shown},
    pem::{self, FileFault, Validity, expired_instead},
};
use crate::in_force::{self, FromFiles, Stamps};

/// What was read from the files at one time.
#[derive(Clone)]
pub struct OutputTls {
    /// The output's name, for logs.
    name: Arc<str>,
    files: ClientFiles,
    /// What is spoken inside, if that has a name.
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
    /// Reads them all. Fails, and names the file, if nobody could be connected to with them.
    pub fn read(files: ClientFiles, alpn: &'static [u8]) -> Result<Self, FileFault> {
        // Before they are read: what is written meanwhile is then seen at the next look.
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

    /// For the output of this name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    /// What may be meant so, and is worth a look.
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

/// What is in force for the connections of an output.
pub type InForce = in_force::InForce<OutputTls>;

/// What is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Of the certificate that is shown to servers, if there is one.
    pub validity: Option<Validity>,
    pub fault: Option<String>,
}

impl InForce {
    pub fn connector(&self) -> Connector {
        self.state().held.connector.clone()
    }

    pub fn told(&self) -> Told {
        let state = self.state();
        Told {
            validity: state.held.shown.as_ref().map(|shown| shown.validity),
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

    fn read_again(&self) -> Result<Self, FileFault> {
        let read = Self::read(self.files.clone(), self.alpn)?;
        Ok(read.named(&self.name))
    }

    fn is_of_the_same_files(&self, other: &Self) -> bool {
        self.files == other.files
    }

    fn yields_to(&self, before: &Self) -> Option<String> {
        let path = self.files.certificate.as_ref()?;
        let before = before.shown.as_ref().map(|shown| shown.validity);
        expired_instead(path, self.shown.as_ref()?.validity, before)
    }

    fn tell_first(&self) {
        self.log("it speaks TLS");
    }

    fn tell_again(&self) {
        self.log("its files of TLS have been read again");
    }

    fn tell_kept(&self, fault: &str) {
        error!(
            output = &*self.name,
            "what was read of its files of TLS stays in force: {fault}"
        );
    }
}
