//! The facts about a flow, one for each field of its record, as `flow.proto` defines them: a field's number, name and
//! type, and what its comment says about the other outputs. The head of `flow.proto` explains the notation.

use anyhow::{Context as _, Result, bail, ensure};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

pub const RECORD: &str = "FlowRecord";
pub const ENDPOINT: &str = "Endpoint";
const INTERFACE: &str = "Interface";
/// The address of an endpoint, the only one that every record has.
const ADDRESS: &str = "addr";

/// A message of a batch that an endpoint refers to. A batch may lack it.
struct Reference {
    /// The endpoint's field with the key.
    field: &'static str,
    message: &'static str,
    /// The message's field with the same value.
    key: &'static str,
    /// The owner of the message's columns.
    owner: &'static str,
    /// The message's field that the key contains, so that it is known without the message.
    in_key: Option<&'static str>,
    /// The endpoint's field that says something about the message, and nothing without it.
    about: Option<&'static str>,
}

const REFERENCES: [Reference; 3] = [
    Reference {
        field: "cgroup_id",
        message: "Cgroup",
        key: "id",
        owner: "cgroup",
        in_key: None,
        about: None,
    },
    Reference {
        field: "process_key",
        message: "Process",
        key: "key",
        owner: "process",
        in_key: Some("pid"),
        about: None,
    },
    Reference {
        field: "host_id",
        message: "HostName",
        key: "id",
        owner: "host",
        in_key: None,
        about: Some("host_source"),
    },
];

/// The path of `message_type` in a file and of `field` in a message, for source locations.
const MESSAGES: i32 = 4;
const FIELDS: i32 = 2;

const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Unsigned, 32 bits.
    Number,
    /// Unsigned, 64 bits; 0 if absent.
    Counter,
    /// An optional 64-bit number that identifies something.
    Id,
    Flag,
    /// Unix time in nanoseconds.
    Time,
    Address,
    Digest,
    Numbers,
    Text,
    Enum(String),
    Message(String),
}

