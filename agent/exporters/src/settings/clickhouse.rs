//! Settings of ClickHouse: address, table and login.

use std::time::Duration;

use tls::{ALPN_HTTP1, output::OutputTls, pem::FileFault};

use super::{
    HostPort, Kind, Refused, Table,
    tls::{HTTP, Way},
};
use crate::{
    clickhouse::{Login, Settings},
    password::PasswordFile,
};

/// Agents wait for acknowledgements meanwhile.
const LONGEST_GATHERING: Duration = Duration::from_secs(10);
const MOST_NAME_CHARS: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    way: Way,
    settings: Settings,
}

impl Target {
    /// The address in the settings.
    pub fn address(&self) -> String {
        let Settings {
            to,
            database,
            table,
            ..
        } = &self.settings;
        format!("{}://{to}/{database}/{table}", self.way.scheme(HTTP))
    }

    pub fn read_tls(&self) -> Result<Option<OutputTls>, FileFault> {
        self.way.read(ALPN_HTTP1)
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn read(table: &Table, address: &str) -> Result<Self, Refused> {
        let expected = || {
            let addresses = Kind::ClickHouse.addresses();
            Refused::at("address", format!("expected {addresses}"))
        };
        let (way, rest) = Way::of(table, address, HTTP)?.ok_or_else(expected)?;
        let mut parts = rest.split('/');
        let (Some(to), Some(database), Some(name), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(expected());
        };
        let to = HostPort::read(to).ok_or_else(expected)?;
        way.refuse_host(&to.host)?;
        refuse_name(database)?;
        refuse_name(name)?;
        let insert_every = table.time("insert_every")?;
        let insert_every = insert_every.unwrap_or(Duration::from_secs(1));
        if insert_every > LONGEST_GATHERING {
            let message = "expected a time of ten seconds or less: agents wait for acknowledgements meanwhile";
            return Err(Refused::at("insert_every", message));
        }
        Ok(Self {
            settings: Settings {
                to,
                database: database.to_owned(),
                table: name.to_owned(),
                login: login(table)?,
                insert_every,
            },
            way,
        })
    }
}

/// Rejects names that would need quotes in a statement.
fn refuse_name(name: &str) -> Result<(), Refused> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    if name.is_empty()
        || name.len() > MOST_NAME_CHARS
        || name.starts_with(|letter: char| letter.is_ascii_digit())
        || !name.chars().all(is_letter)
    {
        let message = format!(
            "the database and the table behind the / have ASCII letters, digits and _, at most {MOST_NAME_CHARS} of \
             them, and no digit in front"
        );
        return Err(Refused::at("address", message));
    }
    Ok(())
}

fn login(table: &Table) -> Result<Option<Login>, Refused> {
    match (table.given("user")?, table.given("password_file")?) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Refused::at("password_file", "a password needs a user")),
        (Some(user), file) => Ok(Some(Login {
            user,
            password_file: file.map(PasswordFile::new),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Output, OutputArg, tests::read},
        *,
    };

    fn output(text: &str) -> Result<Output, String> {
        match read(text)?.pop() {
            Some(OutputArg::Output(output)) => Ok(output),
            other => panic!("{other:?}"),
        }
    }

    fn settings(more: &str) -> Result<Settings, String> {
        let text = format!(r#"{{"kind": "clickhouse", "address": "https://a:1/d/t"{more}}}"#);
        let output = output(&text)?;
        let super::super::Target::ClickHouse(target) = output.target else {
            panic!("{text}");
        };
        Ok(target.settings)
    }

    #[test]
    fn an_address_has_a_server_a_database_and_a_table() {
        for address in [
            "http://clickhouse:8123/default/flows",
            "https://[::1]:8443/d_1/_T2",
        ] {
            let output = output(&format!("clickhouse={address}")).unwrap();
            assert_eq!(
                (output.kind(), output.address()),
                (Kind::ClickHouse, address.to_owned())
            );
        }
        for (address, told) in [
            ("a:1/d/t", "expected http://HOST:PORT/DATABASE/TABLE"),
            ("tcp://a:1/d/t", "expected http://HOST:PORT/DATABASE/TABLE"),
            ("http://a/d/t", "expected http://HOST:PORT/DATABASE/TABLE"),
            ("http://a:1/d", "expected http://HOST:PORT/DATABASE/TABLE"),
            (
                "http://a:1/d/t/u",
                "expected http://HOST:PORT/DATABASE/TABLE",
            ),
            ("http://a:1/d/", "the database and the table"),
            ("http://a:1/d/t;x", "the database and the table"),
            ("http://a:1/1d/t", "the database and the table"),
            ("http://me:secret@a:1/d/t", "no password"),
        ] {
            let refused = output(&format!("clickhouse={address}")).unwrap_err();
            assert!(refused.starts_with("address: "), "{refused}");
            assert!(refused.contains(told), "{address}: {refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn a_login_and_the_time_between_inserts_are_keys_of_the_table() {
        let plain = settings("").unwrap();
        assert_eq!(
            (plain.login, plain.insert_every),
            (None, Duration::from_secs(1))
        );
        let more = r#", "user": "me", "password_file": "/p", "insert_every": "5s""#;
        let full = settings(more).unwrap();
        let login = Login {
            user: "me".to_owned(),
            password_file: Some(PasswordFile::new("/p")),
        };
        assert_eq!(
            (full.login, full.insert_every),
            (Some(login), Duration::from_secs(5))
        );
        let login = settings(r#", "user": "me""#).unwrap().login;
        assert_eq!(login.unwrap().password_file, None);
        for (more, told) in [
            (
                r#", "password_file": "/p""#,
                "password_file: a password needs a user",
            ),
            (
                r#", "insert_every": "11s""#,
                "insert_every: expected a time of ten seconds",
            ),
            (r#", "insert_every": "0s""#, "insert_every: expected a time"),
            (
                r#", "password": "secret""#,
                "password: an output has no such setting",
            ),
            (
                r#", "sasl": "plain""#,
                "sasl: clickhouse has no such setting",
            ),
            (
                r#", "min_bytes": 1"#,
                "min_bytes: clickhouse has no such setting",
            ),
        ] {
            let refused = settings(more).unwrap_err();
            assert!(refused.contains(told), "{more}: {refused}");
        }
    }
}
