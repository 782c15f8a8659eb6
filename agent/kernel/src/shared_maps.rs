//! Lets several sets of programs share their maps: the maps of the first set are pinned in a BPF file system that
//! nobody else can reach, and the next sets open them there.
//!
//! The file system is mounted nowhere (`fsmount` without `move_mount`), so it goes away with its descriptor, however
//! the process ends.

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    path::PathBuf,
};

use anyhow::{Context as _, Error, Result};
use aya::EbpfLoader;
use aya_obj::Object;
use rustix::{
    io::Errno,
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

use crate::netns::REMEDY;

/// The maps that each set has for itself: its interfaces, its constants, its log.
const OWN: [&str; 3] = ["INTERFACES", ".rodata", "AYA_LOGS"];

/// The file system, and the paths of the shared maps in it.
pub(super) struct SharedMaps {
    _folder: OwnedFd,
    paths: Vec<(String, PathBuf)>,
}

impl SharedMaps {
    /// Prepares a path for each map of the object that is not a set's own.
    pub(super) fn of(object: &[u8]) -> Result<Self> {
        let folder = folder().map_err(explain)?;
        let object = Object::parse(object).context("read the programs")?;
        let names = object.maps.into_keys();
        let names = names.filter(|name| !OWN.contains(&name.as_str()));
        let path = |name: &str| {
            // A BPF file system allows no dots in names.
            let file = name.replace('.', "_");
            PathBuf::from(format!("/proc/self/fd/{}/{file}", folder.as_raw_fd()))
        };
        let paths = names.map(|name| (name.clone(), path(&name))).collect();
        Ok(Self {
            _folder: folder,
            paths,
        })
    }

    /// Makes the loader open the maps of the first set, or create and pin them if this is the first.
    pub(super) fn share<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        for (name, path) in &self.paths {
            loader.map_pin_path(name, path);
        }
    }
}

fn folder() -> Result<OwnedFd, Errno> {
    let context = fsopen("bpf", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
}

fn explain(error: Errno) -> Error {
    let why = if error == Errno::PERM {
        format!("several network namespaces take CAP_SYS_ADMIN: {REMEDY} (docs/service.md)")
    } else {
        "make a BPF file system, by which the programs of several network namespaces share their maps"
            .to_owned()
    };
    Error::new(error).context(why)
}
