//! A setting as the options of `run` declare it: its name in a file, its type, its bounds and its default.

use std::any::TypeId;

use clap::{
    Arg, ArgAction, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};
use exporters::settings::{OutputArgs, Refused};
use rules::{fault::Fault, similar};
use serde_json::Value;

use super::patterns;

/// Options of `run` that apply to a single run, with what to do instead of writing them into a file.
const NOT_IN_A_FILE: [(&str, &str); 2] = [
    (
        "config",
        "a file of settings cannot name another one: give --config or FLOW_AGENT_CONFIG",
    ),
    (
        "duration",
        "a file cannot set the end of a run: give --duration or FLOW_AGENT_DURATION",
    ),
];

/// An option of `run` that a file can set.
pub struct Declared<'a> {
    arg: &'a Arg,
    /// The option without its hyphens.
    option: &'a str,
}

/// The type of a setting, or of one value of a list.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    Boolean,
    Integer { least: u32, most: u32 },
    Choice(Vec<String>),
    Text,
}

/// Why a value is refused.
#[derive(Debug)]
pub enum Refusal {
    Value(String),
    /// A place within the value.
    Part(Fault),
    /// A key of a table.
    Key(String, String),
}

impl<'a> Declared<'a> {
    /// All settings, in the order of `--help`.
    pub fn all(command: &'a Command) -> impl Iterator<Item = Self> {
        command.get_arguments().filter_map(|arg| {
            let option = arg.get_long()?;
            let is_left_out = NOT_IN_A_FILE.iter().any(|(name, _)| *name == option);
            (!is_left_out).then_some(Self { arg, option })
        })
    }

    /// The setting of this name. The error suggests a similar name.
    pub fn named(command: &'a Command, name: &str) -> Result<Self, String> {
        if let Some((_, instead)) = NOT_IN_A_FILE.iter().find(|(option, _)| *option == name) {
            return Err((*instead).to_owned());
        }
        if let Some(found) = Self::all(command).find(|setting| setting.name() == name) {
            return Ok(found);
        }
        let names = Self::all(command).map(|setting| setting.name());
        Err(match similar::nearest(name, names) {
            Some(nearest) => format!("no setting has this name; did you mean {nearest}?"),
            None => "no setting has this name; `flow-agent config example` lists them".to_owned(),
        })
    }

    /// The name in a file.
    pub fn name(&self) -> String {
        self.option.replace('-', "_")
    }

    pub fn option(&self) -> &'a str {
        self.option
    }

    pub fn id(&self) -> &'a str {
        self.arg.get_id().as_str()
    }

    pub fn variable(&self) -> Option<String> {
        Some(self.arg.get_env()?.to_string_lossy().into_owned())
    }

    pub fn heading(&self) -> &'a str {
        self.arg.get_help_heading().unwrap_or_default()
    }

    /// The text of `--help`, on one line.
    pub fn help(&self) -> String {
        self.arg
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default()
            .replace('\n', " ")
    }

    /// The placeholder for its value in `--help`.
    pub fn placeholder(&self) -> String {
        let names = self.arg.get_value_names().unwrap_or_default();
        names.first().map(ToString::to_string).unwrap_or_default()
    }

    pub fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }

    /// Whether a table may replace a text. The option takes it as JSON text.
    pub fn takes_tables(&self) -> bool {
        self.arg.get_value_parser().type_id() == TypeId::of::<OutputArgs>()
    }

    pub fn kind(&self) -> Kind {
        let parsed = self.arg.get_value_parser().type_id();
        if parsed == TypeId::of::<bool>() {
            return Kind::Boolean;
        }
        if parsed == TypeId::of::<u32>() {
            let (least, most) = self.bounds();
            return Kind::Integer { least, most };
        }
        let choices: Vec<String> = self
            .arg
            .get_possible_values()
            .iter()
            .map(|value| value.get_name().to_owned())
            .collect();
        if choices.is_empty() {
            Kind::Text
        } else {
            Kind::Choice(choices)
        }
    }

    /// A regular expression for its texts; see [`patterns`].
    pub fn pattern(&self) -> Option<&'static str> {
        patterns::of(self.arg.get_value_parser())
    }

    /// The least and the greatest number accepted. clap does not expose them, so its parser is probed: what it accepts
    /// is one range that contains the default.
    fn bounds(&self) -> (u32, u32) {
        let default = self.defaults().first().and_then(|text| text.parse().ok());
        let inside: u32 = default.expect("a number has a default");
        let is_accepted = |number: u32| self.refusal(&number.to_string()).is_none();
        let (mut below, mut least) = (0, inside);
        while below < least {
            let middle = below + (least - below) / 2;
            if is_accepted(middle) {
                least = middle;
            } else {
                below = middle + 1;
            }
        }
        let (mut most, mut above) = (inside, u32::MAX);
        while most < above {
            let middle = above - (above - most) / 2;
            if is_accepted(middle) {
                most = middle;
            } else {
                above = middle - 1;
            }
        }
        (least, most)
    }

    /// The default values.
    pub fn defaults(&self) -> Vec<String> {
        let defaults = self.arg.get_default_values().iter();
        let defaults: Vec<String> = defaults
            .map(|value| value.to_string_lossy().into_owned())
            .collect();
        if defaults.is_empty() && matches!(self.arg.get_action(), ArgAction::SetTrue) {
            return vec!["false".to_owned()];
        }
        defaults
    }

    /// The JSON value of these texts. A setting without a value is null.
    pub fn value(&self, texts: &[String]) -> Value {
        if self.is_list() {
            return texts.iter().map(|text| Value::from(text.clone())).collect();
        }
        let Some(text) = texts.last() else {
            return Value::Null;
        };
        let typed = match self.kind() {
            Kind::Boolean => text.parse().ok().map(Value::Bool),
            Kind::Integer { .. } => text.parse::<u32>().ok().map(Value::from),
            Kind::Choice(_) | Kind::Text => None,
        };
        typed.unwrap_or_else(|| Value::from(text.clone()))
    }

    /// Why the option would refuse this value, if it would.
    pub fn refusal(&self, text: &str) -> Option<Refusal> {
        // An option that takes no value is true if present.
        if matches!(self.arg.get_action(), ArgAction::SetTrue) {
            return None;
        }
        let given = format!("--{}={text}", self.option);
        let error = Command::new("check")
            .no_binary_name(true)
            .arg(self.arg.clone())
            .try_get_matches_from([given])
            .err()?;
        Some(Refusal::of(&error))
    }
}

impl Refusal {
    pub fn of(error: &clap::Error) -> Self {
        let source = std::error::Error::source(error);
        if let Some(fault) = source.and_then(|source| source.downcast_ref()) {
            return Self::Part(Fault::clone(fault));
        }
        let refused = source.and_then(|source| source.downcast_ref::<Refused>());
        if let Some(refused) = refused
            && let Some(key) = &refused.key
        {
            return Self::Key(key.clone(), refused.to_string());
        }
        Self::Value(explained(error))
    }
}

/// The reason, without the option and the value that clap repeats.
fn explained(error: &clap::Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    if error.kind() == ErrorKind::InvalidValue
        && let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue)
        && !valid.is_empty()
    {
        let nearest = match error.get(ContextKind::SuggestedValue) {
            Some(ContextValue::String(nearest)) => format!("; did you mean {nearest}?"),
            _ => String::new(),
        };
        return format!("expected one of {}{nearest}", valid.join(", "));
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}
