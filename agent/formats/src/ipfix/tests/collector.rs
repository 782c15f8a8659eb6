//! A second reader of IPFIX, written from RFC 7011 and RFC 5103 alone, as a collector would be.

use std::{collections::BTreeMap, fmt::Write as _};

const REVERSE: u32 = 29305;
/// That of the tests.
pub const OWN: u32 = 64_123;

/// Number, and enterprise or 0.
pub type Field = (u16, u32);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Specifier {
    field: Field,
    len_bytes: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Template {
    scopes: usize,
    specifiers: Vec<Specifier>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub template: u16,
    /// How many fields say what the record is about; of flows 0.
    pub scopes: usize,
    pub fields: Vec<(Field, Vec<u8>)>,
}

impl Record {
    pub fn bytes(&self, field: Field) -> Option<&[u8]> {
        let mut found = self.fields.iter().filter(|(other, _)| *other == field);
        let first = found.next().map(|(_, value)| &value[..]);
        assert!(found.next().is_none(), "{field:?} twice");
        first
    }

    pub fn number(&self, number: u16) -> Option<u64> {
        self.bytes((number, 0)).map(number_of)
    }

    /// Of the enterprise.
    pub fn own(&self, number: u16) -> Option<u64> {
        self.bytes((number, OWN)).map(number_of)
    }

    pub fn own_text(&self, number: u16) -> Option<&str> {
        let bytes = self.bytes((number, OWN))?;
        Some(std::str::from_utf8(bytes).unwrap())
    }

    pub fn reverse(&self, number: u16) -> Option<u64> {
        self.bytes((number, REVERSE)).map(number_of)
    }
}

fn number_of(bytes: &[u8]) -> u64 {
    assert!(bytes.len() <= 8);
    bytes
        .iter()
        .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// What a collector knows of an exporter.
#[derive(Default)]
pub struct Collector {
    /// By observation domain and number.
    templates: BTreeMap<(u32, u16), Template>,
    /// Of the next message, by observation domain.
    sequences: BTreeMap<u32, u32>,
    /// The messages so far, a line for each field.
    pub text: String,
    pub template_records: usize,
}

impl Collector {
    /// After a restart of its own, in which it learns the sequence numbers anew but no template.
    pub fn without_templates(self) -> Self {
        Self {
            sequences: self.sequences,
            ..Self::default()
        }
    }
}

/// Reads from the front and writes what it read.
struct Reader<'a> {
    rest: &'a [u8],
    text: &'a mut String,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize, what: &str) -> &'a [u8] {
        assert!(len <= self.rest.len(), "{what} is cut");
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        let hex: Vec<String> = taken.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(self.text, "{:<24}# {what}", hex.join(" ")).unwrap();
        taken
    }

    fn number(&mut self, len: usize, what: &str) -> u32 {
        number_of(self.take(len, what)) as u32
    }

    fn heading(&mut self, what: &str) {
        writeln!(self.text, "\n# {what}").unwrap();
    }
}

impl Collector {
    /// Takes one message and checks everything that RFC 7011 says about its form.
    pub fn read(&mut self, message: &[u8]) -> Vec<Record> {
        let mut text = std::mem::take(&mut self.text);
        let mut reader = Reader {
            rest: message,
            text: &mut text,
        };
        reader.heading("message");
        assert_eq!(reader.number(2, "version"), 10);
        assert_eq!(reader.number(2, "length") as usize, message.len());
        reader.take(4, "export time");
        let sequence = reader.number(4, "sequence number");
        let domain = reader.number(4, "observation domain");
        assert_eq!(sequence, *self.sequences.entry(domain).or_default());
        let mut records = Vec::new();
        while !reader.rest.is_empty() {
            reader.heading("set");
            let set = reader.number(2, "set") as u16;
            let len = reader.number(2, "length") as usize;
            assert!(len > 4, "an empty set");
            let (body, rest) = reader.rest.split_at(len - 4);
            reader.rest = rest;
            let mut inside = Reader {
                rest: body,
                text: reader.text,
            };
            while !inside.rest.is_empty() {
                match set {
                    2 | 3 => self.template(domain, &mut inside, set == 3),
                    256.. => records.push(self.record(domain, set, &mut inside)),
                    _ => panic!("a set {set}"),
                }
            }
        }
        self.text = text;
        *self.sequences.entry(domain).or_default() += records.len() as u32;
        records
    }

    fn template(&mut self, domain: u32, reader: &mut Reader, is_options: bool) {
        reader.heading(if is_options {
            "options template"
        } else {
            "template"
        });
        let number = reader.number(2, "template") as u16;
        let count = reader.number(2, "fields");
        let scopes = if is_options {
            reader.number(2, "scope fields")
        } else {
            0
        };
        let specifiers = (0..count).map(|_| {
            let start = number_of(&reader.rest[..2]) as u16;
            let len = if start & 0x8000 == 0 { 4 } else { 8 };
            let specifier = &reader.rest[..len];
            let enterprise = number_of(&specifier[4..]) as u32;
            let field = (start & 0x7fff, enterprise);
            reader.take(len, &name(field));
            Specifier {
                field,
                len_bytes: number_of(&specifier[2..4]) as u16,
            }
        });
        let specifiers = specifiers.collect();
        self.template_records += 1;
        let template = Template {
            scopes: scopes as usize,
            specifiers,
        };
        let before = self.templates.insert((domain, number), template.clone());
        assert!(
            before.is_none_or(|before| before == template),
            "{number} changed"
        );
    }

    fn record(&self, domain: u32, number: u16, reader: &mut Reader) -> Record {
        let template = self.templates.get(&(domain, number));
        let template = template.unwrap_or_else(|| panic!("{number} was not announced"));
        reader.heading("record");
        let fields = template.specifiers.iter().map(|specifier| {
            let field = specifier.field;
            let len = match specifier.len_bytes {
                0xffff => match reader.number(1, "length") {
                    255 => reader.number(2, "length") as usize,
                    len => len as usize,
                },
                len => usize::from(len),
            };
            (field, reader.take(len, &name(field)).to_vec())
        });
        Record {
            template: number,
            scopes: template.scopes,
            fields: fields.collect(),
        }
    }
}

fn name((number, enterprise): Field) -> String {
    if enterprise == OWN {
        assert!((1001..=1040).contains(&number), "{number}");
        return format!("own {number}");
    }
    let known = NAMES.iter().find(|(known, _)| *known == number);
    let (_, name) = known.unwrap_or_else(|| panic!("element {number} is not in IANA's list"));
    match enterprise {
        0 => format!("{name} ({number})"),
        REVERSE => format!("reverse {name} ({number})"),
        _ => panic!("enterprise {enterprise}"),
    }
}

/// From IANA's registry.
const NAMES: &[(u16, &str)] = &[
    (1, "octetDeltaCount"),
    (2, "packetDeltaCount"),
    (4, "protocolIdentifier"),
    (5, "ipClassOfService"),
    (6, "tcpControlBits"),
    (7, "sourceTransportPort"),
    (8, "sourceIPv4Address"),
    (10, "ingressInterface"),
    (11, "destinationTransportPort"),
    (12, "destinationIPv4Address"),
    (14, "egressInterface"),
    (27, "sourceIPv6Address"),
    (28, "destinationIPv6Address"),
    (32, "icmpTypeCodeIPv4"),
    (34, "samplingInterval"),
    (41, "exportedMessageTotalCount"),
    (42, "exportedFlowRecordTotalCount"),
    (58, "vlanId"),
    (60, "ipVersion"),
    (61, "flowDirection"),
    (82, "interfaceName"),
    (135, "droppedPacketTotalCount"),
    (136, "flowEndReason"),
    (139, "icmpTypeCodeIPv6"),
    (144, "exportingProcessId"),
    (149, "observationDomainId"),
    (152, "flowStartMilliseconds"),
    (153, "flowEndMilliseconds"),
    (156, "flowStartNanoseconds"),
    (157, "flowEndNanoseconds"),
    (164, "ignoredPacketTotalCount"),
    (165, "ignoredOctetTotalCount"),
    (166, "notSentFlowTotalCount"),
    (167, "notSentPacketTotalCount"),
    (168, "notSentOctetTotalCount"),
    (176, "icmpTypeIPv4"),
    (177, "icmpCodeIPv4"),
    (178, "icmpTypeIPv6"),
    (179, "icmpCodeIPv6"),
    (195, "ipDiffServCodePoint"),
    (225, "postNATSourceIPv4Address"),
    (226, "postNATDestinationIPv4Address"),
    (227, "postNAPTSourceTransportPort"),
    (228, "postNAPTDestinationTransportPort"),
    (234, "ingressVRFID"),
    (239, "biflowDirection"),
    (243, "dot1qVlanId"),
    (245, "dot1qCustomerVlanId"),
    (281, "postNATSourceIPv6Address"),
    (282, "postNATDestinationIPv6Address"),
    (311, "samplingProbability"),
    (351, "layer2SegmentId"),
    (352, "layer2OctetDeltaCount"),
    (390, "flowSelectorAlgorithm"),
];
