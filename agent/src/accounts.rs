//! The account by interface and direction, as one scan found it, for outputs that tell it. A batch has the sum alone.

use agent_common::{Direction, HookAccount, Pair, Reason};

use crate::proto::Interface;

/// The accounts of all hooks since the agent started. Their sum is the account of the scan's last batch, but for `flows`:
/// here they are those that the programs report, there those that were drained.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// Unix time in nanoseconds, as it was then: when the agent began to count, and the end of the scan's window.
    pub since_unix_ns: u64,
    pub until_unix_ns: u64,
    pub hooks: Vec<AccountOfHook>,
    /// Of interfaces that have left. An interface's whole account comes here when it leaves.
    pub departed: HookAccount,
    /// What our programs saw at interfaces that are not watched.
    pub others: HookAccount,
}

#[derive(Clone, Debug)]
pub struct AccountOfHook {
    pub interface: Interface,
    pub direction: Direction,
    /// When this account began: an interface that is watched again begins another one. Unix time in nanoseconds, as it was then.
    pub since_unix_ns: u64,
    pub account: HookAccount,
}

impl Accounts {
    /// Puts into `others` what the hooks and those that have left lack of `sum`. There are no flows of others.
    pub fn complete(&mut self, sum: &HookAccount) {
        let mut listed = self.departed;
        for hook in &self.hooks {
            listed.merge(&hook.account);
        }
        self.others = sum.since(&listed);
        self.others.counters[Reason::Flows as usize] = Pair::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_hook_has_and_none_had_is_with_the_others() {
        let account = |seen, flows| {
            let mut account = HookAccount::default();
            account.add(Reason::Seen, seen, 60 * seen);
            account.add(Reason::Flows, flows, 60 * flows);
            account
        };
        let mut accounts = Accounts {
            hooks: vec![AccountOfHook {
                interface: Interface::default(),
                direction: Direction::Egress,
                since_unix_ns: 0,
                account: account(5, 5),
            }],
            departed: account(3, 2),
            ..Accounts::default()
        };
        // One that was reported has not been drained.
        accounts.complete(&account(9, 6));
        assert_eq!(accounts.others, account(1, 0));
    }
}
