//! Runs the rounds of a bench. Each arm is measured once per round, and a different arm goes first in each round, so
//! that changes in the machine's speed affect all arms equally.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IsTerminal as _, Write as _},
    time::Instant,
};

use anyhow::{Context as _, Result};

use super::{
    affinity,
    bench::{Bench, Group, Labels, Lifetime, Measures, Place, Plan, Setup, Station, Turns},
    reference,
    result::Run,
};

/// Measures everything in the bench's plan.
pub fn run<B: Bench>(bench: &B, setup: &Setup) -> Result<Run> {
    let rounds = setup.rounds.unwrap_or_else(|| B::rounds(setup.is_quick));
    let hurry = B::IS_URGENT.then(affinity::Hurry::begin);
    let _hurry = hurry.transpose()?;
    let mut run = Run::new(B::NAME, setup.is_quick, rounds)?;
    run.sections = bench.sections();
    let Plan { groups, notes } = bench.plan(setup)?;
    run.notes = notes;
    let turns_a_round: usize = groups.iter().map(|group| group.places.len()).sum();
    let mut player = Player {
        bench,
        setup,
        run,
        progress: Progress::new(rounds as usize * turns_a_round),
    };
    for group in &groups {
        player.play(group)?;
    }
    player.run.arrange();
    Ok(player.run)
}

struct Player<'a, B> {
    bench: &'a B,
    setup: &'a Setup,
    run: Run,
    progress: Progress,
}

impl<B: Bench> Player<'_, B> {
    fn play(&mut self, group: &Group<B::Load>) -> Result<()> {
        let mut stations: Vec<Option<Box<dyn Station>>> = Vec::new();
        for place in &group.places {
            stations.push(match group.stations {
                Lifetime::Rounds => Some(self.station(place)?),
                Lifetime::Turn => None,
            });
        }
        let loads: BTreeSet<Labels> = group.places.iter().map(labels::<B>).collect();
        for round in 0..self.run.rounds {
            for load in &loads {
                self.run
                    .add(load, "reference", "step_ns", reference::step_ns());
            }
            let mut by_load: BTreeMap<Labels, Turns> = BTreeMap::new();
            for index in order(stations.len(), round) {
                let place = &group.places[index];
                let measures = self.turn(place, stations[index].as_mut(), round)?;
                let turns = by_load.entry(labels::<B>(place)).or_default();
                turns.insert(&place.arm, measures);
            }
            for (load, turns) in &by_load {
                for (arm, measure, value) in B::derive(turns, &self.run.host) {
                    self.run.add(load, &arm, measure, value);
                }
            }
        }
        for (place, station) in group.places.iter().zip(stations) {
            if let Some(mut station) = station {
                self.settle(place, station.as_mut())?;
            }
        }
        Ok(())
    }

    /// Measures at the station for all rounds, or at one created for this turn.
    fn turn(
        &mut self,
        place: &Place<B::Load>,
        station: Option<&mut Box<dyn Station>>,
        round: u32,
    ) -> Result<Measures> {
        self.setup.interrupt.check()?;
        let what = describe::<B>(place);
        self.progress.step(&format!("{what}, round {}", round + 1));
        if let Some(station) = station {
            if round > 0 {
                self.settle(place, station.as_mut())?;
            }
            return self.measure(place, station.as_mut());
        }
        let mut station = self.station(place)?;
        let measures = self.measure(place, station.as_mut())?;
        self.settle(place, station.as_mut())?;
        Ok(measures)
    }

    fn station(&self, place: &Place<B::Load>) -> Result<Box<dyn Station>> {
        self.setup.interrupt.check()?;
        self.bench
            .station(&place.arm, &place.load, self.setup)
            .with_context(|| format!("prepare {}", describe::<B>(place)))
    }

    fn measure(&mut self, place: &Place<B::Load>, station: &mut dyn Station) -> Result<Measures> {
        let measures = station
            .measure(self.setup)
            .with_context(|| format!("measure {}", describe::<B>(place)))?;
        self.record(place, &measures);
        Ok(measures)
    }

    fn settle(&mut self, place: &Place<B::Load>, station: &mut dyn Station) -> Result<()> {
        let measures = station
            .settle(self.setup)
            .with_context(|| format!("measure {}", describe::<B>(place)))?;
        self.record(place, &measures);
        Ok(())
    }

    fn record(&mut self, place: &Place<B::Load>, measures: &Measures) {
        for (measure, value) in measures {
            self.run
                .add(&labels::<B>(place), &place.arm, measure, *value);
        }
    }
}

fn labels<B: Bench>(place: &Place<B::Load>) -> Labels {
    B::labels(&place.load)
}

fn describe<B: Bench>(place: &Place<B::Load>) -> String {
    format!("{} ({})", place.arm, text(&labels::<B>(place)))
}

/// Formats labels on one line.
pub fn text(labels: &Labels) -> String {
    let words: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    words.join(", ")
}

/// The indices of the arms, starting with a different one in each round.
fn order(arms: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..arms).map(move |index| (index + round as usize) % arms)
}

/// Shows the current step on stderr: on a terminal in one line that is overwritten, elsewhere in a line per step.
#[derive(Debug)]
struct Progress {
    steps: usize,
    done: usize,
    started: Instant,
}

