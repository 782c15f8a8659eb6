//! The network namespaces whose interfaces are counted on, and how to work in them.
//!
//! A socket belongs to the namespace of the thread that opened it, and a new thread starts in the namespace of its
//! parent. So open everything that belongs to a namespace within [`Namespace::enter`].

use std::{
    fs::{self, File, OpenOptions},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    panic,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use anyhow::{Context as _, Error, Result, ensure};
use rules::similar;
use rustix::{
    fs::fstatfs,
    io::Errno,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use tracing::Span;

use crate::links;

mod name;

pub use name::Netns;

/// Where `ip netns` keeps its names.
const NAMES: &str = "/run/netns";

/// The kernel's file system of namespaces (`NSFS_MAGIC`, linux/magic.h).
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// Advice for the user if a capability is missing.
pub const REMEDY: &str = "run as root, or let the service have it by the drop-in \
                          /usr/share/doc/flow-agent/examples/netns.conf";

/// A network namespace. Clones refer to the same one.
#[derive(Clone, Debug)]
pub struct Namespace {
    number: u32,
    /// As the user named it.
    name: Option<Arc<str>>,
    /// `None` for the agent's own namespace, which its threads are in already.
    file: Option<Arc<File>>,
}

impl Namespace {
    /// The agent's own namespace, which needs no name.
    pub fn own() -> Result<Self> {
        Ok(Self {
            number: links::netns_inode()?,
            name: None,
            file: None,
        })
    }

    /// Opens the namespaces with the given names, each once. Without a name, returns the agent's own.
    pub fn open_all(names: &[Netns]) -> Result<Vec<Self>> {
        let own = Self::own()?;
        if names.is_empty() {
            return Ok(vec![own]);
        }
        let mut all: Vec<Self> = Vec::new();
        for name in names {
            let namespace = Self::open(name, &own)?;
            match all.iter().find(|known| known.number == namespace.number) {
                Some(known) => {
                    tracing::info!("{} and {name} are one network namespace", known.name());
                }
                None => all.push(namespace),
            }
        }
        Ok(all)
    }

    fn open(name: &Netns, own: &Self) -> Result<Self> {
        let namespace = match name {
            Netns::Own => own.clone(),
            Netns::Name(name) => Self::at(&Path::new(NAMES).join(name), own)
                .map_err(|error| explain_name(error, name))?,
            Netns::Path(path) => Self::at(path, own)?,
            Netns::Process(pid) => Self::at(&PathBuf::from(format!("/proc/{pid}/ns/net")), own)
                .map_err(|error| explain_process(error, *pid))?,
        };
        Ok(Self {
            name: Some(name.to_string().into()),
            ..namespace
        })
    }

    fn at(path: &Path, own: &Self) -> Result<Self> {
        let what = || format!("open the network namespace {}", path.display());
        // Opening a pipe must not block.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .with_context(what)?;
        let kind = fstatfs(&file).map_err(Error::from).with_context(what)?;
        ensure!(
            kind.f_type.cast_unsigned() == NSFS_MAGIC,
            "{} is not a network namespace (`ip netns list` shows those with a name)",
            path.display()
        );
        let inode = file.metadata().with_context(what)?.ino();
        // Namespace inodes are allocated as 32 bits (ns_common.inum).
        let number = u32::try_from(inode).context("a network namespace's inode exceeds 32 bits")?;
        Ok(Self {
            number,
            name: None,
            file: (number != own.number).then(|| Arc::new(file)),
        })
    }

    /// A new descriptor of the namespace, to refer to it in a call. For the agent's own namespace it is that of the
    /// calling thread.
    pub fn open_again(&self) -> Result<OwnedFd> {
        let opened = match &self.file {
            Some(file) => file.try_clone(),
            None => File::open("/proc/thread-self/ns/net"),
        };
        let what = || format!("open the network namespace {}", self.name());
        opened.map(OwnedFd::from).with_context(what)
    }

    /// Its inode number, which identifies the namespace in records.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its name in `--netns`; empty for the agent's own namespace.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Fails if its name is gone or refers to another namespace by now.
    pub fn check_name(&self) -> Result<()> {
        let Some(name) = &self.name else {
            return Ok(());
        };
        let name: Netns = name.parse().map_err(Error::msg)?;
        let named = Self::open(&name, &Self::own()?)?;
        ensure!(
            named.number == self.number,
            "{name} is another network namespace than at the start"
        );
        Ok(())
    }

    /// The span for logs of a thread that works in the namespace.
    pub fn span(&self) -> Span {
        match &self.name {
            // At this level no filter suppresses the span.
            Some(name) => tracing::error_span!("netns", %name),
            None => Span::none(),
        }
    }

    /// Runs `work` in this namespace, on a new thread if the caller's is in another one. Descriptors that it opens
    /// belong to the namespace, and threads that it starts run there.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let work = || self.span().in_scope(work);
        let Some(file) = &self.file else {
            return work().map_err(|error| self.locate(error));
        };
        let inside = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| explain_entry(error, self.name()))?;
            work().map_err(|error| self.locate(error))
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("netns".to_owned());
            let thread = thread.spawn_scoped(scope, inside);
            let thread = thread.context("start a thread")?;
            thread
                .join()
                .unwrap_or_else(|panicked| panic::resume_unwind(panicked))
        })
    }

    /// Adds the namespace's name to an error.
    pub fn locate(&self, error: Error) -> Error {
        match &self.name {
            Some(name) => error.context(format!("in network namespace {name}")),
            None => error,
        }
    }
}

fn explain_name(error: Error, name: &str) -> Error {
    if !is_not_found(&error) {
        return error;
    }
    let names = fs::read_dir(NAMES).into_iter().flatten().flatten();
    let mut names: Vec<_> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    let hint = similar::hint(name, &names);
    let known = match names.len() {
        0 => "none has a name here".to_owned(),
        _ => format!("those with a name: {}", names.join(", ")),
    };
    Error::msg(format!(
        "there is no network namespace '{name}'{hint}; `ip netns list` shows them; {known}; one without a \
         name is given by a path or by a process (pid:N)"
    ))
}

fn explain_process(error: Error, pid: u32) -> Error {
    if is_not_found(&error) {
        return Error::msg(format!(
            "there is no process {pid}, or this process may not see it"
        ));
    }
    error.context(format!(
        "the network namespace of process {pid}, which takes CAP_SYS_PTRACE if it is another user's"
    ))
}

fn is_not_found(error: &Error) -> bool {
    let error: Option<&std::io::Error> = error.downcast_ref();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn explain_entry(error: Errno, name: &str) -> Error {
    let why = match error {
        Errno::PERM => format!("it takes CAP_SYS_ADMIN: {REMEDY} (docs/service.md)"),
        Errno::INVAL => "it is a namespace of another kind".to_owned(),
        _ => "the kernel refuses".to_owned(),
    };
    Error::new(error).context(format!("cannot enter network namespace {name}: {why}"))
}

#[cfg(test)]
mod tests;
