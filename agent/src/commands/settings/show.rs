//! Shows settings as a settings file with the sources in comments, or as JSON: the ones that `run` would use, or the
//! ones that a running agent reports.

use std::fmt::Write as _;

use formats::harmless::harmless;
use proto::{Setting, SettingSource, SettingsInForce};
use serde_json::{Map, Value, json};

use super::{Settings, Source};

impl From<&Settings> for SettingsInForce {
    fn from(settings: &Settings) -> Self {
        let file = settings.file.as_ref();
        let values = settings.values.iter().map(|setting| {
            let (source, place) = match &setting.source {
                Source::Default => (SettingSource::Default, String::new()),
                Source::File { .. } => (SettingSource::File, setting.source.to_string()),
                Source::Variable(name) => (SettingSource::Variable, name.clone()),
                Source::CommandLine => (SettingSource::CommandLine, String::new()),
            };
            Setting {
                name: setting.name.clone(),
                value: setting.value.to_string(),
                source: source.into(),
                place,
                wanted: String::new(),
            }
        });
        Self {
            file: file.map_or_else(String::new, |path| path.display().to_string()),
            settings: values.collect(),
            filters_by_client: false,
        }
    }
}

/// A settings file that would set the same values.
pub fn text(settings: &SettingsInForce) -> String {
    let mut text = match settings.file.as_str() {
        "" => "# no settings file\n".to_owned(),
        path => format!("# settings file: {}\n", harmless(path)),
    };
    if settings.filters_by_client {
        text += "# other rules than filter and filter_file are in force, which a client has set: `flow-agent filter show`\n";
    }
    for setting in &settings.settings {
        let mut source = match setting.place.as_str() {
            "" => word(setting.source()).replace('_', " "),
            place => place.to_owned(),
        };
        if !setting.wanted.is_empty() {
            source += "; a restart makes it ";
            source += &toml(&value(&setting.wanted));
        }
        let (name, source) = (harmless(&setting.name), harmless(&source));
        let value = value(&setting.value);
        // Writing to a string does not fail.
        let _ = if value.is_null() {
            writeln!(text, "# {name} has no value  # {source}")
        } else {
            writeln!(text, "{name} = {}  # {source}", toml(&value))
        };
    }
    text
}

pub fn json(settings: &SettingsInForce) -> Value {
    let values: Map<String, Value> = settings
        .settings
        .iter()
        .map(|setting| {
            let source = word(setting.source());
            let mut shown = json!({ "value": value(&setting.value), "source": source });
            if !setting.place.is_empty() {
                shown["place"] = setting.place.as_str().into();
            }
            if !setting.wanted.is_empty() {
                shown["wanted"] = value(&setting.wanted);
            }
            (setting.name.clone(), shown)
        })
        .collect();
    let file = Some(&settings.file).filter(|file| !file.is_empty());
    json!({ "file": file, "settings": values, "filters_by_client": settings.filters_by_client })
}

fn word(source: SettingSource) -> &'static str {
    match source {
        SettingSource::Unspecified => "unknown",
        SettingSource::Default => "default",
        SettingSource::File => "file",
        SettingSource::Variable => "variable",
        SettingSource::CommandLine => "command_line",
    }
}

/// The value parsed from a remote agent's JSON, or the text itself if it is not JSON.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// The value in TOML. JSON's texts, numbers and lists are valid TOML, except that a TOML text cannot contain DEL.
/// Control characters are escaped.
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
