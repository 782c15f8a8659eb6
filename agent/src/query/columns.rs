//! Reads a complete file: those columns that a query needs, one row group after the other.

use std::{collections::HashMap, fs::File, net::IpAddr};

use agent_common::Direction;
use anyhow::{Context as _, Result, anyhow, ensure};
use parquet::{
    column::reader::get_typed_column_reader,
    data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type},
    file::{
        metadata::RowGroupMetaData,
        reader::{FileReader as _, RowGroupReader, SerializedFileReader},
        statistics::Statistics,
    },
};
use serde_json::Value;

use super::{Lost, Question, Source, Sum, pieces::of_an_instance, row::Row};
use crate::filter::Facts;

pub(super) struct Complete {
    file: SerializedFileReader<File>,
    place: usize,
    /// The places of columns by their names.
    places: HashMap<String, usize>,
}

impl Complete {
    pub(super) fn open(file: File, place: usize) -> Result<Self> {
        let file = SerializedFileReader::new(file)?;
        let schema = file.metadata().file_metadata().schema_descr();
        let names = schema.columns().iter().zip(0..);
        let places = names
            .map(|(column, place)| (column.path().string(), place))
            .collect();
        Ok(Self {
            file,
            place,
            places,
        })
    }

    /// A text of the file's metadata, as JSON.
    fn fact(&self, name: &str) -> Option<Value> {
        let facts = self.file.metadata().file_metadata().key_value_metadata()?;
        let fact = facts
            .iter()
            .find(|fact| fact.key.strip_prefix("flow_agent.") == Some(name))?;
        serde_json::from_str(fact.value.as_ref()?).ok()
    }

    /// Whether a row may be in the time. A group without its least and greatest value is read.
    fn may_have(&self, group: &RowGroupMetaData, question: &Question) -> bool {
        let Some(&place) = self.places.get("window_end") else {
            return true;
        };
        let Some(Statistics::Int64(ends)) = group.column(place).statistics() else {
            return true;
        };
        ends.max_opt()
            .is_none_or(|&last| question.time_us.start < last)
            && ends
                .min_opt()
                .is_none_or(|&first| first <= question.time_us.end)
    }

    fn note_lost(&self, own: (usize, u64), sum: &mut Sum<'_>) {
        let number = |lost: &Value, name: &str| lost[name].as_u64().unwrap_or_default();
        let read = |lost: &Value| Lost {
            records: number(lost, "records"),
            packets: number(lost, "packets"),
            bytes: number(lost, "bytes"),
        };
        if let Some(lost) = self.fact("lost") {
            sum.note_lost(own, read(&lost));
        }
        for stream in self
            .fact("streams")
            .iter()
            .filter_map(Value::as_array)
            .flatten()
        {
            let id = stream["stream_id"].as_str().and_then(stream_id);
            if let Some(id) = id {
                sum.note_lost((self.place, id), read(&stream["lost"]));
            }
        }
    }
}

impl Source for Complete {
    fn add(self, question: &Question, sum: &mut Sum<'_>) -> Result<()> {
        let agent = self.fact("agent").unwrap_or_default();
        let text = |name: &str| agent[name].as_str().unwrap_or_default().to_owned();
        let hostname = text("hostname");
        let own = (self.place, of_an_instance(&text("instance_id")));
        let mut is_counted = false;
        for number in 0..self.file.num_row_groups() {
            let group = self.file.get_row_group(number)?;
            if !self.may_have(group.metadata(), question) {
                continue;
            }
            let group = Columns {
                group: &*group,
                places: &self.places,
            };
            let rows = Rows::read(&group)?;
            is_counted |= !rows.window_end.is_empty();
            rows.add(own, &hostname, question, sum)?;
        }
        if is_counted {
            self.note_lost(own, sum);
        }
        Ok(())
    }
}

