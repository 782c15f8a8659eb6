//! The names that the hosts file gives to addresses (hosts(5)).

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read as _},
    net::IpAddr,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use proto::limits::MAX_HOST_NAME_BYTES;

/// Where the hosts file is.
pub const PATH: &str = "/etc/hosts";
/// The most that is read: about 100,000 lines. Longer files block advertisements.
const MOST_BYTES: u64 = 4 << 20;
const LOOKED_AT_EVERY: Duration = Duration::from_secs(10);

/// The hosts file as it was last read.
#[derive(Default)]
pub struct HostsFile {
    changed: Option<(SystemTime, u64)>,
    /// Modification time and length of a file that could not be read.
    unread: Option<(SystemTime, u64)>,
    looked_at: Option<Instant>,
}

impl HostsFile {
    /// The names, if the file may have changed since the last call. An address with several names gets the first one.
    pub fn if_changed(&mut self, path: &Path) -> Option<HashMap<IpAddr, Box<str>>> {
        let is_fresh = |looked_at: Instant| looked_at.elapsed() < LOOKED_AT_EVERY;
        if self.looked_at.is_some_and(is_fresh) {
            return None;
        }
        self.looked_at = Some(Instant::now());
        let status = path.metadata().ok();
        let changed = status.and_then(|status| Some((status.modified().ok()?, status.len())));
        if changed == self.changed {
            return None;
        }
        match read(path) {
            Ok(text) => {
                self.changed = changed;
                Some(parse(&text))
            }
            // The previous names stay.
            Err(error) => {
                if self.unread != changed {
                    self.unread = changed;
                    tracing::warn!(path = %path.display(), "the names of hosts: {error}");
                }
                None
            }
        }
    }
}

/// Reads whole lines. Returns an empty string if there is no such file.
fn read(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MOST_BYTES).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    if text.len() as u64 == MOST_BYTES {
        let lines = text.iter().rposition(|&byte| byte == b'\n');
        text.truncate(lines.unwrap_or_default());
        tracing::warn!(path = %path.display(), "the names of hosts: only the first {MOST_BYTES} bytes are read");
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn parse(text: &str) -> HashMap<IpAddr, Box<str>> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some(name)) = (words.next(), words.next()) else {
            continue;
        };
        let name = name.trim_end_matches('.');
        let is_plain = name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b':');
        if let Ok(address) = address.parse()
            && is_plain
            && (1..=MAX_HOST_NAME_BYTES).contains(&name.len())
        {
            names
                .entry(address)
                .or_insert_with(|| name.to_ascii_lowercase().into());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_an_address_counts() {
        let names = parse(
            "127.0.0.1 localhost loghost # 10.0.0.9 x\n\n# 10.0.0.8 y\n10.0.0.1\tWeb.Example. web\n10.0.0.1 other\n\
             ::1 localhost\nfe80::1%eth0 scoped\n10.0.0.2\nnonsense name\n10.0.0.3 .\n10.0.0.4 ::1\n10.0.0.5 \u{e9}t\u{e9}\n",
        );
        let name = |address: &str| names.get(&address.parse().unwrap()).map(|name| &**name);
        assert_eq!(name("127.0.0.1"), Some("localhost"));
        assert_eq!(name("10.0.0.1"), Some("web.example"));
        assert_eq!(name("::1"), Some("localhost"));
        assert_eq!(names.len(), 3);
    }

    #[test]
    fn it_is_read_again_when_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        let mut file = HostsFile::default();
        let look = |file: &mut HostsFile| {
            file.looked_at = None;
            file.if_changed(&path)
        };
        assert_eq!(look(&mut file), None, "there is none");
        std::fs::write(&path, "10.0.0.1 a\n").unwrap();
        assert_eq!(look(&mut file).map(|names| names.len()), Some(1));
        assert_eq!(look(&mut file), None);
        std::fs::write(&path, "10.0.0.1 a\n10.0.0.2 b\n").unwrap();
        assert_eq!(look(&mut file).map(|names| names.len()), Some(2));
        let long =
            "10.0.0.3 whole\n".repeat(MOST_BYTES as usize / 14) + "10.0.0.4 cut.in.the.middle\n";
        std::fs::write(&path, long).unwrap();
        let names = look(&mut file).unwrap();
        assert_eq!(
            names.values().map(|name| &**name).collect::<Vec<_>>(),
            ["whole"]
        );
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(look(&mut file), None, "what cannot be read changes nothing");
        std::fs::remove_dir(&path).unwrap();
        assert_eq!(look(&mut file).map(|names| names.len()), Some(0));
        assert_eq!(file.if_changed(&path), None, "looked at a moment ago");
    }
}
