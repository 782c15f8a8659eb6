//! `ListFlows`: selects flows from a snapshot, sorts them, and encodes them as batches.

use std::{cmp::Reverse, collections::BTreeMap};

use bytes::{BufMut as _, Bytes, BytesMut};
use hub::Volume;
use prost::{DecodeError, Message as _, encoding::encode_varint};
use proto::{
    Cgroup, FlowBatch, FlowOrder, FlowRecord, HostName, Process,
    batch::{
        MOST_HOSTS,
        fields::{CGROUPS, HOSTS, PROCESSES, RECORDS, each_field},
    },
    known_interfaces::KnownInterfaces,
    mentions::{Mentions, OfRecord},
};
use tonic::Status;

use super::filtered::{Hosts, StreamFilter, encode_left_out, note};
use crate::scanner_requests::{RequestError, Snapshot, SnapshotBytes, SnapshotPlace};

/// A batch is complete once it has this length.
const BATCH_LEN_BYTES: usize = 256 << 10;

const BATCH_INDEX_TAG: u32 = 6;
/// `last_of_scan`, `table_occupancy`, `account` and `tracked_flows`: only the last batch has them.
const LAST_TAGS: [u32; 4] = [8, 11, 16, 17];

/// The request.
pub(super) struct Choice {
    pub filter: Option<StreamFilter>,
    pub order: FlowOrder,
    /// `None` for all flows.
    pub limit: Option<usize>,
}

/// Including their names and the map entry.
const BYTES_PER_PROCESS: u64 = 100;
const BYTES_PER_HOST: u64 = 350;

struct Row {
    rank: u64,
    record: Bytes,
    volume: Volume,
    mentions: OfRecord,
}

/// The selected flows, with the other fields of their batches.
pub(super) struct Listed {
    /// The first fields of every batch.
    head: Vec<u8>,
    /// The last fields of the last batch.
    last: Vec<u8>,
    /// The names that rows refer to, each once.
    cgroups: BTreeMap<u64, Cgroup>,
    processes: BTreeMap<u64, Process>,
    hosts: BTreeMap<u64, HostName>,
    rows: std::vec::IntoIter<Row>,
    batches: u32,
    is_over: bool,
    /// The memory reserved for the rows and their copies.
    _places: Vec<SnapshotPlace>,
}

impl Choice {
    /// Selects from a snapshot.
    pub(super) fn of(self, snapshot: Snapshot, room: &SnapshotBytes) -> Result<Listed, Status> {
        let broken = |error: DecodeError| Status::internal(format!("a batch of our own: {error}"));
        let no_room = |error: RequestError| Status::resource_exhausted(error.to_string());
        let (mut head, mut last) = (Vec::new(), Vec::new());
        let (mut rows, mut places) = (Vec::new(), Vec::new());
        let (mut cgroups, mut processes) = (BTreeMap::new(), BTreeMap::new());
        let mut hosts = BTreeMap::new();
        let (mut interfaces, mut left_out) = (KnownInterfaces::default(), Volume::default());
        for (number, batch) in snapshot.batches.into_iter().enumerate() {
            let body = batch.body;
            let named = (processes.len(), hosts.len());
            let own_hosts = self.filter.as_ref().map(|filter| filter.hosts(&body));
            let own_hosts = own_hosts.transpose().map_err(broken)?.unwrap_or_default();
            places.extend(make_room(&mut rows, batch.records as usize, room).map_err(no_room)?);
            each_field(&body, |field| {
                note(&mut interfaces, &field)?;
                if field.tag == RECORDS {
                    match self.row(&field.message, &interfaces, &own_hosts)? {
                        Chosen::Yes(row) => rows.push(row),
                        Chosen::No(volume) => left_out += volume,
                    }
                } else if field.tag == CGROUPS {
                    let cgroup = Cgroup::decode(field.message)?;
                    cgroups.insert(cgroup.id, cgroup);
                } else if field.tag == PROCESSES {
                    let process = Process::decode(field.message)?;
                    processes.insert(process.key, process);
                } else if field.tag == HOSTS {
                    let host = HostName::decode(field.message)?;
                    hosts.insert(host.id, host);
                } else if LAST_TAGS.contains(&field.tag) {
                    last.extend_from_slice(&body[field.whole]);
                } else if number == 0 && field.tag != BATCH_INDEX_TAG {
                    head.extend_from_slice(&body[field.whole]);
                }
                Ok(())
            })
            .map_err(broken)?;
            // There may be as many as flows.
            let more_processes = (processes.len() - named.0) as u64;
            let more_hosts = (hosts.len() - named.1) as u64;
            let bytes = more_processes * BYTES_PER_PROCESS + more_hosts * BYTES_PER_HOST;
            places.push(room.reserve(bytes).map_err(no_room)?);
            if let Some(limit) = self.limit
                && rows.len() > 2 * limit + 10_000
            {
                cut(&mut rows, limit, &mut left_out);
            }
        }
        if let Some(limit) = self.limit {
            cut(&mut rows, limit, &mut left_out);
            // The bytes of the other rows are freed with the snapshot.
            let copied: usize = rows.iter().map(|row| row.record.len()).sum();
            places.push(room.reserve(copied as u64).map_err(no_room)?);
            for row in &mut rows {
                row.record = Bytes::copy_from_slice(&row.record);
            }
        }
        if self.order != FlowOrder::Unspecified {
            rows.sort_by_key(|row| Reverse(row.rank));
        }
        last.extend(encode_left_out(left_out));
        Ok(Listed {
            head,
            last,
            cgroups,
            processes,
            hosts,
            rows: rows.into_iter(),
            batches: 0,
            is_over: false,
            _places: places,
        })
    }

