//! Sends messages to the leaders of their partitions and reads the answers.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use rskafka::protocol::{
    error::Error as Answered,
    messages::{
        ProduceRequest, ProduceRequestPartitionData, ProduceRequestTopicData, ProduceResponse,
    },
    primitives::{Int16, Int32, NullableString, Records, String_},
    record::RecordBatch,
};
use tokio::time::Instant;

use super::{
    Fault, Settings,
    cluster::{Cluster, not_allowed, within},
    connection::Connection,
};

/// Wait for all in-sync replicas.
const ACKS_ALL: i16 = -1;
/// How long a leader may wait for its replicas, and how long we wait for a leader.
const REPLICAS_PATIENCE: Duration = Duration::from_secs(7);
const LEADER_PATIENCE: Duration = Duration::from_secs(8);
/// Time kept back from a leader's time limit, so that its timeout can be attributed before the deadline.
pub(super) const RESERVE: Duration = Duration::from_millis(500);
/// Longest pause that a cluster can impose. Its own quotas ask for seconds.
const LONGEST_REST: Duration = Duration::from_mins(1);

/// The outcome of messages for one partition.
pub(super) enum Answer {
    Stored,
    /// The messages together exceed the topic's limit.
    TooLong,
    Failed(Fault),
}

/// The outcome of messages for one leader.
struct Sent {
    leader: i32,
    /// The connection, if it still works.
    connection: Option<Connection>,
    /// The answers, by partition.
    answers: Vec<(usize, Answer)>,
    throttled: Duration,
}

impl Cluster {
    /// Sends messages to all leaders at the same time. Calls `tell` for each partition as soon as its leader answers,
    /// because others may time out. Returns how long the cluster asks us to pause.
    pub async fn produce(
        &mut self,
        batches: Vec<(usize, RecordBatch)>,
        deadline: Instant,
        mut tell: impl FnMut(usize, Answer),
    ) -> Duration {
        let mut throttled = Duration::ZERO;
        let mut by_leader = BTreeMap::<i32, Vec<(usize, RecordBatch)>>::new();
        for (partition, batch) in batches {
            if let Some(leader) = self.leaders.get(partition).copied().flatten() {
                by_leader
                    .entry(leader)
                    .or_default()
                    .push((partition, batch));
            } else {
                let topic = &self.settings.topic;
                let why = format!(
                    "partition {partition} of topic {topic} has no leader: are its brokers running?"
                );
                tell(partition, Answer::Failed(Fault::passing(why)));
            }
        }
        let taken = by_leader.into_iter().map(|(leader, batches)| {
            let connection = self.connections.remove(&leader);
            (leader, connection, batches)
        });
        let taken: Vec<_> = taken.collect();
        let this = &*self;
        let sent = taken
            .into_iter()
            .map(|(leader, connection, batches)| this.send(leader, connection, batches, deadline));
        let mut sent: FuturesUnordered<_> = sent.collect();
        let mut kept = Vec::new();
        while let Some(sent) = sent.next().await {
            kept.extend(sent.connection.map(|connection| (sent.leader, connection)));
            throttled = throttled.max(sent.throttled);
            for (partition, answer) in sent.answers {
                tell(partition, answer);
            }
        }
        drop(sent);
        self.connections.extend(kept);
        throttled
    }

