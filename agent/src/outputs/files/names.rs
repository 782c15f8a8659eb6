//! The names of complete files: `flows.jsonl` becomes `flows-20260102T030405Z.jsonl`, and if that is taken,
//! `flows-20260102T030405Z-2.jsonl`.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context as _, Result};

use super::{Compression, Rotation};

/// Ends the name of a file that is not whole, or not compressed yet.
pub(super) const PART: &str = ".part";
/// `20260102T030405Z`
const STAMP_CHARS: usize = 16;

const ALL: [Compression; 3] = [Compression::None, Compression::Gzip, Compression::Zstd];

/// A name that nobody has, without what compression adds.
pub(super) fn complete(path: &Path, began: SystemTime) -> PathBuf {
    let stamp = humantime::format_rfc3339_seconds(began).to_string();
    let stamp = stamp.replace(['-', ':'], "");
    let (stem, extension) = parts(path);
    let named = |number: &str| path.with_file_name(format!("{stem}-{stamp}{number}{extension}"));
    let is_free = |name: &PathBuf| {
        let with_suffix = ALL.map(|compression| with(name, compression.suffix()));
        with_suffix
            .iter()
            .chain([&with(name, PART)])
            .all(|taken| !taken.exists())
    };
    let numbered = (2u32..).map(|number| named(&format!("-{number}")));
    let mut candidates = std::iter::once(named("")).chain(numbered);
    candidates
        .find(is_free)
        .expect("there are more numbers than files")
}

/// The name with something at its end.
pub(super) fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Finishes what was being compressed when a process was killed. `finish` gets the file and its complete name.
pub(super) fn finish_parts(path: &Path, finish: impl Fn(&Path, &Path) -> Result<()>) -> Result<()> {
    let parts = beside(path)?
        .into_iter()
        .filter(|(name, _)| name.ends_with(PART));
    let compressed = |(name, _): &(String, PathBuf)| {
        let suffixes = [Compression::Gzip, Compression::Zstd].map(Compression::suffix);
        suffixes
            .iter()
            .any(|suffix| name.ends_with(&format!("{suffix}{PART}")))
    };
    let (compressed, parts): (Vec<_>, Vec<_>) = parts.partition(compressed);
    for (_, half) in compressed {
        fs::remove_file(&half).with_context(|| format!("remove {}", half.display()))?;
    }
    for (name, part) in parts {
        let complete = part.with_file_name(name.trim_end_matches(PART));
        if ALL.iter().any(|one| with(&complete, one.suffix()).exists()) {
            fs::remove_file(&part).with_context(|| format!("remove {}", part.display()))?;
        } else {
            finish(&part, &complete).with_context(|| format!("finish {}", part.display()))?;
        }
    }
    Ok(())
}

/// Removes complete files, the oldest first, until there are no more than there may be.
pub(super) fn remove_the_oldest(path: &Path, rotation: &Rotation) -> Result<()> {
    let mut files = Vec::new();
    for (name, entry) in beside(path)? {
        if name.ends_with(PART) {
            continue;
        }
        let len = fs::metadata(&entry).map_or(0, |metadata| metadata.len());
        files.push((order(path, &name), len, entry));
    }
    files.sort();
    let mut total: u64 = files.iter().map(|(_, len, _)| len).sum();
    let mut count = files.len();
    for (_, len, entry) in files {
        if count <= rotation.files as usize && total <= rotation.total_bytes {
            break;
        }
        fs::remove_file(&entry).with_context(|| format!("remove {}", entry.display()))?;
        (count, total) = (count - 1, total - len);
    }
    Ok(())
}

/// By time, then by number.
fn order(path: &Path, name: &str) -> (String, u32) {
    let (stem, _) = parts(path);
    let rest = &name[stem.len() + 1..];
    let (stamp, rest) = rest.split_at(STAMP_CHARS);
    let number = rest
        .strip_prefix('-')
        .and_then(|rest| rest.split('.').next());
    let number = number.and_then(|number| number.parse().ok());
    (stamp.to_owned(), number.unwrap_or(1))
}

/// The files that an output at this path has named, with their names.
fn beside(path: &Path) -> Result<Vec<(String, PathBuf)>> {
    let (stem, extension) = parts(path);
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let what = || format!("list {}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(what)? {
        let entry = entry.with_context(what)?;
        if let Ok(name) = entry.file_name().into_string()
            && is_ours(&name, &stem, &extension)
        {
            found.push((name, entry.path()));
        }
    }
    Ok(found)
}

fn is_ours(name: &str, stem: &str, extension: &str) -> bool {
    let rest = name
        .strip_prefix(stem)
        .and_then(|rest| rest.strip_prefix('-'));
    let Some((stamp, rest)) = rest.and_then(|rest| rest.split_at_checked(STAMP_CHARS)) else {
        return false;
    };
    let is_stamp = stamp.char_indices().all(|(place, character)| match place {
        8 => character == 'T',
        15 => character == 'Z',
        _ => character.is_ascii_digit(),
    });
    let rest = match rest.strip_prefix('-') {
        Some(numbered) => numbered.trim_start_matches(|character: char| character.is_ascii_digit()),
        None => rest,
    };
    let Some(suffix) = rest.strip_prefix(extension) else {
        return false;
    };
    let suffix = suffix.strip_suffix(PART).unwrap_or(suffix);
    is_stamp && ALL.iter().any(|compression| compression.suffix() == suffix)
}

/// The name without its extension, and the extension with its dot.
fn parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| {
        part.map(|part| part.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let extension = match text(path.extension()) {
        none if none.is_empty() => none,
        extension => format!(".{extension}"),
    };
    (text(path.file_stem()), extension)
}
