//! Options for the agent's address and for the credentials to use there.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use tls::{client::ClientFiles, stays_here, token::TokenFile};
use view::client::{self, Target};

use super::{notice, refused};

#[derive(Debug, clap::Args)]
pub struct Connect {
    /// Where the agent listens: unix:PATH, https://HOST:PORT, or HOST:PORT without TLS.
    #[arg(long = "connect", value_name = "ADDRESS", env = "FLOW_AGENT_CONNECT",
          default_value = client::DEFAULT_TARGET, global = true)]
    target: Target,

    /// CAs in PEM, one of which must have issued the agent's certificate [default: those that the system trusts].
    #[arg(
        long,
        value_name = "FILE",
        env = "FLOW_AGENT_TLS_CA",
        global = true,
        help_heading = TLS
    )]
    tls_ca: Option<PathBuf>,

    /// A certificate in PEM, for an agent that asks for one.
    #[arg(
        long,
        value_name = "FILE",
        env = "FLOW_AGENT_TLS_CLIENT_CERTIFICATE",
        global = true,
        help_heading = TLS
    )]
    tls_client_certificate: Option<PathBuf>,

    /// Its key in PEM, without a passphrase.
    #[arg(
        long,
        value_name = "FILE",
        env = "FLOW_AGENT_TLS_CLIENT_KEY",
        global = true,
        help_heading = TLS
    )]
    tls_client_key: Option<PathBuf>,

    /// A file whose first token is shown to a collector that asks for one. A Unix socket needs none.
    #[arg(
        long,
        value_name = "FILE",
        env = "FLOW_AGENT_TOKEN_FILE",
        global = true
    )]
    token_file: Option<PathBuf>,
}

const TLS: &str = "For https://";

impl Connect {
    /// The agent's address. Fails if TLS options are given for an address without TLS: the traffic could be read.
    pub fn target(&self) -> Result<Target> {
        self.read().map_err(refused)
    }

    fn read(&self) -> Result<Target> {
        let files = ClientFiles {
            ca: self.tls_ca.clone(),
            certificate: self.tls_client_certificate.clone(),
            key: self.tls_client_key.clone(),
        };
        ensure!(
            files.certificate.is_some() == files.key.is_some(),
            "--tls-client-certificate and --tls-client-key go together: give both, or neither"
        );
        let token = self.token_file.clone().map(TokenFile::new);
        match &self.target {
            Target::Tls { address, .. } => Ok(Target::Tls {
                address: address.clone(),
                files: Box::new(files),
                token,
            }),
            Target::Tcp { address, .. } => {
                let host = address.rsplit_once(':').map_or("", |(host, _)| host);
                if token.is_some() && !stays_here(host) {
                    notice(
                        "the token is sent unencrypted, and anyone on the path can read it: use https://",
                    );
                }
                ensure!(
                    files.is_empty(),
                    "--connect {address} has no TLS, which other options need: use https://{address}, or leave \
                     them out"
                );
                Ok(Target::Tcp {
                    address: address.clone(),
                    token,
                })
            }
            Target::Unix(_) => Ok(self.target.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn target(arguments: &str) -> Result<Target> {
        let all = std::iter::once("status").chain(arguments.split_whitespace());
        let matches = Connect::augment_args(Command::new("status")).get_matches_from(all);
        Connect::from_arg_matches(&matches)?.target()
    }

    #[test]
    fn nobody_who_speaks_of_tls_is_connected_without_it() {
        let all = "--tls-ca a --tls-client-certificate b --tls-client-key c";
        let Target::Tls {
            address,
            files,
            token,
        } = target(&format!("--connect https://h:1 --token-file d {all}")).unwrap()
        else {
            panic!("no TLS");
        };
        assert_eq!(address, "h:1");
        assert_eq!(
            [files.ca, files.certificate, files.key],
            ["a", "b", "c"].map(|path| Some(path.into()))
        );
        assert_eq!(token, Some(TokenFile::new("d")));
        let plain = target("--connect h:1 --token-file d").unwrap();
        assert!(matches!(plain, Target::Tcp { token: Some(_), .. }));
        for arguments in [
            "--tls-ca a",
            "--tls-client-certificate b --tls-client-key c",
        ] {
            for address in ["h:1", "http://h:1"] {
                let error = target(&format!("--connect {address} {arguments}")).unwrap_err();
                assert!(error.to_string().contains("use https://h:1"), "{error}");
            }
            target(&format!("--connect unix:/a {arguments}")).unwrap();
        }
        for arguments in ["--tls-client-certificate b", "--tls-client-key c"] {
            let error = target(&format!("--connect https://h:1 {arguments}")).unwrap_err();
            assert!(error.to_string().contains("go together"), "{error}");
        }
    }
}
