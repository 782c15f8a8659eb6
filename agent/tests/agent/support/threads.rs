//! The threads of a process, as /proc shows them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Their directories with their names. One may end meanwhile.
fn threads(pid: u32) -> impl Iterator<Item = (PathBuf, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let paths = threads.flatten().map(|thread| thread.path());
    paths.filter_map(|path| {
        let name = fs::read_to_string(path.join("comm")).ok()?;
        Some((path, name.trim_end().to_owned()))
    })
}

/// The number of threads whose names begin like this.
pub fn threads_named(pid: u32, begin: &str) -> usize {
    let named = threads(pid).filter(|(_, name)| name.starts_with(begin));
    named.count()
}

/// The directory of the one with this name, if there is one.
pub fn thread_named(pid: u32, name: &str) -> Option<PathBuf> {
    let mut named = threads(pid).filter(|(_, known)| known == name);
    named.next().map(|(path, _)| path)
}

/// The id of the one with this directory.
pub fn id_of(thread: &Path) -> String {
    thread.file_name().unwrap().to_str().unwrap().to_owned()
}

/// The line of its status that begins so.
pub fn status_line(thread: &Path, title: &str) -> String {
    let status = fs::read_to_string(thread.join("status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(title));
    line.unwrap().to_owned()
}
