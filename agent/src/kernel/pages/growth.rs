//! How large the pages should be: memory follows use.

use super::Size;

/// Room for some thousand flows.
const LEAST_FLOWS: u32 = 6144;

/// A page is made smaller after so many scans that used little of it.
const QUIET_SCANS: u32 = 16;

/// What a quiet scan leaves unused: after halving it is still far from the mark.
const QUIET_SHARE: u64 = 8;

pub(super) struct Growth {
    least: Size,
    most: Size,
    wanted: Size,
    quiet_scans: u32,
}

impl Growth {
    /// From room for some thousand flows up to `max_flows`. Where pages do not ask for scans (`mark_flows` is 0) they
    /// could fill before anybody knows, so they have all of their room at once.
    pub(super) fn up_to(max_flows: u32, mark_flows: u32) -> Self {
        let most = Size::with_room_for(max_flows);
        let least = if mark_flows == 0 {
            most
        } else {
            most.min(Size::with_room_for(LEAST_FLOWS))
        };
        Self {
            least,
            most,
            wanted: least,
            quiet_scans: 0,
        }
    }

    pub(super) fn wanted(&self) -> Size {
        self.wanted
    }

    /// Takes in how many flows a scan found on a page of this size, and how many the programs may put into it before they
    /// ask for a scan.
    pub(super) fn note(&mut self, flows: u64, size: Size, mark_flows: u32) {
        if mark_flows != 0 && flows >= u64::from(mark_flows) {
            self.quiet_scans = 0;
            let mut grown = size.doubled();
            while grown < self.most && u64::from(grown.room_flows()) < 2 * flows {
                grown = grown.doubled();
            }
            self.wanted = self.wanted.max(grown.min(self.most));
            return;
        }
        if flows * QUIET_SHARE > u64::from(self.wanted.room_flows()) {
            self.quiet_scans = 0;
            return;
        }
        self.quiet_scans += 1;
        if self.quiet_scans == QUIET_SCANS {
            self.quiet_scans = 0;
            self.wanted = self.wanted.halved().max(self.least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_FLOWS: u32 = 500_000;

    fn growth() -> Growth {
        Growth::up_to(MAX_FLOWS, 250_000)
    }

    fn mark(size: Size) -> u32 {
        size.room_flows() / 2
    }

    #[test]
    fn a_page_that_passes_its_mark_is_doubled_and_one_that_has_many_more_has_room_for_twice_as_many()
     {
        let mut growth = growth();
        let least = growth.wanted();
        growth.note(u64::from(mark(least)), least, mark(least));
        assert_eq!(growth.wanted(), least.doubled());
        growth.note(70_000, least, mark(least));
        let wanted = growth.wanted();
        assert!(wanted.room_flows() >= 140_000);
        assert!(wanted.halved().room_flows() < 140_000);
        // The other page is still as small as it was.
        growth.note(4000, least, mark(least));
        assert_eq!(growth.wanted(), wanted);
    }

    #[test]
    fn pages_grow_up_to_the_setting_and_no_further() {
        let mut growth = growth();
        let mut size = growth.wanted();
        for _ in 0..20 {
            growth.note(size.room_flows().into(), size, mark(size));
            size = growth.wanted();
        }
        assert_eq!(size, Size::with_room_for(MAX_FLOWS));
        let small = Growth::up_to(10, 5);
        assert_eq!(small.wanted(), Size::with_room_for(10));
    }

    #[test]
    fn pages_shrink_by_halves_after_quiet_scans_in_a_row() {
        let mut growth = growth();
        let least = growth.wanted();
        growth.note(70_000, least, mark(least));
        let large = growth.wanted();
        let quiet = |growth: &mut Growth, scans| {
            for _ in 0..scans {
                growth.note(10, large, mark(large));
            }
        };
        quiet(&mut growth, QUIET_SCANS - 1);
        growth.note(70_000, large, mark(large));
        quiet(&mut growth, QUIET_SCANS - 1);
        assert_eq!(growth.wanted(), large);
        quiet(&mut growth, 1);
        assert_eq!(growth.wanted(), large.halved());
        quiet(&mut growth, 20 * QUIET_SCANS);
        assert_eq!(growth.wanted(), least);
    }

    #[test]
    fn a_size_that_shrinks_is_far_from_growing_again() {
        let mut growth = growth();
        let size = Size::with_room_for(100_000);
        let flows = u64::from(size.room_flows()) / QUIET_SHARE;
        assert!(flows < u64::from(mark(size.halved())) / 2);
        growth.wanted = size;
        growth.note(flows + 1, size, mark(size));
        assert_eq!((growth.wanted, growth.quiet_scans), (size, 0));
    }

    #[test]
    fn pages_that_ask_for_no_scan_have_all_of_their_room() {
        let mut growth = Growth::up_to(MAX_FLOWS, 0);
        for flows in [0, 600_000, 0] {
            for _ in 0..2 * QUIET_SCANS {
                assert_eq!(growth.wanted(), Size::with_room_for(MAX_FLOWS));
                growth.note(flows, growth.wanted(), 0);
            }
        }
    }
}