impl Progress {
    fn new(steps: usize) -> Self {
        Self {
            steps,
            done: 0,
            started: Instant::now(),
        }
    }

    /// Begins a step.
    fn step(&mut self, what: &str) {
        self.done += 1;
        let elapsed = self.started.elapsed().as_secs();
        say(&format!("[{}/{} {elapsed}s] {what}", self.done, self.steps));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if io::stderr().is_terminal() {
            eprintln!();
        }
    }
}

/// Replaces the previous line of progress.
pub fn say(line: &str) {
    let mut stderr = io::stderr();
    // A failure to show progress is no reason to stop.
    let _ = if stderr.is_terminal() {
        write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush())
    } else {
        writeln!(stderr, "{line}")
    };
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use super::*;
    use crate::live::{bench::labels as labelled, host::Host, interrupt::Interrupt};

    /// A bench that records how its stations are used.
    #[derive(Default)]
    struct Diary(Rc<RefCell<Vec<String>>>);

    struct Page {
        arm: String,
        diary: Rc<RefCell<Vec<String>>>,
    }

    impl Station for Page {
        fn measure(&mut self, _: &Setup) -> Result<Measures> {
            self.diary
                .borrow_mut()
                .push(format!("measure {}", self.arm));
            Ok(vec![("ns", self.arm.len() as f64)])
        }

        fn settle(&mut self, _: &Setup) -> Result<Measures> {
            self.diary.borrow_mut().push(format!("settle {}", self.arm));
            Ok(vec![("lost", 0.0)])
        }
    }

    impl Bench for Diary {
        const NAME: &'static str = "diary";

        type Load = Lifetime;

        fn plan(&self, _: &Setup) -> Result<Plan<Lifetime>> {
            let group = |lifetime| Group::new(lifetime, ["a", "bb", "ccc"], &lifetime);
            Ok(Plan {
                groups: vec![group(Lifetime::Rounds), group(Lifetime::Turn)],
                notes: vec!["a note".to_owned()],
            })
        }

        fn labels(load: &Lifetime) -> Labels {
            labelled([("stations", &format!("{load:?}"))])
        }

        fn station(&self, arm: &str, _: &Lifetime, _: &Setup) -> Result<Box<dyn Station>> {
            self.0.borrow_mut().push(format!("make {arm}"));
            Ok(Box::new(Page {
                arm: arm.to_owned(),
                diary: Rc::clone(&self.0),
            }))
        }

        fn derive(turns: &Turns, _: &Host) -> Vec<(String, &'static str, f64)> {
            let first = turns.get("a", "ns");
            let more = |(arm, ns): (&str, f64)| Some((arm.to_owned(), "more_ns", ns - first?));
            turns.of("ns").filter_map(more).collect()
        }
    }

    fn play() -> (Run, Vec<String>) {
        let diary = Diary::default();
        let setup = Setup {
            agent: "flow-agent".into(),
            is_quick: true,
            rounds: Some(2),
            duration: None,
            interrupt: Interrupt::default(),
        };
        let run = run(&diary, &setup).unwrap();
        (run, diary.0.take())
    }

    #[test]
    fn every_arm_comes_once_a_round_and_each_is_first_by_turns() {
        let rounds: Vec<Vec<usize>> = (0..3).map(|round| order(3, round).collect()).collect();
        assert_eq!(rounds, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }

    #[test]
    fn stations_live_as_long_as_their_group_says() {
        let (_, diary) = play();
        let (rounds, turns) = diary.split_at(15);
        assert_eq!(
            rounds.join(", "),
            "make a, make bb, make ccc, measure a, measure bb, measure ccc, \
             settle bb, measure bb, settle ccc, measure ccc, settle a, measure a, \
             settle a, settle bb, settle ccc"
        );
        assert_eq!(
            turns[..6].join(", "),
            "make a, measure a, settle a, make bb, measure bb, settle bb"
        );
        assert_eq!(turns.len(), 18);
    }

    #[test]
    fn each_measure_of_an_arm_has_a_value_a_round() {
        let (run, _) = play();
        let mut rows: Vec<String> = run
            .rows
            .iter()
            .filter(|row| row.arm != "reference")
            .map(|row| format!("{} {} {:?}", row.arm, row.measure, row.values))
            .collect();
        let expected = [
            "a lost [0.0, 0.0]",
            "a more_ns [0.0, 0.0]",
            "a ns [1.0, 1.0]",
            "bb lost [0.0, 0.0]",
            "bb more_ns [1.0, 1.0]",
            "bb ns [2.0, 2.0]",
            "ccc lost [0.0, 0.0]",
            "ccc more_ns [2.0, 2.0]",
            "ccc ns [3.0, 3.0]",
        ];
        // Both lifetimes of stations produce the same rows.
        rows.sort();
        rows.dedup();
        assert_eq!(rows, expected);
        assert_eq!(run.rows.len(), 2 * (expected.len() + 1));
        let references = run.rows.iter().filter(|row| row.arm == "reference");
        let counts: Vec<usize> = references.map(|row| row.values.len()).collect();
        assert_eq!(counts, [2, 2]);
        assert_eq!(run.notes, ["a note"]);
    }
}
