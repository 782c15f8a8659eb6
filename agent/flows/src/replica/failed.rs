//! Counts the failed flows that have ended.

use proto::Failure;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    pub refused: u64,
    pub unanswered: u64,
    pub unreachable: u64,
    pub reset: u64,
}

impl Failed {
    pub(super) fn note(&mut self, failure: Failure) {
        let count = match failure {
            Failure::Refused => &mut self.refused,
            Failure::Unanswered => &mut self.unanswered,
            Failure::Unreachable => &mut self.unreachable,
            Failure::Reset => &mut self.reset,
            Failure::Unspecified => return,
        };
        *count += 1;
    }
}
