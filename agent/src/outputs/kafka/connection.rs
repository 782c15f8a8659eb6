//! A connection to a broker, on which whoever has to has logged in. What fails is told in words that help.

use std::{io::Cursor, time::Duration};

use rskafka::{
    SaslError,
    client::{Credentials, SaslConfig},
    messenger::{Messenger, RequestError},
    protocol::{
        error::Error as Answered,
        messages::{ReadVersionedType, RequestBody, WriteVersionedType},
    },
};
use tokio::{io::BufStream, time::timeout};

use super::{Fault, Login, Mechanism};
use crate::outputs::transport::{Endpoint, Stream};

/// For a connection, and for its login.
const PATIENCE: Duration = Duration::from_secs(3);
/// What a broker says of a topic of thousands of partitions is far shorter.
const MOST_ANSWER_BYTES: usize = 16 << 20;
/// Brokers' logs, metrics and quotas know us by it.
const CLIENT_ID: &str = "flow-agent";

pub(super) struct Connection {
    messenger: Messenger<BufStream<Box<dyn Stream>>>,
    address: String,
}

impl Connection {
    pub async fn open(endpoint: &Endpoint, login: Option<&Login>) -> Result<Self, Fault> {
        let address = endpoint.address();
        let stream = endpoint.connect(PATIENCE).await.map_err(|error| {
            Fault::passing(format!("the broker {address} cannot be reached: {error:#}"))
        })?;
        let stream = BufStream::new(stream);
        let mut connection = Self {
            messenger: Messenger::new(stream, MOST_ANSWER_BYTES, CLIENT_ID.into()),
            address,
        };
        let greeted = timeout(PATIENCE, connection.greet(login)).await;
        greeted.map_err(|_| {
            let seconds = PATIENCE.as_secs();
            let address = &connection.address;
            Fault::passing(format!("the broker {address} says nothing for {seconds} s"))
        })??;
        Ok(connection)
    }

    async fn greet(&mut self, login: Option<&Login>) -> Result<(), Fault> {
        let address = &self.address;
        let versions = self.messenger.sync_versions().await;
        versions.map_err(|error| {
            Fault::passing(format!(
                "{address} does not answer as a broker of Kafka: {error}; if its listener speaks TLS, say tls://"
            ))
        })?;
        let Some(login) = login else {
            return Ok(());
        };
        let config = login.config()?;
        let logged_in = self.messenger.do_sasl(config).await;
        logged_in.map_err(|error| self.refused(login, &error))
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "whatever else failed, the login is what to look at"
    )]
    fn refused(&self, login: &Login, error: &SaslError) -> Fault {
        let Self { address, .. } = self;
        let (user, mechanism) = (&login.user, login.mechanism.name());
        match error {
            SaslError::ApiError(
                Answered::UnsupportedSaslMechanism | Answered::IllegalSaslState,
            )
            | SaslError::UnsupportedSaslMechanism => Fault::lasting(format!(
                "the listener {address} takes no login by sasl {mechanism}: choose another one, or another port"
            )),
            SaslError::RequestError(error) => self.broken(error),
            // The broker's signature of SCRAM is wrong if it does not know the password either.
            error => Fault::lasting(format!(
                "the broker {address} refuses user {user} by sasl {mechanism} ({error}): look at user, and at {}",
                login.password_file.display()
            )),
        }
    }

    /// Whoever calls it limits the time.
    pub async fn request<R>(&self, request: R) -> Result<R::ResponseBody, Fault>
    where
        R: RequestBody + Send + WriteVersionedType<Vec<u8>>,
        R::ResponseBody: ReadVersionedType<Cursor<Vec<u8>>>,
    {
        let answered = self.messenger.request(request).await;
        answered.map_err(|error| self.broken(&error))
    }

    fn broken(&self, error: &RequestError) -> Fault {
        let Self { address, .. } = self;
        if let RequestError::NoVersionMatch { api_key } = error {
            return Fault::lasting(format!(
                "the broker {address} has no version of {api_key:?} that this collector speaks: it takes Kafka 1.0 or later"
            ));
        }
        Fault::passing(format!(
            "the connection to the broker {address} broke: {error}"
        ))
    }
}

impl Login {
    /// Reads the password.
    fn config(&self) -> Result<SaslConfig, Fault> {
        let file = self.password_file.display();
        let text = std::fs::read_to_string(&self.password_file);
        let text = text.map_err(|error| {
            Fault::lasting(format!(
                "read the password in {file} (password_file): {error}"
            ))
        })?;
        let password = text.lines().next().unwrap_or_default();
        if password.is_empty() {
            let why = format!("the first line of {file} (password_file) has no password");
            return Err(Fault::lasting(why));
        }
        let credentials = Credentials::new(self.user.clone(), password.to_owned());
        Ok(match self.mechanism {
            Mechanism::Plain => SaslConfig::Plain(credentials),
            Mechanism::ScramSha256 => SaslConfig::ScramSha256(credentials),
            Mechanism::ScramSha512 => SaslConfig::ScramSha512(credentials),
        })
    }
}

impl Mechanism {
    /// As in the settings.
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::ScramSha256 => "scram-sha-256",
            Self::ScramSha512 => "scram-sha-512",
        }
    }
}