    fn row(
        &self,
        message: &Bytes,
        interfaces: &KnownInterfaces,
        hosts: &Hosts,
    ) -> Result<Chosen, DecodeError> {
        let record = FlowRecord::decode(message.clone())?;
        let sums = Volume::of_record(record.total());
        if let Some(filter) = &self.filter
            && !filter.passes(&record, interfaces, hosts)
        {
            return Ok(Chosen::No(sums));
        }
        Ok(Chosen::Yes(Row {
            rank: match self.order {
                FlowOrder::Unspecified => 0,
                FlowOrder::Bytes => sums.bytes,
                FlowOrder::Packets => sums.packets,
                FlowOrder::LastSeen => record.last_seen_unix_ns,
                FlowOrder::FirstSeen => record.first_seen_unix_ns,
            },
            record: message.clone(),
            volume: sums,
            mentions: OfRecord::new(&record),
        }))
    }
}

enum Chosen {
    Yes(Row),
    No(Volume),
}

/// Makes room for `more` rows. Returns the memory that it reserves in `room`, if any.
fn make_room(
    rows: &mut Vec<Row>,
    more: usize,
    room: &SnapshotBytes,
) -> Result<Option<SnapshotPlace>, RequestError> {
    if rows.capacity() - rows.len() >= more {
        return Ok(None);
    }
    // Grow in larger steps, so that rows are not moved for each batch.
    let more = more.max(rows.capacity() / 8);
    let grows = rows.len() + more - rows.capacity();
    let place = room.reserve((grows * size_of::<Row>()) as u64)?;
    rows.reserve_exact(more);
    Ok(Some(place))
}

/// Keeps the rows with the highest ranks, unsorted.
fn cut(rows: &mut Vec<Row>, limit: usize, left_out: &mut Volume) {
    if rows.len() <= limit {
        return;
    }
    if limit > 0 {
        rows.select_nth_unstable_by_key(limit - 1, |row| Reverse(row.rank));
    }
    for row in rows.drain(limit..) {
        *left_out += row.volume;
    }
}

/// The encoded batches; the last one has the account.
impl Iterator for Listed {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let own = FlowBatch {
            stream_seq: u64::from(self.batches) + 1,
            batch_index: self.batches,
            ..FlowBatch::default()
        };
        self.batches += 1;
        let mut batch = BytesMut::with_capacity(self.head.len() + 16);
        batch.put_slice(&self.head);
        batch.put_slice(&own.encode_to_vec());
        let mut mentions = Mentions::default();
        loop {
            let Some(row) = self.rows.next() else {
                batch.put_slice(&self.last);
                self.is_over = true;
                break;
            };
            encode_varint(u64::from(RECORDS << 3 | 2), &mut batch);
            encode_varint(row.record.len() as u64, &mut batch);
            batch.put_slice(&row.record);
            mentions.note(row.mentions);
            if batch.len() >= BATCH_LEN_BYTES || mentions.hosts_len() >= MOST_HOSTS {
                break;
            }
        }
        let cgroups = mentions.cgroup_ids().filter_map(|id| self.cgroups.get(id));
        let processes = mentions.process_keys();
        let processes = processes.filter_map(|key| self.processes.get(key));
        let hosts = mentions.host_ids().filter_map(|id| self.hosts.get(id));
        let named = FlowBatch {
            cgroups: cgroups.cloned().collect(),
            processes: processes.cloned().collect(),
            hosts: hosts.cloned().collect(),
            ..FlowBatch::default()
        };
        batch.put_slice(&named.encode_to_vec());
        Some(batch.freeze())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proto::{Account, Endpoint, batch::Batch};

