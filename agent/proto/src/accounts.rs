//! The accounts by interface and direction after one scan, for outputs that report them. A batch has only
//! their sum.

use agent_common::{Direction, HookAccount, Pair, Reason};

use crate::Interface;

/// The accounts of all hooks since the agent started. They add up to the account in the scan's last batch,
/// except for `flows`: here these are the packets that the programs counted in flows, there the packets that
/// were drained.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// Unix time in nanoseconds, as recorded at the time: when the sums that belong to no hook began, and the
    /// scan's window.
    pub since_unix_ns: u64,
    pub window_start_unix_ns: u64,
    pub until_unix_ns: u64,
    pub hooks: Vec<AccountOfHook>,
    /// The accounts of interfaces that are gone. When an interface leaves, its whole account is added here.
    pub departed: HookAccount,
    /// Packets that our programs saw at interfaces that are not watched.
    pub others: HookAccount,
}

#[derive(Clone, Debug)]
pub struct AccountOfHook {
    pub interface: Interface,
    pub direction: Direction,
    /// When this account began, Unix time in nanoseconds, as recorded at the time. An interface that is
    /// watched again begins a new account.
    pub since_unix_ns: u64,
    pub account: HookAccount,
}

/// The growth of a sum since a start time, which receivers get along with it. The start stays the same until
/// the clock is set to a time before it; then the series restarts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Series {
    pub since_unix_ns: u64,
    before: HookAccount,
}

impl Series {
    /// Starts a series for a sum that is zero until `since_unix_ns`.
    pub fn beginning(since_unix_ns: u64) -> Self {
        Self {
            since_unix_ns,
            before: HookAccount::default(),
        }
    }

    /// Restarts the series if the clock was set to a time before its start. `sum` is the count before the
    /// window that begins at `window_start_unix_ns`.
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

/// The part of `all` that is in neither `departed` nor `hooks`. Its `flows` are zero.
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
