//! Batches that are stored together: their state, and the messages made of them.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rskafka::protocol::record::{
    ControlBatchOrRecords, Record as Message, RecordBatch, RecordBatchCompression,
    RecordBatchTimestampType, RecordHeader,
};

use super::{Record, partitioner::partition};
use crate::files::Compression;

/// Most uncompressed bytes per partition and request. A broker takes 1 MiB and 12 bytes by default (message.max.bytes).
/// A single longer message still goes alone.
const MOST_BYTES: usize = 1_000_000;
/// Upper bound for a message's bytes besides key, header values and batch.
const FRAME_BYTES: usize = 100;
/// Marks producer ID, epoch and sequence as unset.
const NONE: i64 = -1;

pub(super) struct Group<'a> {
    records: &'a [Record<'a>],
    states: Vec<State>,
    now_unix_ms: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// May be sent with at most this many messages, itself included. Larger sets were too long.
    Waits(usize),
    Stored,
    NotStored(Arc<str>),
}

impl<'a> Group<'a> {
    pub fn of(records: &'a [Record<'a>]) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            records,
            states: vec![State::Waits(usize::MAX); records.len()],
            now_unix_ms: now.unwrap_or(Duration::ZERO).as_millis() as i64,
        }
    }

    /// The indices of the records to send next, by partition.
    pub fn next(&self, partitions: usize) -> BTreeMap<usize, Vec<usize>> {
        struct Next {
            places: Vec<usize>,
            bytes: usize,
            most: usize,
            is_full: bool,
        }
        let mut all = BTreeMap::<usize, Next>::new();
        for (place, record) in self.records.iter().enumerate() {
            let State::Waits(most) = self.states[place] else {
                continue;
            };
            let at = partition(&record.key(), partitions);
            let next = all.entry(at).or_insert_with(|| Next {
                places: Vec::new(),
                bytes: 0,
                most,
                is_full: false,
            });
            let bytes = next.bytes + record.len_bytes();
            let most = next.most.min(most);
            let is_first = next.places.is_empty();
            if next.is_full || !is_first && (next.places.len() >= most || bytes > MOST_BYTES) {
                // Later records of this partition must not overtake it.
                next.is_full = true;
                continue;
            }
            next.places.push(place);
            next.bytes = bytes;
            next.most = most;
        }
        let all = all.into_iter();
        all.map(|(partition, next)| (partition, next.places))
            .collect()
    }

    /// The record batch for these indices, in order.
    pub fn messages(&self, places: &[usize], compression: Compression) -> RecordBatch {
        let messages = places.iter().zip(0_i32..);
        let last = places.len().saturating_sub(1);
        let messages = messages.map(|(&place, offset_delta)| {
            let record = &self.records[place];
            let header = |key: &str, value: String| RecordHeader {
                key: key.to_owned(),
                value: value.into(),
            };
            Message {
                timestamp_delta: 0,
                offset_delta,
                key: Some(record.key()),
                value: Some(record.batch.to_vec()),
                headers: vec![
                    header("identity", record.identity.clone()),
                    header("hostname", record.hostname.to_owned()),
                    header("stream_id", format!("{:016x}", record.stream_id)),
                    header("stream_seq", record.stream_seq.to_string()),
                ],
            }
        });
        RecordBatch {
            base_offset: 0,
            partition_leader_epoch: 0,
            last_offset_delta: i32::try_from(last).unwrap_or(i32::MAX),
            first_timestamp: self.now_unix_ms,
            max_timestamp: self.now_unix_ms,
            producer_id: NONE,
            producer_epoch: NONE as i16,
            base_sequence: NONE as i32,
            records: ControlBatchOrRecords::Records(messages.collect()),
            compression: match compression {
                Compression::None => RecordBatchCompression::NoCompression,
                Compression::Gzip => RecordBatchCompression::Gzip,
                Compression::Zstd => RecordBatchCompression::Zstd,
            },
            is_transactional: false,
            timestamp_type: RecordBatchTimestampType::CreateTime,
        }
    }

    pub fn stored(&mut self, places: &[usize]) {
        for &place in places {
            self.states[place] = State::Stored;
        }
    }

    /// Handles messages that the topic rejects as too long together. The set is halved, so that the offending message
    /// is found soon and the rest still travel together. A message rejected alone fails, and so do the later ones of
    /// its stream: acknowledging those would also acknowledge the rejected one.
    pub fn too_long(&mut self, places: &[usize], topic: &str) {
        let &[place] = places else {
            for &place in places {
                self.states[place] = State::Waits(places.len().div_ceil(2));
            }
            return;
        };
        let record = &self.records[place];
        let why: Arc<str> = format!(
            "batch {} of stream {:016x}, from {}, has {} bytes before it is compressed, and compressed it is longer than topic \
             {topic} takes: raise its max.message.bytes (kafka-configs.sh --alter --topic {topic} --add-config max.message.bytes=5242880) or \
             message.max.bytes of the brokers; until then the batches of this agent wait",
            record.stream_seq,
            record.stream_id,
            record.hostname,
            record.batch.len()
        )
        .into();
        for (later, state) in self.records.iter().zip(&mut self.states).skip(place) {
            let is_behind =
                later.stream_id == record.stream_id && later.identity == record.identity;
            if is_behind && state.waits() {
                *state = State::NotStored(Arc::clone(&why));
            }
        }
    }

    /// Whether any record is neither stored nor failed.
    pub fn waits(&self) -> bool {
        self.states.iter().any(State::waits)
    }

    /// Fails all waiting records.
    pub fn gives_up(&mut self, why: &Arc<str>) {
        for state in self.states.iter_mut().filter(|state| state.waits()) {
            *state = State::NotStored(Arc::clone(why));
        }
    }

    /// Fails the waiting records of these partitions. `partitions` is the number of partitions in the topic.
    pub fn gives_up_in(&mut self, partitions: usize, whys: &BTreeMap<usize, Arc<str>>) {
        if whys.is_empty() || partitions == 0 {
            return;
        }
        let waiting = self.records.iter().zip(&mut self.states);
        for (record, state) in waiting.filter(|(_, state)| state.waits()) {
            if let Some(why) = whys.get(&partition(&record.key(), partitions)) {
                *state = State::NotStored(Arc::clone(why));
            }
        }
    }

    /// The outcome of each record.
    pub fn fates(self) -> Vec<Result<(), Arc<str>>> {
        let fates = self.states.into_iter().map(|state| match state {
            State::Stored => Ok(()),
            State::NotStored(why) => Err(why),
            State::Waits(_) => unreachable!("it was given up"),
        });
        fates.collect()
    }
}

