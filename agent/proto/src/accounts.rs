//! The account by interface and direction, as one scan found it, for outputs that tell it. A batch has the sum alone.

use agent_common::{Direction, HookAccount, Pair, Reason};

use crate::Interface;

/// The accounts of all hooks since the agent started. Their sum is the account of the scan's last batch, but for `flows`:
/// here they are those that the programs report, there those that were drained.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// Unix time in nanoseconds, as it was then: when the sums that belong to no hook began, and the window of the scan.
    pub since_unix_ns: u64,
    pub window_start_unix_ns: u64,
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

/// The growth of a sum since a start time that receivers get with it. The start stays the same until the clock is set to a time before
/// it; then the series restarts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Series {
    pub since_unix_ns: u64,
    before: HookAccount,
}

impl Series {
    /// Of a sum that is zero until then.
    pub fn beginning(since_unix_ns: u64) -> Self {
        Self {
            since_unix_ns,
            before: HookAccount::default(),
        }
    }

    /// The clock was set, and `sum` is what was counted until a window that begins at this time.
    pub fn follow_set_clock(&mut self, window_start_unix_ns: u64, sum: &HookAccount) {
        if self.since_unix_ns >= window_start_unix_ns {
            *self = Self {
                since_unix_ns: window_start_unix_ns,
                before: *sum,
            };
        }
    }

    pub fn growth(&self, sum: &HookAccount) -> HookAccount {
        sum.since(&self.before)
    }
}

/// What the accounts of hooks and of those that have left lack of the sum of all. There are no flows of others.
pub fn others<'a>(
    all: &HookAccount,
    departed: &HookAccount,
    hooks: impl IntoIterator<Item = &'a HookAccount>,
) -> HookAccount {
    let mut listed = *departed;
    for hook in hooks {
        listed.merge(hook);
    }
    let mut others = all.since(&listed);
    others.counters[Reason::Flows as usize] = Pair::default();
    others
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
        // One that was reported has not been drained.
        let others = others(&account(9, 6), &account(3, 2), [&account(5, 5)]);
        assert_eq!(others, account(1, 0));
    }

    #[test]
    fn a_series_keeps_its_start_and_begins_anew_where_the_clock_is_set_before_it() {
        let sum = |seen| {
            let mut account = HookAccount::default();
            account.add(Reason::Seen, seen, 60 * seen);
            account
        };
        let mut series = Series::beginning(1_000);
        let told = |series: &Series, seen| (series.since_unix_ns, series.growth(&sum(seen)));
        assert_eq!(told(&series, 5), (1_000, sum(5)));
        for window_start in [9_000, 1_001] {
            series.follow_set_clock(window_start, &sum(5));
            assert_eq!(told(&series, 7), (1_000, sum(7)));
        }
        for window_start in [1_000, 300] {
            series.follow_set_clock(window_start, &sum(7));
            assert_eq!(told(&series, 8), (window_start, sum(1)));
        }
    }
}
