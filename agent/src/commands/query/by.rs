//! Reads `--by`: what to add up by, which may be steps of time.

use std::ffi::OsStr;

use anyhow::{Result, bail, ensure};
use clap::{
    Arg, Command, ValueEnum,
    builder::{EnumValueParser, PossibleValue, TypedValueParser},
    error::ErrorKind,
};
use sys::local_time::Step;
use view::query::By;

/// One value of `--by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    By(By),
    Step(Step),
}

/// The steps that have a name.
const STEPS: [(&str, Step); 5] = [
    ("minute", Step::MINUTE),
    ("hour", Step::HOUR),
    ("day", Step::DAY),
    ("week", Step::WEEK),
    ("month", Step::MONTH),
];

impl ValueEnum for What {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: &[What] = &[
            What::By(By::Address),
            What::By(By::Source),
            What::By(By::Destination),
            What::By(By::Port),
            What::By(By::Protocol),
            What::By(By::Interface),
            What::By(By::Host),
            What::By(By::Unit),
            What::By(By::Process),
            What::By(By::Name),
            What::Step(Step::MINUTE),
            What::Step(Step::HOUR),
            What::Step(Step::DAY),
            What::Step(Step::WEEK),
            What::Step(Step::MONTH),
        ];
        ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::By(by) => by.to_possible_value(),
            Self::Step(step) => {
                let (name, _) = STEPS.iter().find(|(_, one)| one == step)?;
                let help = match *step {
                    Step::HOUR => {
                        "The hour, or another step of time, as in 5m or 6h: a row for each step, empty ones included"
                    }
                    Step::WEEK => "The week, from Monday",
                    Step::Seconds(_) | Step::Days(_) | Step::Months(_) => {
                        return Some(PossibleValue::new(*name));
                    }
                };
                Some(PossibleValue::new(*name).help(help))
            }
        }
    }
}

/// Reads a word, or the length of a step of time.
#[derive(Clone)]
pub struct Parser;

impl TypedValueParser for Parser {
    type Value = What;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<What, clap::Error> {
        let text = value
            .to_str()
            .filter(|text| text.starts_with(|one: char| one.is_ascii_digit()));
        let Some(text) = text else {
            return EnumValueParser::<What>::new().parse_ref(command, arg, value);
        };
        let step = humantime::parse_duration(text).ok().and_then(Step::of);
        step.map(What::Step).ok_or_else(|| {
            let fault = format!(
                "'{text}' is not a step of time: expected a length that divides a day evenly, as in 30s, 5m or 6h, \
                 or whole days\n"
            );
            clap::Error::raw(ErrorKind::ValueValidation, fault).with_cmd(command)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        EnumValueParser::<What>::new()
            .possible_values()
            .map(|values| {
                let values: Vec<_> = values.collect();
                Box::new(values.into_iter()) as Box<dyn Iterator<Item = PossibleValue>>
            })
    }
}

/// Separates the step of time from the rest. Fails if something is there twice.
pub fn separated(all: &[What]) -> Result<(Vec<By>, Option<Step>)> {
    let (mut by, mut step) = (Vec::new(), None);
    for (number, one) in all.iter().enumerate() {
        ensure!(
            !all[..number].contains(one),
            "--by has a value twice: remove one"
        );
        match one {
            What::By(one) => by.push(*one),
            What::Step(one) => {
                if step.replace(*one).is_some() {
                    bail!("--by has two steps of time: remove one");
                }
            }
        }
    }
    Ok((by, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<What, clap::Error> {
        Parser.parse_ref(&Command::new("query"), None, text.as_ref())
    }

    #[test]
    fn a_step_has_a_name_or_a_length() {
        for (text, step) in [
            ("hour", Step::HOUR),
            ("1h", Step::HOUR),
            ("5m", Step::Seconds(300)),
            ("1day", Step::DAY),
            ("month", Step::MONTH),
        ] {
            assert_eq!(parsed(text).unwrap(), What::Step(step), "{text}");
        }
        assert_eq!(parsed("src").unwrap(), What::By(By::Source));
        for text in ["7m", "0s", "5", "1500ms", "25h"] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains("is not a step of time"), "{error}");
        }
        assert!(parsed("hours").is_err());
    }

    #[test]
    fn every_value_of_by_is_one_of_these() {
        let all = What::value_variants();
        let by: Vec<_> = By::value_variants()
            .iter()
            .map(|by| What::By(*by))
            .collect();
        assert_eq!(all[..by.len()], by);
        assert!(all.iter().all(|one| one.to_possible_value().is_some()));
    }

    #[test]
    fn only_one_step_of_time_is_taken() {
        let [by, hour, day] = [
            What::By(By::Port),
            What::Step(Step::HOUR),
            What::Step(Step::DAY),
        ];
        assert_eq!(
            separated(&[by, hour]).unwrap(),
            (vec![By::Port], Some(Step::HOUR))
        );
        assert!(separated(&[hour, by, day]).is_err());
        assert!(separated(&[by, by]).is_err());
    }
}
