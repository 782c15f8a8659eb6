//! A server to connect to, over TCP or TLS.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tls::{client::ConnectError, output::ReloadableOutputTls, stays_here};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use super::tcp;
use crate::settings::HostPort;

#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(super) to: HostPort,
    tls: Option<ReloadableOutputTls>,
}

/// A TCP or TLS connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Endpoint {
    pub(crate) fn new(to: HostPort, tls: Option<ReloadableOutputTls>) -> Self {
        Self { to, tls }
    }

    /// A server without TLS.
    #[cfg(test)]
    pub(super) fn plain(to: HostPort) -> Self {
        Self::new(to, None)
    }

    /// Host and port, for logs and status.
    pub(crate) fn address(&self) -> String {
        self.to.to_string()
    }

    /// Whether others can read the traffic: without TLS, unless it stays on this host.
    pub(crate) fn is_read_on_the_way(&self) -> bool {
        self.tls.is_none() && !stays_here(&self.to.host)
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Connects, and with TLS verifies the server. Connecting and the handshake each get the full time limit.
    pub(crate) async fn connect(&self, patience: Duration) -> Result<Box<dyn Stream>> {
        let stream = tcp::connect(&self.to, patience).await?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let connector = tls.connector();
        let shaken = timeout(patience, connector.over(stream, &self.to.host)).await;
        let shaken = shaken.context("the TLS handshake got no answer")?;
        Ok(Box::new(shaken.map_err(advised)?))
    }
}

/// Adds the setting that would help.
fn advised(error: ConnectError) -> anyhow::Error {
    if let ConnectError::Untrusted = error {
        return anyhow!("{error}: name the file of its CA (tls_ca)");
    }
    error.into()
}

#[cfg(test)]
mod tests {
    use lab::certificates::Ca;
    use tls::{
        ALPN_H2,
        client::ClientFiles,
        output::{OutputTls, ReloadableOutputTls},
    };
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn what_stays_on_this_host_or_has_tls_is_not_read_on_the_way() {
        let to = |host: &str| HostPort {
            host: host.to_owned(),
            port: 1,
        };
        for (host, is_read) in [
            ("127.0.0.2", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("localhost", false),
            ("collector.example", true),
            ("192.0.2.1", true),
        ] {
            let plain = Endpoint::plain(to(host));
            assert_eq!(plain.is_read_on_the_way(), is_read, "{host}");
        }
        let ca = Ca::new().unwrap();
        let files = ClientFiles {
            ca: Some(ca.file()),
            ..ClientFiles::default()
        };
        let tls = ReloadableOutputTls::new(OutputTls::read(files, ALPN_H2).unwrap());
        assert!(!Endpoint::new(to("192.0.2.1"), Some(tls)).is_read_on_the_way());
    }

    #[tokio::test]
    async fn a_handshake_that_nobody_answers_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = HostPort {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
        };
        let ca = Ca::new().unwrap();
        let files = ClientFiles {
            ca: Some(ca.file()),
            ..ClientFiles::default()
        };
        let tls = ReloadableOutputTls::new(OutputTls::read(files, ALPN_H2).unwrap());
        let endpoint = Endpoint::new(to, Some(tls));
        assert_eq!(endpoint.scheme(), "https");
        let failure = endpoint.connect(Duration::from_millis(50)).await.err();
        let failure = failure.map(|error| error.to_string());
        assert_eq!(failure.as_deref(), Some("the TLS handshake got no answer"));
    }
}
