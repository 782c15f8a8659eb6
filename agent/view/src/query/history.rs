//! How much a group had when: a picture of at most a few dozen bars, whose length grows with the time of the query.

use std::ops::Range;

/// The most bars of a history.
const BARS: u8 = 32;

/// The shortest bar, in microseconds. Others are longer by powers of two.
const SHORTEST_US: i64 = 1_000_000;
/// No sound record is from beyond this: the year 2262.
const LATEST_US: i64 = i64::MAX / 1000;

/// The bars of one group. The bar of a number is at the number's rest by [`BARS`], so that none moves if the range grows.
#[derive(Default)]
pub(super) struct Bars(Box<[u64; BARS as usize]>);

/// Which bars there are, the same for all groups.
pub(super) struct Scale {
    length_us: i64,
    /// The numbers of the first and the last bar. Bar 0 begins in 1970.
    numbers: Option<(i64, i64)>,
}

impl Scale {
    pub(super) fn new() -> Self {
        Self {
            length_us: SHORTEST_US,
            numbers: None,
        }
    }

    /// Makes room for this scan window. If bars have to be longer, calls `join` with the numbers whose pairs become one.
    pub(super) fn include(&mut self, window_us: &Range<i64>, mut join: impl FnMut((i64, i64))) {
        let window_us = sound(window_us);
        loop {
            let new = self.numbers_of(&window_us);
            let (first, last) = self.numbers.unwrap_or(new);
            let all = (first.min(new.0), last.max(new.1));
            if all.1 - all.0 < i64::from(BARS) {
                self.numbers = Some(all);
                return;
            }
            if let Some((first, last)) = self.numbers {
                join((first, last));
                self.numbers = Some((first.div_euclid(2), last.div_euclid(2)));
            }
            self.length_us *= 2;
        }
    }

    /// Spreads a value evenly over its scan window, for which there must be room.
    pub(super) fn add(&self, bars: &mut Bars, window_us: &Range<i64>, value: u64) {
        let window_us = sound(window_us);
        let (first, last) = self.numbers_of(&window_us);
        // What the window has up to the end of a bar, so that nothing is lost by rounding.
        let mut before = 0;
        for number in first..=last {
            let end = window_us.end.min((number + 1) * self.length_us);
            let part = end.abs_diff(window_us.start);
            let up_to_here = scaled(value, part, window_us.end.abs_diff(window_us.start));
            let bar = bars.of(number);
            *bar = bar.saturating_add(up_to_here - before);
            before = up_to_here;
        }
    }

    /// The bars in order of time. One that the windows of all records cover in part is as high as it would be if they covered
    /// it wholly, unless they cover less than half of it: a little time says nothing about the rest.
    pub(super) fn read(&self, bars: &mut Bars, windows_us: &Range<i64>) -> Vec<u64> {
        let Some((first, last)) = self.numbers else {
            return Vec::new();
        };
        let windows_us = sound(windows_us);
        let each = (first..=last).map(|number| {
            let start = number * self.length_us;
            let end = windows_us.end.min(start + self.length_us);
            let covered = end.saturating_sub(windows_us.start.max(start));
            let bar = *bars.of(number);
            if covered < self.length_us / 2 {
                return bar;
            }
            let [length, covered] = [self.length_us, covered].map(i64::unsigned_abs);
            scaled(bar, length, covered)
        });
        each.collect()
    }

    fn numbers_of(&self, window_us: &Range<i64>) -> (i64, i64) {
        let number = |us: i64| us.div_euclid(self.length_us);
        (number(window_us.start), number(window_us.end - 1))
    }
}

impl Bars {
    fn of(&mut self, number: i64) -> &mut u64 {
        let place = number.rem_euclid(BARS.into());
        &mut self.0[place.cast_unsigned() as usize]
    }
}

/// The share of a value, rounded down, at most `u64::MAX`.
fn scaled(value: u64, by: u64, of: u64) -> u64 {
    let share = u128::from(value) * u128::from(by) / u128::from(of.max(1));
    share.try_into().unwrap_or(u64::MAX)
}

/// Puts each pair of bars into one.
pub(super) fn join(bars: &mut Bars, (first, last): (i64, i64)) {
    let mut before = std::mem::take(bars);
    for number in first..=last {
        let bar = bars.of(number.div_euclid(2));
        *bar = bar.saturating_add(*before.of(number));
    }
}

/// A window that is not empty and within the calendar.
fn sound(window_us: &Range<i64>) -> Range<i64> {
    let end = window_us.end.clamp(1, LATEST_US);
    window_us.start.clamp(0, end - 1)..end
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: i64 = 1_000_000;

    fn history(windows: &[(Range<i64>, u64)]) -> Vec<u64> {
        let (mut scale, mut bars) = (Scale::new(), Bars::default());
        for (seconds, value) in windows {
            let window = seconds.start * SECOND_US..seconds.end * SECOND_US;
            scale.include(&window, |numbers| join(&mut bars, numbers));
            scale.add(&mut bars, &window, *value);
        }
        let starts = windows.iter().map(|(window, _)| window.start).min();
        let ends = windows.iter().map(|(window, _)| window.end).max();
        let all = starts.unwrap() * SECOND_US..ends.unwrap() * SECOND_US;
        scale.read(&mut bars, &all)
    }

    #[test]
    fn bars_grow_longer_with_the_time_and_keep_what_they_have() {
        assert_eq!(history(&[(100..101, 7)]), [7]);
        assert_eq!(history(&[(100..102, 8), (104..105, 3)]), [4, 4, 0, 0, 3]);
        // In any order.
        assert_eq!(history(&[(104..105, 3), (100..102, 8)]), [4, 4, 0, 0, 3]);
        let all: Vec<_> = (0..320).map(|second| (second..second + 1, 10)).collect();
        assert_eq!(history(&all), [160; 20]);
        let backwards: Vec<_> = all.into_iter().rev().collect();
        assert_eq!(history(&backwards), [160; 20]);
    }

    #[test]
    fn a_bar_that_the_time_covers_in_part_is_no_lower() {
        // Bars of 8 s, of which the first and the last have 4 s.
        let all: Vec<_> = (12..260).map(|second| (second..second + 1, 10)).collect();
        assert_eq!(history(&all), [80; 32]);
        // Of the last one, they have 1 s.
        let all: Vec<_> = (16..257).map(|second| (second..second + 1, 10)).collect();
        let (last, others) = (10, [80; 30]);
        assert_eq!(history(&all), [&others[..], &[last]].concat());
    }

    #[test]
    fn windows_that_no_agent_sends_do_no_harm() {
        let odd = [(i64::MIN..i64::MAX, 1), (5..5, 2)];
        let (mut scale, mut bars) = (Scale::new(), Bars::default());
        for (window, value) in &odd {
            scale.include(window, |numbers| join(&mut bars, numbers));
            scale.add(&mut bars, window, *value);
        }
        let read = scale.read(&mut bars, &(0..i64::MAX));
        assert!((1..=usize::from(BARS)).contains(&read.len()), "{read:?}");
    }
}
