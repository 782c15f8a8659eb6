//! The binary where every user may run it. A clone may be in a folder that others cannot enter, for example in a home.
//! Root without `CAP_DAC_OVERRIDE` cannot enter it either.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::OnceLock,
};

use super::BINARY;

/// Not `TMPDIR`, which may be the user's own.
const PARENT: &str = "/tmp";
/// Begins the name of the folder. The process id follows.
const PREFIX: &str = "flow-agent-everybodys-";

/// Copies the binary once, and removes the copy when this process exits.
pub fn everybodys_binary() -> &'static Path {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| {
        remove_orphans();
        let folder = folder();
        fs::create_dir(&folder).unwrap();
        // SAFETY: the function has the type that C expects, and unwinds into nobody.
        let refused = unsafe { libc::atexit(remove_ours) };
        assert_eq!(refused, 0);
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let copy = folder.join("flow-agent");
        // Copy in another process: a child forked meanwhile would hold the file open for writing, so it could not be
        // run (ETXTBSY).
        let copied = Command::new("cp").arg(BINARY).arg(&copy).status().unwrap();
        assert!(copied.success());
        fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
        copy
    })
}

fn folder() -> PathBuf {
    Path::new(PARENT).join(format!("{PREFIX}{}", process::id()))
}

extern "C" fn remove_ours() {
    drop(fs::remove_dir_all(folder()));
}

/// Removes the copies of processes that were killed.
fn remove_orphans() {
    for entry in fs::read_dir(PARENT).unwrap().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if let Some(owner) = owner
            && !Path::new("/proc").join(owner).exists()
        {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}
