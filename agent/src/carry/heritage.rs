//! What an earlier process has left: its last checkpoint, and the maps that its programs went on counting into.

use std::mem;

use agent_common::{FlowCounters, FlowKey, HookAccount, Pair, Reason, Senders, senders::Kinds};
use anyhow::{Context as _, Result};
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

use super::{
    LastScan, State, from_pairs, layout, layout_of_accounts,
    ledger::{self, Commit},
};

/// What an earlier process has counted and nobody has drained.
pub struct Heritage {
    pub instance: String,
    /// The names of its files in the store.
    pub files: Vec<String>,
    commit: Commit<State>,
    identity: Identity,
    batches: Vec<Batch>,
    /// `None` if their layout is not ours.
    pages: Option<OldPages>,
    accounts: Option<Accounts>,
}

impl Heritage {
    /// Opens the files of a process. Fails if they are incomplete.
    pub(super) fn open(predecessor: Predecessor) -> Result<Self> {
        let Predecessor {
            instance,
            mut files,
        } = predecessor;
        let names = files.keys().cloned().collect();
        let commit: Commit<State> = ledger::read(&mut files)?;
        let state = &commit.state;
        let batches = if commit.is_delivered {
            Vec::new()
        } else {
            commit.batches(&state.batches)?
        };
        let (has_layout, has_accounts) = (
            state.layout == layout(),
            state.layout_of_accounts == layout_of_accounts(),
        );
        let kinds = Kinds(state.senders & Kinds::ALL.0);
        let of_accounts = Layout {
            per_page: state.accounts_per_page,
            cpus: state.cpus,
        };
        let pages = has_layout.then(|| OldPages::open(&mut files, kinds));
        let accounts =
            (has_layout || has_accounts).then(|| Accounts::open(&mut files, of_accounts));
        Ok(Self {
            pages: pages.transpose()?,
            accounts: accounts.transpose()?,
            identity: Identity::decode(&*state.identity).context("read its identity")?,
            instance,
            files: names,
            commit,
            batches,
        })
    }

    /// Whether this version can read its flows.
    pub fn is_readable(&self) -> bool {
        self.pages.is_some()
    }

    /// The readable pages whose flows are in no batch.
    pub fn undrained(&self) -> Vec<u32> {
        let Commit {
            state, is_cleared, ..
        } = &self.commit;
        let was_read = |page: &u32| state.pages.contains(page) || state.page == Some(*page);
        let is_left = |page: &u32| self.is_readable() && (*is_cleared || !was_read(page));
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
        let pages = self.pages.as_mut();
        let pages = pages.context("the predecessor's flow table has another layout")?;
        let read = pages.read(page, sink);
        read.context("read the predecessor's flow table")
    }

    /// What all hooks counted on a page after it was read last, if their layout is ours. No program of that process may
    /// still run.
    pub fn account(&self, page: u32) -> Option<HookAccount> {
        let before = from_pairs(&self.commit.state.accounts[page as usize]);
        let accounts = self.accounts.as_ref()?;
        Some(accounts.sum_of_idle(page).since(&before))
    }

    /// The packets and bytes that it has seen since its last scan, if that is known.
    pub fn seen(&self) -> Option<Pair> {
        let seen = |page| Some(self.account(page)?.get(Reason::Seen));
        Some([seen(0)?, seen(1)?].into_iter().sum())
    }

    /// The packets and bytes that it has seen, and that are in no record that was delivered, as far as that is known.
    pub fn unreported(&self) -> Pair {
        let batches = self.batches.iter().map(|batch| batch.delta);
        let others = [self.seen().unwrap_or_default(), self.waiting()];
        batches.chain(others).sum()
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

    /// Packets and bytes that waited for their report interval at its last scan.
    pub fn waiting(&self) -> Pair {
        let State {
            last_scan,
            waiting_packets,
            waiting_bytes,
            ..
        } = &self.commit.state;
        let earlier = Pair {
            packets: *waiting_packets,
            bytes: *waiting_bytes,
        };
        [last_scan.waiting(), earlier].into_iter().sum()
    }

    /// Reads the flows that they belong to: see [`flows::replica::read_unreported`]. `None` if this version cannot read
    /// them.
    pub fn unreported_flows(&self) -> Option<Vec<u8>> {
        self.commit.unreported(&self.commit.state.unreported)
    }

    /// The interfaces that its flows name.
    pub fn interfaces(&self) -> Vec<Interface> {
        let encoded = self.commit.state.interfaces.iter();
        encoded
            .filter_map(|one| Interface::decode(&one[..]).ok())
            .collect()
    }
}
