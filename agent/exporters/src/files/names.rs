//! The names of an output's files. A complete file is named by the time of its beginning: `flows.jsonl` becomes
//! `flows-20260102T030405Z.jsonl`, or `flows-20260102T030405Z-2.jsonl` if that is taken. If the clock was set back
//! since the newest file, later names count the reset: `flows-20250102T030405Z-r1.jsonl`, then `-r2`. So the order of
//! files does not depend on the clock.
//!
//! The file of a single sender names it: `flows-20260102T030405Z-from-web01.jsonl`, and `flows.jsonl.from-web01` while
//! it is open. It may stay open longer than many shared files, so its name has the time of its end.

use std::{
    cmp::Ordering,
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use anyhow::{Context as _, Result};

use super::{Compression, Rotation, retention};

/// The suffix of a file that is being compressed or waits for it.
const PART: &str = ".part";
/// `20260102T030405Z`
const STAMP_CHARS: usize = 16;
/// Precedes the number of clock resets.
const RESETS: &str = "-r";
/// Precedes the owner in the names of complete files and of open ones.
const FROM: &str = "-from-";
const OPEN_FROM: &str = ".from-";
/// File names are limited to 255 bytes.
const MOST_OWNER_CHARS: usize = 64;

/// The only sender of a file, as spelled in the file's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// The owner for a sender. Characters not allowed in a name become `+`. That includes dots, so that no owner looks
    /// like a file extension. Long senders are cut off, so two of them may share an owner.
    pub fn of(sender: &str) -> Self {
        let chars = sender.chars().take(MOST_OWNER_CHARS);
        let chars = chars.map(|char| if is_of_owner(char) { char } else { '+' });
        Self(chars.collect::<String>().into())
    }

    /// Parses an owner at the beginning of a text, if there is one. Returns the rest too.
    fn read(text: &str) -> Option<(Option<Self>, &str)> {
        let Some(behind) = text.strip_prefix(FROM) else {
            return Some((None, text));
        };
        let end = behind.find(|char| !is_of_owner(char));
        let (owner, rest) = behind.split_at(end.unwrap_or(behind.len()));
        (!owner.is_empty()).then(|| (Some(Self(owner.into())), rest))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

fn is_of_owner(char: char) -> bool {
    char.is_ascii_alphanumeric() || "-_+".contains(char)
}

/// The owner's part of a file name.
fn from(owner: Option<&Owner>) -> String {
    owner.map_or_else(String::new, |Owner(owner)| format!("{FROM}{owner}"))
}

/// The names of one output's files.
pub(super) struct Names {
    pub(super) folder: PathBuf,
    /// The prefix of all names.
    stem: String,
    /// The extension of the files with pieces, including its dot.
    extension: String,
    /// Suffixes that complete files may have after the extension.
    endings: &'static [&'static str],
    /// The prefix that hides incomplete files.
    hidden: &'static str,
    /// The open file.
    open: PathBuf,
    pub(super) lock: PathBuf,
}

/// The name of a complete file, without the compression suffix.
#[derive(Clone)]
pub(super) struct Complete {
    name: String,
    order: Order,
    pub(super) owner: Option<Owner>,
}

/// A file's position among the others, by its name. Older files compare less.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    /// How often the clock was set back before this file.
    clock_resets: u32,
    stamp: String,
    /// Distinguishes files of the same second, starting at 1.
    number: u32,
}

impl Order {
    /// The position of a file that begins at `stamp`, given the newest file and the number of clock resets.
    fn after(newest: Option<Self>, resets: u32, stamp: String) -> Self {
        // If they differ, the clock was set back since the newest file.
        let newest = newest.filter(|newest| newest.clock_resets == resets);
        let (clock_resets, number) = match newest {
            None => (resets, 1),
            Some(newest) => match stamp.cmp(&newest.stamp) {
                Ordering::Greater => (resets, 1),
                Ordering::Equal => (resets, newest.number + 1),
                Ordering::Less => (resets + 1, 1),
            },
        };
        Self {
            clock_resets,
            stamp,
            number,
        }
    }

    #[cfg(test)]
    pub(super) fn numbered(number: u32) -> Self {
        Self {
            clock_resets: 0,
            stamp: String::new(),
            number,
        }
    }

