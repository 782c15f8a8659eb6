//! Writes batches as JSON Lines: one line for each flow, account and loss.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Write},
    net::IpAddr,
};

use base64::{Engine as _, display::Base64Display, engine::general_purpose::STANDARD};
use proto::{
    Account, AgentIdentity, Count, FlowBatch, FlowRecord,
    columns::{COLUMNS, Row, Visitor, visit},
    known_interfaces::KnownInterfaces,
};
use serde::{Serialize, Serializer};

use self::dns::DnsLine;
use super::{
    LostSoFar, harmless, human,
    time::{UtcTime, UtcTimes},
};

mod dns;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod tests;

/// Writes whole batches, and flushes after each.
pub struct JsonWriter<W: Write> {
    out: W,
    lines: JsonLines,
    lost: LostSoFar,
}

impl<W: Write> JsonWriter<W> {
    pub fn new(out: W) -> Self {
        Self {
            out,
            lines: JsonLines::default(),
            lost: LostSoFar::default(),
        }
    }

    pub fn batch(&mut self, batch: &FlowBatch) -> io::Result<()> {
        let Self { out, lines, lost } = self;
        lines.begin(out, batch, lost)?;
        lines.flows(out, batch, &batch.records)?;
        lines.exchanges(out, batch)?;
        lines.end(out, batch)?;
        out.flush()
    }
}

/// Makes the lines of a batch. Call `begin`, then write its flows, then `end`.
#[derive(Default)]
pub struct JsonLines {
    line: Vec<u8>,
    /// What all flows of a batch begin with.
    head: Vec<u8>,
    times: UtcTimes,
    interfaces: KnownInterfaces,
}

impl JsonLines {
    /// The line for losses before the batch.
    pub fn begin(
        &mut self,
        out: &mut impl Write,
        batch: &FlowBatch,
        lost: &mut LostSoFar,
    ) -> io::Result<()> {
        self.interfaces.note_all(batch);
        if let Some((batches, records)) = lost.growth(batch) {
            let line = LostLine {
                r#type: "lost",
                origin: Origin::of(batch),
                stream_seq: batch.stream_seq,
                batches,
                records,
                lost_batches: batch.lost_batches,
                lost_records: batch.lost_records,
                lost_packets: batch.lost_packets,
                lost_bytes: batch.lost_bytes,
            };
            write_line(out, &mut self.line, &line)?;
        }
        Ok(())
    }

    pub fn flows(
        &mut self,
        out: &mut impl Write,
        batch: &FlowBatch,
        flows: &[FlowRecord],
    ) -> io::Result<()> {
        self.set_head(batch)?;
        for record in flows {
            self.flow(out, batch, record, None)?;
        }
        Ok(())
    }

    /// The flows of a whole batch with their numbers in it, so that a reader can recognize a line that was sent twice.
    pub fn numbered_flows(&mut self, out: &mut impl Write, batch: &FlowBatch) -> io::Result<()> {
        self.set_head(batch)?;
        for (record, number) in batch.records.iter().zip(0..) {
            self.flow(out, batch, record, Some(number))?;
        }
        Ok(())
    }

    fn set_head(&mut self, batch: &FlowBatch) -> io::Result<()> {
        self.head.clear();
        serde_json::to_writer(&mut self.head, &FlowHead::new(batch))?;
        // The object goes on.
        self.head.pop();
        Ok(())
    }

    fn flow(
        &mut self,
        out: &mut impl Write,
        batch: &FlowBatch,
        record: &FlowRecord,
        number: Option<u32>,
    ) -> io::Result<()> {
        let row = Row::new(batch, record, self.interfaces.of(record));
        let Self {
            line, head, times, ..
        } = self;
        line.clear();
        line.extend_from_slice(head);
        if let Some(number) = number {
            line.extend_from_slice(b",\"record\":");
            serde_json::to_writer(&mut *line, &number)?;
        }
        visit(&row, &mut Members { out: line, times });
        line.push(b'}');
        end_line(out, line)
    }

    /// The DNS exchanges.
    pub fn exchanges(&mut self, out: &mut impl Write, batch: &FlowBatch) -> io::Result<()> {
        for (exchange, number) in batch.dns_exchanges.iter().zip(0..) {
            let interface = self.interfaces.of(&exchange.flow());
            let line = DnsLine::new(batch, exchange, number, interface);
            write_line(out, &mut self.line, &line)?;
        }
        Ok(())
    }

    /// The account, if the batch has one.
    pub fn end(&mut self, out: &mut impl Write, batch: &FlowBatch) -> io::Result<()> {
        let Some(account) = &batch.account else {
            return Ok(());
        };
        write_line(out, &mut self.line, &AccountLine::new(batch, account))
    }
}

/// The only ASCII control character that JSON does not escape.
const DELETE: u8 = 0x7f;

fn write_line(out: &mut impl Write, buffer: &mut Vec<u8>, line: &impl Serialize) -> io::Result<()> {
    buffer.clear();
    serde_json::to_writer(&mut *buffer, line)?;
    end_line(out, buffer)
}

