//! Reads a complete file, one row group at a time.

use std::{collections::HashMap, fs::File, net::IpAddr, path::PathBuf};

use agent_common::Direction;
use anyhow::{Context as _, Result, anyhow, ensure};
use parquet::{
    data_type::{ByteArray, Int32Type},
    file::{
        metadata::RowGroupMetaData,
        reader::{FileReader as _, SerializedFileReader},
        statistics::Statistics,
    },
};
use proto::limits::MAX_DELTA_BYTES;
use rules::Facts;
use serde_json::Value;

use super::{
    By, Missing, Query, StreamLosses, Sum,
    batch::of_an_agent,
    columns::Columns,
    once::{Stream, number},
    row::Row,
};

pub(super) struct Complete {
    file: SerializedFileReader<File>,
    path: PathBuf,
    place: usize,
    /// Column indices by name.
    places: HashMap<String, usize>,
}

impl Complete {
    pub(super) fn open(file: File, path: PathBuf, place: usize) -> Result<Self> {
        let file = SerializedFileReader::new(file)?;
        let schema = file.metadata().file_metadata().schema_descr();
        let names = schema.columns().iter().zip(0..);
        let places = names
            .map(|(column, place)| (column.path().string(), place))
            .collect();
        Ok(Self {
            file,
            path,
            place,
            places,
        })
    }

    /// A JSON value from the file's metadata.
    fn fact(&self, name: &str) -> Option<Value> {
        let facts = self.file.metadata().file_metadata().key_value_metadata()?;
        let fact = facts
            .iter()
            .find(|fact| fact.key.strip_prefix("flow_agent.") == Some(name))?;
        serde_json::from_str(fact.value.as_ref()?).ok()
    }

    /// The first and the last time of a column in this row group, if it has statistics.
    fn ends(&self, group: &RowGroupMetaData, name: &str) -> Option<(i64, i64)> {
        let &place = self.places.get(name)?;
        let Some(Statistics::Int64(times)) = group.column(place).statistics() else {
            return None;
        };
        times.min_opt().copied().zip(times.max_opt().copied())
    }

    fn note_told(&self, own: Stream, sum: &mut Sum<'_>) {
        let number = |missing: &Value, name: &str| missing[name].as_u64().unwrap_or_default();
        let read = |missing: &Value| Missing {
            records: number(missing, "records"),
            packets: number(missing, "packets"),
            bytes: number(missing, "bytes"),
        };
        let of = |name| self.fact(name).as_ref().map(read).unwrap_or_default();
        sum.note_told(
            own,
            StreamLosses {
                lost: of("lost"),
                left_out: of("left_out"),
            },
        );
        for stream in self
            .fact("streams")
            .iter()
            .filter_map(Value::as_array)
            .flatten()
        {
            let id = stream["stream_id"].as_str().and_then(stream_id);
            if let Some(id) = id {
                let identity = stream["identity"].as_str().unwrap_or_default();
                let id = of_an_agent([identity, ""], id);
                let told = StreamLosses {
                    lost: read(&stream["lost"]),
                    ..StreamLosses::default()
                };
                sum.note_told((self.place, id), told);
            }
        }
    }

    pub(super) fn add(self, query: &Query, sum: &mut Sum<'_>) -> Result<()> {
        let agent = self.fact("agent").unwrap_or_default();
        let text = |name: &str| agent[name].as_str().unwrap_or_default().to_owned();
        let hostname = text("hostname");
        let instance_id = text("instance_id");
        // A file without rows still reports losses.
        let mut is_counted = self.file.num_row_groups() == 0;
        for number in 0..self.file.num_row_groups() {
            let group = self.file.get_row_group(number)?;
            // A row group without statistics is read.
            if let Some((first, last)) = self.ends(group.metadata(), "window_end")
                && !query.may_have(first, last)
            {
                let starts = self.ends(group.metadata(), "window_start");
                sum.note_windows(&(starts.map_or(first, |(start, _)| start)..last));
                continue;
            }
            let group = Columns {
                group: &*group,
                places: &self.places,
            };
            let rows = Rows::read(&group, query)?;
            is_counted |= !rows.window_end.is_empty();
            let windows = rows.window_start.iter().zip(&rows.window_end);
            windows.for_each(|(&start, &end)| sum.note_windows(&(start..end)));
            rows.add(self.place, &instance_id, &hostname, query, sum)?;
        }
        if is_counted {
            self.note_told((self.place, of_an_agent(["", &instance_id], 0)), sum);
            let dropped = self.fact("dropped_bytes").and_then(|bytes| bytes.as_u64());
            sum.answer
                .damaged
                .extend(dropped.map(|bytes| (self.path, bytes)));
        }
        Ok(())
    }
}

