//! A Unix socket's file and the lock next to it, which ensure that only one agent listens on a path.
//!
//! A stale socket, which does not answer, is removed. Between that check and the removal another agent could bind its
//! own socket. So only the agent that holds the lock (flock(2) on PATH.lock) checks, removes and binds, and it holds
//! the lock until it ends.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::{UnixListener, UnixStream};
use tracing::{info, warn};

use super::address::{ListenAddr, ListenError};

/// Owner and group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Only the owner may open the lock, since everyone who can open it, even for reading, can hold it.
const LOCK_MODE: u32 = 0o600;
/// How often to retry if the lock file was removed between opening and locking it.
const LOCK_ATTEMPTS: usize = 100;
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The file of a bound socket. Dropping this removes the file, unless another file has replaced it, and then the lock.
pub struct SocketFile {
    path: PathBuf,
    device_inode: (u64, u64),
    _lock: LockFile,
}

impl SocketFile {
    /// Binds the socket. A missing directory under /run is created.
    pub(super) async fn bind(path: &Path) -> Result<(Self, UnixListener), ListenError> {
        let failed = |error| failed(path, error);
        make_directory(path)?;
        let lock = LockFile::take(path)?;
        remove_stale(path).await?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        let file = Self {
            path: path.to_owned(),
            device_inode: device_inode(path).map_err(failed)?,
            _lock: lock,
        };
        fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
        Ok((file, listener))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        remove_ours(&self.path, self.device_inode);
    }
}

fn failed(path: &Path, error: io::Error) -> ListenError {
    ListenError::from_io(&ListenAddr::Unix(path.to_owned()), error)
}

fn make_directory(path: &Path) -> Result<(), ListenError> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.exists()) {
        if !parent.starts_with("/run") {
            return Err(ListenError::NoDirectory {
                directory: parent.display().to_string(),
            });
        }
        fs::create_dir_all(parent).map_err(|error| failed(path, error))?;
    }
    Ok(())
}

/// Removes the socket of an agent that has ended. Holding the lock does not prove that it ended: an agent that does not
/// use the lock may still answer.
async fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let text = path.display().to_string();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(path, error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(ListenError::NotASocket { path: text });
        }
        Ok(_) => {}
    }
    match tokio::time::timeout(PROBE_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            info!(path = text, "removing the socket of an agent that is gone");
            fs::remove_file(path).map_err(|error| failed(path, error))
        }
        Ok(Err(gone)) if gone.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(Err(error)) => Err(failed(path, error)),
        Ok(Ok(_)) | Err(_) => Err(ListenError::AnotherAgent { path: text }),
    }
}

/// A lock, held until it is dropped. Its file is removed before the lock is released, so a process that gets the lock
/// must check that the file still has its name.
struct LockFile {
    path: PathBuf,
    device_inode: (u64, u64),
    _file: File,
}

impl LockFile {
    fn take(socket: &Path) -> Result<Self, ListenError> {
        let path = beside(socket);
        for _ in 0..LOCK_ATTEMPTS {
            let file = open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(ListenError::AnotherAgent {
                        path: socket.display().to_string(),
                    });
                }
                Err(TryLockError::Error(error)) => return Err(failed(&path, error)),
            }
            let metadata = file.metadata().map_err(|error| failed(&path, error))?;
            let device_inode = (metadata.dev(), metadata.ino());
            if self::device_inode(&path).is_ok_and(|found| found == device_inode) {
                return Ok(Self {
                    path,
                    device_inode,
                    _file: file,
                });
            }
        }
        let error = io::Error::other("the lock is removed again and again");
        Err(failed(&path, error))
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        remove_ours(&self.path, self.device_inode);
    }
}

/// PATH.lock.
fn beside(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    PathBuf::from(path)
}

/// Creates the lock file, or opens the one that an agent of the same user left behind. Refuses any other file: others
/// who may write there could hold a lock of their own, or link to any of our files.
fn open(path: &Path) -> Result<File, ListenError> {
    let foreign = |reason: String| ListenError::ForeignLock {
        path: path.display().to_string(),
        reason,
    };
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(LOCK_MODE)
        // std adds O_CLOEXEC. A FIFO at this path must not block us.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let found = match &opened {
        Ok(file) => file.metadata(),
        Err(_) => fs::symlink_metadata(path),
    };
    let own_uid = rustix::process::geteuid().as_raw();
    if let Ok(found) = found {
        if !found.is_file() {
            return Err(foreign("no regular file".to_owned()));
        }
        if found.uid() != own_uid {
            return Err(foreign(format!("the file of uid {}", found.uid())));
        }
    }
    opened.map_err(|error| failed(path, error))
}

fn remove_ours(path: &Path, ours: (u64, u64)) {
    if device_inode(path).is_ok_and(|found| found == ours)
        && let Err(error) = fs::remove_file(path)
    {
        warn!(path = %path.display(), %error, "cannot remove our file");
    }
}

fn device_inode(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixDatagram};

    use tempfile::TempDir;

    use super::*;

    fn socket() -> (TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        (directory, path)
    }

    async fn refused(path: &Path) -> ListenError {
        SocketFile::bind(path).await.err().unwrap()
    }

    #[tokio::test]
    async fn the_socket_and_its_lock_go_with_their_owner_and_what_others_put_there_stays() {
        let (_directory, path) = socket();
        let (file, _listener) = SocketFile::bind(&path).await.unwrap();
        let lock = beside(&path);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&lock)), (SOCKET_MODE, LOCK_MODE));
        drop(file);
        assert!(!path.exists() && !lock.exists());

        let (file, _listener) = SocketFile::bind(&path).await.unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "of another").unwrap();
        drop(file);
        assert!(path.exists() && !lock.exists());
    }

    /// Following a link would open a file that somebody else chose.
    #[tokio::test]
    async fn a_link_in_the_place_of_the_lock_is_not_followed() {
        let (directory, path) = socket();
        let target = directory.path().join("ours");
        fs::write(&target, "").unwrap();
        symlink(&target, beside(&path)).unwrap();
        let error = refused(&path).await;
        assert!(matches!(error, ListenError::ForeignLock { .. }), "{error}");
    }

    /// It may be in use, although nobody can connect to it.
    #[tokio::test]
    async fn a_socket_of_another_type_stays_and_the_error_is_told() {
        let (_directory, path) = socket();
        let _theirs = UnixDatagram::bind(&path).unwrap();
        let error = refused(&path).await;
        let ListenError::Other { source, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(source.raw_os_error(), Some(libc::EPROTOTYPE));
        assert!(path.exists());
    }
}
