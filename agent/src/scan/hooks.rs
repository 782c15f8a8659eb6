//! The hooks of a scan: which are attached, and what their programs counted.

use agent_common::{HookAccount, Pair, Reason};
use anyhow::Result;
use kernel::{
    attach::{Hook, Left, warn_of_hidden_tags},
    links::Counters,
};
use proto::accounts::Series;

use super::{Scanner, traffic::ByProtocol};

/// One hook's account with its interface's own counters around attachment.
pub struct HookState {
    pub hook: Hook,
    pub account: HookAccount,
    /// Starts with the first window in which the hook may have counted.
    pub(super) series: Series,
    pub before_attach: Counters,
    /// `None` until the hook is attached. The program may count before that.
    pub after_attach: Option<Counters>,
    /// Whether it was attached when the last scan began. The readings around that scan's flip are older otherwise.
    pub is_scanned: bool,
    /// Packets of the flows that were drained, by protocol.
    pub traffic: ByProtocol,
}

impl Scanner {
    /// Adds the hooks attached since the last call. A scan calls this after the flip, so that it knows every hook that
    /// counted on the idle page.
    pub fn note_progress(&mut self) {
        /// An interface other than lo has one hook per direction.
        const DIRECTIONS: usize = 2;
        for attached in self.attachments.progress() {
            if let Some(place) = attached.hook.tag_place
                && !attached.hook.tags_unknown
                && let Some(tags) = self.tags.get(&attached.hook.id.netns)
            {
                tags.add(attached.hook.id.ifindex, place);
            }
            let number = attached.hook.number;
            let hook = &attached.hook;
            self.interfaces.watch(hook);
            let (id, is_loopback) = (hook.id, hook.is_loopback);
            let known = |state: &&mut HookState| state.hook.number == number;
            match self.hooks.iter_mut().find(known) {
                Some(state) => {
                    state.hook = attached.hook;
                    state.after_attach = attached.after_attach;
                }
                None => self.hooks.push(HookState {
                    hook: attached.hook,
                    account: HookAccount::default(),
                    series: Series::beginning(self.window_start_unix_ns),
                    before_attach: attached.before_attach,
                    after_attach: attached.after_attach,
                    is_scanned: false,
                    traffic: ByProtocol::default(),
                }),
            }
            // A reply is evidence of a request, even if only one direction is counted.
            let hooks = self.hooks.iter().filter(|state| state.hook.id == id);
            if is_loopback || hooks.count() == DIRECTIONS {
                self.replica.watch(id);
            }
        }
    }

    pub fn attached_hooks(&self) -> usize {
        let attached = self
            .hooks
            .iter()
            .filter(|state| state.after_attach.is_some());
        attached.count()
    }

    /// Finds XDP hooks that lost sight of VLAN tags when their interface's features changed. Such a hook keeps
    /// counting, and its account says so from the window in which the change was seen. Skips interfaces that have left:
    /// their features cannot be read.
    pub(super) fn look_for_hidden_tags(&mut self, left: &[Left]) {
        let hidden = self.tags.iter().flat_map(|(&netns, tags)| {
            let hidden = tags.hidden();
            hidden.map(move |(place, why)| (netns, place, why))
        });
        for (netns, place, why) in hidden {
            let hooks = self.hooks.iter_mut().map(|state| &mut state.hook);
            let hooks = hooks.filter(|hook| hook.id.netns == netns);
            let hooks = hooks.filter(|hook| left.iter().all(|left| left.id != hook.id));
            for hook in hooks.filter(|hook| hook.tag_place == Some(place) && !hook.tags_unknown) {
                if let Some(interfaces) = self.hidden_tags.event() {
                    warn_of_hidden_tags(&hook.interface, interfaces, &why);
                }
                hook.tags_unknown = true;
            }
        }
    }

    /// Adds the page's account. Returns whether the table refused anything.
    pub(super) fn take_account(&mut self, page: u32) -> Result<bool> {
        let mut refused = false;
        let mut departed = 0;
        let mut accounts = self.kernel.accounts.of_idle(page);
        for state in &mut self.hooks {
            let mut growth = accounts.take(state.hook.number)?;
            departed += growth.get(Reason::UnknownInterface).packets;
            mark(
                &mut growth,
                state.hook.is_inexact(),
                state.hook.tags_unknown,
            );
            state.account.merge(&growth);
            refused |= growth.not_inserted().packets != 0;
            growth.counters[Reason::Flows as usize] = Pair::default();
            self.account.merge(&growth);
        }
        if departed != 0 && self.unknown_interfaces.event().is_some() {
            tracing::warn!(
                packets = departed,
                "an interface went to another network namespace with a program of ours, where its index \
                 is that of a watched one: what the program sees there begins no flow (unknown_interface)"
            );
        }
        let unknown = accounts.take_unknown()?;
        self.add_unknown(&unknown);
        Ok(refused)
    }

    /// Adds what our programs saw on interfaces that are not watched.
    fn add_unknown(&mut self, growth: &HookAccount) {
        self.account.merge(growth);
        let packets = growth.get(Reason::UnknownInterface).packets;
        if packets != 0 && self.unknown_interfaces.event().is_some() {
            tracing::warn!(
                packets,
                "a program of ours runs on an interface that is not watched, and what it sees is in no \
                 flow (unknown_interface): the kernel put it on a lower device, or the interface went \
                 to another network namespace; choose --ingress-hook tc, or restart the agent"
            );
        }
    }
}

/// Adds the counters that a program cannot know because they depend on how it is attached. They are not part of the
/// sum.
pub(super) fn mark(growth: &mut HookAccount, is_inexact: bool, are_tags_unknown: bool) {
    let seen = growth.get(Reason::Seen);
    if is_inexact {
        growth.add(Reason::Inexact, seen.packets, seen.bytes);
    }
    if are_tags_unknown {
        growth.add(Reason::TagsUnknown, seen.packets, seen.bytes);
    }
}
