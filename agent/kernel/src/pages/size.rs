//! How large a page is, and when it asks for a scan.

use agent_common::{PageSize, slots::SLOTS};

/// Slots for every three flows. At this load one flow in a hundred finds its windows full.
const SLOTS_FOR_THREE: u64 = 4;

/// The size of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    pub windows: u32,
}

impl Size {
    pub fn with_room_for(flows: u32) -> Self {
        let slots = (u64::from(flows) * SLOTS_FOR_THREE).div_ceil(3);
        let windows = slots.div_ceil(SLOTS.into()).max(1);
        Self {
            windows: u32::try_from(windows).unwrap_or(u32::MAX),
        }
    }

    /// How many flows find a slot, except a few that go to the overflow map.
    pub fn room_flows(self) -> u32 {
        let slots = u64::from(self.windows) * u64::from(SLOTS);
        u32::try_from(slots * 3 / SLOTS_FOR_THREE).unwrap_or(u32::MAX)
    }

    #[must_use]
    pub fn doubled(self) -> Self {
        Self {
            windows: self.windows.saturating_mul(2),
        }
    }

    #[must_use]
    pub fn halved(self) -> Self {
        Self {
            windows: self.windows.div_ceil(2),
        }
    }

    /// Room of the overflow map. It takes flows whose windows are full, and flows that arrive between the report that
    /// the page is full and the flip.
    pub fn behind_flows(max_flows: u32) -> u32 {
        const MOST_WHILE_IT_IS_TOLD: u32 = 1 << 16;
        const ONE_IN: u32 = 32;
        (max_flows / 4)
            .clamp(16, MOST_WHILE_IT_IS_TOLD)
            .max(max_flows / ONE_IN)
    }

    /// The values that the programs read for a page of this size.
    pub(super) fn of_page(self, mark: Mark, possible_cpus: u32, sample_below: u32) -> PageSize {
        let mark_flows = mark.of(self);
        PageSize {
            windows: self.windows,
            mark_flows,
            fill_step: fill_step(mark.room(self), mark_flows, possible_cpus),
            sample_below,
        }
    }
}

/// When a page asks for a scan: when it has used the share `flows` / `max_flows` of its room. With `flows` 0 it never
/// asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub flows: u32,
    pub max_flows: u32,
}

impl Mark {
    pub(super) fn is_off(self) -> bool {
        self.flows == 0
    }

    /// The number of flows at which a page of this size asks for a scan; 0 means never.
    pub(super) fn of(self, size: Size) -> u32 {
        if self.is_off() {
            return 0;
        }
        let flows = u64::from(self.flows) * u64::from(self.room(size));
        let flows = u32::try_from(flows / u64::from(self.max_flows.max(1)));
        // 0 would switch it off.
        flows.unwrap_or(u32::MAX).max(1)
    }

    fn room(self, size: Size) -> u32 {
        size.room_flows().min(self.max_flows)
    }
}

/// New flows that a CPU counts privately before publishing them. Publishing is rare, yet all CPUs together
/// hold back at most an eighth of the mark, and of the room above it.
fn fill_step(room_flows: u32, mark: u32, cpus: u32) -> u32 {
    const SELDOM: u32 = 64;
    let above = room_flows.saturating_sub(mark);
    let cpus = cpus.max(1);
    let most = (mark.min(above) / 8 / cpus).clamp(1, SELDOM);
    1 << most.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_room_for_the_flows_that_it_was_made_for() {
        for flows in [1, 5, 6, 7, 1000, 4096, 500_000, 100_000_000] {
            let size = Size::with_room_for(flows);
            assert!(size.room_flows() >= flows, "{flows}");
            let fewer = Size {
                windows: size.windows - 1,
            };
            assert!(fewer.room_flows() < flows, "{flows}");
        }
    }

    #[test]
    fn what_the_cpus_hold_back_is_a_small_part_of_the_mark() {
        for (max_flows, mark) in [
            (1, 1),
            (4, 2),
            (1000, 990),
            (4096, 2048),
            (500_000, 250_000),
        ] {
            for cpus in [1, 2, 3, 64, 1024] {
                let step = fill_step(max_flows, mark, cpus);
                assert!(step.is_power_of_two() && step <= 64);
                let held_back = (step - 1) * cpus;
                let room = max_flows - mark;
                assert!(
                    held_back <= mark.min(room) / 8,
                    "{mark} of {max_flows}, {cpus} CPUs"
                );
            }
        }
    }
}
