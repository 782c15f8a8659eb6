//! IPFIX (RFC 7011): flows as biflow records (RFC 5103) or as one record for each direction, with the agent's account
//! and the names of interfaces as options. A file (RFC 5655) has the same messages one after another.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use proto::{AgentIdentity, FlowBatch, FlowRecord, Interface, columns::Row};
use sys::log_limit::LogLimit;

use super::encoder::{Encoder, Message};
use fields::{Length, Specifiers};
use flow::{Flow, Form, Lengths, Shape};
use message::{Header, Writer};
use options::{About, Exporting, Metering};

mod elements;
mod enriched;
mod fields;
mod flow;
mod message;
mod options;
mod template;

#[cfg(test)]
pub(super) mod tests;

pub use elements::REVERSE_ENTERPRISE;
pub use flow::Octets;

/// Fits into one datagram on nearly every path.
const DATAGRAM_LEN_BYTES: usize = 1_400;
/// For connections and files. IPFIX allows 65,535.
const STREAM_LEN_BYTES: usize = 16 << 10;
pub const DEFAULT_TEMPLATE_REFRESH: Duration = Duration::from_mins(1);

/// Enough for a template and the longest records of one flow.
const LEAST_LEN_BYTES: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// One record for both directions. Otherwise one record for each direction with packets.
    pub is_biflow: bool,
    pub octets: Octets,
    /// How often to resend templates. `None` where they cannot get lost.
    pub template_refresh: Option<Duration>,
    /// At most 65,535.
    pub message_len_bytes: usize,
    /// Whether a new connection restarts the sequence. Datagrams from a new socket continue it, since collectors
    /// identify an exporter by its address.
    pub sequence_by_connection: bool,
    /// Whether to send a record without packets for a flow that ended while it was idle.
    pub end_records: bool,
    /// The enterprise number for elements with a flow's annotations. `None` omits them.
    pub enterprise: Option<u32>,
}

impl Settings {
    pub fn datagrams() -> Self {
        Self {
            is_biflow: true,
            octets: Octets::default(),
            template_refresh: Some(DEFAULT_TEMPLATE_REFRESH),
            message_len_bytes: DATAGRAM_LEN_BYTES,
            sequence_by_connection: false,
            end_records: false,
            enterprise: None,
        }
    }

    /// For connections and files.
    pub fn stream() -> Self {
        Self {
            template_refresh: None,
            message_len_bytes: STREAM_LEN_BYTES,
            sequence_by_connection: true,
            ..Self::datagrams()
        }
    }

    fn form(&self) -> Form {
        Form {
            is_biflow: self.is_biflow,
            has_enterprise: self.enterprise.is_some(),
        }
    }
}

/// The observation domains of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domains {
    pub flows: u32,
    /// For records about the process. RFC 7011 suggests domain 0, but that has a single sequence for all agents behind
    /// an address.
    pub process: u32,
}

/// Returns the domains for this agent.
type Claim = Box<dyn FnMut(Option<&AgentIdentity>) -> Domains + Send>;

/// Encodes IPFIX messages. A template goes right before the first record that needs it.
pub struct Ipfix {
    settings: Settings,
    claim: Claim,
    domains: Option<Domains>,
    lengths: Lengths,
    buffer: BytesMut,
    /// The receiver's knowledge.
    receiver: ReceiverState,
    /// Its knowledge after the last message.
    next_receiver: ReceiverState,
    batch: BatchFacts,
    refreshed: Option<Instant>,
    /// Counts records too long for a message with their annotations.
    too_long: LogLimit,
    process_id: u32,
    export_time_s: fn() -> u32,
}