/// Sixteen hexadecimal digits.
fn stream_id(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// The columns of one row group.
struct Columns<'a> {
    group: &'a dyn RowGroupReader,
    places: &'a HashMap<String, usize>,
}

impl Columns<'_> {
    fn place(&self, name: &str) -> Result<usize> {
        let place = self.places.get(name).copied();
        place.with_context(|| {
            format!("it has no column {name}: these are no flows, or they are of another version")
        })
    }

    /// The values, and for each row whether it has one.
    fn values<T: DataType>(&self, name: &str) -> Result<(Vec<T::T>, Vec<i16>)> {
        let place = self.place(name)?;
        let rows = usize::try_from(self.group.metadata().num_rows())?;
        let column = self.group.metadata().schema_descr().column(place);
        ensure!(
            column.physical_type() == T::get_physical_type() && column.max_rep_level() == 0,
            "its column {name} is of another type: these are no flows"
        );
        let mut reader = get_typed_column_reader::<T>(self.group.get_column_reader(place)?);
        let (mut values, mut levels) = (Vec::with_capacity(rows), Vec::new());
        let may_be_none = column.max_def_level() > 0;
        let mut read = 0;
        while read < rows {
            let levels = may_be_none.then_some(&mut levels);
            let (records, _, _) = reader.read_records(rows - read, levels, None, &mut values)?;
            ensure!(records > 0, "its column {name} has too few rows");
            read += records;
        }
        if !may_be_none {
            levels = vec![1; rows];
        }
        Ok((values, levels))
    }

    /// A value for each row.
    fn optional<T: DataType>(&self, name: &str) -> Result<Vec<Option<T::T>>> {
        let (values, levels) = self.values::<T>(name)?;
        let mut values = values.into_iter();
        let each = levels.into_iter();
        Ok(each
            .map(|level| if level > 0 { values.next() } else { None })
            .collect())
    }

    fn required<T: DataType>(&self, name: &str) -> Result<Vec<T::T>> {
        let (values, levels) = self.values::<T>(name)?;
        ensure!(
            values.len() == levels.len(),
            "its column {name} has rows without a value"
        );
        Ok(values)
    }

    fn counters(&self, name: &str) -> Result<Vec<u64>> {
        let values = self.required::<Int64Type>(name)?;
        Ok(values.into_iter().map(i64::cast_unsigned).collect())
    }

    /// As many as there are rows, without a value if there is no such column.
    fn texts(&self, name: &str) -> Result<Vec<Option<ByteArray>>> {
        self.optional::<ByteArrayType>(name)
    }

    fn ports(&self, name: &str) -> Result<Vec<Option<u16>>> {
        let values = self.optional::<Int32Type>(name)?.into_iter();
        Ok(values.map(|value| value.map(|port| port as u16)).collect())
    }
}

/// What a query needs of one row group.
struct Rows {
    window_start: Vec<i64>,
    window_end: Vec<i64>,
    stream_seq: Vec<u64>,
    /// In what a collector stored.
    of_streams: Option<OfStreams>,
    interface: Vec<Option<ByteArray>>,
    netns_name: Vec<Option<ByteArray>>,
    directions: [Vec<Option<ByteArray>>; 2],
    protocol: Vec<i32>,
    addresses: [Vec<Option<ByteArray>>; 2],
    ports: [Vec<Option<u16>>; 2],
    packets: [Vec<u64>; 2],
    bytes: [Vec<u64>; 2],
    totals: [Vec<u64>; 2],
    end_reason: Vec<Option<ByteArray>>,
}

struct OfStreams {
    hostname: Vec<Option<ByteArray>>,
    stream_id: Vec<Option<ByteArray>>,
    /// Of the record in its batch.
    number: Vec<i32>,
}

