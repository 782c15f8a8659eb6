//! Decides how large the pages should be, so that memory follows use.

use super::size::{Mark, Size};

/// A page shrinks after this many scans in a row that used little of it.
const QUIET_SCANS: u32 = 16;

/// A scan is quiet if it finds at most a quarter of the mark, so that after halving the page is still far below its
/// mark.
const QUIET_SHARE: u64 = 4;

pub(super) struct Growth {
    least: Size,
    most: Size,
    wanted: Size,
    mark: Mark,
    quiet_scans: u32,
    /// Scans to wait before another size may be made.
    refused_scans: u32,
}

impl Growth {
    /// Pages grow from room for `min_flows` to room for the mark's `max_flows`. If the mark is off they start at full
    /// size, since a page could fill up before userspace learns of it.
    pub(super) fn new(min_flows: u32, mark: Mark) -> Self {
        let most = Size::with_room_for(mark.max_flows);
        let least = if mark.is_off() {
            most
        } else {
            most.min(Size::with_room_for(min_flows))
        };
        Self {
            least,
            most,
            wanted: least,
            mark,
            quiet_scans: 0,
            refused_scans: 0,
        }
    }

    pub(super) fn wanted(&self) -> Size {
        self.wanted
    }

    /// Whether the kernel may be asked for another size.
    pub(super) fn may_ask(&self) -> bool {
        self.refused_scans == 0
    }

    /// The kernel refused a page of another size. Waits some scans before asking again, since asking costs most when
    /// memory is short.
    pub(super) fn refused(&mut self) {
        self.refused_scans = QUIET_SCANS;
    }

    /// Records how many flows a scan found on a page of this size.
    pub(super) fn note(&mut self, flows: u64, size: Size) {
        self.refused_scans = self.refused_scans.saturating_sub(1);
        if !self.mark.is_off() && flows >= u64::from(self.mark.of(size)) {
            self.quiet_scans = 0;
            let mut grown = size.doubled();
            while grown < self.most && u64::from(grown.room_flows()) < 2 * flows {
                grown = grown.doubled();
            }
            self.wanted = self.wanted.max(grown.min(self.most));
            return;
        }
        if flows * QUIET_SHARE > u64::from(self.mark.of(self.wanted)) {
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

    const MIN_FLOWS: u32 = 6144;
    const MAX_FLOWS: u32 = 500_000;

    fn asking_at(percent: u32) -> Growth {
        let flows = MAX_FLOWS / 100 * percent;
        let max_flows = MAX_FLOWS;
        Growth::new(MIN_FLOWS, Mark { flows, max_flows })
    }

    #[test]
    fn a_page_that_passes_its_mark_is_doubled_and_one_that_has_many_more_has_room_for_twice_as_many()
     {
        let mut growth = asking_at(50);
        let least = growth.wanted();
        growth.note(growth.mark.of(least).into(), least);
        assert_eq!(growth.wanted(), least.doubled());
        growth.note(70_000, least);
        let wanted = growth.wanted();
        assert!(wanted.room_flows() >= 140_000);
        assert!(wanted.halved().room_flows() < 140_000);
        // The other page still has its small size.
        growth.note(4000, least);
        assert_eq!(growth.wanted(), wanted);
    }

    #[test]
    fn pages_grow_up_to_the_setting_and_no_further() {
        let mut growth = asking_at(50);
        let mut size = growth.wanted();
        for _ in 0..20 {
            growth.note(size.room_flows().into(), size);
            size = growth.wanted();
        }
        assert_eq!(size, Size::with_room_for(MAX_FLOWS));
        let mark = Mark {
            flows: 5,
            max_flows: 10,
        };
        let small = Growth::new(MIN_FLOWS, mark);
        assert_eq!(small.wanted(), Size::with_room_for(10));
    }

    #[test]
    fn pages_shrink_by_halves_after_quiet_scans_in_a_row() {
        let mut growth = asking_at(50);
        let least = growth.wanted();
        growth.note(70_000, least);
        let large = growth.wanted();
        let quiet = |growth: &mut Growth, scans| {
            for _ in 0..scans {
                growth.note(10, large);
            }
        };
        quiet(&mut growth, QUIET_SCANS - 1);
        growth.note(70_000, large);
        quiet(&mut growth, QUIET_SCANS - 1);
        assert_eq!(growth.wanted(), large);
        quiet(&mut growth, 1);
        assert_eq!(growth.wanted(), large.halved());
        quiet(&mut growth, 20 * QUIET_SCANS);
        assert_eq!(growth.wanted(), least);
    }

    #[test]
    fn a_size_that_shrinks_is_far_from_growing_again() {
        for percent in [1, 10, 25, 50, 99] {
            let mut growth = asking_at(percent);
            let size = Size::with_room_for(100_000);
            let flows = u64::from(growth.mark.of(size)) / QUIET_SHARE;
            assert!(
                flows < u64::from(growth.mark.of(size.halved())) * 2 / 3,
                "{percent}"
            );
            growth.wanted = size;
            growth.note(flows + 1, size);
            assert_eq!((growth.wanted, growth.quiet_scans), (size, 0));
            growth.note(flows, size);
            assert_eq!((growth.wanted, growth.quiet_scans), (size, 1));
        }
    }

    #[test]
    fn a_kernel_that_refused_is_asked_again_after_some_scans() {
        let mut growth = asking_at(50);
        let least = growth.wanted();
        growth.note(70_000, least);
        assert!(growth.may_ask());
        growth.refused();
        for _ in 0..QUIET_SCANS {
            assert!(!growth.may_ask());
            growth.note(70_000, least);
        }
        assert!(growth.may_ask());
    }

    #[test]
    fn pages_that_ask_for_no_scan_have_all_of_their_room() {
        let mut growth = asking_at(0);
        for flows in [0, 600_000, 0] {
            for _ in 0..2 * QUIET_SCANS {
                assert_eq!(growth.wanted(), Size::with_room_for(MAX_FLOWS));
                growth.note(flows, growth.wanted());
            }
        }
    }
}