/// Everything announced and sent to the receiver.
#[derive(Clone, Copy, Default)]
struct ReceiverState {
    /// Data records sent on this connection: about flows and interfaces, and about the process.
    sequences: [u32; 2],
    messages: u64,
    flow_records: u64,
    /// Announced templates, one bit per shape: without enterprise elements, and with them.
    templates: [u128; 2],
    /// By [`Kind::bit`](options::Kind::bit).
    options_templates: u8,
    /// How many of the interfaces were announced, in order.
    interfaces: usize,
    /// The announced sampling rate.
    sampling: Option<u32>,
    /// The scan and batch of the last account.
    account: Option<(u64, u32)>,
}

impl ReceiverState {
    /// Forgets templates and options, as a receiver may.
    fn forget(&mut self) {
        self.templates = [0; 2];
        self.options_templates = 0;
        self.interfaces = 0;
        self.sampling = None;
    }
}

/// The part of records that depends on the batch's interfaces, which rarely change.
#[derive(Default)]
struct BatchFacts {
    interfaces: Vec<Interface>,
    has_netns: bool,
}

impl BatchFacts {
    /// Returns whether the interfaces changed.
    fn update(&mut self, batch: &FlowBatch) -> bool {
        if self.interfaces == batch.interfaces {
            return false;
        }
        self.interfaces.clone_from(&batch.interfaces);
        let first = self.interfaces.first().map(|one| one.netns);
        self.has_netns = self.interfaces.iter().any(|one| Some(one.netns) != first);
        true
    }
}

impl Ipfix {
    /// Calls `claim` once, with the agent of the first batch, and drops it with the encoder.
    pub fn new(
        settings: Settings,
        claim: impl FnMut(Option<&AgentIdentity>) -> Domains + Send + 'static,
    ) -> Self {
        Self {
            lengths: Lengths::new(settings.form()),
            settings,
            claim: Box::new(claim),
            domains: None,
            buffer: BytesMut::new(),
            receiver: ReceiverState::default(),
            next_receiver: ReceiverState::default(),
            batch: BatchFacts::default(),
            refreshed: None,
            too_long: LogLimit::default(),
            process_id: std::process::id(),
            export_time_s: unix_time_s,
        }
    }

    /// Resends everything after the interval: datagrams get lost, and a restarted collector knows nothing.
    fn refresh(&mut self) {
        let Some(every) = self.settings.template_refresh else {
            return;
        };
        if self.refreshed.is_some_and(|last| last.elapsed() < every) {
            return;
        }
        self.refreshed = Some(Instant::now());
        self.receiver.forget();
    }

    /// The account and the losses, at the end of a scan or for a batch without a scan. `None` if already sent or not
    /// due.
    ///
    /// It describes the process rather than flows, so it has its own observation domain and sequence.
    fn account(&mut self, batch: &FlowBatch, domain: u32, most_bytes: usize) -> Option<Message> {
        let place = Some((batch.scan_id, batch.batch_index));
        let closes = batch.last_of_scan || batch.scan_id == 0;
        if !closes || self.receiver.account == place {
            return None;
        }
        let mut state = self.receiver;
        let mut writer = Writer::new(&mut self.buffer, most_bytes);
        let (messages, flows) = (state.messages, state.flow_records);
        let exporting = Exporting::of(batch, self.process_id, messages, flows);
        write_options(About::Exporting(exporting), &mut state, &mut writer);
        if let Some(metering) = Metering::of(batch, domain) {
            write_options(About::Metering(metering), &mut state, &mut writer);
        }
        state.account = place;
        let records = writer.close();
        let bytes = self.finish(records, state, Domain::Process);
        Some(Message::new(bytes, 0))
    }

