//! Finds the files that a query reads.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, Metadata},
    io::{ErrorKind, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use exporters::{
    delivery::spool::{self, Acknowledged},
    files::parquet,
};
use formats::parquet::pieces;

/// The first bytes of a Parquet file.
const PARQUET: &[u8] = b"PAR1";
/// How many bytes identify a file's kind.
const MARK_BYTES: u64 = 8;

pub(super) struct Found {
    pub path: PathBuf,
    pub kind: Kind,
    /// The number of its folder.
    pub place: usize,
    /// By its own path, not by that of its folder.
    pub is_named: bool,
    /// An unfinished file stays open, since it is renamed when it is complete.
    file: Option<File>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Parquet,
    InTheMaking,
    /// A segment of a spool, with the acknowledged position if it is known.
    Segment(Option<Acknowledged>),
}

impl Found {
    /// `None` if the file is gone.
    pub(super) fn open(&self) -> Result<Option<File>> {
        if let Some(file) = &self.file {
            return Ok(Some(file.try_clone()?));
        }
        open(&self.path)
    }
}

/// Device and inode.
type Id = (u64, u64);

fn id(metadata: &Metadata) -> Id {
    (metadata.dev(), metadata.ino())
}

/// `None` if the file is gone. Opens a FIFO without blocking, and refuses it like everything that is not a regular
/// file.
fn open(path: &Path) -> Result<Option<File>> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    match options.open(path) {
        Ok(file) => {
            let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
            ensure!(is_file, "{} is no file", path.display());
            Ok(Some(file))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("open {}", path.display())),
    }
}

/// Finds the files in folders and the files named, each once.
pub(super) fn find(paths: &[PathBuf]) -> Result<Vec<Found>> {
    let mut finder = Finder::default();
    for path in paths {
        let what = || format!("look at {}", path.display());
        let metadata = fs::metadata(path).with_context(what)?;
        if metadata.is_dir() {
            let place = finder.place(&metadata);
            let before = finder.met;
            finder.in_the_making(path, place)?;
            finder.by_name(path, place, Kind::Parquet)?;
            // Read the position before listing the files: what is acknowledged later is then either still there to be
            // read, or gone.
            let acknowledged = Acknowledged::in_folder(path)?;
            finder.by_name(path, place, Kind::Segment(acknowledged))?;
            ensure!(
                finder.met > before || spool::is_spool(path),
                "there is no Parquet file in {}; name the folder of an --output parquet=FOLDER, or a spool",
                path.display()
            );
        } else {
            let folder = match path.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            let metadata = fs::metadata(folder).with_context(what)?;
            let place = finder.place(&metadata);
            finder.named(path, folder, place)?;
        }
    }
    // Unfinished files first: an agent's complete file then has no records beyond the ones already read.
    finder
        .found
        .sort_by_key(|found| found.kind == Kind::Parquet);
    Ok(finder.found)
}

#[derive(Default)]
struct Finder {
    found: Vec<Found>,
    /// Numbers of folders.
    places: HashMap<Id, usize>,
    ids: HashSet<Id>,
    /// Files seen, including those seen before.
    met: usize,
}

impl Finder {
    fn place(&mut self, folder: &Metadata) -> usize {
        let next = self.places.len();
        *self.places.entry(id(folder)).or_insert(next)
    }

    /// Returns whether the file is new.
    fn add(&mut self, file: File, found: Found) -> Result<bool> {
        self.met += 1;
        let is_new = self.ids.insert(id(&file.metadata()?));
        if is_new {
            let file = (found.kind == Kind::InTheMaking).then_some(file);
            self.found.push(Found { file, ..found });
        }
        Ok(is_new)
    }

    fn named(&mut self, path: &Path, folder: &Path, place: usize) -> Result<()> {
        let Some(mut file) = open(path)? else {
            bail!("{} is not there", path.display());
        };
        let first = mark(&mut file)?;
        let kind = if first.starts_with(PARQUET) {
            Kind::Parquet
        } else if first.starts_with(&pieces::MARK) {
            Kind::InTheMaking
        } else if first.starts_with(&spool::MAGIC) {
            Kind::Segment(Acknowledged::in_folder(folder)?)
        } else {
            bail!(
                "{} is no Parquet file, and no file of a spool",
                path.display()
            );
        };
        let found = found(path, kind, place);
        let is_named = true;
        self.add(file, Found { is_named, ..found })?;
        Ok(())
    }

    /// Finds unfinished files. While one is being completed, it has another hidden name, and the complete file does not
    /// exist yet, so the folder is listed until a listing shows nothing new. Call this before looking for complete
    /// files: a file completed in between is then found twice rather than missed.
    fn in_the_making(&mut self, folder: &Path, place: usize) -> Result<()> {
        let hidden = format!(".{}", parquet::MADE.stem);
        let lock = format!("{hidden}{}.lock", parquet::MADE.ending[0]);
        let is_hidden = |name: &str| name.starts_with(&hidden) && name != lock;
        loop {
            let mut has_changed = false;
            for path in entries(folder, is_hidden)? {
                let Some(mut file) = open(&path)? else {
                    has_changed = true;
                    continue;
                };
                if mark(&mut file)?.starts_with(&pieces::MARK) {
                    has_changed |= self.add(file, found(&path, Kind::InTheMaking, place))?;
                }
            }
            if !has_changed {
                return Ok(());
            }
        }
    }

    /// Finds files whose names identify their kind. They are opened later, one at a time.
    fn by_name(&mut self, folder: &Path, place: usize, kind: Kind) -> Result<()> {
        let is_one = |name: &str| match kind {
            Kind::Segment(_) => spool::is_segment(Path::new(name)),
            Kind::Parquet | Kind::InTheMaking => {
                !name.starts_with('.') && name.ends_with(".parquet")
            }
        };
        for path in entries(folder, is_one)? {
            match fs::metadata(&path) {
                Ok(metadata) => {
                    self.met += 1;
                    if !self.ids.insert(id(&metadata)) {
                        continue;
                    }
                }
                // Reading it will count it as gone.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("look at {}", path.display()));
                }
            }
            self.found.push(found(&path, kind, place));
        }
        Ok(())
    }
}

fn found(path: &Path, kind: Kind, place: usize) -> Found {
    Found {
        path: path.to_owned(),
        kind,
        place,
        is_named: false,
        file: None,
    }
}

fn entries(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let what = || format!("list {}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(what)? {
        let entry = entry.with_context(what)?;
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_folder && is_wanted(&entry.file_name().to_string_lossy()) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// The first bytes of a file.
fn mark(file: &mut File) -> Result<Vec<u8>> {
    let mut first = Vec::new();
    file.take(MARK_BYTES).read_to_end(&mut first)?;
    Ok(first)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        thread,
    };

    use super::*;

    #[test]
    fn what_is_in_the_making_is_found_whatever_name_it_gets_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let names = [".flows.parquet.open", ".flows-1.part"].map(|name| folder.path().join(name));
        fs::write(&names[0], pieces::MARK).unwrap();
        let ends = AtomicBool::new(false);
        let found: Vec<_> = thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Relaxed) {
                    fs::rename(&names[0], &names[1]).unwrap();
                    fs::rename(&names[1], &names[0]).unwrap();
                }
            });
            let found = (0..2000).map(|_| find(&[folder.path().to_owned()]));
            let found = found.collect();
            // Before any assertion fails: the other thread is joined.
            ends.store(true, Relaxed);
            found
        });
        for found in found {
            assert_eq!(found.unwrap().len(), 1);
        }
    }
}