/// Information elements of one name.
#[derive(Clone, Debug)]
pub struct Element {
    /// The numbers of the source's and the destination's element, as they are written.
    pub numbers: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Field {
    pub name: String,
    pub number: u32,
    pub kind: Kind,
    pub is_optional: bool,
    /// The comment without the notation.
    pub meaning: String,
    /// The names in JSON Lines and files: of both ends, or one.
    json: Option<Vec<String>>,
    otlp: Option<Vec<String>>,
    pub is_left_out: bool,
    pub ipfix: Vec<Element>,
    /// From the comment.
    pub ipfix_text: String,
    pub limit: Option<u64>,
    pub enrich: String,
}

/// Where the value of a column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Record,
    Interface,
    /// A field of the endpoint, or of what it refers to: `end`, `cgroup`, `process`, `host`.
    End(usize, &'static str),
}

/// How to get the value of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From the owner's field.
    Field,
    /// From the key of the owner: `RowEnd` has a function of the field's name.
    Key,
    /// From the owner's field, if the batch has the message of this other owner.
    With(&'static str),
}

/// A fact about a flow in the outputs that show facts side by side.
#[derive(Clone, Debug)]
pub struct Column {
    pub field: Field,
    pub owner: Owner,
    pub source: Source,
    pub name: String,
    pub otlp: Vec<String>,
    /// The number of its element of the enterprise in the settings.
    pub element: Option<u16>,
}

pub struct Catalogue {
    pub record: Vec<Field>,
    pub endpoint: Vec<Field>,
    /// The fields of the messages that an endpoint refers to.
    pub referred: Vec<Field>,
    pub columns: Vec<Column>,
    /// Each enum of a record, with the names of its values.
    pub enums: Vec<(String, Vec<String>)>,
}

impl Catalogue {
    pub fn new(file: &FileDescriptorProto) -> Result<Self> {
        let fields = |message: &str| fields(file, message);
        let record = fields(RECORD)?;
        let endpoint = fields(ENDPOINT)?;
        let interface = fields(INTERFACE)?;
        let mut references = Vec::new();
        for reference in &REFERENCES {
            let enrich = endpoint.iter().find(|field| field.name == reference.field);
            let enrich = &enrich.context("an endpoint lacks a reference")?.enrich;
            let mut of_message = fields(reference.message)?;
            of_message.retain(|field| field.name != reference.key);
            for field in &mut of_message {
                field.enrich.clone_from(enrich);
                field.is_left_out = true;
            }
            references.push((reference, of_message));
        }

        let mut columns = Vec::new();
        for field in &record {
            if field.name == "ifindex" {
                for field in interface.iter().filter(|field| field.json.is_some()) {
                    columns.push(Column::new(field, Owner::Interface)?);
                }
            }
            match (&field.kind, field.name.as_str()) {
                (Kind::Message(_), "dst") => {}
                (Kind::Message(_), _) => {
                    for field in &endpoint {
                        columns.extend(ends(field, "end", source_of(field))?);
                        let referred = references.iter().filter(|(one, _)| one.field == field.name);
                        for (reference, fields) in referred {
                            for field in fields {
                                let is_in_key = reference.in_key == Some(field.name.as_str());
                                let source = if is_in_key {
                                    Source::Key
                                } else {
                                    Source::Field
                                };
                                columns.extend(ends(field, reference.owner, source)?);
                            }
                        }
                    }
                }
                _ => columns.push(Column::new(field, Owner::Record)?),
            }
        }
        columns.retain(|column| !column.name.is_empty());
        let mut enums = Vec::new();
        for field in record.iter().chain(&endpoint) {
            if let Kind::Enum(name) = &field.kind {
                enums.push((name.clone(), values(file, name)?));
            }
        }
        enums.sort();
        enums.dedup();
        let referred = references.into_iter().flat_map(|(_, fields)| fields);
        Ok(Self {
            record,
            endpoint,
            referred: referred.collect(),
            columns,
            enums,
        })
    }
}

/// The source of a column with this field of an endpoint.
fn source_of(field: &Field) -> Source {
    let mut references = REFERENCES.iter();
    let about = references.find(|one| one.about == Some(field.name.as_str()));
    about.map_or(Source::Field, |reference| Source::With(reference.owner))
}

fn ends(field: &Field, owner: &'static str, source: Source) -> Result<[Column; 2]> {
    let [src, dst] = [0, 1].map(|end| {
        let column = Column::new(field, Owner::End(end, owner))?;
        anyhow::Ok(Column { source, ..column })
    });
    Ok([src?, dst?])
}

impl Column {
    fn new(field: &Field, owner: Owner) -> Result<Self> {
        let context = || format!("the comment of {}", field.name);
        let base = field.name.strip_suffix("_unix_ns").unwrap_or(&field.name);
        let (name, otlp) = match owner {
            Owner::End(end, _) => {
                let [short, long] = [["src", "dst"][end], ["source", "destination"][end]];
                let of_end = |names: &Option<Vec<String>>, default: String| match names.as_deref() {
                    None => Ok(default),
                    Some([]) => Ok(String::new()),
                    Some([source, destination]) => Ok([source, destination][end].clone()),
                    Some(_) => bail!("name both ends"),
                };
                (
                    of_end(&field.json, format!("{short}_{base}")).with_context(context)?,
                    vec![of_end(&field.otlp, format!("flow.{long}.{base}")).with_context(context)?],
                )
            }
            Owner::Record | Owner::Interface => {
                let name = match field.json.as_deref() {
                    None => base.to_owned(),
                    Some([]) => String::new(),
                    Some([name]) => name.clone(),
                    Some(_) => bail!("{}: one name", context()),
                };
                let default = || vec![format!("flow.{base}")];
                (name, field.otlp.clone().unwrap_or_else(default))
            }
        };
        let mut otlp = otlp;
        otlp.retain(|key| !key.is_empty());
        ensure!(
            otlp.len() <= if field.kind == Kind::Numbers { 2 } else { 1 },
            "{}: too many attributes",
            context()
        );
        let place = if let Owner::End(end, _) = owner {
            end
        } else {
            0
        };
        let mut element = None;
        for one in &field.ipfix {
            if let Some(number) = one.numbers.get(place).and_then(|n| n.strip_prefix("PEN/")) {
                element = Some(number.parse().with_context(context)?);
            }
        }
        Ok(Self {
            field: field.clone(),
            owner,
            source: Source::Field,
            name,
            otlp,
            element,
        })
    }

    /// Whether every row has a value.
    pub fn is_required(&self) -> bool {
        match self.field.kind {
            Kind::Address => self.field.name == ADDRESS,
            _ => self.owner == Owner::Record && !self.field.is_optional,
        }
    }

    /// The bits of a number in a file.
    pub fn bits(&self) -> u32 {
        match self.field.limit {
            Some(0..=0xff) => 8,
            Some(0x100..=0xffff) => 16,
            _ => 32,
        }
    }
}

fn message<'a>(file: &'a FileDescriptorProto, name: &str) -> Result<(i32, &'a DescriptorProto)> {
    let mut messages = (0..).zip(&file.message_type);
    let found = messages.find(|(_, message)| message.name() == name);
    found.with_context(|| format!("flow.proto has no message {name}"))
}

fn values(file: &FileDescriptorProto, name: &str) -> Result<Vec<String>> {
    let mut enums = file.enum_type.iter();
    let found = enums.find(|one| one.name() == name);
    let found = found.with_context(|| format!("flow.proto has no enum {name}"))?;
    let of = |value: &prost_types::EnumValueDescriptorProto| value.name().to_owned();
    Ok(found.value.iter().map(of).collect())
}

fn fields(file: &FileDescriptorProto, name: &str) -> Result<Vec<Field>> {
    let (number, message) = message(file, name)?;
    let info = file.source_code_info.as_ref().context("comments")?;
    let mut fields = Vec::new();
    for (place, field) in (0..).zip(&message.field) {
        let path = [MESSAGES, number, FIELDS, place];
        let mut locations = info.location.iter();
        let location = locations.find(|location| location.path == path);
        let comment = location.map_or("", |location| location.leading_comments());
        let field = Field::new(field, comment);
        fields.push(field.with_context(|| format!("{name}, field {place}"))?);
    }
    Ok(fields)
}

