//! Finds the files that a query reads.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::shown;
use crate::outputs::parquet::{self, pieces};

/// How a Parquet file begins.
const PARQUET: [u8; 4] = *b"PAR1";

pub(super) struct Found {
    pub path: PathBuf,
    pub kind: Kind,
    /// The number of its folder among those that were found, or of the file that was named.
    pub place: usize,
    /// What is in the making is opened at once, since it gets another name when it is complete.
    file: Option<File>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Parquet,
    InTheMaking,
}

impl Found {
    /// `None` if it is not there any more.
    pub(super) fn open(&self) -> Result<Option<File>> {
        if let Some(file) = &self.file {
            return Ok(Some(file.try_clone()?));
        }
        match File::open(&self.path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("open {}", shown(&self.path))),
        }
    }
}

/// Finds the files in folders, and those that are named. What is in the making comes first: if it is completed meanwhile, it
/// is found twice and not missed.
pub(super) fn find(paths: &[PathBuf]) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for (place, path) in paths.iter().enumerate() {
        let is_folder = fs::metadata(path)
            .with_context(|| format!("look at {}", shown(path)))?
            .is_dir();
        let before = found.len();
        if is_folder {
            in_the_making(path, place, &mut found)?;
            complete(path, place, &mut found)?;
        } else {
            named(path, place, &mut found)?;
        }
        ensure!(
            found.len() > before,
            "there is no Parquet file in {}; name the folder of an --output parquet=FOLDER",
            shown(path)
        );
    }
    Ok(found)
}

fn named(path: &Path, place: usize, found: &mut Vec<Found>) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("open {}", shown(path)))?;
    let kind = match mark(&mut file)? {
        PARQUET => Kind::Parquet,
        pieces::MARK => Kind::InTheMaking,
        _ => bail!("{} is no Parquet file", shown(path)),
    };
    found.push(Found {
        path: path.to_owned(),
        kind,
        place,
        file: Some(file),
    });
    Ok(())
}

fn in_the_making(folder: &Path, place: usize, found: &mut Vec<Found>) -> Result<()> {
    let hidden = format!(".{}", parquet::MADE.stem);
    let is_hidden = |name: &str| name.starts_with(&hidden) && !name.ends_with(".lock");
    for path in entries(folder, is_hidden)? {
        let mut file = match File::open(&path) {
            Ok(file) => file,
            // It is complete by now, and will be found as such.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("open {}", shown(&path))),
        };
        if mark(&mut file)? == pieces::MARK {
            found.push(Found {
                path,
                kind: Kind::InTheMaking,
                place,
                file: Some(file),
            });
        }
    }
    Ok(())
}

fn complete(folder: &Path, place: usize, found: &mut Vec<Found>) -> Result<()> {
    let is_complete = |name: &str| !name.starts_with('.') && name.ends_with(".parquet");
    let paths = entries(folder, is_complete)?;
    found.extend(paths.into_iter().map(|path| Found {
        path,
        kind: Kind::Parquet,
        place,
        file: None,
    }));
    Ok(())
}

fn entries(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let what = || format!("list {}", shown(folder));
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(what)? {
        let entry = entry.with_context(what)?;
        let is_file = entry.file_type().is_ok_and(|kind| !kind.is_dir());
        if is_file && entry.file_name().to_str().is_some_and(&is_wanted) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// The first bytes; zeros of a file that is shorter.
fn mark(file: &mut File) -> Result<[u8; 4]> {
    let mut first = Vec::new();
    file.take(4).read_to_end(&mut first)?;
    Ok(first.try_into().unwrap_or_default())
}
