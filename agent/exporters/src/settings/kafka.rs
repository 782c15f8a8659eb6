//! Settings of Kafka: brokers, topic and login.

use tls::{output::OutputTls, pem::FileFault};

use super::{
    HostPort, Kind, Refused, Table, host,
    tls::{TCP, Way},
};
use crate::{
    kafka::{Login, Mechanism, Settings},
    password::PasswordFile,
};

/// Kafka has no ALPN identifier.
const NO_ALPN: &[u8] = &[];
/// Longest topic name that brokers accept.
const MOST_TOPIC_CHARS: usize = 249;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    way: Way,
    settings: Settings,
}

impl Target {
    /// The address in the settings.
    pub fn address(&self) -> String {
        let Settings { brokers, topic, .. } = &self.settings;
        let brokers: Vec<_> = brokers.iter().map(HostPort::to_string).collect();
        format!("{}://{}/{topic}", self.way.scheme(TCP), brokers.join(","))
    }

    pub fn read_tls(&self) -> Result<Option<OutputTls>, FileFault> {
        self.way.read(NO_ALPN)
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn read(table: &Table, address: &str) -> Result<Self, Refused> {
        let expected = || {
            let addresses = Kind::Kafka.addresses();
            Refused::at("address", format!("expected {addresses}"))
        };
        let (way, rest) = Way::of(table, address, TCP)?.ok_or_else(expected)?;
        let (first, topic) = rest.split_once('/').ok_or_else(expected)?;
        let first = HostPort::read(first).ok_or_else(expected)?;
        way.refuse_host(&first.host)?;
        refuse_topic(topic)?;
        Ok(Self {
            settings: Settings {
                brokers: host::with_failover(table, &way, first)?,
                topic: topic.to_owned(),
                creates_topic: table.boolean("create_topic")?.unwrap_or_default(),
                compression: table.compression()?,
                login: login(table)?,
            },
            way,
        })
    }
}

fn refuse_topic(topic: &str) -> Result<(), Refused> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if topic.is_empty()
        || topic.len() > MOST_TOPIC_CHARS
        || [".", ".."].contains(&topic)
        || !topic.chars().all(is_letter)
    {
        let message = format!(
            "the topic behind the / has ASCII letters, digits, dots, _ and -, at most {MOST_TOPIC_CHARS} of them"
        );
        return Err(Refused::at("address", message));
    }
    Ok(())
}