impl State {
    fn waits(&self) -> bool {
        matches!(self, Self::Waits(_))
    }
}

impl Record<'_> {
    /// The message key: the same for all batches of an agent.
    fn key(&self) -> Vec<u8> {
        if self.agent_id.is_empty() {
            return format!("{:016x}", self.stream_id).into();
        }
        self.agent_id.into()
    }

    fn len_bytes(&self) -> usize {
        let names = self.agent_id.len() + self.hostname.len() + self.identity.len();
        FRAME_BYTES + names + self.batch.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(agent_id: &str, stream_id: u64, stream_seq: u64, bytes: usize) -> Record<'_> {
        Record {
            agent_id,
            hostname: "host",
            identity: "uid:0".to_owned(),
            stream_id,
            stream_seq,
            batch: vec![7; bytes].into(),
        }
    }

    #[test]
    fn what_goes_at_once_is_in_order_and_not_too_long() {
        let records = [
            record("a", 1, 1, 400_000),
            record("a", 1, 2, 400_000),
            record("a", 1, 3, 400_000),
            // It would fit, but must not overtake.
            record("a", 1, 4, 1),
            record("a", 1, 5, 3_000_000),
        ];
        let mut group = Group::of(&records);
        let mut rounds = Vec::new();
        loop {
            let next = group.next(1);
            let Some(places) = next.get(&0) else { break };
            rounds.push(places.clone());
            group.stored(places);
        }
        assert_eq!(rounds, [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(group.fates(), vec![Ok(()); 5]);
    }

    #[test]
    fn agents_are_apart_and_one_without_a_name_goes_by_its_stream() {
        let records = [
            record("a", 1, 1, 1),
            record("b", 2, 1, 1),
            record("a", 3, 1, 1),
            record("", 4, 1, 1),
        ];
        let mut group = Group::of(&records);
        assert_eq!(records[3].key(), b"0000000000000004");
        let next = group.next(1000);
        let mut all: Vec<_> = next.values().cloned().collect();
        all.sort();
        assert_eq!(all, [vec![0, 2], vec![1], vec![3]]);
        for places in all {
            group.stored(&places);
        }
        assert!(!group.waits());
    }

    #[test]
    fn one_that_is_too_long_holds_up_its_own_stream_alone() {
        let records = [
            record("a", 1, 1, 1),
            record("a", 1, 2, 9),
            record("a", 1, 3, 1),
            record("a", 2, 1, 1),
        ];
        let mut group = Group::of(&records);
        group.too_long(&[0, 1, 2, 3], "t");
        let mut sent = Vec::new();
        loop {
            let next = group.next(1);
            let Some(places) = next.get(&0) else { break };
            if places.iter().any(|&place| records[place].batch.len() > 1) {
                group.too_long(places, "t");
            } else {
                sent.extend(places.clone());
                group.stored(places);
            }
        }
        assert_eq!(sent, [0, 3]);
        let fates = group.fates();
        let is_stored: Vec<_> = fates.iter().map(Result::is_ok).collect();
        assert_eq!(is_stored, [true, false, false, true]);
        let why = fates[1].clone().unwrap_err();
        for part in [
            "batch 2 of stream 0000000000000001",
            "host",
            "9 bytes",
            "topic t",
            "max.message.bytes",
        ] {
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn what_is_given_up_is_not_stored() {
        let records = [record("a", 1, 1, 1), record("a", 1, 2, 1)];
        let mut group = Group::of(&records);
        group.stored(&[0]);
        // Without partitions, the topic is unknown.
        group.gives_up_in(0, &[(0, "nowhere".into())].into());
        assert!(group.waits());
        group.gives_up(&"away".into());
        assert_eq!(group.fates(), [Ok(()), Err("away".into())]);
    }

    #[test]
    fn a_message_has_its_key_its_host_and_its_batch() {
        let message = record("abc", 1, 1, 7);
        assert_eq!(message.len_bytes(), FRAME_BYTES + 3 + 4 + 5 + 7);
    }

    #[test]
    fn one_that_is_too_long_is_found_by_halves() {
        let records: Vec<_> = (0..256)
            .map(|seq| record("a", seq, 1, if seq == 77 { 9 } else { 1 }))
            .collect();
        let mut group = Group::of(&records);
        let mut rounds = 0;
        let mut sent = Vec::new();
        while let Some(places) = group.next(1).remove(&0) {
            rounds += 1;
            if places.contains(&77) {
                group.too_long(&places, "t");
            } else {
                sent.extend_from_slice(&places);
                group.stored(&places);
            }
        }
        assert!(rounds <= 20, "{rounds}");
        assert!(sent.is_sorted() && sent.len() == 255);
        let fates = group.fates();
        assert!(
            fates
                .iter()
                .enumerate()
                .all(|(place, fate)| fate.is_ok() == (place != 77))
        );
    }

    #[test]
    fn who_belongs_to_a_partition_that_works_is_not_given_up() {
        let records = [record("a", 1, 1, 1), record("b", 2, 1, 1)];
        let mut group = Group::of(&records);
        let next = group.next(1000);
        let (at, places) = next.iter().next().unwrap();
        group.gives_up_in(1000, &[(*at, "away".into())].into());
        assert!(group.waits());
        let other = 1 - places[0];
        group.stored(&[other]);
        let fates = group.fates();
        assert_eq!(fates[other], Ok(()));
        assert_eq!(fates[places[0]], Err("away".into()));
    }
}
