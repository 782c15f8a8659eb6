//! A batch from an agent. The sender is not trusted, so the batch is measured before it is decoded.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use hub::Volume;
use prost::{
    Message as _,
    encoding::{WireType, encode_key, encode_varint},
};
use proto::{
    AgentIdentity, Cgroup, Count, FlowBatch, Interface, RecordSum,
    batch::{
        self,
        fields::{AGENT, RECORDS, each_field},
        validity,
    },
    limits::{self, MAX_BATCH_BYTES},
};
use sys::clock;
use tls::identity::{Grant, Identity, Role};

use super::streams::{Key, unix_now};

/// A record may have two bytes on the wire, and takes hundreds in memory. Batches of agents have a few thousand
/// records.
const MOST_RECORDS: usize = 1 << 14;
const MOST_OTHER_FIELDS: usize = 1 << 17;
/// The longest name of an agent or an interface.
const MOST_NAME_BYTES: usize = 256;
/// The path of a network namespace may be its name.
const MOST_PATH_BYTES: usize = 4096;
/// The most reasons of each kind in an account, which is kept per stream. Agents send dozens, of about 20 bytes each.
const MOST_REASONS: usize = 64;
const MOST_REASON_BYTES: usize = 64;

/// Fields of a batch that differ per consumer: `stream_seq`, and the losses and omissions on its stream.
const OF_A_STREAM: [u32; 8] = [2, 3, 4, 19, 20, 21, 22, 23];

pub(super) struct Incoming {
    /// The encoded batch, with the sender's identity.
    pub raw: Bytes,
    pub batch: FlowBatch,
    pub sender: Identity,
    pub origin: validity::Origin,
    /// How many fields the batch has besides its records.
    others: usize,
}

impl Incoming {
    /// Decodes a batch from this caller, and adds the caller's identity to it. Fails if the batch is invalid.
    pub(super) fn read(raw: &Bytes, caller: &Grant) -> Result<Self> {
        let (mut records, mut others) = (0, 0);
        let counted = each_field(raw, |field| {
            *(if field.tag == RECORDS {
                &mut records
            } else {
                &mut others
            }) += 1;
            Ok(())
        });
        counted.context("this is no batch")?;
        ensure!(
            records <= MOST_RECORDS && others <= MOST_OTHER_FIELDS,
            "a batch has at most {MOST_RECORDS} records and {MOST_OTHER_FIELDS} other fields"
        );
        let mut batch = batch::read(raw).context("this is no batch")?;
        let sender = sender(&batch, caller)?;
        let (origin, raw) = if given(&batch).is_empty() {
            (validity::Origin::Agent, with_identity(raw, &sender))
        } else {
            (validity::Origin::Collector, raw.clone())
        };
        // The next collector would refuse a larger batch.
        ensure!(
            raw.len() <= MAX_BATCH_BYTES,
            "a batch has at most {MAX_BATCH_BYTES} bytes with its sender's identity, and this one has {}",
            raw.len()
        );
        batch.agent.get_or_insert_default().identity = sender.to_string();
        ensure!(
            batch.stream_id != 0 && batch.stream_seq != 0,
            "a batch for a collector has a stream_id and a stream_seq"
        );
        ensure!(
            !batch.snapshot,
            "a snapshot repeats what was sent, so it is not collected"
        );
        let incoming = Self {
            raw,
            batch,
            sender,
            origin,
            others,
        };
        incoming.refuse_long_names()?;
        Ok(incoming)
    }

