//! The service manager's file descriptor store (`sd_notify(3)`): keeps descriptors while this process is gone, and
//! passes them to the next one. So links and maps outlive a restart and a crash.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::notify_socket::NotifySocket;
use anyhow::{Context as _, Result};

/// The names of all descriptors that this program stores begin with this. Sockets that the manager opens have the name
/// of their unit.
pub const NAME_PREFIX: &str = "carry-";

/// How long to wait for a manager that does not read its socket.
const PATIENCE: Duration = Duration::from_secs(2);

/// Stores descriptors with the service manager. Clones use the same socket. The default stores nothing.
#[derive(Clone, Debug, Default)]
pub struct FdStore(Option<Arc<Manager>>);

#[derive(Debug)]
struct Manager {
    socket: NotifySocket,
    counted: Mutex<Counted>,
}

/// What the manager should have by now.
#[derive(Debug, Default)]
struct Counted {
    /// How many descriptors have each name.
    names: BTreeMap<String, usize>,
    total: usize,
    most: Option<usize>,
}

impl FdStore {
    /// The store of the manager that `NOTIFY_SOCKET` names. Fails without one.
    pub fn from_environment() -> Result<Self> {
        let socket = NotifySocket::from_environment(Some(PATIENCE))?;
        let socket = socket.context("no service manager started this process (NOTIFY_SOCKET)")?;
        Ok(Self::over(socket))
    }

    /// The store of the manager at this socket: an absolute path, or `@` and an abstract name.
    pub fn at(path: &OsStr) -> Result<Self> {
        let socket = NotifySocket::at(path, Some(PATIENCE));
        let socket = socket.with_context(|| format!("send to {}", path.display()))?;
        Ok(Self::over(socket))
    }

    fn over(socket: NotifySocket) -> Self {
        Self(Some(Arc::new(Manager {
            socket,
            counted: Mutex::default(),
        })))
    }

    /// Sets how many descriptors the manager stores, and the names of those that it has.
    pub fn expect<'a>(&self, most: Option<usize>, names: impl IntoIterator<Item = &'a str>) {
        let Some(mut counted) = self.counted() else {
            return;
        };
        counted.most = most;
        names.into_iter().for_each(|name| counted.add(name));
    }

    /// Whether anything is stored.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Stores a copy of a descriptor. The manager does not watch it, and keeps it until it is removed by name. Several
    /// may have one name. Fails with `StorageFull` if the manager has [no more room](Self::expect); it does not say so
    /// itself.
    pub fn put(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let counted = self.counted();
        if let Some(most) = counted.as_ref().and_then(|counted| counted.full()) {
            let full = format!(
                "the service manager stores at most {most} descriptors (FileDescriptorStoreMax=; under `flow-agent keep`, half \
                 of the limit of open files)"
            );
            return Err(io::Error::new(io::ErrorKind::StorageFull, full));
        }
        self.send(
            &format!("FDSTORE=1\nFDPOLL=0\nFDNAME={NAME_PREFIX}{name}"),
            Some(fd),
        )?;
        if let Some(mut counted) = counted {
            counted.add(name);
        }
        Ok(())
    }

    /// Makes the manager close all descriptors of this name.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let counted = self.counted();
        self.send(
            &format!("FDSTOREREMOVE=1\nFDNAME={NAME_PREFIX}{name}"),
            None,
        )?;
        if let Some(mut counted) = counted {
            counted.remove(name);
        }
        Ok(())
    }

    /// Waits until the manager has processed everything that was sent before.
    pub fn barrier(&self) -> io::Result<()> {
        // Nobody ever writes.
        let manager = self.0.as_deref();
        manager.map_or(Ok(()), |manager| {
            manager.socket.ask("BARRIER=1", PATIENCE).map(drop)
        })
    }

    fn counted(&self) -> Option<MutexGuard<'_, Counted>> {
        let manager = self.0.as_deref()?;
        let counted = manager.counted.lock();
        Some(counted.unwrap_or_else(PoisonError::into_inner))
    }

    fn send(&self, message: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        match self.0.as_deref() {
            Some(manager) => manager.socket.send(message, fd),
            None => Ok(()),
        }
    }
}

impl Counted {
    fn add(&mut self, name: &str) {
        *self.names.entry(name.to_owned()).or_default() += 1;
        self.total += 1;
    }

    fn remove(&mut self, name: &str) {
        self.total -= self.names.remove(name).unwrap_or_default();
    }

    /// The limit, if it is reached.
    fn full(&self) -> Option<usize> {
        self.most.filter(|&most| self.total >= most)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        os::{fd::AsFd as _, unix::net::UnixDatagram},
    };

    use super::*;

    #[test]
    fn a_store_takes_no_more_than_it_has_room_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let _reader = UnixDatagram::bind(&path).unwrap();
        let store = FdStore::at(path.as_os_str()).unwrap();
        let null = File::open("/dev/null").unwrap();
        let is_full = |name: &str| match store.put(name, null.as_fd()) {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                true
            }
        };
        assert!(!is_full("unlimited"));
        store.expect(Some(4), ["earlier"]);
        assert!(!is_full("one") && !is_full("one") && is_full("two"));
        store.remove("one").unwrap();
        assert!(!is_full("two") && !is_full("two") && is_full("two"));
        store.remove("earlier").unwrap();
        assert!(!is_full("two") && is_full("two"));
    }
}
