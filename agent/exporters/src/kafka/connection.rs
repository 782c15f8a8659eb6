//! A connection to a broker, logged in if required. Errors say what to check.

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
use tokio::{io::BufStream, runtime::Handle, sync::Semaphore, task::spawn_blocking, time::timeout};

use super::{
    Fault, Login, Mechanism,
    abort::{AbortHandle, Abortable},
};
use crate::transport::{Endpoint, Stream};

/// Time limit for connecting, and for the login.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longest answer of a broker. Metadata of a topic with thousands of partitions is far shorter.
const MOST_ANSWER_BYTES: usize = 16 << 20;
/// The client ID in brokers' logs, metrics and quotas.
const CLIENT_ID: &str = "flow-agent";

/// Limits simultaneous logins: the broker chooses how many rounds a password is hashed (SCRAM), which may take a CPU
/// for hours.
static LOGINS: Semaphore = Semaphore::const_new(4);

/// A connection to a broker. Dropping it aborts all pending requests.
pub(super) struct Connection {
    messenger: Messenger<BufStream<Abortable<Box<dyn Stream>>>>,
    address: String,
    abort: AbortHandle,
}

impl Connection {
    pub async fn open(endpoint: &Endpoint, login: Option<&Login>) -> Result<Self, Fault> {
        let address = endpoint.address();
        let stream = endpoint
            .connect(PATIENCE)
            .await
            .map_err(|error| Fault::passing(format!("cannot reach broker {address}: {error:#}")))?;
        let mut connection = Self::over(stream, address.clone());
        let seconds = PATIENCE.as_secs();
        let greeted = timeout(PATIENCE, connection.greet()).await;
        greeted.map_err(|_| {
            Fault::passing(format!("broker {address} has sent nothing for {seconds} s"))
        })??;
        let Some(login) = login else {
            return Ok(connection);
        };
        let logged_in = timeout(PATIENCE, connection.log_in(login.clone())).await;
        logged_in.unwrap_or_else(|_| {
            Err(Fault::passing(format!(
                "the login at broker {address} takes longer than {seconds} s"
            )))
        })
    }

    fn over(stream: Box<dyn Stream>, address: String) -> Self {
        let (stream, abort) = Abortable::new(stream);
        let stream = BufStream::new(stream);
        Self {
            messenger: Messenger::new(stream, MOST_ANSWER_BYTES, CLIENT_ID.into()),
            address,
            abort,
        }
    }

    async fn greet(&mut self) -> Result<(), Fault> {
        let address = &self.address;
        let versions = self.messenger.sync_versions().await;
        versions.map_err(|error| {
            Fault::passing(format!(
                "{address} does not answer like a Kafka broker: {error}; if its listener speaks TLS, use tls://"
            ))
        })
    }

    /// Logs in on a blocking thread: no timeout can interrupt hashing, and reading the password file may block. All
    /// other waits have their own time limits.
    async fn log_in(self, login: Login) -> Result<Self, Fault> {
        let permit = LOGINS.acquire().await;
        let (address, runtime) = (self.address.clone(), Handle::current());
        let done = spawn_blocking(move || {
            let _permit = permit;
            runtime.block_on(async move {
                let config = login.config()?;
                let logged_in = timeout(PATIENCE, self.messenger.do_sasl(config)).await;
                let logged_in = logged_in.map_err(|_| {
                    let address = &self.address;
                    Fault::passing(format!("broker {address} does not answer the login"))
                })?;
                logged_in.map_err(|error| self.refused(&login, &error))?;
                Ok(self)
            })
        });
        done.await.unwrap_or_else(|error| {
            let why = format!("the login at broker {address} broke off: {error}");
            Err(Fault::passing(why))
        })
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
                "the listener {address} does not support sasl {mechanism}: choose another mechanism, or another port"
            )),
            SaslError::RequestError(error) => self.broken(error),
            // The check of the broker's SCRAM signature fails too if the broker does not know the password.
            error => Fault::lasting(format!(
                "broker {address} refuses user {user} by sasl {mechanism} ({error}): check user and {}",
                login.password_file
            )),
        }
    }

    /// Sends a request. The caller limits the time.
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
            "the connection to broker {address} broke off: {error}"
        ))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The messenger would keep writing a request that nobody waits for, although it is sent again elsewhere.
        self.abort.abort();
    }
}

impl Login {
    /// Reads the password file.
    fn config(&self) -> Result<SaslConfig, Fault> {
        let password = self.password_file.read();
        let password = password.map_err(|fault| Fault::lasting(fault.to_string()))?;
        let credentials = Credentials::new(self.user.clone(), password);
        Ok(match self.mechanism {
            Mechanism::Plain => SaslConfig::Plain(credentials),
            Mechanism::ScramSha256 => SaslConfig::ScramSha256(credentials),
            Mechanism::ScramSha512 => SaslConfig::ScramSha512(credentials),
        })
    }
}

impl Mechanism {
    /// The name in the settings.
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::ScramSha256 => "scram-sha-256",
            Self::ScramSha512 => "scram-sha-512",
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use rskafka::protocol::{
        api_version::ApiVersionRange,
        messages::{ProduceRequest, SaslAuthenticateRequest, SaslHandshakeRequest},
    };
    use tokio::{
        io::AsyncReadExt as _,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// A connection whose peer has read nothing, and the peer's end.
    pub async fn connected() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let (peer, _) = listener.accept().await.unwrap();
        let mut connection = Connection::over(Box::new(stream), address.to_string());
        let ranges = [
            range::<ProduceRequest>(),
            range::<SaslAuthenticateRequest>(),
            range::<SaslHandshakeRequest>(),
        ];
        connection
            .messenger
            .override_version_ranges(HashMap::from(ranges));
        (connection, peer)
    }

    fn range<R: RequestBody>() -> (rskafka::protocol::api_key::ApiKey, ApiVersionRange) {
        (R::API_KEY, R::API_VERSION_RANGE)
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_sent_to_its_end() {
        const BYTES: usize = 32 << 20;
        let (connection, mut peer) = connected().await;
        let message = SaslAuthenticateRequest::new(vec![7; BYTES]);
        let answered = timeout(Duration::from_millis(200), connection.request(message)).await;
        assert!(answered.is_err());
        drop(connection);
        let (mut read, mut buffer) = (0, vec![0; 1 << 16]);
        // The stream has ended; this is not just a pause.
        let ended = timeout(Duration::from_secs(30), async {
            loop {
                match peer.read(&mut buffer).await {
                    Ok(0) | Err(_) => return,
                    Ok(count) => read += count,
                }
            }
        });
        ended.await.unwrap();
        assert!(read > 0 && read < BYTES, "{read}");
    }
}