fn end_line(out: &mut impl Write, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.push(b'\n');
    if buffer.is_ascii() && !buffer.contains(&DELETE) {
        return out.write_all(buffer);
    }
    // The output may go to a terminal.
    let line = String::from_utf8_lossy(buffer);
    out.write_all(harmless::json(&line).as_bytes())
}

/// The agent that a batch comes from.
#[derive(Clone, Copy, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Origin<'a> {
    agent_id: &'a str,
    hostname: &'a str,
    /// Only in a collector's storage.
    #[serde(flatten)]
    sender: Option<Sender<'a>>,
}

/// The stream that brought a batch to a collector, and that numbers its batches.
#[derive(Clone, Copy, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Sender<'a> {
    /// The name that the sender's credential stands for.
    #[serde(skip_serializing_if = "str::is_empty")]
    identity: &'a str,
    boot_id: &'a str,
    instance_id: &'a str,
    stream_id: StreamId,
}

impl<'a> Origin<'a> {
    fn of(batch: &'a FlowBatch) -> Option<Self> {
        let AgentIdentity {
            agent_id,
            hostname,
            boot_id,
            instance_id,
            identity,
            ..
        } = batch.agent.as_ref()?;
        let sender = (batch.stream_id != 0).then_some(Sender {
            identity,
            boot_id,
            instance_id,
            stream_id: StreamId(batch.stream_id),
        });
        Some(Self {
            agent_id,
            hostname,
            sender,
        })
    }
}

/// 16 hexadecimal digits, since many JSON readers keep only 53 bits of a number.
#[derive(Clone, Copy)]
pub(crate) struct StreamId(pub u64);

impl Serialize for StreamId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// The part of a flow's line that is not about the flow.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FlowHead<'a> {
    #[cfg_attr(test, schemars(extend("const" = "flow")))]
    r#type: &'static str,
    #[serde(flatten)]
    origin: Option<Origin<'a>>,
    scan_id: u64,
    batch: u32,
    stream_seq: u64,
    /// Only if true.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    snapshot: bool,
    sample_rate: u32,
}

impl<'a> FlowHead<'a> {
    fn new(batch: &'a FlowBatch) -> Self {
        Self {
            r#type: "flow",
            origin: Origin::of(batch),
            scan_id: batch.scan_id,
            batch: batch.batch_index,
            stream_seq: batch.stream_seq,
            snapshot: batch.snapshot,
            sample_rate: batch.sample_rate,
        }
    }
}

/// Appends the facts about a flow as members of an object.
struct Members<'o> {
    out: &'o mut Vec<u8>,
    times: &'o mut UtcTimes,
}

impl Members<'_> {
    fn key<const C: usize>(&mut self) {
        self.out.extend_from_slice(COLUMNS[C].json_key.as_bytes());
    }

    fn member<const C: usize>(&mut self, value: &(impl Serialize + ?Sized)) {
        self.key::<C>();
        serde_json::to_writer(&mut *self.out, value).expect("a vector grows");
    }

    /// A string that has nothing to escape.
    fn plain<const C: usize>(&mut self, write: impl FnOnce(&mut Self)) {
        self.key::<C>();
        self.out.push(b'"');
        write(self);
        self.out.push(b'"');
    }

    fn absent<const C: usize>(&mut self) {
        if !COLUMNS[C].is_left_out {
            self.key::<C>();
            self.out.extend_from_slice(b"null");
        }
    }

    /// Most members are `null` without a value.
    fn optional<const C: usize>(&mut self, value: Option<&(impl Serialize + ?Sized)>) {
        match value {
            Some(value) => self.member::<C>(value),
            None => self.absent::<C>(),
        }
    }
}

impl<'a> Visitor<'a> for Members<'_> {
    fn number<const C: usize>(&mut self, value: Option<u32>) {
        self.optional::<C>(value.as_ref());
    }

    fn counter<const C: usize>(&mut self, value: u64) {
        if value != 0 || !COLUMNS[C].is_left_out {
            self.member::<C>(&value);
        }
    }

    fn id<const C: usize>(&mut self, value: Option<u64>) {
        self.optional::<C>(value.as_ref());
    }

    fn flag<const C: usize>(&mut self, value: bool) {
        if value || !COLUMNS[C].is_left_out {
            self.member::<C>(&value);
        }
    }

    fn time<const C: usize>(&mut self, unix_ns: u64) {
        self.plain::<C>(|members| members.times.write(unix_ns, members.out));
    }

    fn address<const C: usize>(&mut self, bytes: &'a [u8]) {
        match human::address(bytes) {
            None => self.absent::<C>(),
            Some(address) => self.plain::<C>(|members| write_address(address, members.out)),
        }
    }

    fn digest<const C: usize>(&mut self, bytes: &'a [u8]) {
        if bytes.is_empty() {
            return self.absent::<C>();
        }
        self.plain::<C>(|Self { out, .. }| {
            out.extend_from_slice(b"1:");
            let at = out.len();
            out.resize(
                at + base64::encoded_len(bytes.len(), true).expect("a digest is short"),
                0,
            );
            STANDARD
                .encode_slice(bytes, &mut out[at..])
                .expect("it has this length");
        });
    }

    fn numbers<const C: usize>(&mut self, values: &'a [u32]) {
        self.member::<C>(values);
    }

    fn text<const C: usize>(&mut self, value: Option<&'a str>) {
        self.optional::<C>(value);
    }
}