fn login(table: &Table) -> Result<Option<Login>, Refused> {
    let keys = ["sasl", "user", "password_file"];
    let [mechanism, user, password_file] = keys.map(|key| table.text(key));
    let (mechanism, user, password_file) = (mechanism?, user?, password_file?);
    let given = [&mechanism, &user, &password_file].map(|value| {
        let value = value.as_deref();
        value.is_some_and(|text| !text.is_empty())
    });
    if given == [false; 3] {
        return Ok(None);
    }
    if let Some(missing) = given.iter().position(|is_given| !is_given) {
        let message = format!(
            "sasl, user and password_file go together, and {} is missing: give all three, or none",
            keys[missing]
        );
        let key = given.iter().position(|is_given| *is_given);
        return Err(Refused::at(keys[key.unwrap_or_default()], message));
    }
    let mechanism = match mechanism.as_deref() {
        Some("plain") => Mechanism::Plain,
        Some("scram-sha-256") => Mechanism::ScramSha256,
        Some("scram-sha-512") => Mechanism::ScramSha512,
        _ => {
            let message = "expected one of plain, scram-sha-256, scram-sha-512";
            return Err(Refused::at("sasl", message));
        }
    };
    Ok(Some(Login {
        mechanism,
        user: user.unwrap_or_default(),
        password_file: PasswordFile::new(password_file.unwrap_or_default()),
    }))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Compression, Output, OutputArg, tests::read},
        *,
    };

    fn output(text: &str) -> Result<Output, String> {
        match read(text)?.pop() {
            Some(OutputArg::Output(output)) => Ok(output),
            other => panic!("{other:?}"),
        }
    }

    fn settings(more: &str) -> Result<Settings, String> {
        let text = format!(r#"{{"kind": "kafka", "address": "tls://a:1/t"{more}}}"#);
        let output = output(&text)?;
        let super::super::Target::Kafka(target) = output.target else {
            panic!("{text}");
        };
        Ok(target.settings)
    }

    #[test]
    fn an_address_has_a_broker_and_a_topic() {
        for address in [
            "tcp://kafka:9092/flows",
            "tls://[::1]:9093/a.b_c-D1",
            "tcp://192.0.2.1:1/x",
        ] {
            let output = output(&format!("kafka={address}")).unwrap();
            assert_eq!(
                (output.kind(), output.address()),
                (Kind::Kafka, address.to_owned())
            );
        }
        for (address, told) in [
            ("kafka:9092/flows", "expected tcp://HOST:PORT/TOPIC"),
            ("http://kafka:9092/flows", "expected tcp://HOST:PORT/TOPIC"),
            ("tcp://kafka:9092", "expected tcp://HOST:PORT/TOPIC"),
            ("tcp://kafka/flows", "expected tcp://HOST:PORT/TOPIC"),
            ("tcp://kafka:9092/", "the topic behind the /"),
            ("tcp://kafka:9092/a/b", "the topic behind the /"),
            ("tcp://kafka:9092/..", "the topic behind the /"),
            ("tcp://me:secret@kafka:9092/flows", "no password"),
            ("tls://a..b:9092/flows", "no certificate can have this host"),
        ] {
            let refused = output(&format!("kafka={address}")).unwrap_err();
            assert!(refused.starts_with("address: "), "{refused}");
            assert!(refused.contains(told), "{address}: {refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
        let long = "x".repeat(250);
        assert!(output(&format!("kafka=tcp://a:1/{long}")).is_err());
        assert!(output(&format!("kafka=tcp://a:1/{}", &long[1..])).is_ok());
    }

    #[test]
    fn more_brokers_packing_and_a_login_are_keys_of_the_table() {
        let plain = settings("").unwrap();
        assert_eq!(plain.compression, Compression::Zstd);
        assert!(!plain.creates_topic && plain.login.is_none());
        let full = settings(
            r#", "failover": "b:2, [::1]:3", "compression": "gzip", "create_topic": true,
               "sasl": "scram-sha-512", "user": "me", "password_file": "/p""#,
        )
        .unwrap();
        let brokers: Vec<_> = full.brokers.iter().map(HostPort::to_string).collect();
        assert_eq!(brokers, ["a:1", "b:2", "[::1]:3"]);
        assert_eq!(full.compression, Compression::Gzip);
        assert!(full.creates_topic);
        assert_eq!(
            full.login,
            Some(Login {
                mechanism: Mechanism::ScramSha512,
                user: "me".to_owned(),
                password_file: PasswordFile::new("/p"),
            })
        );
        for (more, told) in [
            (r#", "failover": "b""#, "failover: expected HOST:PORT"),
            (r#", "failover": "a:1""#, "failover: a:1 is there twice"),
            (
                r#", "compression": "lz4""#,
                "compression: expected one of none, gzip, zstd",
            ),
            (
                r#", "sasl": "plain""#,
                "sasl: sasl, user and password_file go together, and user is missing",
            ),
            (
                r#", "user": "me""#,
                "user: sasl, user and password_file go together, and sasl is missing",
            ),
            (
                r#", "password_file": "/p", "user": "a""#,
                "and sasl is missing",
            ),
            (
                r#", "sasl": "gssapi", "user": "a", "password_file": "/p""#,
                "sasl: expected one of plain, scram-sha-256, scram-sha-512",
            ),
            (
                r#", "password": "secret""#,
                "password: an output has no such setting",
            ),
            (
                r#", "only_ended": true"#,
                "only_ended: kafka has no such setting",
            ),
        ] {
            let refused = settings(more).unwrap_err();
            assert!(refused.contains(told), "{more}: {refused}");
        }
    }
}
