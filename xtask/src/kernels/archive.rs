//! The initramfs of a guest: files of this machine in a cpio archive (`newc`,
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

#[derive(Clone, Default)]
pub struct Archive {
    /// Entries by path without the leading slash, sorted so that a folder comes before its contents.
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone)]
enum Entry {
    Folder,
    Program(Vec<u8>),
    CharacterDevice { major: u32, minor: u32 },
}

// File types and permissions, as in `st_mode`.
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// A magic number and thirteen hexadecimal fields.
const HEADER_LEN_BYTES: usize = 6 + 13 * 8;

impl Archive {
    pub fn folder(&mut self, path: &str) {
        let mut parent = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if !parent.is_empty() {
                parent.push('/');
            }
            parent.push_str(name);
            self.entries.entry(parent.clone()).or_insert(Entry::Folder);
        }
    }

    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.add(path, Entry::CharacterDevice { major, minor });
    }

    pub fn file(&mut self, path: &str, bytes: Vec<u8>) {
        self.add(path, Entry::Program(bytes));
    }

    /// Adds a file of this machine under its own path.
    pub fn copy(&mut self, path: &Path) -> Result<()> {
        let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        self.file(&path.to_string_lossy(), bytes);
        Ok(())
    }

    /// Adds a program of this machine under its own path, with the libraries it links to.
    pub fn program(&mut self, path: &Path) -> Result<()> {
        for library in libraries(path)? {
            if !self.entries.contains_key(key(&library.to_string_lossy())) {
                self.copy(&library)?;
            }
        }
        self.copy(path)
    }

    /// The same, without debug information.
    pub fn stripped_program(&mut self, path: &Path) -> Result<()> {
        self.program(path)?;
        let stripped = tempfile_beside(path);
        let strip = Command::new("strip")
            .arg("-o")
            .args([&stripped, path])
            .status()
            .context("start strip")?;
        ensure!(strip.success(), "strip {} failed", path.display());
        let bytes = fs::read(&stripped).with_context(|| format!("read {}", stripped.display()))?;
        fs::remove_file(&stripped).with_context(|| format!("remove {}", stripped.display()))?;
        self.file(&path.to_string_lossy(), bytes);
        Ok(())
    }

    fn add(&mut self, path: &str, entry: Entry) {
        let key = key(path).to_owned();
        if let Some((parent, _)) = key.rsplit_once('/') {
            self.folder(parent);
        }
        self.entries.insert(key, entry);
    }

    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for (number, (path, entry)) in (1..).zip(&self.entries) {
            let (mode, device, bytes) = match entry {
                Entry::Folder => (FOLDER, (0, 0), &[][..]),
                Entry::Program(bytes) => (PROGRAM, (0, 0), &bytes[..]),
                &Entry::CharacterDevice { major, minor } => {
                    (CHARACTER_DEVICE, (major, minor), &[][..])
                }
            };
            write_entry(out, number, path, mode, device, bytes)?;
        }
        write_entry(out, 0, "TRAILER!!!", 0, (0, 0), &[])
    }
}

fn write_entry(
    out: &mut impl Write,
    inode: u32,
    path: &str,
    mode: u32,
    (major, minor): (u32, u32),
    bytes: &[u8],
) -> io::Result<()> {
    let fields = [
        inode,
        mode,
        0, // uid
        0, // gid
        1, // links
        0, // modification time
        bytes.len() as u32,
        0, // device, major and minor
        0,
        major,
        minor,
        path.len() as u32 + 1,
        0, // no checksum
    ];
    write!(out, "070701")?;
    for field in fields {
        write!(out, "{field:08x}")?;
    }
    out.write_all(path.as_bytes())?;
    out.write_all(&[0])?;
    pad(out, HEADER_LEN_BYTES + path.len() + 1)?;
    out.write_all(bytes)?;
    pad(out, bytes.len())
}

/// Pads to a multiple of four bytes, as the format requires after the header with the name and after the content.
fn pad(out: &mut impl Write, len_bytes: usize) -> io::Result<()> {
    out.write_all(&[0; 3][..len_bytes.next_multiple_of(4) - len_bytes])
}

fn key(path: &str) -> &str {
    path.trim_start_matches('/')
}

fn tempfile_beside(path: &Path) -> PathBuf {
    path.with_extension(format!("stripped-{}", std::process::id()))
}

/// The libraries and the loader of a program. A statically linked program has none.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        .output()
        .context("start ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let missing = text.lines().find(|line| line.contains("not found"));
    ensure!(
        missing.is_none(),
        "{}: {}",
        program.display(),
        missing.unwrap_or_default().trim()
    );
    Ok(text
        .lines()
        .flat_map(str::split_whitespace)
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .filter(|path| path != program)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_what_is_in_them_and_all_is_padded() {
        let mut archive = Archive::default();
        archive.file("/a/b/c", b"hello".to_vec());
        archive.character_device("/dev/console", 5, 1);
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let places: Vec<usize> = [
            "a\0",
            "a/b\0",
            "a/b/c\0",
            "hello",
            "dev/console\0",
            "TRAILER!!!\0",
        ]
        .map(|part| text.find(part).unwrap())
        .to_vec();
        assert!(places.is_sorted(), "{places:?}");
        // The header of the file: its mode and its length.
        let header = &text[places[2] - 110..places[2]];
        assert_eq!((&header[14..22], &header[54..62]), ("000081ed", "00000005"));
    }
}
