//! What an earlier process has left: its last checkpoint, and the maps that its programs went on counting into.

use std::mem;

use agent_common::{FlowCounters, FlowKey, HookAccount, Pair, Reason, Senders, senders::Kinds};
use anyhow::{Context as _, Result};
use bytes::Bytes;
use kernel::{
    account::{Accounts, Layout},
    carry::Predecessor,
    pages::OldPages,
};
use prost::Message as _;
use proto::{
    Interface,
    batch::{Batch, Identity},
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    LastScan, Outline, State, from_pairs, layout, layout_of_accounts,
    ledger::{self, Commit},
};

/// What an earlier process has counted and nobody has drained.
pub struct Heritage {
    pub instance: String,
    /// The names of its files in the store.
    pub files: Vec<String>,
    commit: Commit<State>,
    identity: Identity,
    unreported_flows: Bytes,
    batches: Vec<Batch>,
    pages: OldPages,
    accounts: Accounts,
}

/// What an earlier process has left in another layout than ours. Its flows cannot be read.
pub struct Orphan {
    pub instance: String,
    /// The names of its files in the store.
    pub files: Vec<String>,
    /// Its accounts, and what each page's had at its last scan, if their layout is ours.
    accounts: Option<(Accounts, [HookAccount; 2])>,
}

impl Orphan {
    /// The packets and bytes that it has counted since its last scan. None of its programs may still run.
    pub fn seen(&self) -> Option<Pair> {
        let (accounts, before) = self.accounts.as_ref()?;
        let seen = |page| {
            let since = accounts.sum_of_idle(page).since(&before[page as usize]);
            since.get(Reason::Seen)
        };
        Some([0, 1].map(seen).into_iter().sum())
    }
}

pub(super) enum Opened {
    Heritage(Box<Heritage>),
    Orphan(Box<Orphan>),
}

impl Heritage {
    /// Opens what a process has left. Fails if it is incomplete.
    pub(super) fn open(predecessor: Predecessor) -> Result<Opened> {
        let Predecessor {
            instance,
            mut files,
        } = predecessor;
        let names = files.keys().cloned().collect();
        let ledger = ledger::NAMES.map(|name| files.remove(name));
        let commit: Commit<Value> = ledger::read(ledger.into_iter().flatten())?;
        let outline = Outline::deserialize(&commit.state).context("read the ledger")?;
        let accounts_layout = Layout {
            per_page: outline.accounts_per_page,
            cpus: outline.cpus,
        };
        if outline.layout != layout() {
            let accounts = if outline.layout_of_accounts == layout_of_accounts() {
                let before = outline.accounts.each_ref().map(|pairs| from_pairs(pairs));
                Some((Accounts::open(&mut files, accounts_layout)?, before))
            } else {
                None
            };
            return Ok(Opened::Orphan(Box::new(Orphan {
                instance,
                files: names,
                accounts,
            })));
        }
        let mut commit = commit.with_state::<State>()?;
        let mut rest = Bytes::from(mem::take(&mut commit.rest));
        let state = &commit.state;
        let unreported_flows = state.unreported.cut(&mut rest)?;
        let batches = if commit.is_delivered {
            Vec::new()
        } else {
            ledger::cut(rest, &state.batches)?
        };
        let kinds = Kinds(state.senders & Kinds::ALL.0);
        Ok(Opened::Heritage(Box::new(Self {
            pages: OldPages::open(&mut files, kinds)?,
            accounts: Accounts::open(&mut files, accounts_layout)?,
            identity: Identity::decode(&*state.identity).context("read its identity")?,
            instance,
            files: names,
            commit,
            unreported_flows,
            batches,
        })))
    }

    /// The pages whose flows are in no batch.
    pub fn undrained(&self) -> Vec<u32> {
        let Commit {
            state, is_cleared, ..
        } = &self.commit;
        let is_left = |page: &u32| *is_cleared || !state.pages.contains(page);
        (0..2).filter(is_left).collect()
    }

    /// The processes whose maps it has drained.
    pub(super) fn drained(&self) -> &[String] {
        &self.commit.state.drained
    }

    /// Whether some of its packets may have been counted inexactly.
    pub fn is_inexact(&self) -> bool {
        self.commit.state.is_inexact
    }

    pub fn are_tags_unknown(&self) -> bool {
        self.commit.state.are_tags_unknown
    }

    /// Passes every flow of a page to `sink`.
    pub fn read(
        &mut self,
        page: u32,
        sink: impl FnMut(&[FlowKey], &[FlowCounters], &[Senders]),
    ) -> Result<u64> {
        let read = self.pages.read(page, sink);
        read.context("read the predecessor's flow table")
    }

    /// What all hooks counted on a page after it was read last.
    pub fn account(&self, page: u32) -> HookAccount {
        let before = from_pairs(&self.commit.state.accounts[page as usize]);
        self.accounts.sum_of_idle(page).since(&before)
    }

    /// The packets and bytes that it has seen, and that are in no record that was delivered.
    pub fn unreported(&self) -> Pair {
        let pages = [0, 1].map(|page| self.account(page).get(Reason::Seen));
        let batches = self.batches.iter().map(|batch| batch.delta);
        let all = pages.into_iter().chain(batches);
        all.chain([self.commit.state.last_scan.waiting()]).sum()
    }

    /// Takes the batches of its last scan, unless all consumers have them.
    pub fn take_batches(&mut self) -> Vec<Batch> {
        mem::take(&mut self.batches)
    }

    pub fn window_end_unix_ns(&self) -> u64 {
        self.commit.state.window_end_unix_ns
    }

    pub fn sample_rate(&self) -> u32 {
        self.commit.state.sample_rate
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// When its programs stop counting, by the kernel's tick counter.
    pub fn lease_jiffies(&self) -> u64 {
        self.commit.state.lease_jiffies
    }

    pub fn last_scan(&self) -> &LastScan {
        &self.commit.state.last_scan
    }

    /// The flows that waited for their report interval at its last scan: see [`flows::replica::read_unreported`].
    pub fn unreported_flows(&self) -> &[u8] {
        &self.unreported_flows
    }

    /// The interfaces that its flows name.
    pub fn interfaces(&self) -> Vec<Interface> {
        let encoded = self.commit.state.interfaces.iter();
        encoded
            .filter_map(|one| Interface::decode(&one[..]).ok())
            .collect()
    }
}
