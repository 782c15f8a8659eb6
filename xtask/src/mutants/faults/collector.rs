//! Faults in what keeps and delivers batches: the collector, its stores, the spool.

use super::{Fault, agent};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "a file is not brought to the disk before its batches are acknowledged",
        file: "agent/src/collector/store.rs",
        from: "    file.sync().await\n}",
        to: "    Ok(drop(file))\n}",
        target: agent("collect::what_is_acknowledged_is_there_after_the_power_fails"),
    },
    Fault {
        name: "a segment of the spool is not brought to the disk",
        file: "agent/src/outputs/delivery/spool/segment.rs",
        from: "self.file.sync_data()",
        to: "io::Result::Ok(drop(&self.file))",
        target: agent(
            "outputs::spool::what_the_spool_has_brought_to_the_disk_is_there_after_the_power_fails",
        ),
    },
];
