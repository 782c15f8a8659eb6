//! A settings file in TOML. Each key is an option of `run` with underscores for its hyphens. The option's own parser
//! checks the values, so that an error can point at its place in the file.

use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, Read as _},
    ops::Range,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use clap::Command;
use rules::fault::Fault;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::declared::{Declared, Kind, Refusal};

/// The largest file accepted, since it is read into memory.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The settings of a file.
#[derive(Debug)]
pub struct File {
    pub path: PathBuf,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
pub struct Entry {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    /// The values as they would follow the option.
    texts: Vec<String>,
}

impl File {
    pub fn read(path: &Path, command: &Command) -> Result<Self> {
        let file = Self::read_if_exists(path, command)?;
        file.with_context(|| format!("there is no file of settings at {}", path.display()))
    }

    pub fn read_if_exists(path: &Path, command: &Command) -> Result<Option<Self>> {
        let what = || format!("read the settings in {}", path.display());
        ensure!(
            !is_named_pipe(path),
            "{} is a pipe, at which whoever reads waits for a writer: name a file, or /dev/stdin",
            path.display()
        );
        let file = match fs::File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.with_context(what)?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES + 1)
            .read_to_end(&mut bytes)
            .with_context(what)?;
        ensure!(
            bytes.len() as u64 <= MAX_FILE_BYTES,
            "{} has more than the {} MiB that a file of settings may have; name another file",
            path.display(),
            MAX_FILE_BYTES >> 20
        );
        let entries = entries(&bytes, &path.display().to_string(), command)?;
        let path = path.to_owned();
        Ok(Some(Self { path, entries }))
    }

    pub fn entry(&self, setting: &Declared<'_>) -> Option<&Entry> {
        self.entries.get(setting.id())
    }

    /// The command with the file's values as its defaults, so that variables and options take precedence.
    pub fn under(&self, command: Command) -> Command {
        self.entries.iter().fold(command, |command, (id, entry)| {
            command.mut_arg(id, |arg| arg.default_values(&entry.texts))
        })
    }
}

/// Whether opening this path may block forever. Pipes that this process has open are named by descriptor.
fn is_named_pipe(path: &Path) -> bool {
    let is_ours = path.starts_with("/dev") || path.starts_with("/proc");
    !is_ours && fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

fn entries(bytes: &[u8], path: &str, command: &Command) -> Result<BTreeMap<String, Entry>, Fault> {
    for (line, number) in bytes.split(|byte| *byte == b'\n').zip(1..) {
        Fault::utf8(line).map_err(|fault| fault.at(&format!("{path}:{number}")))?;
    }
    let text = str::from_utf8(bytes).expect("each of its lines is UTF-8");
    let document = Document { text, path };
    let table = DeTable::parse(text).map_err(|error| {
        // An error without a place is at the end of the text.
        let span = error.span().unwrap_or(text.len()..text.len());
        document.fault(span, error.message())
    })?;
    let mut pairs: Vec<_> = table.get_ref().iter().collect();
    // In the order of the file, so that its first fault is reported.
    pairs.sort_by_key(|(key, _)| key.span().start);
    let mut entries = BTreeMap::new();
    for (key, value) in pairs {
        let setting = Declared::named(command, key.get_ref()).map_err(|message| {
            let is_table = matches!(value.get_ref(), DeValue::Table(_));
            let hint = " (settings are `name = value`, without tables)";
            document.fault(key.span(), &(message + if is_table { hint } else { "" }))
        })?;
        let texts = document.texts(&setting, value)?;
        let place = document.place(key.span().start);
        let entry = Entry {
            line: place.number,
            column: place.column + 1,
            texts,
        };
        entries.insert(setting.id().to_owned(), entry);
    }
    Ok(entries)
}

struct Document<'a> {
    text: &'a str,
    path: &'a str,
}

struct Place<'a> {
    line: &'a str,
    /// Line number, counted from 1.
    number: usize,
    /// In characters, counted from 0.
    column: usize,
    /// Offset of the end of the line.
    end: usize,
}

