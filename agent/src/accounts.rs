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
    /// Interfaces that have left, and what our programs saw at those that are not watched.
    pub others: HookAccount,
}

#[derive(Clone, Debug)]
pub struct AccountOfHook {
    pub interface: Interface,
    pub direction: Direction,
    pub account: HookAccount,
}

impl Accounts {
    /// Puts into `others` what the hooks lack of `sum`. `departed_flows` are those of interfaces that have left.
    pub fn complete(&mut self, sum: &HookAccount, departed_flows: Pair) {
        let mut listed = HookAccount::default();
        for hook in &self.hooks {
            listed.merge(&hook.account);
        }
        self.others = sum.since(&listed);
        self.others.counters[Reason::Flows as usize] = departed_flows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_hook_has_is_with_the_others() {
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
                account: account(5, 5),
            }],
            ..Accounts::default()
        };
        // One that was reported has not been drained.
        let departed = account(3, 2).get(Reason::Flows);
        accounts.complete(&account(8, 6), departed);
        assert_eq!(accounts.others, account(3, 2));
    }
}