/// Sixteen hexadecimal digits.
fn stream_id(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}
/// The columns of one row group that a query needs.
struct Rows {
    window_start: Vec<i64>,
    window_end: Vec<i64>,
    scan_id: Vec<u64>,
    stream_seq: Vec<u64>,
    /// Only in files that a collector stored.
    of_streams: Option<OfStreams>,
    interface: Vec<Option<ByteArray>>,
    netns_name: Vec<Option<ByteArray>>,
    /// If the query asks for them and the file has them.
    units: [Option<Vec<Option<ByteArray>>>; 2],
    processes: [Option<Vec<Option<ByteArray>>>; 2],
    names: [Option<Vec<Option<ByteArray>>>; 2],
    directions: [Vec<Option<ByteArray>>; 2],
    protocol: Vec<i32>,
    addresses: [Vec<Option<ByteArray>>; 2],
    ports: [Vec<Option<i32>>; 2],
    packets: [Vec<u64>; 2],
    bytes: [Vec<u64>; 2],
    totals: [Vec<u64>; 2],
    end_reason: Vec<Option<ByteArray>>,
    sample_rate: Vec<i32>,
}

struct OfStreams {
    /// Missing in files of an earlier collector.
    identity: Option<Vec<Option<ByteArray>>>,
    instance_id: Vec<Option<ByteArray>>,
    hostname: Vec<Option<ByteArray>>,
    stream_id: Vec<Option<ByteArray>>,
    /// The record's number in its batch.
    number: Vec<i32>,
}

impl Rows {
    fn read(columns: &Columns<'_>, query: &Query) -> Result<Self> {
        let names = |by, name| {
            let is_there = query.needs(by) && columns.places.contains_key(name);
            is_there.then(|| columns.texts(name)).transpose()
        };
        let of_streams = if columns.places.contains_key("stream_id") {
            let has_identity = columns.places.contains_key("identity");
            let identity = has_identity.then(|| columns.texts("identity"));
            Some(OfStreams {
                identity: identity.transpose()?,
                instance_id: columns.texts("instance_id")?,
                hostname: columns.texts("hostname")?,
                stream_id: columns.texts("stream_id")?,
                number: columns.required::<Int32Type>("record")?,
            })
        } else {
            None
        };
        Ok(Self {
            window_start: columns.times("window_start")?,
            window_end: columns.times("window_end")?,
            scan_id: columns.counters("scan_id")?,
            stream_seq: columns.counters("stream_seq")?,
            of_streams,
            interface: columns.texts("interface")?,
            netns_name: columns.texts("netns_name")?,
            units: [names(By::Unit, "src_unit")?, names(By::Unit, "dst_unit")?],
            processes: [
                names(By::Process, "src_process")?,
                names(By::Process, "dst_process")?,
            ],
            names: [names(By::Name, "src_host")?, names(By::Name, "dst_host")?],
            directions: [
                columns.texts("direction")?,
                columns.texts("reverse_direction")?,
            ],
            protocol: columns.required::<Int32Type>("protocol")?,
            addresses: [columns.texts("src_addr")?, columns.texts("dst_addr")?],
            ports: [
                columns.optional::<Int32Type>("src_port")?,
                columns.optional::<Int32Type>("dst_port")?,
            ],
            packets: [
                columns.counters("packets")?,
                columns.counters("reverse_packets")?,
            ],
            bytes: [
                columns.counters("bytes")?,
                columns.counters("reverse_bytes")?,
            ],
            totals: [
                columns.counters("total_packets")?,
                columns.counters("total_reverse_packets")?,
            ],
            end_reason: columns.texts("end_reason")?,
            sample_rate: columns.required::<Int32Type>("sample_rate")?,
        })
    }