    /// The sampling rate and as many interface names as fit. `None` if the receiver knows them all.
    ///
    /// They go in messages of their own for nfcapd: it reports no sequence gap as long as no flow came before them.
    fn options(&mut self, rate: u32, domain: u32, most_bytes: usize) -> Option<Message> {
        let mut state = self.receiver;
        let facts = &self.batch;
        let unknown = &facts.interfaces[state.interfaces..];
        if state.sampling == Some(rate) && unknown.is_empty() {
            return None;
        }
        let mut writer = Writer::new(&mut self.buffer, most_bytes);
        if state.sampling != Some(rate) {
            write_options(About::Sampling { domain, rate }, &mut state, &mut writer);
            state.sampling = Some(rate);
        }
        for interface in unknown {
            let about = if facts.has_netns {
                About::InterfaceInNetns(interface)
            } else {
                About::Interface(interface)
            };
            if !write_options(about, &mut state, &mut writer) {
                break;
            }
            state.interfaces += 1;
        }
        let records = writer.close();
        let bytes = self.finish(records, state, Domain::Flows);
        Some(Message {
            is_preface: true,
            ..Message::new(bytes, 0)
        })
    }

    /// Completes a message and notes what it announces.
    fn finish(&mut self, records: u32, mut state: ReceiverState, domain: Domain) -> Bytes {
        let header = Header {
            export_time_s: (self.export_time_s)(),
            sequence: self.receiver.sequences[domain as usize],
            domain: match (domain, &self.domains) {
                (_, None) => 0,
                (Domain::Flows, Some(domains)) => domains.flows,
                (Domain::Process, Some(domains)) => domains.process,
            },
        };
        let bytes = message::finish(&mut self.buffer, &header);
        let sequence = &mut state.sequences[domain as usize];
        *sequence = sequence.wrapping_add(records);
        state.messages += u64::from(bytes.is_some());
        self.next_receiver = state;
        bytes.unwrap_or_default()
    }
}

/// The subject of a message.
#[derive(Clone, Copy)]
enum Domain {
    Flows = 0,
    Process = 1,
}

impl Encoder for Ipfix {
    fn message(&mut self, batch: &FlowBatch, flows: &[FlowRecord]) -> Message {
        self.refresh();
        let most_bytes = self.settings.message_len_bytes;
        let claim = || (self.claim)(batch.agent.as_ref());
        let domain = self.domains.get_or_insert_with(claim).flows;
        if let Some(account) = self.account(batch, domain, most_bytes) {
            return account;
        }
        if self.batch.update(batch) {
            self.receiver.interfaces = 0;
        }
        if let Some(options) = self.options(batch.sample_rate.max(1), domain, most_bytes) {
            return options;
        }
        let mut state = self.receiver;
        let facts = &self.batch;
        let mut writer = Writer::new(&mut self.buffer, most_bytes);
        let settings = &self.settings;
        let (mut taken, mut skipped) = (0, 0);
        for record in flows {
            if record.delta().packets == 0 && !settings.end_records {
                taken += 1;
                skipped += 1;
                continue;
            }
            let shape = Shape::of(record, facts.has_netns);
            let len = self.lengths.of(shape);
            let flow = Flow::new(record, settings.octets);
            let plain = (flow, shape, len);
            let row = settings
                .enterprise
                .map(|_| Row::new(batch, record, None))
                .filter(enriched::is_enriched);
            let is_written = match &row {
                Some(row) => {
                    let len = len + enriched::len_bytes(row, settings.is_biflow);
                    let whole = (flow.with(row), shape.enriched(), len);
                    if write(whole, settings, &mut state, &mut writer) {
                        true
                    } else if !writer.is_empty()
                        || announce(whole, settings, &mut state, &mut writer)
                    {
                        // Try again in the next message.
                        false
                    } else {
                        if let Some(records) = self.too_long.event() {
                            tracing::warn!(
                                records,
                                longest = settings.message_len_bytes,
                                "records of IPFIX went without what was found out about their flows, since no message holds it: raise \
                                 message_bytes, or leave uniflow out"
                            );
                        }
                        write(plain, settings, &mut state, &mut writer)
                    }
                }
                None => write(plain, settings, &mut state, &mut writer),
            };
            if !is_written {
                break;
            }
            taken += 1;
        }
        let records = writer.close();
        Message {
            skipped,
            ..Message::new(self.finish(records, state, Domain::Flows), taken)
        }
    }