    /// Parses a position at the beginning of a text. Returns the rest too.
    fn read(text: &str) -> Option<(Self, &str)> {
        let (stamp, rest) = text.split_at_checked(STAMP_CHARS)?;
        let is_stamp = stamp.char_indices().all(|(place, character)| match place {
            8 => character == 'T',
            15 => character == 'Z',
            _ => character.is_ascii_digit(),
        });
        let (clock_resets, rest) = numbered(rest, RESETS)?;
        let (number, rest) = numbered(rest, "-")?;
        let order = Self {
            clock_resets: clock_resets.unwrap_or(0),
            stamp: stamp.to_owned(),
            number: number.unwrap_or(1),
        };
        is_stamp.then_some((order, rest))
    }
}

impl fmt::Display for Order {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.stamp)?;
        if self.clock_resets > 0 {
            write!(formatter, "{RESETS}{}", self.clock_resets)?;
        }
        if self.number > 1 {
            write!(formatter, "-{}", self.number)?;
        }
        Ok(())
    }
}

/// Parses a number after a prefix, if the prefix is there. Returns the rest too. `None` if the number has no successor.
fn numbered<'a>(text: &'a str, prefix: &str) -> Option<(Option<u32>, &'a str)> {
    let Some(behind) = text.strip_prefix(prefix) else {
        return Some((None, text));
    };
    let digits = behind.chars().take_while(char::is_ascii_digit).count();
    if digits == 0 {
        return Some((None, text));
    }
    let (number, rest) = behind.split_at(digits);
    let number = number.parse().ok().filter(|&number| number < u32::MAX)?;
    Some((Some(number), rest))
}

/// A file made by an output of this name.
struct Found {
    complete: Complete,
    ending: &'static str,
    is_part: bool,
    path: PathBuf,
}

