//! Limits log lines about single interfaces. All lines about the first interfaces are written, but only some about
//! later ones, since interfaces may come and go all the time.

use sys::log_limit::LogLimit;

/// The subject of a line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Line {
    InsteadOfXdp,
    OurGenericXdp,
    ForeignGenericXdp,
    HiddenTags,
    LostTable,
    Gap,
}

#[derive(Default)]
pub(super) struct Lines {
    pub are_limited: bool,
    limits: [LogLimit; Line::Gap as usize + 1],
}

impl Lines {
    /// Returns the number of interfaces that the line stands for if it should be written.
    pub(super) fn due(&mut self, line: Line) -> Option<u64> {
        if self.are_limited {
            self.limits[line as usize].event()
        } else {
            Some(1)
        }
    }
}
