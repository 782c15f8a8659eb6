//! The names of an output's files. What is complete has the time of its beginning: `flows.jsonl` becomes
//! `flows-20260102T030405Z.jsonl`, and if that is taken, `flows-20260102T030405Z-2.jsonl`. Whenever the clock was set back
//! since the newest file, the names from then on say so: `flows-20250102T030405Z-r1.jsonl`, later `-r2`. So the order of files does
//! not depend on the clock.

use std::{
    cmp::Ordering,
    fmt, fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context as _, Result};

use super::{Compression, Rotation};

/// Ends the name of a file that is being compressed, or that waits for it.
const PART: &str = ".part";
/// `20260102T030405Z`
const STAMP_CHARS: usize = 16;
/// Stands before how often the clock was set back.
const RESETS: &str = "-r";

/// The names of one output's files.
pub(super) struct Names {
    folder: PathBuf,
    /// How all names begin.
    stem: String,
    /// How the names of the pieces end, with its dot.
    extension: String,
    /// What a complete file may have behind that.
    endings: &'static [&'static str],
    /// Begins the names of files that are not complete.
    hidden: &'static str,
    pub(super) open: PathBuf,
    pub(super) lock: PathBuf,
}

/// The name of a complete file, without what compression adds.
#[derive(Clone)]
pub(super) struct Complete {
    name: String,
    order: Order,
}

/// What the name of a file says of its place among the others, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Order {
    /// How often the clock was set back before it.
    clock_resets: u32,
    stamp: String,
    /// From 1 on among those of the same second.
    number: u32,
}

impl Order {
    /// Of a file that begins at this time, when another one is the newest.
    fn after(newest: Option<Self>, stamp: String) -> Self {
        let (clock_resets, number) = match newest {
            None => (0, 1),
            Some(newest) => match stamp.cmp(&newest.stamp) {
                Ordering::Greater => (newest.clock_resets, 1),
                Ordering::Equal => (newest.clock_resets, newest.number + 1),
                Ordering::Less => (newest.clock_resets + 1, 1),
            },
        };
        Self {
            clock_resets,
            stamp,
            number,
        }
    }

    /// What the first part of a text says, and the rest.
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

/// The number behind a prefix, if that is there, and the rest. `None` if it is not one that can be added to.
fn numbered<'a>(text: &'a str, prefix: &str) -> Option<(Option<u32>, &'a str)> {
    let Some(behind) = text.strip_prefix(prefix) else {
        return Some((None, text));
    };
    let digits = behind.chars().take_while(char::is_ascii_digit).count();
    let (number, rest) = behind.split_at(digits);
    let number = number.parse().ok().filter(|&number| number < u32::MAX)?;
    Some((Some(number), rest))
}

/// A file that an output of this name has made.
struct Found {
    complete: Complete,
    ending: &'static str,
    is_part: bool,
    path: PathBuf,
}

impl Names {
    /// The file that is written is at the path.
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

    /// Only complete files show in the folder: the names of others begin with a dot.
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

    /// A name that nobody has, later in the order than all others.
    pub(super) fn complete(&self, began: SystemTime) -> Result<Complete> {
        let stamp = humantime::format_rfc3339_seconds(began).to_string();
        let files = self.files()?.into_iter();
        let newest = files.map(|file| file.complete.order).max();
        let order = Order::after(newest, stamp.replace(['-', ':'], ""));
        let (stem, extension) = (&self.stem, &self.extension);
        let name = format!("{stem}-{order}{extension}");
        Ok(Complete { name, order })
    }

    /// The complete file.
    pub(super) fn whole(&self, complete: &Complete, ending: &str) -> PathBuf {
        self.folder.join(format!("{}{ending}", complete.name))
    }

    /// All that was written, until there is a complete file.
    pub(super) fn part(&self, complete: &Complete) -> PathBuf {
        self.half(complete, "")
    }

    /// What is to become the complete file.
    pub(super) fn half(&self, complete: &Complete, ending: &str) -> PathBuf {
        let (hidden, name) = (self.hidden, &complete.name);
        self.folder.join(format!("{hidden}{name}{ending}{PART}"))
    }

    fn is_complete(&self, name: &Complete) -> bool {
        let mut wholes = self.endings.iter().map(|ending| self.whole(name, ending));
        wholes.any(|whole| whole.exists())
    }

    /// Finishes what was being completed when a process was killed.
    pub(super) fn finish_parts(&self, finish: impl Fn(&Complete) -> Result<()>) -> Result<()> {
        let parts = self.files()?.into_iter().filter(|file| file.is_part);
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

    /// Removes complete files, the oldest first, until there are no more than there may be.
    pub(super) fn remove_the_oldest(&self, rotation: &Rotation) -> Result<()> {
        let complete = self.files()?.into_iter().filter(|file| !file.is_part);
        let mut files: Vec<_> = complete
            .map(|file| {
                let len = fs::metadata(&file.path).map_or(0, |metadata| metadata.len());
                (file.complete.order, len, file.path)
            })
            .collect();
        files.sort();
        let mut total: u64 = files.iter().map(|(_, len, _)| len).sum();
        let mut count = files.len();
        for (_, len, path) in files {
            if count <= rotation.files as usize && total <= rotation.total_bytes {
                break;
            }
            remove(&path)?;
            (count, total) = (count - 1, total - len);
        }
        Ok(())
    }

    fn files(&self) -> Result<Vec<Found>> {
        let what = || format!("list {}", self.folder.display());
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).with_context(what)? {
            let entry = entry.with_context(what)?;
            if let Ok(name) = entry.file_name().into_string()
                && let Some((complete, ending, is_part)) = self.read(&name)
            {
                found.push(Found {
                    complete,
                    ending,
                    is_part,
                    path: entry.path(),
                });
            }
        }
        Ok(found)
    }

    /// What a name says, if it is of ours: which complete file, what is behind its extension, whether it is a part.
    fn read(&self, name: &str) -> Option<(Complete, &'static str, bool)> {
        let (name, is_part) = match name.strip_suffix(PART) {
            Some(part) => (part.strip_prefix(self.hidden)?, true),
            None => (name, false),
        };
        let rest = name.strip_prefix(&self.stem)?.strip_prefix('-')?;
        let (order, rest) = Order::read(rest)?;
        let suffix = rest.strip_prefix(&self.extension)?;
        let mut endings = self.endings.iter().copied();
        let ending = match endings.find(|ending| *ending == suffix) {
            Some(ending) => ending,
            // What waits to be completed has none.
            None if is_part && suffix.is_empty() => "",
            None => return None,
        };
        let name = name[..name.len() - suffix.len()].to_owned();
        Some((Complete { name, order }, ending, is_part))
    }
}

fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).with_context(|| format!("remove {}", path.display()))
}
