//! What every live bench has in common. A bench holds arms against each other, such as no program, an empty one
//! and the agent. All of them get the same loads, and each arm is measured under each load at a station of its
//! own, in rounds that [`super::rounds::run`] plays.

use std::{collections::BTreeMap, fmt::Display, path::PathBuf, time::Duration};

use anyhow::Result;

use super::{host::Host, interrupt::Interrupt};

/// What all arms of a comparison have in common, such as `hook: tc`, `frame_bytes: 64`.
pub type Labels = BTreeMap<String, String>;

/// Values by what was measured. The names end in the unit, as `program_ns_per_packet`, `resident_bytes`.
pub type Measures = Vec<(&'static str, f64)>;

/// A live bench; its value holds the arguments that only it has.
pub trait Bench {
    /// What the command line and the result file call it.
    const NAME: &'static str;

    /// Raises the priority of the bench and of what it starts, where a neighbour would starve the sender of its
    /// rate.
    const IS_URGENT: bool = false;

    type Load;

    /// How often each arm is measured unless the user says.
    fn rounds(is_quick: bool) -> u32 {
        if is_quick { 3 } else { 5 }
    }

    /// The only parts of the bench that the user wants; empty for all.
    fn sections(&self) -> Vec<String> {
        Vec::new()
    }

    fn plan(&self, setup: &Setup) -> Result<Plan<Self::Load>>;

    fn labels(load: &Self::Load) -> Labels;

    /// Makes all that the arm needs to be measured under the load, which goes away with the station.
    fn station(&self, arm: &str, load: &Self::Load, setup: &Setup) -> Result<Box<dyn Station>>;

    /// What follows from the turns of several arms in one round, as an arm's share of another: the arm, the
    /// measure and its value.
    fn derive(_turns: &Turns, _host: &Host) -> Vec<(String, &'static str, f64)> {
        Vec::new()
    }
}

/// An arm under a load.
pub trait Station {
    /// One turn.
    fn measure(&mut self, setup: &Setup) -> Result<Measures>;

    /// What can only be told some time after a turn. Called before the station's next turn and after its last.
    fn settle(&mut self, _setup: &Setup) -> Result<Measures> {
        Ok(Measures::new())
    }
}

impl<F: FnMut(&Setup) -> Result<Measures>> Station for F {
    fn measure(&mut self, setup: &Setup) -> Result<Measures> {
        self(setup)
    }
}

/// A station that consists of its turn.
pub fn station(measure: impl FnMut(&Setup) -> Result<Measures> + 'static) -> Box<dyn Station> {
    Box::new(measure)
}

/// What the user asked for, whichever bench it is.
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
    /// How long a measurement takes, `usual` being for a run that is not quick.
    pub fn window(&self, usual: Duration) -> Duration {
        self.duration.unwrap_or(if self.is_quick {
            Duration::from_secs(2)
        } else {
            usual
        })
    }
}

/// All that a bench measures.
pub struct Plan<L> {
    /// One after the other.
    pub groups: Vec<Group<L>>,
    /// What a reader of the results has to know, a sentence each.
    pub notes: Vec<String>,
}

/// Arms with their loads that are measured by turns.
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
    /// Some arms under one load.
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

/// What the arms of one load showed in one round.
#[derive(Default)]
pub struct Turns(BTreeMap<String, Measures>);

impl Turns {
    pub fn insert(&mut self, arm: &str, measures: Measures) {
        self.0.insert(arm.to_owned(), measures);
    }

    /// `None` where the arm had no turn, or no such measure.
    pub fn get(&self, arm: &str, measure: &str) -> Option<f64> {
        let measures = self.0.get(arm)?;
        let (_, value) = measures.iter().find(|(name, _)| *name == measure)?;
        Some(*value)
    }

    /// A measure of all arms that have it.
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

/// The sections as the command line names them, in the order of their names.
pub fn names<T: clap::ValueEnum>(sections: &[T]) -> Vec<String> {
    let names: std::collections::BTreeSet<String> = sections
        .iter()
        .filter_map(|section| Some(section.to_possible_value()?.get_name().to_owned()))
        .collect();
    names.into_iter().collect()
}