    /// Fails if a name in the batch is longer than any agent sends.
    fn refuse_long_names(&self) -> Result<()> {
        let agent = self.agent();
        let names = [
            &agent.agent_id,
            &agent.hostname,
            &agent.boot_id,
            &agent.instance_id,
            &agent.version,
        ];
        ensure!(
            names.into_iter().all(|name| name.len() <= MOST_NAME_BYTES),
            "each name of an agent has at most {MOST_NAME_BYTES} bytes"
        );
        let is_short = |interface: &Interface| {
            interface.name.len() <= MOST_NAME_BYTES && interface.netns_name.len() <= MOST_PATH_BYTES
        };
        ensure!(
            self.batch.interfaces.iter().all(is_short),
            "an interface's name has at most {MOST_NAME_BYTES} bytes, and its network namespace's name {MOST_PATH_BYTES}"
        );
        let is_short = |cgroup: &Cgroup| {
            let texts = [
                &cgroup.unit,
                &cgroup.slice,
                &cgroup.container_id,
                &cgroup.container_runtime,
            ];
            let mut texts = texts.into_iter();
            cgroup.path.len() <= limits::MAX_CGROUP_PATH_BYTES
                && texts.all(|text| text.len() <= MOST_NAME_BYTES)
        };
        ensure!(
            self.batch.cgroups.iter().all(is_short),
            "a cgroup's path has at most {} bytes, and its other texts {MOST_NAME_BYTES}",
            limits::MAX_CGROUP_PATH_BYTES
        );
        let mut commands = self.batch.processes.iter().map(|one| one.name.len());
        ensure!(
            commands.all(|len| len <= limits::MAX_PROCESS_NAME_BYTES),
            "a process's name has at most {} bytes",
            limits::MAX_PROCESS_NAME_BYTES
        );
        let mut hosts = self.batch.hosts.iter().map(|one| one.name.len());
        ensure!(
            hosts.all(|len| len <= limits::MAX_HOST_NAME_BYTES),
            "a host's name has at most {} bytes",
            limits::MAX_HOST_NAME_BYTES
        );
        let mut exchanges = self.batch.dns_exchanges.iter();
        ensure!(
            exchanges.all(|one| {
                one.name.len() <= limits::MAX_HOST_NAME_BYTES
                    && one.addrs.len() <= limits::MAX_DNS_ANSWERS
            }),
            "an exchange of the DNS has a name of at most {} bytes, and at most {} addresses",
            limits::MAX_HOST_NAME_BYTES,
            limits::MAX_DNS_ANSWERS
        );
        let is_short = |reasons: &BTreeMap<String, Count>| {
            let mut names = reasons.keys();
            reasons.len() <= MOST_REASONS && names.all(|name| name.len() <= MOST_REASON_BYTES)
        };
        if let Some(account) = &self.batch.account {
            let all = [&account.unparsed, &account.not_inserted, &account.beside];
            ensure!(
                all.into_iter().all(is_short),
                "an account has at most {MOST_REASONS} reasons of a kind, each of {MOST_REASON_BYTES} bytes"
            );
        }
        Ok(())
    }

    pub(super) fn stream(&self) -> Key {
        (self.sender.clone(), self.batch.stream_id)
    }

    /// Fails if no agent could have made this batch.
    pub(super) fn checked(self) -> Result<Self> {
        validity::check(&self.batch, self.origin, clock::nanos(unix_now()))?;
        Ok(self)
    }

    /// Tells the batch apart from any other batch with the same number.
    pub(super) fn digest(&self, digests: &RandomState) -> u64 {
        digests.hash_one(&self.raw)
    }

    /// The agent. Empty in a batch that only reports losses without a name.
    pub(super) fn agent(&self) -> AgentIdentity {
        self.batch.agent.clone().unwrap_or_default()
    }

    /// The agent, if it names itself.
    pub(super) fn named_agent(&self) -> Option<&AgentIdentity> {
        let agent = self.batch.agent.as_ref();
        agent.filter(|agent| is_named(agent))
    }

    /// The sums of its records. They wrap like the kernel's counters.
    pub(super) fn volume(&self) -> Volume {
        let mut volume = Volume {
            batches: 1,
            ..Volume::default()
        };
        for record in &self.batch.records {
            volume += Volume::of_record(record.delta());
        }
        volume
    }

    /// The cost of writing the batch to a file, in rows. About eight names cost as much as a row.
    pub(super) fn rows(&self) -> u64 {
        (self.batch.records.len() + self.others / 8) as u64
    }

    /// The losses that it reports since its stream began.
    pub(super) fn lost(&self) -> (u64, RecordSum) {
        (self.batch.lost_batches, self.batch.lost())
    }

    /// The fields that all consumers share.
    pub(super) fn shared(&self) -> Bytes {
        let mut shared = Vec::with_capacity(self.raw.len());
        each_field(&self.raw, |field| {
            if !OF_A_STREAM.contains(&field.tag) {
                shared.extend_from_slice(&self.raw[field.whole]);
            }
            Ok(())
        })
        .expect("it was read before");
        debug_assert!(FlowBatch::decode(&shared[..]).is_ok());
        shared.into()
    }
}

/// Whether the agent names itself.
pub(super) fn is_named(agent: &AgentIdentity) -> bool {
    let names = [&agent.agent_id, &agent.hostname, &agent.instance_id];
    names.into_iter().any(|name| !name.is_empty())
}

/// The sender's identity that the batch already carries.
fn given(batch: &FlowBatch) -> &str {
    batch.agent.as_ref().map_or("", |agent| &agent.identity)
}

/// The sender of a batch: the caller, or for a relay the identity that the first collector put into the batch.
fn sender(batch: &FlowBatch, caller: &Grant) -> Result<Identity> {
    let given = given(batch);
    if given.is_empty() {
        ensure!(
            caller.roles.has(Role::Send),
            "agent.identity: a relay says who sent each batch"
        );
        return Ok(caller.identity.clone());
    }
    ensure!(
        caller.roles.has(Role::Relay),
        "agent.identity: only a collector sets it"
    );
    Identity::read(given).context("agent.identity: not an identity that a collector sets")
}