impl Names {
    /// Names for an output whose open file is at this path.
    pub(super) fn at(path: &Path) -> Self {
        let text = |part: Option<&std::ffi::OsStr>| {
            part.map(|part| part.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        let folder = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let extension = match text(path.extension()) {
            none if none.is_empty() => none,
            extension => format!(".{extension}"),
        };
        Self {
            folder: folder.to_owned(),
            stem: text(path.file_stem()),
            extension,
            endings: &Compression::SUFFIXES,
            hidden: "",
            open: path.to_owned(),
            lock: folder.join(format!(".{}.lock", text(path.file_name()))),
        }
    }

    /// Names for a folder that shows only complete files: the names of others begin with a dot.
    pub(super) fn hidden(folder: &Path, stem: &str, ending: &'static [&'static str; 1]) -> Self {
        let [suffix] = ending;
        Self {
            folder: folder.to_owned(),
            stem: stem.to_owned(),
            extension: String::new(),
            endings: ending,
            hidden: ".",
            open: folder.join(format!(".{stem}{suffix}.open")),
            lock: folder.join(format!(".{stem}{suffix}.lock")),
        }
    }

    /// The path of the open file.
    pub(super) fn open(&self, owner: Option<&Owner>) -> PathBuf {
        let mut path = self.open.clone().into_os_string();
        if let Some(owner) = owner {
            path.push(format!("{OPEN_FROM}{owner}"));
        }
        path.into()
    }

    /// The owners of incomplete files that an earlier process left.
    pub(super) fn owners(&self) -> Result<Vec<Owner>> {
        let open = self.open.file_name().unwrap_or_default();
        let begin = format!("{}{OPEN_FROM}", open.to_string_lossy());
        let owner = |name: &String| {
            let owner = name.strip_prefix(&begin)?;
            let is_one = !owner.is_empty() && owner.chars().all(is_of_owner);
            is_one.then(|| Owner(owner.into()))
        };
        let parts = self.files()?.into_iter().filter(|file| file.is_part);
        let of_parts = parts.filter_map(|part| part.complete.owner);
        let owners: BTreeSet<_> = self
            .list()?
            .iter()
            .filter_map(owner)
            .chain(of_parts)
            .collect();
        Ok(owners.into_iter().collect())
    }

    /// A free name that sorts after all others.
    pub(super) fn complete(&self, time: SystemTime, owner: Option<&Owner>) -> Result<Complete> {
        self.later(time, owner, |_| true)
    }

    /// A name for a shared file that began in an earlier process. Only shared files count: those of single senders are
    /// named by their end, which may be later.
    pub(super) fn recovered(&self, began: SystemTime) -> Result<Complete> {
        self.later(began, None, |file| file.owner.is_none())
    }

    /// A name that sorts after the files that `is_earlier` selects.
    fn later(
        &self,
        time: SystemTime,
        owner: Option<&Owner>,
        is_earlier: impl Fn(&Complete) -> bool,
    ) -> Result<Complete> {
        let stamp = humantime::format_rfc3339_seconds(time).to_string();
        let files = self.files()?.into_iter().map(|file| file.complete);
        let files: Vec<_> = files.collect();
        let resets = files.iter().map(|file| file.order.clock_resets).max();
        let earlier = files.into_iter().filter(is_earlier);
        let newest = earlier.map(|file| file.order).max();
        let stamp = stamp.replace(['-', ':'], "");
        let order = Order::after(newest, resets.unwrap_or(0), stamp);
        let (stem, from, extension) = (&self.stem, from(owner), &self.extension);
        Ok(Complete {
            name: format!("{stem}-{order}{from}{extension}"),
            order,
            owner: owner.cloned(),
        })
    }

    /// The path of the complete file.
    pub(super) fn whole(&self, complete: &Complete, ending: &str) -> PathBuf {
        self.folder.join(format!("{}{ending}", complete.name))
    }

    /// The path of the written data until the complete file exists.
    pub(super) fn part(&self, complete: &Complete) -> PathBuf {
        self.half(complete, "")
    }

    /// The path of the complete file while it is being built.
    pub(super) fn half(&self, complete: &Complete, ending: &str) -> PathBuf {
        let (hidden, name) = (self.hidden, &complete.name);
        self.folder.join(format!("{hidden}{name}{ending}{PART}"))
    }

    fn is_complete(&self, name: &Complete) -> bool {
        let mut wholes = self.endings.iter().map(|ending| self.whole(name, ending));
        wholes.any(|whole| whole.exists())
    }

    /// Finishes completions that a killed process left unfinished.
    pub(super) fn finish_parts(
        &self,
        owner: Option<&Owner>,
        finish: impl Fn(&Complete) -> Result<()>,
    ) -> Result<()> {
        let files = self.files()?.into_iter();
        let parts = files.filter(|file| file.is_part && file.complete.owner.as_ref() == owner);
        let (waiting, halves): (Vec<_>, Vec<_>) = parts.partition(|file| file.ending.is_empty());
        for half in halves {
            remove(&half.path)?;
        }
        for part in waiting {
            if self.is_complete(&part.complete) {
                remove(&part.path)?;
            } else {
                finish(&part.complete)
                    .with_context(|| format!("finish {}", part.path.display()))?;
            }
        }
        Ok(())
    }

    /// Removes complete files until the limits are met.
    pub(super) fn remove_the_oldest(&self, rotation: &Rotation) -> Result<()> {
        let complete = self.files()?.into_iter().filter(|file| !file.is_part);
        let files = complete.map(|file| retention::File {
            order: file.complete.order,
            owner: file.complete.owner,
            bytes: fs::metadata(&file.path).map_or(0, |metadata| metadata.len()),
            path: file.path,
        });
        retention::files_to_remove(files.collect(), rotation)
            .iter()
            .try_for_each(|path| remove(path))
    }

    fn list(&self) -> Result<Vec<String>> {
        let what = || format!("list {}", self.folder.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).with_context(what)? {
            let name = entry.with_context(what)?.file_name();
            names.extend(name.into_string());
        }
        Ok(names)
    }

    fn files(&self) -> Result<Vec<Found>> {
        let names = self.list()?;
        let found = names.into_iter().filter_map(|name| {
            let (complete, ending, is_part) = self.read(&name)?;
            Some(Found {
                complete,
                ending,
                is_part,
                path: self.folder.join(name),
            })
        });
        Ok(found.collect())
    }

    /// Parses a file name of this output: the complete file, the suffix after its extension, and whether it is a part.
    pub(super) fn read(&self, name: &str) -> Option<(Complete, &'static str, bool)> {
        let (name, is_part) = match name.strip_suffix(PART) {
            Some(part) => (part.strip_prefix(self.hidden)?, true),
            None => (name, false),
        };
        let rest = name.strip_prefix(&self.stem)?.strip_prefix('-')?;
        let (order, rest) = Order::read(rest)?;
        let (owner, rest) = Owner::read(rest)?;
        let suffix = rest.strip_prefix(&self.extension)?;
        let mut endings = self.endings.iter().copied();
        let ending = match endings.find(|ending| *ending == suffix) {
            Some(ending) => ending,
            // A part that waits for compression has no suffix.
            None if is_part && suffix.is_empty() => "",
            None => return None,
        };
        let name = name[..name.len() - suffix.len()].to_owned();
        let complete = Complete { name, order, owner };
        Some((complete, ending, is_part))
    }
}

fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).with_context(|| format!("remove {}", path.display()))
}
