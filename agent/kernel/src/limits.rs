//! Raises the soft limit of open files to the hard one.
//!
//! systemd leaves the soft limit at 1,024 for programs that use select(2) (systemd.exec, `LimitNOFILE=`),
//! and each attached program takes a descriptor.

use anyhow::{Result, ensure};
use rustix::process::{Resource, getrlimit};
use sys::open_files;

use crate::bound::TaggedPrograms;

/// Descriptors for maps, programs, listeners, consumers and the log. An agent with every feature on has some 90.
const OTHERS: u64 = 108;

/// Sockets, maps and programs for each further network namespace.
const FOR_NAMESPACE: u64 = 60;

/// Maps kept open for the programs that ask drivers for VLAN tags, per network namespace. The programs themselves come
/// on top.
const MAPS: u64 = 37;

/// Fails if `attachments` descriptors cannot be open in addition to all others, in this many network namespaces.
pub fn raise_open_files(attachments: usize, namespaces: usize, asks_drivers: bool) -> Result<()> {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    ensure_within(most, attachments, namespaces, asks_drivers)?;
    open_files::raise_limit()
}

/// Fails if `attachments` would leave too few descriptors for the rest.
pub fn ensure_open_files(attachments: usize, namespaces: usize, asks_drivers: bool) -> Result<()> {
    ensure_within(open_files::limit(), attachments, namespaces, asks_drivers)
}

fn ensure_within(
    most: u64,
    attachments: usize,
    namespaces: usize,
    asks_drivers: bool,
) -> Result<()> {
    let needed = needed(attachments, namespaces, asks_drivers);
    ensure!(
        needed <= most,
        "{attachments} hooks need {needed} open files, and the limit of open files is {most}: raise it \
         (ulimit -Hn, LimitNOFILE= in the unit), or choose fewer interfaces"
    );
    Ok(())
}

/// The open files of an agent with this many attachments and network namespaces.
pub fn needed(attachments: usize, namespaces: usize, asks_drivers: bool) -> u64 {
    let further = namespaces.saturating_sub(1) as u64;
    let asking = if asks_drivers {
        namespaces.max(1) as u64 * (MAPS + TaggedPrograms::MOST as u64)
    } else {
        0
    };
    attachments as u64 + OTHERS + further * FOR_NAMESPACE + asking
}