/// Appends the sender's identity to the agent's own fields, where the last value counts.
fn with_identity(raw: &Bytes, sender: &Identity) -> Bytes {
    let mut agent = Vec::new();
    let mut rest = Vec::with_capacity(raw.len() + MOST_NAME_BYTES);
    each_field(raw, |field| {
        if field.tag == AGENT {
            agent.extend_from_slice(&field.message);
        } else {
            rest.extend_from_slice(&raw[field.whole]);
        }
        Ok(())
    })
    .expect("it was read before");
    let identity = AgentIdentity {
        identity: sender.to_string(),
        ..AgentIdentity::default()
    };
    agent.extend(identity.encode_to_vec());
    let mut whole = Vec::with_capacity(agent.len() + rest.len() + MOST_NAME_BYTES);
    encode_key(AGENT, WireType::LengthDelimited, &mut whole);
    encode_varint(agent.len() as u64, &mut whole);
    whole.extend(agent);
    whole.extend(rest);
    whole.into()
}

#[cfg(test)]
mod tests {
    use proto::{Account, Endpoint, FlowRecord, Process};
    use tls::identity::Roles;

    use super::*;

    fn batch() -> FlowBatch {
        FlowBatch {
            agent: Some(AgentIdentity::default()),
            stream_seq: 9,
            lost_batches: 1,
            lost_records: 2,
            lost_packets: 3,
            lost_bytes: 4,
            left_out_records: 5,
            left_out_packets: 6,
            left_out_bytes: 7,
            scan_id: 8,
            stream_id: 0x55,
            interfaces: vec![Interface::default()],
            records: vec![FlowRecord {
                src: Some(Endpoint {
                    delta_packets: u64::MAX,
                    ..Endpoint::default()
                }),
                dst: Some(Endpoint {
                    delta_packets: 3,
                    ..Endpoint::default()
                }),
                ..FlowRecord::default()
            }],
            account: Some(Account::default()),
            ..FlowBatch::default()
        }
    }

    fn read(raw: Vec<u8>) -> Result<Incoming> {
        read_from(raw, "send")
    }

    #[test]
    fn consumers_share_all_but_what_each_has_of_its_own() {
        let incoming = read(batch().encode_to_vec()).unwrap();
        let shared = FlowBatch::decode(incoming.shared()).unwrap();
        let expected = FlowBatch {
            stream_seq: 0,
            lost_batches: 0,
            lost_records: 0,
            lost_packets: 0,
            lost_bytes: 0,
            left_out_records: 0,
            left_out_packets: 0,
            left_out_bytes: 0,
            agent: Some(AgentIdentity {
                identity: "uid:7".to_owned(),
                ..AgentIdentity::default()
            }),
            ..batch()
        };
        assert_eq!(shared, expected);
    }

    fn read_from(raw: Vec<u8>, roles: &str) -> Result<Incoming> {
        let caller = Grant {
            identity: Identity::User(7),
            roles: Roles::read(roles).unwrap(),
        };
        Incoming::read(&raw.into(), &caller)
    }

    #[test]
    fn only_who_brings_batches_of_another_collector_may_say_whose_they_are() {
        let mut batch = batch();
        batch.agent.as_mut().unwrap().identity = "web01".to_owned();
        let raw = batch.encode_to_vec();
        assert!(read_from(raw.clone(), "send,observe,status").is_err());
        let incoming = read_from(raw, "relay").unwrap();
        assert_eq!(incoming.sender, Identity::named("web01").unwrap());
        assert_eq!(FlowBatch::decode(incoming.raw).unwrap(), batch);
        batch.agent.as_mut().unwrap().identity = "who:1".to_owned();
        assert!(read_from(batch.encode_to_vec(), "relay").is_err());
    }

    #[test]
    fn a_batch_has_the_identity_of_its_sender_and_keeps_what_a_later_agent_says_of_itself() {
        let unknown = [0x7a, 1, b'x'];
        let agent = [&[10, 4][..], b"here", &unknown].concat();
        let parts = [
            &[10, agent.len() as u8][..],
            &agent,
            &batch().encode_to_vec(),
        ]
        .concat();
        let incoming = read(parts).unwrap();
        assert_eq!(incoming.agent().agent_id, "here");
        assert_eq!(incoming.agent().identity, "uid:7");
        let has = |part: &[u8]| incoming.raw.windows(part.len()).any(|one| one == part);
        assert!(has(&unknown));
        let decoded = FlowBatch::decode(incoming.raw.clone()).unwrap();
        assert_eq!(decoded, incoming.batch);
    }

