//! Files of which only this program should know, in folders where others may write: a link that somebody put in their place
//! is not followed, and a pipe is not waited for.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::io::Errno;

/// The options for a file that is there, or may be. What opens may still be no regular file.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // std adds O_CLOEXEC.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

/// Opens a file to read it. `None` if there is something else.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    match options().read(true).open(path) {
        Ok(file) => Ok(file.metadata()?.is_file().then_some(file)),
        // A link, and a socket.
        Err(error) if [Errno::LOOP, Errno::NXIO].contains(&errno(&error)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a file in the place of whatever is there.
pub fn replace(path: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = options();
    let options = options.read(true).write(true).create_new(true);
    options.mode(mode).open(path)
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::{
            fs::{PermissionsExt as _, symlink},
            net::UnixListener,
        },
    };

    use super::*;

    #[test]
    fn nothing_but_a_regular_file_is_opened_and_whatever_is_there_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "text").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("missing"), at("dangling")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), 0o600.into()).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let mut text = String::new();
        let mut file = open(&at("file")).unwrap().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert_eq!(
            open(&at("missing")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        for name in ["link", "dangling", "pipe", "socket"] {
            assert!(open(&at(name)).unwrap().is_none(), "{name}");
            replace(&at(name), 0o600)
                .unwrap()
                .write_all(b"new")
                .unwrap();
            let found = fs::symlink_metadata(at(name)).unwrap();
            assert!(found.is_file(), "{name}");
            assert_eq!(found.permissions().mode() & 0o777, 0o600, "{name}");
        }
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "text");
        assert!(!at("missing").exists());
    }
}
