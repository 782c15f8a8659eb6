//! The JSON Schema of a settings file, for editors. Generated from the options.

use serde_json::{Map, Value, json};

use super::{
    declared::{Declared, Kind},
    patterns,
};

/// A schema of draft 2020-12.
pub fn schema() -> Value {
    let command = super::command();
    let properties: Map<String, Value> = Declared::all(&command)
        .map(|setting| (setting.name(), property(&setting)))
        .collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of flow-agent",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

fn property(setting: &Declared<'_>) -> Value {
    let mut one = match setting.kind() {
        Kind::Boolean => json!({ "type": "boolean" }),
        Kind::Integer { least, most } => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Kind::Choice(choices) => json!({ "type": "string", "enum": choices }),
        Kind::Text => json!({ "type": "string" }),
    };
    if let Some(pattern) = setting.pattern() {
        one["pattern"] = pattern.into();
    }
    if setting.takes_tables() {
        one = json!({ "anyOf": [one, exporters::settings::schema(patterns::TIME)] });
    }
    let defaults = setting.defaults();
    let mut property = if setting.is_list() {
        let least = usize::from(!defaults.is_empty());
        json!({ "type": "array", "items": one, "minItems": least })
    } else {
        one
    };
    property["description"] = super::example::help(setting).into();
    let default = setting.value(&defaults);
    if !default.is_null() {
        property["default"] = default;
    }
    property
}