impl Field {
    fn new(field: &FieldDescriptorProto, comment: &str) -> Result<Self> {
        let name = field.name().to_owned();
        let is_optional = field.proto3_optional();
        let type_name = || field.type_name().trim_start_matches(".flow.v1.").to_owned();
        let kind = match (field.r#type(), field.label()) {
            (Type::Uint32, Label::Repeated) => Kind::Numbers,
            (_, Label::Repeated) => bail!("{name} is a list of another type than uint32"),
            (Type::Uint32, _) => Kind::Number,
            (Type::Uint64, _) if is_optional => Kind::Id,
            (Type::Uint64, _) => Kind::Counter,
            (Type::Fixed64, _) => Kind::Time,
            (Type::Bool, _) => Kind::Flag,
            (Type::Bytes, _) if name.ends_with("addr") => Kind::Address,
            (Type::Bytes, _) => Kind::Digest,
            (Type::String, _) => Kind::Text,
            (Type::Enum, _) => Kind::Enum(type_name()),
            (Type::Message, _) => Kind::Message(type_name()),
            (other, _) => bail!("{name} has the type {other:?}"),
        };
        let mut notes = Notes::read(comment)?;
        let names = |text: String| -> Vec<String> {
            let names = text.split(", ").filter(|name| *name != "none");
            names.map(str::to_owned).collect()
        };
        let mut is_left_out = notes.enrich.is_some();
        if let Some(json) = &mut notes.json
            && let Some(name) = json.strip_suffix('?')
        {
            is_left_out = true;
            *json = name.to_owned();
        }
        let limit = notes.limit.as_deref().map(number).transpose()?;
        Ok(Self {
            number: field.number().try_into()?,
            kind,
            is_optional,
            meaning: notes.meaning,
            json: notes.json.map(names),
            otlp: notes.otlp.map(names),
            is_left_out,
            ipfix: notes
                .ipfix
                .as_deref()
                .map_or_else(|| Ok(Vec::new()), elements)?,
            ipfix_text: notes.ipfix.unwrap_or_default(),
            limit,
            enrich: notes.enrich.unwrap_or_default(),
            name,
        })
    }
}

/// The parts of a comment.
#[derive(Default)]
struct Notes {
    meaning: String,
    json: Option<String>,
    otlp: Option<String>,
    ipfix: Option<String>,
    limit: Option<String>,
    enrich: Option<String>,
}

impl Notes {
    fn read(comment: &str) -> Result<Self> {
        let paragraphs = comment.split("\n\n").map(|paragraph| {
            let lines = paragraph.lines().map(str::trim);
            lines.collect::<Vec<_>>().join(" ")
        });
        let text = paragraphs.collect::<Vec<_>>().join("\n");
        let mut notes = Self::default();
        let mut meaning = Vec::new();
        for sentence in text
            .split_inclusive(". ")
            .flat_map(|part| part.split_inclusive('\n'))
        {
            let bare = sentence.trim().trim_end_matches('.');
            let place = match bare.split_once(": ") {
                Some(("JSON", value)) => Some((&mut notes.json, value)),
                Some(("OTLP", value)) => Some((&mut notes.otlp, value)),
                Some(("IPFIX", value)) => Some((&mut notes.ipfix, value)),
                Some(("Limit", value)) => Some((&mut notes.limit, value)),
                Some(("Enrich", value)) => Some((&mut notes.enrich, value)),
                _ => None,
            };
            let Some((place, value)) = place else {
                meaning.push(sentence);
                continue;
            };
            ensure!(place.is_none(), "two notes of one kind: {bare}");
            *place = Some(value.to_owned());
            if sentence.ends_with('\n') {
                meaning.push("\n");
            }
        }
        meaning.concat().trim().clone_into(&mut notes.meaning);
        Ok(notes)
    }
}

/// A limit: a number, a power as `2^48`, or days in nanoseconds.
fn number(text: &str) -> Result<u64> {
    if let Some(power) = text.strip_prefix("2^") {
        return Ok(1 << power.parse::<u32>()?);
    }
    if let Some(days) = text.strip_suffix(" days") {
        return Ok(days.parse::<u64>()? * DAY_NS);
    }
    text.parse().with_context(|| format!("the limit {text:?}"))
}

/// Elements as `name (number)`, or `name (PEN/number, PEN/number)` for both ends.
fn elements(text: &str) -> Result<Vec<Element>> {
    let mut elements = Vec::new();
    let mut rest = text;
    while let Some((_, more)) = rest.split_once(" (") {
        let (numbers, more) = more
            .split_once(')')
            .context("IPFIX: a closing parenthesis")?;
        elements.push(Element {
            numbers: numbers.split(", ").map(str::to_owned).collect(),
        });
        rest = more;
        if !rest.starts_with(", ") {
            break;
        }
    }
    ensure!(!elements.is_empty(), "IPFIX: NAME (NUMBER), not {text:?}");
    Ok(elements)
}
