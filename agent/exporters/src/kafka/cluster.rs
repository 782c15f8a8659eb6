//! The brokers of a cluster, and which of them lead the topic's partitions.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use formats::harmless::one_line;
use rskafka::protocol::{
    error::Error as Answered,
    messages::{
        CreateTopicRequest, CreateTopicsRequest, MetadataRequest, MetadataRequestTopic,
        MetadataResponse,
    },
    primitives::{Boolean, Int16, Int32, String_},
};
use tls::output::ReloadableOutputTls;
use tokio::time::{Instant, sleep, timeout};

use super::{Fault, Settings, connection::Connection};
use crate::{settings::HostPort, transport::Endpoint};

/// Time limit for requests that only the broker itself handles.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often to check whether a created topic exists.
const MADE_PAUSE: Duration = Duration::from_millis(100);
/// Stands for the cluster's default number of partitions or replicas.
const BY_DEFAULT: i16 = -1;

/// Longest name in the DNS.
const MOST_HOST_BYTES: usize = 253;

pub(super) struct Cluster {
    pub(super) settings: Arc<Settings>,
    tls: Option<ReloadableOutputTls>,
    /// The brokers' addresses, as advertised by the cluster.
    pub(super) brokers: BTreeMap<i32, Result<HostPort, Fault>>,
    /// The leader of each partition, if it has one.
    pub(super) leaders: Vec<Option<i32>>,
    pub(super) connections: BTreeMap<i32, Connection>,
    pub asked: Instant,
}

impl Cluster {
    /// Asks the brokers of the settings in turn until one knows the topic. A broker that was away for long may not have
    /// heard of it.
    pub async fn find(
        settings: Arc<Settings>,
        tls: Option<ReloadableOutputTls>,
    ) -> Result<Self, Fault> {
        let mut cluster = Self {
            settings: Arc::clone(&settings),
            tls,
            brokers: BTreeMap::new(),
            leaders: Vec::new(),
            connections: BTreeMap::new(),
            asked: Instant::now(),
        };
        let mut faults = Vec::new();
        let mut without = None;
        for broker in &settings.brokers {
            match cluster.ask(broker).await {
                Ok(None) => return Ok(cluster),
                Ok(Some(connection)) => without = Some(connection),
                Err(fault) if fault.is_lasting => return Err(fault),
                Err(fault) => faults.push(fault.to_string()),
            }
        }
        let Some((connection, controller_id)) = without else {
            return Err(Fault::passing(faults.join("; ")));
        };
        if settings.creates_topic {
            cluster.make_topic(&connection, controller_id).await?;
            // Brokers learn of it one by one. The caller has a deadline.
            while !cluster.learn(&cluster.metadata(&connection).await?)? {
                sleep(MADE_PAUSE).await;
            }
            return Ok(cluster);
        }
        let topic = &settings.topic;
        let why = format!(
            "there is no topic {topic}: create it (kafka-topics.sh --create --topic {topic}), or set create_topic"
        );
        if faults.is_empty() {
            return Err(Fault::lasting(why));
        }
        // The brokers that did not answer may know the topic.
        faults.insert(0, why);
        Err(Fault::passing(faults.join("; ")))
    }

    /// A cluster with one broker that leads all partitions, over an existing connection.
    #[cfg(test)]
    pub(super) fn of_one_leader(
        settings: Settings,
        connection: Connection,
        partitions: usize,
    ) -> Self {
        Self {
            settings: Arc::new(settings),
            tls: None,
            brokers: BTreeMap::new(),
            leaders: vec![Some(1); partitions],
            connections: BTreeMap::from([(1, connection)]),
            asked: Instant::now(),
        }
    }

    /// The number of the topic's partitions, at least one.
    pub fn partitions(&self) -> usize {
        self.leaders.len()
    }

    /// Asks a broker for metadata. If it does not know the topic, returns the connection and the controller's ID.
    async fn ask(
        &mut self,
        broker: &HostPort,
    ) -> Result<Option<(Connection, Option<Int32>)>, Fault> {
        let login = self.settings.login.as_ref();
        let connection = Connection::open(&self.endpoint(broker), login).await?;
        let told = self.metadata(&connection).await.map_err(|fault| {
            // A SASL listener closes connections that do not start with a login.
            let hint = match login {
                None if !fault.is_lasting => "; does its listener ask for a login (sasl)?",
                _ => "",
            };
            Fault {
                why: format!("{fault}{hint}").into(),
                ..fault
            }
        })?;
        let is_there = self.learn(&told)?;
        Ok((!is_there).then_some((connection, told.controller_id)))
    }

    pub(super) fn endpoint(&self, to: &HostPort) -> Endpoint {
        Endpoint::new(to.clone(), self.tls.clone())
    }

    async fn metadata(&self, connection: &Connection) -> Result<MetadataResponse, Fault> {
        let request = MetadataRequest {
            topics: Some(vec![MetadataRequestTopic {
                name: String_(self.settings.topic.clone()),
            }]),
            // The setting create_topic decides that.
            allow_auto_topic_creation: Some(Boolean(false)),
        };
        within(PATIENCE, connection.request(&request)).await
    }

