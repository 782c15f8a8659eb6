//! TLS settings for connections to a server.

use std::path::PathBuf;

use tls::{
    client::{self, ClientFiles},
    output::OutputTls,
    pem::FileFault,
};

use super::{Refused, Table};

const CA: &str = "tls_ca";
const CERTIFICATE: &str = "tls_client_certificate";
const KEY: &str = "tls_client_key";

/// Address schemes without and with TLS.
pub(super) type Schemes = [&'static str; 2];

pub(super) const HTTP: Schemes = ["http", "https"];
pub(super) const TCP: Schemes = ["tcp", "tls"];

/// Whether a server is reached with or without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    Tls(Box<ClientFiles>),
}

impl Way {
    /// Parses the scheme of an address and the table's TLS keys. Returns the rest of the address too. `None` if the
    /// address has neither scheme.
    pub fn of<'a>(
        table: &Table,
        address: &'a str,
        [plain, tls]: Schemes,
    ) -> Result<Option<(Self, &'a str)>, Refused> {
        let Some((scheme, rest)) = address.split_once("://") else {
            return Ok(None);
        };
        if scheme == tls {
            return Ok(Some((Self::Tls(files(table)?.into()), rest)));
        }
        if scheme != plain {
            return Ok(None);
        }
        for key in [CA, CERTIFICATE, KEY] {
            if table.0.contains_key(key) {
                let message = format!(
                    "the address has no TLS, which this setting needs: use {tls}://{rest}, or remove the setting"
                );
                return Err(Refused::at(key, message));
            }
        }
        Ok(Some((Self::Plain, rest)))
    }

    pub fn scheme(&self, [plain, tls]: Schemes) -> &'static str {
        match self {
            Self::Plain => plain,
            Self::Tls(_) => tls,
        }
    }

    /// Fails if no certificate can be valid for this host.
    pub fn refuse_host(&self, host: &str) -> Result<(), Refused> {
        if *self != Self::Plain && !client::can_be_certified(host) {
            let message = "no certificate can have this host: it must be a name, or an address without an interface";
            return Err(Refused::at("address", message));
        }
        Ok(())
    }

    /// Reads the TLS files.
    pub fn read(&self, alpn: &'static [u8]) -> Result<Option<OutputTls>, FileFault> {
        match self {
            Self::Plain => Ok(None),
            Self::Tls(files) => OutputTls::read(ClientFiles::clone(files), alpn).map(Some),
        }
    }
}

fn files(table: &Table) -> Result<ClientFiles, Refused> {
    let path = |key: &str| match table.text(key)? {
        Some(path) if path.is_empty() => Err(Refused::at(key, "expected the path of a file")),
        path => Ok(path.map(PathBuf::from)),
    };
    let files = ClientFiles {
        ca: path(CA)?,
        certificate: path(CERTIFICATE)?,
        key: path(KEY)?,
    };
    let alone = match (&files.certificate, &files.key) {
        (Some(_), None) => Some(CERTIFICATE),
        (None, Some(_)) => Some(KEY),
        (None, None) | (Some(_), Some(_)) => None,
    };
    if let Some(key) = alone {
        let message = format!("{CERTIFICATE} and {KEY} go together: give both, or neither");
        return Err(Refused::at(key, message));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::super::{OutputArg, OutputArgs};

    fn refusal(table: &str) -> Option<String> {
        let read: Result<OutputArgs, _> = table.parse();
        let refused = read.err()?;
        Some(format!(
            "{}: {refused}",
            refused.key.clone().unwrap_or_default()
        ))
    }

    fn table(kind: &str, scheme: &str, more: &str) -> String {
        format!(r#"{{"kind": "{kind}", "address": "{scheme}://a:1"{more}}}"#)
    }

    #[test]
    fn nobody_who_speaks_of_tls_is_connected_without_it() {
        for kind in ["otlp", "pbflow"] {
            for (key, more) in [
                ("tls_ca", r#", "tls_ca": "/a""#),
                (
                    "tls_client_certificate",
                    r#", "tls_client_certificate": "/a", "tls_client_key": "/b""#,
                ),
                ("tls_client_key", r#", "tls_client_key": "/b""#),
            ] {
                let refused = refusal(&table(kind, "http", more)).unwrap();
                let place = format!("{key}: the address has no TLS");
                assert!(refused.starts_with(&place), "{refused}");
                assert!(refused.contains("use https://a:1"), "{refused}");
            }
        }
    }

    #[test]
    fn what_cannot_be_spoken_to_by_tls_is_refused() {
        for (text, error) in [
            ("pbflow=https://a", "address: expected http://HOST:PORT"),
            (
                "pbflow=https://a..b:1",
                "address: no certificate can have this host",
            ),
            (
                "otlp=https://a..b",
                "address: no certificate can have this host",
            ),
            (
                r#"{"kind": "jsonl", "address": "/a", "tls_ca": "/b"}"#,
                "tls_ca: jsonl has no such setting",
            ),
        ] {
            let refused = refusal(text).unwrap();
            assert!(refused.starts_with(error), "{text}: {refused}");
        }
    }

    #[test]
    fn a_certificate_takes_its_key_and_a_file_a_name() {
        for kind in ["otlp", "pbflow"] {
            for key in ["tls_client_certificate", "tls_client_key"] {
                let more = format!(r#", "{key}": "/a""#);
                let refused = refusal(&table(kind, "https", &more)).unwrap();
                assert!(refused.starts_with(key), "{refused}");
                assert!(refused.contains("go together"), "{refused}");
            }
            for key in ["tls_ca", "tls_client_certificate", "tls_client_key"] {
                let more = format!(r#", "{key}": """#);
                let refused = refusal(&table(kind, "https", &more)).unwrap();
                let expected = format!("{key}: expected the path of a file");
                assert_eq!(refused, expected);
            }
        }
    }

    #[test]
    fn an_address_keeps_its_scheme_and_two_with_other_files_are_not_the_same() {
        let output = |text: &str| {
            let OutputArgs(mut args) = text.parse().unwrap();
            let Some(OutputArg::Output(output)) = args.pop() else {
                panic!("{text}")
            };
            output
        };
        for (kind, address, told) in [
            ("otlp", "https://a", "https://a:4317"),
            ("otlp", "https://a:4318", "https://a:4318"),
            ("otlp", "https://a/b/", "https://a:4318/b"),
            ("otlp", "https://[::1]:1", "https://[::1]:1"),
            ("pbflow", "https://192.0.2.1:1", "https://192.0.2.1:1"),
        ] {
            assert_eq!(output(&format!("{kind}={address}")).address(), told);
        }
        for kind in ["otlp", "pbflow"] {
            let own = r#", "tls_client_certificate": "/b", "tls_client_key": "/c""#;
            let all = ["", r#", "tls_ca": "/a""#, own];
            let all = all.map(|more| output(&table(kind, "https", more)));
            assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
            assert!(all.contains(&output(&format!("{kind}=https://a:1"))));
            assert!(!all.contains(&output(&format!("{kind}=http://a:1"))));
        }
    }
}
