//! The JSON Schema of the lines: of a flow's facts as the catalogue has it, of the rest as serde writes it.

use std::{borrow::Cow, collections::BTreeMap, fs};

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Value, json};

use super::{AccountLine, DnsLine, FlowHead, LostLine, StreamId};
use crate::time::UtcTime;

const PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/records.schema.json"
);

/// Packets and their bytes.
#[derive(JsonSchema)]
#[schemars(rename = "Count")]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct Counted {
    packets: u64,
    bytes: u64,
}

pub(super) type ByReason = BTreeMap<String, Counted>;

impl JsonSchema for UtcTime {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A point in time: RFC 3339, UTC, nine digits of a second.",
            "type": "string",
            "format": "date-time",
            "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{9}Z$",
        })
    }
}

impl JsonSchema for StreamId {
    fn schema_name() -> Cow<'static, str> {
        "StreamId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9a-f]{16}$" })
    }
}

/// The schema of a line.
pub(super) fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut generator = settings.into_generator();
    let mut flow = FlowHead::json_schema(&mut generator).to_value();
    let columns: Value = serde_json::from_str(proto::columns::SCHEMA).unwrap();
    for (name, column) in columns["properties"].as_object().unwrap() {
        let before = flow["properties"]
            .as_object_mut()
            .unwrap()
            .insert(name.clone(), column.clone());
        assert!(before.is_none(), "{name} is there twice");
    }
    flow["properties"]["record"] = json!({
        "description": "Only in a collector's storage.",
        "format": "uint32",
        "maximum": u32::MAX,
        "minimum": 0,
        "type": "integer",
    });
    let required = flow["required"].as_array_mut().unwrap();
    required.extend(columns["required"].as_array().unwrap().iter().cloned());
    let others = [
        DnsLine::json_schema(&mut generator),
        AccountLine::json_schema(&mut generator),
        LostLine::json_schema(&mut generator),
    ];
    let mut kinds = vec![flow];
    kinds.extend(others.map(Schema::to_value));
    let texts = [
        "The packets of a flow since its previous line.",
        "A DNS query and its answer.",
        "The account of all packets, as of a scan.",
        "Batches that this reader lost.",
    ];
    for (kind, text) in kinds.iter_mut().zip(texts) {
        kind["description"] = json!(text);
        // Every agent says who it is.
        let required = kind["required"].as_array_mut().unwrap();
        required.extend(["agent_id", "hostname"].map(Value::from));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of flow-agent's JSON Lines",
        "description": "docs/records.md explains the lines. Later versions may add members. The meaning of a flow's members is that of \
                        the fields of flow.proto; a line has times and addresses as text, and null for what is absent there.",
        "oneOf": kinds,
        "$defs": generator.take_definitions(true),
    })
}

/// Asserts that a line has the members of the schema, and no others.
pub(super) fn assert_described(line: &Value, schema: &Value) {
    let kinds = schema["oneOf"].as_array().unwrap();
    let of_type = |kind: &&Value| kind["properties"]["type"]["const"] == line["type"];
    let kind = kinds
        .iter()
        .find(of_type)
        .unwrap_or_else(|| panic!("{line}"));
    let line = line.as_object().unwrap();
    for name in line.keys() {
        assert!(
            kind["properties"].get(name).is_some(),
            "{name} is not in the schema"
        );
    }
    for name in kind["required"].as_array().unwrap() {
        assert!(
            line.contains_key(name.as_str().unwrap()),
            "the schema requires {name}"
        );
    }
}

#[test]
fn the_schema_in_the_docs_is_that_of_the_lines() {
    let mut text = serde_json::to_string_pretty(&schema()).unwrap();
    text.push('\n');
    if fs::read_to_string(PATH).unwrap_or_default() != text {
        assert!(
            std::env::var_os("UPDATE").is_some(),
            "{PATH} is not up to date: run UPDATE=1 cargo test -p formats schema"
        );
        fs::write(PATH, text).unwrap();
    }
}