    fn sent(&mut self) {
        self.receiver = self.next_receiver;
    }

    fn restart(&mut self) {
        self.receiver.forget();
        if self.settings.sequence_by_connection {
            self.receiver.sequences = [0; 2];
        }
    }

    fn limit(&mut self, message_len_bytes: usize) -> bool {
        let limit = message_len_bytes.clamp(LEAST_LEN_BYTES, usize::from(u16::MAX));
        self.settings.message_len_bytes = self.settings.message_len_bytes.min(limit);
        message_len_bytes >= LEAST_LEN_BYTES
    }
}

/// Writes the records of a flow. Returns false if they do not fit.
#[inline]
fn write(
    (flow, shape, len_bytes): (Flow, Shape, usize),
    settings: &Settings,
    state: &mut ReceiverState,
    writer: &mut Writer,
) -> bool {
    let form = settings.form();
    let (template, announced, bit) = place(shape, settings, state);
    let answers = (!form.is_biflow)
        .then(|| flow.answers())
        .filter(Flow::has_packets);
    let has_forward = form.is_biflow || flow.has_packets() || answers.is_none();
    let records = usize::from(has_forward) + usize::from(answers.is_some());
    let specifiers = (*announced & bit == 0).then(|| specifiers(&flow, shape, settings));
    if !writer.has_room(template, records * len_bytes, specifiers.as_ref()) {
        return false;
    }
    if let Some(specifiers) = &specifiers {
        writer.template(template, specifiers);
        *announced |= bit;
    }
    if has_forward {
        flow.walk(shape, form, &mut writer.record(template));
    }
    if let Some(answers) = answers {
        answers.walk(shape, form, &mut writer.record(template));
    }
    state.flow_records += records as u64;
    true
}

/// Writes a flow's template alone, for when it does not fit together with the record. Returns false if it was already
/// announced or does not fit.
fn announce(
    (flow, shape, _): (Flow, Shape, usize),
    settings: &Settings,
    state: &mut ReceiverState,
    writer: &mut Writer,
) -> bool {
    let (template, announced, bit) = place(shape, settings, state);
    if *announced & bit != 0 {
        return false;
    }
    let specifiers = specifiers(&flow, shape, settings);
    if !writer.has_room(template, 0, Some(&specifiers)) {
        return false;
    }
    writer.template(template, &specifiers);
    *announced |= bit;
    true
}

/// The field specifiers of a flow's template.
fn specifiers(flow: &Flow, shape: Shape, settings: &Settings) -> Specifiers {
    let mut specifiers = Specifiers::of_enterprise(settings.enterprise.unwrap_or_default());
    flow.walk(shape, settings.form(), &mut specifiers);
    specifiers
}

/// A shape's template number, and the bit set and bit that record its announcement.
fn place<'a>(
    shape: Shape,
    settings: &Settings,
    state: &'a mut ReceiverState,
) -> (u16, &'a mut u128, u128) {
    let announced = &mut state.templates[usize::from(shape.is_enriched())];
    (
        template::number(shape, settings),
        announced,
        1 << shape.plain_number(),
    )
}

/// Writes an options record. Returns false if it does not fit.
fn write_options(about: About, state: &mut ReceiverState, writer: &mut Writer) -> bool {
    let kind = about.kind();
    let mut len = Length::default();
    about.walk(&mut len);
    let specifiers = (state.options_templates & kind.bit() == 0).then(|| {
        let mut specifiers = Specifiers::default();
        about.walk(&mut specifiers);
        specifiers
    });
    if !writer.has_room(kind.template(), len.0, specifiers.as_ref()) {
        return false;
    }
    if let Some(specifiers) = &specifiers {
        writer.options_template(kind.template(), kind.scopes(), specifiers);
        state.options_templates |= kind.bit();
    }
    about.walk(&mut writer.record(kind.template()));
    true
}

/// Unix time in seconds, modulo 2^32.
fn unix_time_s() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as u32)
}