    use super::*;
    use crate::scanner_requests::MAX_SNAPSHOT_BYTES;

    fn record(number: u64) -> FlowRecord {
        FlowRecord {
            src: Some(Endpoint {
                addr: Bytes::from_static(&[10, 0, 0, 1]),
                port: Some(number as u32),
                delta_packets: number,
                delta_bytes: 1000 - number,
                total_packets: number,
                total_bytes: 1000 - number,
                ..Endpoint::default()
            }),
            dst: Some(Endpoint {
                addr: Bytes::from_static(&[10, 0, 0, 2]),
                port: Some(53),
                ..Endpoint::default()
            }),
            protocol: 17,
            first_seen_unix_ns: number % 10,
            last_seen_unix_ns: number,
            ..FlowRecord::default()
        }
    }

    /// 100 flows in two batches.
    fn snapshot() -> Snapshot {
        let batches = [0..50, 50..100].map(|numbers| {
            let index = u32::from(numbers.start > 0);
            let message = FlowBatch {
                scan_id: 3,
                batch_index: index,
                snapshot: true,
                last_of_scan: index == 1,
                records: numbers.map(record).collect(),
                account: (index == 1).then(Account::default),
                tracked_flows: (index == 1).then_some(100),
                ..FlowBatch::default()
            };
            Batch {
                body: message.encode_to_vec().into(),
                records: 50,
                delta: agent_common::Pair::default(),
                scan_id: 3,
                index,
                last_of_scan: index == 1,
            }
        });
        let batches = batches.into();
        Snapshot { batches }
    }

    fn list(filter: &str, order: FlowOrder, limit: Option<usize>) -> (Vec<u64>, FlowBatch) {
        let choice = Choice {
            filter: StreamFilter::read(filter).unwrap(),
            order,
            limit,
        };
        let listed = choice.of(snapshot(), &SnapshotBytes::default()).unwrap();
        let batches: Vec<_> = listed
            .map(|body| FlowBatch::decode(body).unwrap())
            .collect();
        let [batch] = &batches[..] else {
            panic!("{} batches", batches.len());
        };
        let numbers = batch
            .records
            .iter()
            .map(|record| record.src().total_packets);
        (numbers.collect(), batch.clone())
    }

    #[test]
    fn the_first_of_the_order_are_sent_and_the_others_counted() {
        let (numbers, batch) = list("", FlowOrder::Unspecified, None);
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
        assert_eq!(
            (batch.stream_seq, batch.batch_index, batch.scan_id),
            (1, 0, 3)
        );
        assert!(batch.snapshot && batch.last_of_scan && batch.account.is_some());
        assert_eq!(
            (batch.tracked_flows, batch.left_out_records),
            (Some(100), 0)
        );
        for (order, first) in [
            (FlowOrder::Bytes, [0, 1, 2]),
            (FlowOrder::Packets, [99, 98, 97]),
            (FlowOrder::LastSeen, [99, 98, 97]),
            (FlowOrder::FirstSeen, [9, 19, 29]),
        ] {
            let (numbers, batch) = list("", order, Some(10));
            assert_eq!(numbers.len(), 10);
            if order == FlowOrder::FirstSeen {
                assert!(numbers.iter().all(|number| number % 10 == 9));
            } else {
                assert_eq!(numbers[..3], first, "{order:?}");
            }
            let bytes: u64 = numbers.iter().map(|number| 1000 - number).sum();
            assert_eq!(batch.left_out_records, 90);
            assert_eq!(batch.left_out_packets, 4950 - numbers.iter().sum::<u64>());
            assert_eq!(batch.left_out_bytes, 100_000 - 4950 - bytes);
        }
        let (numbers, batch) = list("exclude src port 10-99", FlowOrder::Packets, Some(3));
        assert_eq!((numbers, batch.left_out_records), (vec![9, 8, 7], 97));
    }

