//! Limits the log lines about single interfaces: all those about the first ones are written, and only some about
//! later ones, since interfaces may come and go all the time.

use sys::log_limit::LogLimit;

/// What a line is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Line {
    InsteadOfXdp,
    OurGenericXdp,
    ForeignGenericXdp,
    HiddenTags,
}

#[derive(Default)]
pub(super) struct Lines {
    pub are_limited: bool,
    limits: [LogLimit; Line::HiddenTags as usize + 1],
}

impl Lines {
    /// `Some` says that the line should be written, with the number of interfaces that it stands for.
    pub(super) fn due(&mut self, line: Line) -> Option<u64> {
        if self.are_limited {
            self.limits[line as usize].event()
        } else {
            Some(1)
        }
    }
}