    #[test]
    fn a_batch_that_no_other_collector_could_take_is_refused() {
        // A field that a later agent may send.
        let padded = |bytes: usize| {
            let mut raw = batch().encode_to_vec();
            let room = bytes - raw.len();
            let padding = vec![0; room - 6];
            encode_key(99, WireType::LengthDelimited, &mut raw);
            encode_varint(padding.len() as u64, &mut raw);
            raw.extend(padding);
            raw
        };
        let half = padded(MAX_BATCH_BYTES / 2);
        let added = read(half.clone()).unwrap().raw.len() - half.len();
        let largest = MAX_BATCH_BYTES - added;
        assert_eq!(read(padded(largest)).unwrap().raw.len(), MAX_BATCH_BYTES);
        assert!(read(padded(largest + 1)).is_err());
    }

    #[test]
    fn no_number_is_too_large_to_be_added_up() {
        let incoming = read(batch().encode_to_vec()).unwrap();
        let Volume {
            batches, packets, ..
        } = incoming.volume();
        assert_eq!((batches, packets), (1, 2));
        let sum = RecordSum {
            records: 2,
            packets: 3,
            bytes: 4,
        };
        assert_eq!(incoming.lost(), (1, sum));
    }

    #[test]
    fn what_is_of_no_stream_or_repeats_what_was_sent_is_refused() {
        let is_taken = |batch: FlowBatch| read(batch.encode_to_vec()).is_ok();
        assert!(is_taken(batch()));
        for (stream_id, stream_seq, snapshot) in [(0, 9, false), (7, 0, false), (7, 9, true)] {
            assert!(!is_taken(FlowBatch {
                stream_id,
                stream_seq,
                snapshot,
                ..batch()
            }));
        }
    }

    #[test]
    fn batches_with_one_number_have_digests_of_their_own() {
        let digests = RandomState::new();
        let digest = |batch: FlowBatch| {
            let incoming = read(batch.encode_to_vec());
            incoming.unwrap().digest(&digests)
        };
        assert_eq!(digest(batch()), digest(batch()));
        let other = FlowBatch {
            scan_id: 99,
            ..batch()
        };
        assert_ne!(digest(batch()), digest(other));
    }

    #[test]
    fn what_is_no_batch_or_would_take_much_memory_is_refused() {
        let many = |records, interfaces| FlowBatch {
            records: vec![FlowRecord::default(); records],
            interfaces: vec![Interface::default(); interfaces],
            ..batch()
        };
        let named = |name: &str, netns_name_bytes| FlowBatch {
            interfaces: vec![Interface {
                name: name.to_owned(),
                netns_name: "y".repeat(netns_name_bytes),
                ..Interface::default()
            }],
            ..batch()
        };
        let counted = |reasons, bytes| {
            let named = (0..reasons).map(|reason| format!("{reason:0bytes$}"));
            FlowBatch {
                account: Some(Account {
                    beside: named.map(|name| (name, Count::default())).collect(),
                    ..Account::default()
                }),
                ..batch()
            }
        };
        let in_cgroup = |path_bytes, unit_bytes| FlowBatch {
            cgroups: vec![Cgroup {
                path: "p".repeat(path_bytes),
                unit: "u".repeat(unit_bytes),
                ..Cgroup::default()
            }],
            ..batch()
        };
        let of_process = |name_bytes| FlowBatch {
            processes: vec![Process {
                name: "n".repeat(name_bytes),
                ..Process::default()
            }],
            ..batch()
        };
        for (raw, is_taken) in [
            (in_cgroup(1024, 256).encode_to_vec(), true),
            (in_cgroup(1025, 1).encode_to_vec(), false),
            (in_cgroup(1, 257).encode_to_vec(), false),
            (of_process(45).encode_to_vec(), true),
            (of_process(46).encode_to_vec(), false),
            (many(MOST_RECORDS, 1).encode_to_vec(), true),
            (many(MOST_RECORDS + 1, 1).encode_to_vec(), false),
            (many(1, MOST_OTHER_FIELDS).encode_to_vec(), false),
            (named("x", 4096).encode_to_vec(), true),
            (named(&"x".repeat(300), 1).encode_to_vec(), false),
            (named("x", 4097).encode_to_vec(), false),
            (counted(64, 64).encode_to_vec(), true),
            (counted(65, 2).encode_to_vec(), false),
            (counted(1, 65).encode_to_vec(), false),
            (vec![0xff; 100], false),
            (vec![15 << 3 | 2, 200], false),
            (Vec::new(), false),
        ] {
            assert_eq!(read(raw).is_ok(), is_taken);
        }
    }

    #[test]
    fn names_count_as_a_part_of_a_row_each() {
        let rows = |interfaces| {
            let batch = FlowBatch {
                records: vec![FlowRecord::default(); 5],
                interfaces: vec![Interface::default(); interfaces],
                ..batch()
            };
            read(batch.encode_to_vec()).unwrap().rows()
        };
        assert_eq!(rows(80_000) - rows(0), 10_000);
        assert!((5..10).contains(&rows(0)));
    }
}