impl Rows {
    fn read(columns: &Columns<'_>) -> Result<Self> {
        let of_streams = if columns.places.contains_key("stream_id") {
            Some(OfStreams {
                hostname: columns.texts("hostname")?,
                stream_id: columns.texts("stream_id")?,
                number: columns.required::<Int32Type>("record")?,
            })
        } else {
            None
        };
        Ok(Self {
            window_start: columns.required::<Int64Type>("window_start")?,
            window_end: columns.required::<Int64Type>("window_end")?,
            stream_seq: columns.counters("stream_seq")?,
            of_streams,
            interface: columns.texts("interface")?,
            netns_name: columns.texts("netns_name")?,
            directions: [
                columns.texts("direction")?,
                columns.texts("reverse_direction")?,
            ],
            protocol: columns.required::<Int32Type>("protocol")?,
            addresses: [columns.texts("src_addr")?, columns.texts("dst_addr")?],
            ports: [columns.ports("src_port")?, columns.ports("dst_port")?],
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
        })
    }

    /// `own` is the stream of rows that have none.
    fn add(
        &self,
        own: (usize, u64),
        hostname: &str,
        question: &Question,
        sum: &mut Sum<'_>,
    ) -> Result<()> {
        let mut batch = None;
        let mut is_new = false;
        for row in 0..self.window_end.len() {
            let (stream, number, hostname) = match &self.of_streams {
                Some(of) => {
                    let id = stream_id(text(&of.stream_id[row])?);
                    let id = id.context("it has a row without a stream_id")?;
                    ((own.0, id), Some(of.number[row]), text(&of.hostname[row])?)
                }
                None => (own, None, hostname),
            };
            // The rows of a batch follow each other. If it comes again at once, it begins anew.
            let this = (stream, self.stream_seq[row]);
            if batch != Some(this) || number == Some(0) {
                batch = Some(this);
                is_new = sum.once.is_new(stream, this.1);
            }
            if is_new {
                sum.row(question, &self.row(row, hostname)?)?;
            } else {
                sum.answer.repeated_records += 1;
            }
        }
        Ok(())
    }

    fn row<'a>(&'a self, row: usize, hostname: &'a str) -> Result<Row<'a>> {
        let both = |columns: &[Vec<u64>; 2]| [columns[0][row], columns[1][row]];
        let address = |column: &[Option<ByteArray>]| -> Result<IpAddr> {
            let address = text(&column[row])?;
            if address.is_empty() {
                // As in a record without one, which no agent sends.
                return Ok(IpAddr::from([0; 16]));
            }
            address
                .parse()
                .map_err(|_| anyhow!("it has {address:?} where an address should be"))
        };
        let direction = |column: &[Option<ByteArray>]| -> Result<Option<Direction>> {
            Ok(match text(&column[row])? {
                "ingress" => Some(Direction::Ingress),
                "egress" => Some(Direction::Egress),
                _ => None,
            })
        };
        let [forward, reverse] = &self.directions;
        let forward = direction(forward)?.unwrap_or(Direction::Ingress);
        let reverse = direction(reverse)?.unwrap_or(forward.opposite());
        let totals = both(&self.totals);
        let packets = both(&self.packets);
        let [source, destination] = &self.addresses;
        let [from, to] = &self.ports;
        Ok(Row {
            window_us: self.window_start[row]..self.window_end[row],
            hostname,
            interface: text(&self.interface[row])?,
            netns_name: text(&self.netns_name[row])?,
            facts: Facts {
                protocol: self.protocol[row] as u8,
                addresses: [address(source)?, address(destination)?],
                ports: from[row].zip(to[row]).map(|(from, to)| [from, to]),
                sent: [
                    (totals[0] != 0).then_some(forward),
                    (totals[1] != 0).then_some(reverse),
                ],
            },
            packets,
            bytes: both(&self.bytes),
            begins: packets == totals,
            ends: self.end_reason[row].is_some(),
        })
    }
}

/// An empty one if there is none.
fn text(value: &Option<ByteArray>) -> Result<&str> {
    match value {
        Some(text) => Ok(text.as_utf8()?),
        None => Ok(""),
    }
}
