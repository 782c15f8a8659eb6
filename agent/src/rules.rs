//! The filter rules in force, and how to replace them while the agent runs.
//!
//! [`Rules::replace`] starts a thread that fills the maps for the rules' networks. The thread then compiles the rules,
//! sends a [`Change`] to the task that owns the programs' switch, which switches the programs to these maps, and frees
//! the previous ones. When an interface appears or is renamed, rules that name interfaces are replaced in the same way,
//! with the networks already in force. That does not wait for another set's networks to load, since nothing is counted
//! at the interface until then.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use kernel::rule_maps::{Networks, RuleMaps};
use rules::{Rule, link_names::LinkNames};
use server::active_rules::{ActiveRules, Author, ReplaceError, Replaced, Replacing, Rules};
use sys::background;
use tokio::sync::{Mutex, oneshot, watch};

use crate::changes::{Change, Changes};

/// The rules of the running agent. Clones share them.
#[derive(Clone)]
pub struct RunningRules {
    /// Locked while a set is replaced, so that one is replaced at a time.
    turn: Arc<Mutex<()>>,
    /// Locked while the programs switch to other maps, which is quick. `None` after a thread panicked while it held
    /// them.
    maps: Arc<Mutex<Option<RuleMaps>>>,
    changes: Changes,
    active: watch::Sender<Arc<ActiveRules>>,
}

impl RunningRules {
    /// Wraps `rules`, which are in force in `maps`.
    pub fn new(rules: &[Rule], maps: RuleMaps, changes: Changes) -> Self {
        Self {
            turn: Arc::default(),
            maps: Arc::new(Mutex::new(Some(maps))),
            changes,
            active: watch::Sender::new(Arc::new(ActiveRules::new(rules, Author::Settings, 1))),
        }
    }

    /// Names the interface at a slot. Returns once the programs apply the rules to it by these names. Blocks.
    pub fn name_interface(&self, slot: u32, names: &LinkNames) -> Result<(), ReplaceError> {
        self.with_maps(|maps| {
            maps.name_interface(slot, names);
            let rules = &self.active().by_interface;
            match maps.networks() {
                Some(networks) if !rules.is_empty() => {
                    self.switch_to(maps, rules, networks).map(drop)
                }
                _ => Ok(()),
            }
        })
    }

    async fn replace_in_turn(
        &self,
        rules: Vec<Rule>,
        author: Author,
    ) -> Result<Replaced, ReplaceError> {
        // Waits in order, and keeps the next set waiting until the thread is done.
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let running = self.clone();
        let (sender, outcome) = oneshot::channel();
        let started = background::start("rules", move || {
            let outcome = running.fill_and_replace(&rules, author);
            drop(turn);
            if let Err(Err(ReplaceError::Refused(error))) = sender.send(outcome) {
                tracing::warn!(
                    "keeping the filter rules; the client that tried to change them has left: {error}"
                );
            }
        });
        if let Err(error) = started {
            return Err(refused(&anyhow!(error).context("start a thread")));
        }
        let failed = |_| refused(&anyhow!("the thread that changes them has failed"));
        outcome.await.map_err(failed)?
    }

    fn fill_and_replace(&self, rules: &[Rule], author: Author) -> Result<Replaced, ReplaceError> {
        // Without maps there is nothing to fill.
        self.with_maps(|_| Ok(()))?;
        let networks = Networks::of(rules).map_err(|error| refused(&error))?;
        self.with_maps(|maps| self.replace_in(maps, rules, networks, author))
    }

    fn with_maps<T>(
        &self,
        change: impl FnOnce(&mut RuleMaps) -> Result<T, ReplaceError>,
    ) -> Result<T, ReplaceError> {
        let mut place = self.maps.blocking_lock();
        // A thread that panics loses the maps, since their state is unknown.
        let mut maps = place
            .take()
            .ok_or_else(|| refused(&anyhow!("this agent cannot change its filter rules")))?;
        let outcome = change(&mut maps);
        *place = Some(maps);
        outcome
    }

    fn replace_in(
        &self,
        maps: &mut RuleMaps,
        rules: &[Rule],
        networks: Arc<Networks>,
        author: Author,
    ) -> Result<Replaced, ReplaceError> {
        let warnings = self.switch_to(maps, rules, networks)?;
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        let generation = self.active().generation + 1;
        let active = Arc::new(ActiveRules::new(rules, author, generation));
        self.active.send_replace(Arc::clone(&active));
        tracing::info!(rules = rules.len(), generation, "filter rules are in force");
        Ok(Replaced { active, warnings })
    }

    /// Returns the warnings once the programs follow the rules.
    fn switch_to(
        &self,
        maps: &mut RuleMaps,
        rules: &[Rule],
        networks: Arc<Networks>,
    ) -> Result<Vec<String>, ReplaceError> {
        let staged = maps.stage(rules, networks);
        let staged = staged.map_err(|error| refused(&error))?;
        let warnings = staged.warnings().to_vec();
        let switched = self.changes.make_blocking(Change::Rules(staged.rules()))?;
        switched.map_err(|error| refused(&error))?;
        maps.settle(staged);
        Ok(warnings)
    }
}

impl Rules for RunningRules {
    fn active(&self) -> Arc<ActiveRules> {
        Arc::clone(&self.active.borrow())
    }

    /// Returns once the programs apply the new rules to every packet. Sets are replaced one at a time, in the order of
    /// the calls. Dropping the future cancels a call that waits for its turn, but not one that has begun. The caller
    /// logs a refusal.
    fn replace(&self, rules: Vec<Rule>, author: Author) -> Replacing<'_> {
        Box::pin(self.replace_in_turn(rules, author))
    }
}

fn refused(error: &anyhow::Error) -> ReplaceError {
    ReplaceError::Refused(format!("{error:#}"))
}
