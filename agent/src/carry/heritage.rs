//! What an earlier process has left: its last checkpoint, and the maps that its programs went on counting into.

use std::mem;

use agent_common::{FlowCounters, FlowKey, HookAccount, Pair, Reason, Senders, senders::Kinds};
use anyhow::{Context as _, Result, ensure};
use kernel::{
    account::{Accounts, Layout},
    carry::Predecessor,
    pages::OldPages,
};
use prost::Message as _;
use proto::{Interface, batch::Batch};

use super::{
    State, layout,
    ledger::{self, Commit},
};

/// What an earlier process has counted and nobody has drained.
pub struct Heritage {
    pub instance: String,
    /// The names of its files in the store.
    pub files: Vec<String>,
    commit: Commit<State>,
    batches: Vec<Batch>,
    pages: OldPages,
    accounts: Accounts,
}

impl Heritage {
    /// Opens what a process has left. Fails if it is incomplete, or if its layout is not ours.
    pub(super) fn open(predecessor: Predecessor) -> Result<Self> {
        let Predecessor {
            instance,
            mut files,
        } = predecessor;
        let names = files.keys().cloned().collect();
        let ledger = ledger::NAMES.map(|name| files.remove(name));
        let mut commit: Commit<State> = ledger::read(ledger.into_iter().flatten())?;
        let batches = batches(&mut commit)?;
        let state = &commit.state;
        ensure!(
            state.layout == layout(),
            "its maps have another layout than this version's"
        );
        let kinds = Kinds(state.senders & Kinds::ALL.0);
        let layout = Layout {
            per_page: state.accounts_per_page,
            cpus: state.cpus,
        };
        Ok(Self {
            pages: OldPages::open(&mut files, kinds)?,
            accounts: Accounts::open(&mut files, layout)?,
            instance,
            files: names,
            commit,
            batches,
        })
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
        let mut before = HookAccount::default();
        let pairs = &self.commit.state.accounts[page as usize];
        for (pair, &[packets, bytes]) in before.counters.iter_mut().zip(pairs) {
            *pair = Pair { packets, bytes };
        }
        self.accounts.sum_of_idle(page).since(&before)
    }

    /// The packets and bytes that it has seen, and that are in no record that was delivered.
    pub fn unreported(&self) -> Pair {
        let pages = [0, 1].map(|page| self.account(page).get(Reason::Seen));
        let batches = self.batches.iter().map(|batch| batch.delta);
        pages.into_iter().chain(batches).sum()
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

    /// Packets and bytes that waited for their report interval: they are in no record.
    pub fn waiting(&self) -> Pair {
        let State {
            waiting_packets,
            waiting_bytes,
            ..
        } = self.commit.state;
        Pair {
            packets: waiting_packets,
            bytes: waiting_bytes,
        }
    }

    /// The interfaces that its flows name.
    pub fn interfaces(&self) -> Vec<Interface> {
        let encoded = self.commit.state.interfaces.iter();
        encoded
            .filter_map(|one| Interface::decode(&one[..]).ok())
            .collect()
    }
}

/// The batches of a commit. None if all consumers have them.
fn batches(commit: &mut Commit<State>) -> Result<Vec<Batch>> {
    let bytes = mem::take(&mut commit.batches);
    if commit.is_delivered {
        return Ok(Vec::new());
    }
    ledger::cut(bytes.into(), &commit.state.batches)
}