    /// Adds the rows. `instance_id` and `hostname` apply to rows without their own. A rewritten file may have rows in
    /// any order, so rows with stream columns are identified by their own numbers. An agent's own file has each record
    /// once, and repeats only what was read from the unfinished file.
    fn add(
        &self,
        place: usize,
        instance_id: &str,
        hostname: &str,
        query: &Query,
        sum: &mut Sum<'_>,
    ) -> Result<()> {
        for row in 0..self.window_end.len() {
            let seq = self.stream_seq[row];
            let (is_new, hostname) = if let Some(of) = &self.of_streams {
                let id = stream_id(text(of.stream_id[row].as_ref())?);
                let id = id.context("it has a row without a stream_id")?;
                let number = number(seq, of.number[row].cast_unsigned());
                let identity = of.identity.as_ref().and_then(|all| all[row].as_ref());
                let names = [text(identity)?, text(of.instance_id[row].as_ref())?];
                let stream = of_an_agent(names, id);
                let is_new = sum.once.is_new((place, stream), number);
                (is_new, text(of.hostname[row].as_ref())?)
            } else {
                let stream = (place, of_an_agent(["", instance_id], self.scan_id[row]));
                (!sum.once.has(stream, seq.into()), hostname)
            };
            if is_new {
                // A file of an earlier collector may have records that no agent would have sent.
                match self.row(row, hostname) {
                    Ok(row) => sum.row(query, &row)?,
                    Err(_) => sum.answer.unsound_records += 1,
                }
            } else {
                sum.answer.repeated_records += 1;
            }
        }
        Ok(())
    }

    fn row<'a>(&'a self, row: usize, hostname: &'a str) -> Result<Row<'a>> {
        let both = |columns: &[Vec<u64>; 2]| [columns[0][row], columns[1][row]];
        let address = |column: &[Option<ByteArray>]| -> Result<IpAddr> {
            let address = text(column[row].as_ref())?;
            if address.is_empty() {
                // Like a record without an address, which no agent sends.
                return Ok(IpAddr::from([0; 16]));
            }
            address
                .parse()
                .map_err(|_| anyhow!("it has {address:?} where an address should be"))
        };
        let direction = |column: &[Option<ByteArray>]| -> Result<Option<Direction>> {
            Ok(match text(column[row].as_ref())? {
                "ingress" => Some(Direction::Ingress),
                "egress" => Some(Direction::Egress),
                _ => None,
            })
        };
        let [forward, reverse] = &self.directions;
        let forward = direction(forward)?.unwrap_or(Direction::Ingress);
        let reverse = direction(reverse)?.unwrap_or(forward.opposite());
        let totals = both(&self.totals);
        let (packets, bytes) = (both(&self.packets), both(&self.bytes));
        let mut deltas = packets.into_iter().chain(bytes);
        ensure!(
            deltas.all(|delta| delta <= MAX_DELTA_BYTES),
            "no flow has so much in one record"
        );
        let port = |value: Option<i32>| value.map(u16::try_from).transpose();
        let name = |column: &'a Option<Vec<Option<ByteArray>>>| {
            let column = column.as_ref();
            text(column.and_then(|column| column[row].as_ref()))
        };
        let [source_unit, destination_unit] = &self.units;
        let [source_process, destination_process] = &self.processes;
        let [source_name, destination_name] = &self.names;
        let [source, destination] = &self.addresses;
        let [from, to] = &self.ports;
        Ok(Row {
            window_us: self.window_start[row]..self.window_end[row],
            hostname,
            interface: text(self.interface[row].as_ref())?,
            netns_name: text(self.netns_name[row].as_ref())?,
            units: [name(source_unit)?, name(destination_unit)?],
            processes: [name(source_process)?, name(destination_process)?],
            names: [name(source_name)?, name(destination_name)?],
            facts: Facts {
                protocol: u8::try_from(self.protocol[row])?,
                addresses: [address(source)?, address(destination)?],
                ports: port(from[row])?
                    .zip(port(to[row])?)
                    .map(|(from, to)| [from, to]),
                sent: [
                    (totals[0] != 0).then_some(forward),
                    (totals[1] != 0).then_some(reverse),
                ],
            },
            packets,
            bytes,
            begins: packets == totals,
            ends: self.end_reason[row].is_some(),
            sample_rate: self.sample_rate[row].cast_unsigned(),
        })
    }
}

/// An empty text if there is none.
fn text(value: Option<&ByteArray>) -> Result<&str> {
    match value {
        Some(text) => Ok(text.as_utf8()?),
        None => Ok(""),
    }
}