    #[test]
    fn rows_and_copies_have_room_before_they_are_made() {
        let choice = |limit| Choice {
            filter: None,
            order: FlowOrder::Packets,
            limit,
        };
        let rows = 100 * size_of::<Row>() as u64;
        let room = SnapshotBytes::default();
        let listed = choice(None).of(snapshot(), &room).unwrap();
        assert!(room.get() >= rows, "{}", room.get());
        drop(listed);
        assert_eq!(room.get(), 0);
        let listed = choice(Some(10)).of(snapshot(), &room).unwrap();
        let copied: usize = listed
            .rows
            .as_slice()
            .iter()
            .map(|row| row.record.len())
            .sum();
        assert_eq!(room.get(), rows + copied as u64);
        drop(listed);
        // A client that leaves no room is refused, and holds nothing while it is served.
        for (left, is_for_rows) in [(rows / 2 - 1, false), (rows - 1, false), (rows + 10, true)] {
            let _others = room.reserve(MAX_SNAPSHOT_BYTES - left).unwrap();
            for limit in [None, Some(10)] {
                let is_there = choice(limit).of(snapshot(), &room).is_ok();
                assert_eq!(is_there, is_for_rows && limit.is_none(), "{left} {limit:?}");
                assert_eq!(room.get(), MAX_SNAPSHOT_BYTES - left);
            }
        }
    }

    #[test]
    fn each_batch_names_the_cgroups_of_its_flows_whichever_batch_of_the_snapshot_did() {
        let batches = (0..40).map(|index: u32| {
            // Each has its own cgroup, and one that all share.
            let cgroup = |id: u64| Cgroup {
                id,
                unit: format!("{id}.service"),
                ..Cgroup::default()
            };
            let own = 100 + u64::from(index);
            let record = |number| FlowRecord {
                src: Some(Endpoint {
                    cgroup_id: Some(own),
                    ..record(number).src().clone()
                }),
                dst: Some(Endpoint {
                    cgroup_id: Some(7),
                    ..record(number).dst().clone()
                }),
                ..record(number)
            };
            let message = FlowBatch {
                scan_id: 3,
                batch_index: index,
                snapshot: true,
                last_of_scan: index == 39,
                records: (0..300).map(record).collect(),
                cgroups: vec![cgroup(7), cgroup(own)],
                ..FlowBatch::default()
            };
            Batch {
                body: message.encode_to_vec().into(),
                records: 300,
                delta: agent_common::Pair::default(),
                scan_id: 3,
                index,
                last_of_scan: index == 39,
            }
        });
        let snapshot = Snapshot {
            batches: batches.collect(),
        };
        let choice = Choice {
            filter: None,
            order: FlowOrder::Packets,
            limit: None,
        };
        let listed = choice.of(snapshot, &SnapshotBytes::default()).unwrap();
        let batches: Vec<_> = listed
            .map(|body| FlowBatch::decode(body).unwrap())
            .collect();
        assert!(batches.len() > 1);
        for batch in &batches {
            let named = batch.records.iter();
            let named: BTreeSet<_> = named
                .flat_map(|record| [record.src().cgroup_id, record.dst().cgroup_id])
                .flatten()
                .collect();
            let told: Vec<_> = batch.cgroups.iter().map(|cgroup| cgroup.id).collect();
            assert_eq!(told, named.into_iter().collect::<Vec<_>>());
            assert!(
                batch
                    .cgroups
                    .iter()
                    .all(|one| one.unit == format!("{}.service", one.id))
            );
        }
    }

    #[test]
    fn many_flows_make_many_batches_of_which_the_last_has_the_account() {
        let mut many = snapshot();
        let first = many.batches[0].clone();
        for _ in 0..200 {
            many.batches.insert(0, first.clone());
        }
        let choice = Choice {
            filter: None,
            order: FlowOrder::Packets,
            limit: None,
        };
        let room = SnapshotBytes::default();
        let mut listed = choice.of(many, &room).unwrap();
        assert!(room.get() > 10_000);
        let mut records = 0;
        let batches: Vec<_> = listed.by_ref().collect();
        let last = batches.len() - 1;
        assert!(last >= 1);
        for (number, body) in batches.into_iter().enumerate() {
            assert!(body.len() < BATCH_LEN_BYTES + 1000);
            let batch = FlowBatch::decode(body).unwrap();
            assert_eq!(
                (batch.stream_seq, batch.batch_index as usize),
                (number as u64 + 1, number)
            );
            assert_eq!((batch.scan_id, batch.snapshot), (3, true));
            let is_last = number == last;
            assert_eq!(
                (batch.last_of_scan, batch.account.is_some()),
                (is_last, is_last)
            );
            records += batch.records.len();
        }
        assert_eq!(records, 202 * 50);
        drop(listed);
        assert_eq!(room.get(), 0);
    }
}