    /// Sends messages to one leader, over the existing connection if there is one.
    async fn send(
        &self,
        leader: i32,
        connection: Option<Connection>,
        batches: Vec<(usize, RecordBatch)>,
        deadline: Instant,
    ) -> Sent {
        let partitions: Vec<_> = batches.iter().map(|(partition, _)| *partition).collect();
        let left = deadline.saturating_duration_since(Instant::now() + RESERVE);
        let patience = LEADER_PATIENCE.min(left);
        let exchanged = if patience < RESERVE {
            // Do not start: the messages might be stored without us knowing.
            let why = format!("no time was left to ask broker {leader}");
            Err(Fault::passing(why))
        } else {
            within(patience, self.exchange(leader, connection, batches)).await
        };
        let (connection, response) = match exchanged {
            Ok(exchanged) => exchanged,
            Err(fault) => {
                let failed = |partition| (partition, Answer::Failed(fault.clone()));
                return Sent {
                    leader,
                    connection: None,
                    answers: partitions.into_iter().map(failed).collect(),
                    throttled: Duration::ZERO,
                };
            }
        };
        let throttled = response.throttle_time_ms.map_or(0, |time| time.0);
        let told = response
            .responses
            .into_iter()
            .filter(|topic| topic.name.0 == self.settings.topic)
            .flat_map(|topic| topic.partition_responses);
        let told: BTreeMap<_, _> = told.map(|told| (told.index.0, told.error)).collect();
        let answers = partitions.into_iter().map(|partition| {
            let told = i32::try_from(partition).ok().and_then(|at| told.get(&at));
            let answer = match told {
                Some(None) => Answer::Stored,
                Some(Some(error)) => self.answer(partition, *error),
                None => Answer::Failed(Fault::passing(format!(
                    "broker {leader} does not say what became of the messages for partition {partition}"
                ))),
            };
            (partition, answer)
        });
        Sent {
            leader,
            connection: Some(connection),
            answers: answers.collect(),
            throttled: rest(throttled),
        }
    }

    async fn exchange(
        &self,
        leader: i32,
        connection: Option<Connection>,
        batches: Vec<(usize, RecordBatch)>,
    ) -> Result<(Connection, ProduceResponse), Fault> {
        let connection = match connection {
            Some(connection) => connection,
            None => self.connect(leader).await?,
        };
        let partition_data = batches.into_iter().map(|(partition, batch)| {
            let index = Int32(i32::try_from(partition).unwrap_or(i32::MAX));
            ProduceRequestPartitionData {
                index,
                records: Records(vec![batch]),
            }
        });
        let request = ProduceRequest {
            transactional_id: NullableString(None),
            acks: Int16(ACKS_ALL),
            timeout_ms: Int32(REPLICAS_PATIENCE.as_millis() as i32),
            topic_data: vec![ProduceRequestTopicData {
                name: String_(self.settings.topic.clone()),
                partition_data: partition_data.collect(),
            }],
        };
        let response = connection.request(&request).await?;
        Ok((connection, response))
    }

    async fn connect(&self, broker: i32) -> Result<Connection, Fault> {
        let address = self.brokers.get(&broker).ok_or_else(|| {
            let why =
                format!("the cluster gives no address for broker {broker}, which leads partitions");
            Fault::passing(why)
        })?;
        let address = address.as_ref().map_err(Fault::clone)?;
        let opened = Connection::open(&self.endpoint(address), self.settings.login.as_ref()).await;
        opened.map_err(|fault| Fault {
            why: format!("{fault} (broker {broker} gives this address: advertised.listeners)")
                .into(),
            ..fault
        })
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "brokers have a hundred answers, most of them to other requests"
    )]
    fn answer(&self, partition: usize, error: Answered) -> Answer {
        let Settings {
            topic, compression, ..
        } = &*self.settings;
        Answer::Failed(match error {
            Answered::MessageTooLarge | Answered::RecordListTooLarge => return Answer::TooLong,
            Answered::TopicAuthorizationFailed | Answered::ClusterAuthorizationFailed => {
                not_allowed(topic)
            }
            Answered::UnsupportedCompressionType => Fault::lasting(format!(
                "the brokers do not take compression {compression:?}: choose gzip or none"
            )),
            Answered::NotEnoughReplicas | Answered::NotEnoughReplicasAfterAppend => {
                Fault::passing(format!(
                    "too few replicas of partition {partition} of topic {topic} are in sync (min.insync.replicas): are its \
                     brokers running?"
                ))
            }
            Answered::RequestTimedOut => Fault::passing(format!(
                "the replicas of partition {partition} of topic {topic} have not acknowledged within {} s",
                REPLICAS_PATIENCE.as_secs()
            )),
            error => Fault::passing(format!(
                "the broker does not take messages for partition {partition} of topic {topic}: {error}"
            )),
        })
    }
}

/// The pause that a broker asks for, limited.
fn rest(throttle_time_ms: i32) -> Duration {
    let asked = Duration::from_millis(throttle_time_ms.try_into().unwrap_or_default());
    asked.min(LONGEST_REST)
}

#[cfg(test)]
mod tests;
