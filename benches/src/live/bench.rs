//! The interface of a live bench. A bench compares arms, such as no program, an empty one and the agent. Every arm gets
//! the same loads. [`super::rounds::run`] measures each arm under each load, at a station of its own, in several
//! rounds.

use std::{collections::BTreeMap, fmt::Display, path::PathBuf, time::Duration};

use anyhow::Result;

use super::{host::Host, interrupt::Interrupt};

/// The labels that all arms of a comparison share, such as `hook: tc`, `frame_bytes: 64`.
pub type Labels = BTreeMap<String, String>;

/// Values by measure. Each name ends in the unit, such as `program_ns_per_packet`, `resident_bytes`.
pub type Measures = Vec<(&'static str, f64)>;

/// A live bench. The value holds its own arguments.
pub trait Bench {
    /// The name on the command line and in the result file.
    const NAME: &'static str;

    /// Whether to raise the priority of the bench and of whatever it starts, for benches in which the sender must not
    /// lose CPU to other work.
    const IS_URGENT: bool = false;

    type Load;

    /// How often each arm is measured by default.
    fn rounds(is_quick: bool) -> u32 {
        if is_quick { 3 } else { 5 }
    }

    /// The sections to measure; empty for all.
    fn sections(&self) -> Vec<String> {
        Vec::new()
    }

    fn plan(&self, setup: &Setup) -> Result<Plan<Self::Load>>;

    fn labels(load: &Self::Load) -> Labels;

    /// Sets up everything that the arm needs under this load. Dropping the station removes it.
    fn station(&self, arm: &str, load: &Self::Load, setup: &Setup) -> Result<Box<dyn Station>>;

    /// Figures derived from the turns of several arms in one round, such as one arm's share of another: the arm, the
    /// measure and its value.
    fn derive(_turns: &Turns, _host: &Host) -> Vec<(String, &'static str, f64)> {
        Vec::new()
    }
}

/// An arm under a load.
pub trait Station {
    /// One turn.
    fn measure(&mut self, setup: &Setup) -> Result<Measures>;

    /// Measures that take some time to become final. Called before the station's next turn and after its last.
    fn settle(&mut self, _setup: &Setup) -> Result<Measures> {
        Ok(Measures::new())
    }
}

impl<F: FnMut(&Setup) -> Result<Measures>> Station for F {
    fn measure(&mut self, setup: &Setup) -> Result<Measures> {
        self(setup)
    }
}

/// A station that needs no setup: `measure` is its turn.
pub fn station(measure: impl FnMut(&Setup) -> Result<Measures> + 'static) -> Box<dyn Station> {
    Box::new(measure)
}

/// The options that all benches share.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The agent that is measured.
    pub agent: PathBuf,
    /// Fewer loads, packets and rounds.
    pub is_quick: bool,
    pub rounds: Option<u32>,
    pub duration: Option<Duration>,
    pub interrupt: Interrupt,
}

impl Setup {
    /// How long a measurement takes. `usual` applies to a run that is not quick.
    pub fn window(&self, usual: Duration) -> Duration {
        self.duration.unwrap_or(if self.is_quick {
            Duration::from_secs(2)
        } else {
            usual
        })
    }
}

/// Everything that a bench measures.
pub struct Plan<L> {
    /// Measured one after the other.
    pub groups: Vec<Group<L>>,
    /// Notes for the reader of the results, a sentence each.
    pub notes: Vec<String>,
}

/// Arms and loads that take turns.
pub struct Group<L> {
    pub places: Vec<Place<L>>,
    pub stations: Lifetime,
}

pub struct Place<L> {
    pub arm: String,
    pub load: L,
}

/// How long a station lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// All of a group's stations are made before its first round.
    Rounds,
    /// A station is made for each turn, and has seen no traffic before.
    Turn,
}

impl<L: Clone> Group<L> {
    /// Several arms under one load.
    pub fn new<A: Into<String>>(
        stations: Lifetime,
        arms: impl IntoIterator<Item = A>,
        load: &L,
    ) -> Self {
        let place = |arm: A| Place {
            arm: arm.into(),
            load: load.clone(),
        };
        Self {
            places: arms.into_iter().map(place).collect(),
            stations,
        }
    }
}

/// The measures of all arms under one load in one round.
#[derive(Default)]
pub struct Turns(BTreeMap<String, Measures>);

impl Turns {
    pub fn insert(&mut self, arm: &str, measures: Measures) {
        self.0.insert(arm.to_owned(), measures);
    }

    /// `None` if the arm had no turn or lacks the measure.
    pub fn get(&self, arm: &str, measure: &str) -> Option<f64> {
        let measures = self.0.get(arm)?;
        let (_, value) = measures.iter().find(|(name, _)| *name == measure)?;
        Some(*value)
    }

    /// The arms that have this measure, with its value.
    pub fn of<'a>(&'a self, measure: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        let arms = self.0.keys().map(String::as_str);
        arms.filter_map(move |arm| Some((arm, self.get(arm, measure)?)))
    }
}

pub fn labels<const N: usize>(labels: [(&str, &dyn Display); N]) -> Labels {
    labels
        .map(|(name, value)| (name.to_owned(), value.to_string()))
        .into()
}

/// Sentences for a plan.
pub fn notes(notes: &[&str]) -> Vec<String> {
    notes.iter().map(|note| (*note).to_owned()).collect()
}

/// The sections by their names on the command line, sorted.
pub fn names<T: clap::ValueEnum>(sections: &[T]) -> Vec<String> {
    let names: std::collections::BTreeSet<String> = sections
        .iter()
        .filter_map(|section| Some(section.to_possible_value()?.get_name().to_owned()))
        .collect();
    names.into_iter().collect()
}