impl<'a> Document<'a> {
    /// The values of a setting, as texts for its option.
    fn texts(
        &self,
        setting: &Declared<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<String>, Fault> {
        if !setting.is_list() {
            return Ok(vec![self.text_of(setting, value)?]);
        }
        let DeValue::Array(values) = value.get_ref() else {
            let written = self.text.get(value.span()).unwrap_or_default();
            let message = format!("expected a list: put the values in brackets, as [{written}]");
            return Err(self.fault(value.span(), &message));
        };
        if values.is_empty() && !setting.defaults().is_empty() {
            let message = "expected at least one value; without the setting its default holds";
            return Err(self.fault(value.span(), message));
        }
        let texts = values.iter().map(|value| self.text_of(setting, value));
        texts.collect()
    }

    /// One value as text, after checking its type and bounds.
    fn text_of(
        &self,
        setting: &Declared<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<String, Fault> {
        let kind = setting.kind();
        let text = match (&kind, value.get_ref()) {
            (Kind::Boolean, DeValue::Boolean(value)) => value.to_string(),
            (Kind::Integer { .. }, DeValue::Integer(number)) => {
                let decimal = i128::from_str_radix(number.as_str(), number.radix());
                decimal.map_or_else(|_| number.as_str().to_owned(), |number| number.to_string())
            }
            (Kind::Choice(_) | Kind::Text, DeValue::String(text)) => text.clone().into_owned(),
            (Kind::Text, DeValue::Table(table)) if setting.takes_tables() => {
                return self.table_of(setting, value.span(), table);
            }
            _ => {
                let expected = match kind {
                    Kind::Boolean => "expected true or false, without quotes".to_owned(),
                    Kind::Integer { least, most } => {
                        format!("expected a number from {least} to {most}, without quotes")
                    }
                    Kind::Choice(choices) => {
                        format!("expected, in quotes, one of {}", choices.join(", "))
                    }
                    Kind::Text => match setting.defaults().first() {
                        Some(default) => format!("expected a text in quotes, as \"{default}\""),
                        None => "expected a text in quotes".to_owned(),
                    },
                };
                return Err(self.fault(value.span(), &expected));
            }
        };
        match setting.refusal(&text) {
            None => Ok(text),
            Some(Refusal::Value(message) | Refusal::Key(_, message)) => {
                Err(self.fault(value.span(), &message))
            }
            Some(Refusal::Part(fault)) => Err(self.part(value.span(), &text, &fault)),
        }
    }

    /// A table as JSON text for its option.
    fn table_of(
        &self,
        setting: &Declared<'_>,
        span: Range<usize>,
        table: &DeTable<'_>,
    ) -> Result<String, Fault> {
        let mut json = serde_json::Map::new();
        for (key, value) in table {
            let written = match value.get_ref() {
                DeValue::String(text) => text.clone().into_owned().into(),
                DeValue::Boolean(value) => (*value).into(),
                DeValue::Integer(number) => {
                    let decimal = u64::from_str_radix(number.as_str(), number.radix());
                    // The number as written, so that one too large or negative is refused for that reason.
                    decimal.map_or_else(|_| number.as_str().into(), serde_json::Value::from)
                }
                DeValue::Float(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_)
                | DeValue::Table(_) => {
                    let message = "expected a text in quotes, a number, true or false";
                    return Err(self.fault(value.span(), message));
                }
            };
            json.insert(key.get_ref().clone().into_owned(), written);
        }
        let text = serde_json::Value::from(json).to_string();
        match setting.refusal(&text) {
            None => Ok(text),
            Some(Refusal::Key(name, message)) => {
                let entry = table.iter().find(|(key, _)| *key.get_ref() == name);
                let is_name = message.contains("no such setting");
                let place = entry.map_or(
                    span,
                    |(key, value)| if is_name { key.span() } else { value.span() },
                );
                Err(self.fault(place, &message))
            }
            Some(Refusal::Value(message)) => Err(self.fault(span, &message)),
            Some(Refusal::Part(fault)) => Err(self.fault(span, fault.message())),
        }
    }

    fn fault(&self, span: Range<usize>, message: &str) -> Fault {
        let place = self.place(span.start);
        let marked = self.text.get(span.start..span.end.min(place.end));
        let width = marked.map_or(0, |marked| marked.chars().count());
        Fault::new(place.line, place.column, width, message).at(&self.line(&place))
    }

    /// A fault within a string. If the string has escapes, its characters do not map to those of the file, so the whole
    /// string is marked.
    fn part(&self, span: Range<usize>, text: &str, fault: &Fault) -> Fault {
        let written = self.text.get(span.start + 1..span.end - 1);
        if written != Some(text) {
            return self.fault(span, fault.message());
        }
        let place = self.place(span.start);
        let inside = fault.within(place.line, place.column + 1);
        inside.at(&self.line(&place))
    }

    fn line(&self, place: &Place<'_>) -> String {
        format!("{}:{}", self.path, place.number)
    }

    /// The line and column of a byte offset.
    fn place(&self, offset: usize) -> Place<'a> {
        let offset = self.text.floor_char_boundary(offset);
        let before = &self.text[..offset];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let end = self.text[offset..]
            .find('\n')
            .map_or(self.text.len(), |newline| offset + newline);
        Place {
            line: &self.text[start..end],
            number: 1 + before.matches('\n').count(),
            column: self.text[start..offset].chars().count(),
            end,
        }
    }
}

#[cfg(test)]
mod tests;
