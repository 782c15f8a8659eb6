//! Faults in what delivers batches to a collector, and keeps them on disk until then.

use super::{Fault, agent};

pub(super) const FAULTS: &[Fault] = &[Fault {
    name: "a segment of the spool is not brought to the disk",
    file: "agent/src/outputs/delivery/spool/segment.rs",
    from: "self.file.sync_data()",
    to: "io::Result::Ok(drop(&self.file))",
    target: agent(
        "outputs::spool::what_the_spool_has_brought_to_the_disk_is_there_after_the_power_fails",
    ),
}];