    /// Updates the metadata from a broker's answer. Returns whether the topic exists.
    fn learn(&mut self, told: &MetadataResponse) -> Result<bool, Fault> {
        let topic = &self.settings.topic;
        let brokers = told.brokers.iter();
        let brokers = brokers.map(|broker| {
            let (id, port) = (broker.node_id.0, broker.port.0);
            (id, advertised(id, &broker.host.0, port))
        });
        self.brokers = brokers.collect();
        let found = told.topics.iter().find(|found| found.name.0 == *topic);
        let Some(found) = found else {
            return Ok(false);
        };
        match found.error {
            None => {}
            Some(Answered::UnknownTopicOrPartition) => return Ok(false),
            Some(Answered::TopicAuthorizationFailed) => return Err(not_allowed(topic)),
            Some(Answered::InvalidTopicException) => {
                return Err(Fault::lasting(format!("{topic} is not a valid topic name")));
            }
            Some(error) => {
                return Err(Fault::passing(format!(
                    "the broker says of topic {topic}: {error}"
                )));
            }
        }
        self.leaders = vec![None; found.partitions.len()];
        for partition in &found.partitions {
            let place = usize::try_from(partition.partition_index.0).ok();
            let leader = place.and_then(|place| self.leaders.get_mut(place));
            if let Some(leader) = leader {
                *leader = Some(partition.leader_id.0).filter(|leader| *leader >= 0);
            }
        }
        Ok(!self.leaders.is_empty())
    }

    /// Creates the topic with the cluster's default numbers of partitions and replicas.
    async fn make_topic(
        &self,
        asked: &Connection,
        controller_id: Option<Int32>,
    ) -> Result<(), Fault> {
        let topic = &self.settings.topic;
        let request = CreateTopicsRequest {
            topics: vec![CreateTopicRequest {
                name: String_(topic.clone()),
                num_partitions: Int32(BY_DEFAULT.into()),
                replication_factor: Int16(BY_DEFAULT),
                assignments: Vec::new(),
                configs: Vec::new(),
                tagged_fields: None,
            }],
            timeout_ms: Int32(PATIENCE.as_millis() as i32),
            validate_only: None,
            tagged_fields: None,
        };
        // In a KRaft cluster any broker forwards this request. Older clusters accept it only at the controller.
        let controller = controller_id.and_then(|id| self.brokers.get(&id.0)?.as_ref().ok());
        let opened = match controller {
            Some(controller) => {
                let login = self.settings.login.as_ref();
                Some(Connection::open(&self.endpoint(controller), login).await?)
            }
            None => None,
        };
        let connection = opened.as_ref().unwrap_or(asked);
        let answer = within(2 * PATIENCE, connection.request(&request)).await?;
        let answer = answer.topics.into_iter().next();
        let Some((error, said)) =
            answer.and_then(|answer| Some((answer.error?, answer.error_message)))
        else {
            tracing::info!(topic, "created the topic, which did not exist");
            return Ok(());
        };
        if error == Answered::TopicAlreadyExists {
            return Ok(());
        }
        let said = one_line(&said.and_then(|said| said.0).unwrap_or_default());
        let why = format!("topic {topic} does not exist and cannot be created: {error} {said}");
        let may_pass = [Answered::RequestTimedOut, Answered::NotController];
        Err(if may_pass.contains(&error) {
            Fault::passing(why)
        } else {
            Fault::lasting(why.trim_end())
        })
    }
}

/// A broker's advertised address, checked because it goes into logs and status.
fn advertised(id: i32, host: &str, port: i32) -> Result<HostPort, Fault> {
    let is_possible = !host.is_empty()
        && host.len() <= MOST_HOST_BYTES
        && !host.contains(|letter: char| letter.is_control() || letter.is_whitespace());
    let port_of_it = u16::try_from(port).ok().filter(|&port| port != 0);
    match port_of_it {
        Some(port) if is_possible => Ok(HostPort {
            host: host.to_owned(),
            port,
        }),
        _ => Err(Fault::passing(format!(
            "broker {id} gives an invalid address, host {:?} and port {port}: check its advertised.listeners",
            one_line(host)
        ))),
    }
}

pub(super) async fn within<T>(
    patience: Duration,
    answered: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let answered = timeout(patience, answered).await;
    answered.unwrap_or_else(|_| {
        let seconds = patience.as_millis().div_ceil(1000);
        let why = format!("a broker has not answered within {seconds} s");
        Err(Fault::passing(why))
    })
}

pub(super) fn not_allowed(topic: &str) -> Fault {
    Fault::lasting(format!(
        "the cluster does not let this user write to topic {topic}: allow it (kafka-acls.sh --add --producer --topic {topic})"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_one_is_refused_by_name() {
        assert_eq!(
            advertised(1, "kafka.example", 9092),
            Ok(HostPort {
                host: "kafka.example".to_owned(),
                port: 9092
            })
        );
        assert!(advertised(1, "2001:db8::1", 65535).is_ok());
        let long = "x".repeat(300);
        for (host, port) in [
            ("kafka\n2026-01-01 ERROR", 9092),
            ("\u{1b}[2J", 9092),
            ("", 9092),
            (&long, 9092),
            ("kafka", 0),
            ("kafka", 65536),
            ("kafka", -1),
        ] {
            let fault = advertised(7, host, port).unwrap_err();
            let told = fault.to_string();
            assert!(told.contains("broker 7 gives an invalid address"), "{told}");
            assert!(!told.contains(char::is_control), "{told}");
        }
    }
}
