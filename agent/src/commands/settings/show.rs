//! Shows the settings in force, as a file of settings with the sources in comments, or as JSON.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{Settings, Source};
use crate::output::harmless::harmless;

/// A file that would set the same.
pub fn text(settings: &Settings) -> String {
    let mut text = match &settings.file {
        Some(path) => format!(
            "# settings file: {}\n",
            harmless(&path.display().to_string())
        ),
        None => "# no settings file\n".to_owned(),
    };
    for setting in &settings.values {
        let source = setting.source.to_string();
        let (name, source) = (&setting.name, harmless(&source));
        // Writing to a string does not fail.
        let _ = if setting.value.is_null() {
            writeln!(text, "# {name} has no value  # {source}")
        } else {
            writeln!(text, "{name} = {}  # {source}", toml(&setting.value))
        };
    }
    text
}

pub fn json(settings: &Settings) -> Value {
    let values: Map<String, Value> = settings
        .values
        .iter()
        .map(|setting| {
            let mut shown = json!({ "value": setting.value });
            let (source, place) = match &setting.source {
                Source::Default => ("default", None),
                Source::File { .. } => ("file", Some(setting.source.to_string())),
                Source::Variable(name) => ("variable", Some(name.clone())),
                Source::CommandLine => ("command_line", None),
            };
            shown["source"] = source.into();
            if let Some(place) = place {
                shown["place"] = place.into();
            }
            (setting.name.clone(), shown)
        })
        .collect();
    json!({ "file": settings.file, "settings": values })
}

/// The value in TOML. The texts, numbers and lists of JSON are also TOML's, except that TOML has no DEL in a
/// text. Characters that act on a terminal are escaped.
pub(super) fn toml(value: &Value) -> String {
    let mut text = String::new();
    for character in value.to_string().chars() {
        if harmless(character.encode_utf8(&mut [0; 4])).len() == character.len_utf8() {
            text.push(character);
        } else {
            // Writing to a string does not fail.
            let _ = write!(text, "\\U{:08X}", u32::from(character));
        }
    }
    text
}
