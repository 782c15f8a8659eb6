//! Generates the JSON Schema of the columns in JSON Lines.

use serde_json::{Map, Value, json};

use crate::{
    catalogue::{Catalogue, Column, Kind, Owner},
    code::shouted,
    page,
};

/// The schema of an object. It allows other members, since a line has more.
pub fn columns(catalogue: &Catalogue) -> String {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for column in &catalogue.columns {
        let mut value = value(catalogue, column);
        if column.field.is_left_out {
            // Never null.
        } else {
            required.push(json!(column.name));
            if may_be_null(column) {
                value = json!({ "anyOf": [value, { "type": "null" }] });
            }
        }
        value["description"] = json!(page::meaning(column));
        properties.insert(column.name.clone(), value);
    }
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    serde_json::to_string(&schema).expect("it is a tree of texts and numbers")
}

fn value(catalogue: &Catalogue, column: &Column) -> Value {
    let most = |bits: u32| u64::MAX >> (64 - bits);
    match &column.field.kind {
        Kind::Number => json!({ "type": "integer", "minimum": 0, "maximum": most(column.bits()) }),
        Kind::Counter | Kind::Id => json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Time => json!({ "$ref": "#/$defs/Time" }),
        Kind::Numbers => {
            json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": most(16) } })
        }
        Kind::Address => {
            json!({ "type": "string", "anyOf": [{ "format": "ipv4" }, { "format": "ipv6" }] })
        }
        Kind::Digest | Kind::Text => json!({ "type": "string" }),
        Kind::Enum(kind) => json!({ "enum": words(catalogue, kind) }),
        Kind::Message(_) => unreachable!("a message is no column"),
    }
}

/// Whether a line may lack the value of a column that it has.
fn may_be_null(column: &Column) -> bool {
    let is_endpoint = matches!(column.owner, Owner::End(_, "end")) || column.owner == Owner::Record;
    match column.field.kind {
        Kind::Counter | Kind::Flag | Kind::Time | Kind::Numbers => false,
        Kind::Number => !is_endpoint || column.field.is_optional,
        Kind::Address => !column.is_required(),
        Kind::Id | Kind::Digest | Kind::Text | Kind::Enum(_) | Kind::Message(_) => true,
    }
}

/// The words for the values of an enum, without the one for none.
fn words(catalogue: &Catalogue, kind: &str) -> Vec<String> {
    let enums = catalogue.enums.iter();
    let found = enums
        .filter(|(name, _)| name == kind)
        .flat_map(|(_, values)| values);
    let prefix = shouted(kind) + "_";
    let words = found.map(|value| value.strip_prefix(&prefix).unwrap_or(value).to_lowercase());
    words.filter(|word| word != "unspecified").collect()
}
