//! A password in a file. It is read whenever it is needed, so that changing it needs no restart.

use std::{fmt, io, path::PathBuf};

use sys::regular_file;
use thiserror::Error;

const MOST_BYTES: u64 = 4096;

/// The first line is the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PasswordFile(PathBuf);

/// Why there is no password.
#[derive(Debug, Error)]
pub(super) enum PasswordFault {
    #[error("read the password in {0} (password_file): {1}")]
    Unread(PasswordFile, io::Error),
    #[error("the first line of {0} (password_file) has no password")]
    Empty(PasswordFile),
}

impl PasswordFile {
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// A warning about the file's current state.
    pub(super) fn warning(&self) -> Option<String> {
        regular_file::open_to_all_now(&self.0, "this password")
    }

    pub(super) fn read(&self) -> Result<String, PasswordFault> {
        let unread = |error| PasswordFault::Unread(self.clone(), error);
        let (text, _) = regular_file::read(&self.0, MOST_BYTES).map_err(unread)?;
        let text = String::from_utf8(text)
            .map_err(|error| unread(io::Error::other(error.utf8_error())))?;
        match text.lines().next() {
            Some(password) if !password.is_empty() => Ok(password.to_owned()),
            _ => Err(PasswordFault::Empty(self.clone())),
        }
    }
}

impl fmt::Display for PasswordFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn a_password_is_the_first_line_of_a_short_regular_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let file = PasswordFile::new(&path);
        let refusal = |file: &PasswordFile| file.read().unwrap_err().to_string();
        assert!(refusal(&file).contains("password (password_file): No such file"));
        fs::write(&path, "secret\nmore\n").unwrap();
        assert_eq!(file.read().unwrap(), "secret");
        fs::write(&path, "\nmore\n").unwrap();
        assert!(refusal(&file).contains("has no password"));
        fs::write(&path, "x".repeat(4097)).unwrap();
        assert!(refusal(&file).contains("more than 4096 bytes"));
        for other in [folder.path(), Path::new("/dev/zero")] {
            let told = refusal(&PasswordFile::new(other));
            assert!(told.contains("not a regular file"), "{told}");
        }
    }
}
