//! A service manager that keeps descriptors, played by the test.

use std::{
    collections::BTreeMap,
    io::IoSliceMut,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use sys::fd_store::{FdStore, NAME_PREFIX};
use tempfile::TempDir;

use super::Carried;
use crate::carry::{Inheritance, InheritedLinks, Keep};

/// A service manager with a store.
pub struct Manager {
    path: PathBuf,
    stored: Arc<Mutex<Vec<(String, OwnedFd)>>>,
    thread: Option<JoinHandle<()>>,
    _folder: TempDir,
}

impl Manager {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let stored = Arc::<Mutex<Vec<(String, OwnedFd)>>>::default();
        let store = Arc::clone(&stored);
        let work = move || while receive(&socket, &store) {};
        Self {
            path,
            stored,
            thread: Some(thread::spawn(work)),
            _folder: folder,
        }
    }

    pub fn keep(&self) -> Keep {
        Keep::new(FdStore::at(self.path.as_os_str()).unwrap(), "test")
    }

    /// Copies of everything that is stored, by name.
    pub fn stored(&self) -> Vec<(String, OwnedFd)> {
        self.keep().settle().unwrap();
        let stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = |(name, fd): &(String, OwnedFd)| (name.clone(), fd.try_clone().unwrap());
        stored.iter().map(copy).collect()
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.stored().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    }

    /// The files that the next process finds.
    pub fn carried(&self) -> Carried {
        Carried::new(self.inherited(), self.keep(), true)
    }

    pub fn inherited(&self) -> InheritedLinks {
        let found = Inheritance::of(self.stored());
        assert!(found.unknown.is_empty(), "{:?}", found.unknown);
        found.links
    }

    pub fn forget_everything(&self) {
        self.stored().clear();
        self.stored.lock().unwrap().clear();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let socket = UnixDatagram::unbound().unwrap();
        socket.send_to(b"STOP=1", &self.path).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Receives one message. Returns whether others may follow.
fn receive(socket: &UnixDatagram, stored: &Mutex<Vec<(String, OwnedFd)>>) -> bool {
    let mut text = [0; 512];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut text)];
    let received = recvmsg(socket, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let fds: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            RecvAncillaryMessage::ScmCredentials(_) | _ => None,
        })
        .flatten()
        .collect();
    let text = std::str::from_utf8(&text[..received.bytes]).unwrap();
    let fields: BTreeMap<&str, &str> = text
        .lines()
        .map(|line| line.split_once('=').unwrap())
        .collect();
    let mut stored = stored.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = fields.get("FDNAME") {
        let name = name.strip_prefix(NAME_PREFIX).unwrap().to_owned();
        if fields.contains_key("FDSTOREREMOVE") {
            stored.retain(|(other, _)| *other != name);
        }
        stored.extend(fds.into_iter().map(|fd| (name.clone(), fd)));
    }
    !fields.contains_key("STOP")
}