fn write_address(address: IpAddr, out: &mut Vec<u8>) {
    let IpAddr::V4(address) = address else {
        return write!(out, "{address}").expect("a vector grows");
    };
    for (place, octet) in address.octets().into_iter().enumerate() {
        if place != 0 {
            out.push(b'.');
        }
        serde_json::to_writer(&mut *out, &octet).expect("a vector grows");
    }
}

/// `1:` and base64; `None` if the agent sent none.
pub fn community_id(digest: &[u8]) -> Option<impl fmt::Display> {
    let text = fmt::from_fn(move |formatter| {
        write!(formatter, "1:{}", Base64Display::new(digest, &STANDARD))
    });
    (!digest.is_empty()).then_some(text)
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Sampling {
    sample_rate: u32,
    sample_rate_asked: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct AccountLine<'a> {
    #[cfg_attr(test, schemars(extend("const" = "account")))]
    r#type: &'static str,
    #[serde(flatten)]
    origin: Option<Origin<'a>>,
    scan_id: u64,
    stream_seq: u64,
    r#final: bool,
    #[cfg_attr(test, schemars(with = "schema::Counted"))]
    seen: Count,
    #[cfg_attr(test, schemars(with = "schema::Counted"))]
    flows: Count,
    #[cfg_attr(test, schemars(with = "schema::Counted"))]
    filtered: Count,
    #[cfg_attr(test, schemars(with = "schema::Counted"))]
    sampled_out: Count,
    #[serde(flatten)]
    sampling: Sampling,
    #[cfg_attr(test, schemars(with = "schema::ByReason"))]
    unparsed: &'a BTreeMap<String, Count>,
    #[cfg_attr(test, schemars(with = "schema::ByReason"))]
    not_inserted: &'a BTreeMap<String, Count>,
    #[cfg_attr(test, schemars(with = "schema::ByReason"))]
    beside: &'a BTreeMap<String, Count>,
    window_start: UtcTime,
    window_end: UtcTime,
    report_interval_ns: u64,
    report_interval_asked: bool,
    refused_in_window: bool,
    table_occupancy: Option<u64>,
    table_capacity: u64,
    tracked_flows: Option<u64>,
    lost_batches: u64,
    lost_records: u64,
    lost_packets: u64,
    lost_bytes: u64,
    left_out_records: u64,
    left_out_packets: u64,
    left_out_bytes: u64,
}

impl<'a> AccountLine<'a> {
    fn new(batch: &'a FlowBatch, account: &'a Account) -> Self {
        Self {
            r#type: "account",
            origin: Origin::of(batch),
            scan_id: batch.scan_id,
            stream_seq: batch.stream_seq,
            r#final: account.r#final,
            seen: account.seen.unwrap_or_default(),
            flows: account.flows.unwrap_or_default(),
            filtered: account.filtered.unwrap_or_default(),
            sampled_out: account.sampled_out.unwrap_or_default(),
            sampling: Sampling {
                sample_rate: account.sample_rate,
                sample_rate_asked: batch.sample_rate_asked,
            },
            unparsed: &account.unparsed,
            not_inserted: &account.not_inserted,
            beside: &account.beside,
            window_start: UtcTime::new(batch.window_start_unix_ns),
            window_end: UtcTime::new(batch.window_end_unix_ns),
            report_interval_ns: batch.report_interval_ns,
            report_interval_asked: batch.report_interval_asked,
            refused_in_window: batch.refused_in_window,
            table_occupancy: batch.table_occupancy,
            table_capacity: batch.table_capacity,
            tracked_flows: batch.tracked_flows,
            lost_batches: batch.lost_batches,
            lost_records: batch.lost_records,
            lost_packets: batch.lost_packets,
            lost_bytes: batch.lost_bytes,
            left_out_records: batch.left_out_records,
            left_out_packets: batch.left_out_packets,
            left_out_bytes: batch.left_out_bytes,
        }
    }
}

/// This consumer's losses just before the next batch, and in total.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LostLine<'a> {
    #[cfg_attr(test, schemars(extend("const" = "lost")))]
    r#type: &'static str,
    #[serde(flatten)]
    origin: Option<Origin<'a>>,
    stream_seq: u64,
    batches: u64,
    records: u64,
    lost_batches: u64,
    lost_records: u64,
    lost_packets: u64,
    lost_bytes: u64,
}
