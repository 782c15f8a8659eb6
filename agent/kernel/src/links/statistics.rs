//! Reads the counters and names of interfaces for a scan without taking the RTNL lock, which another process may hold
//! for seconds.
//!
//! Reading `/proc/net/dev` takes RCU only (`dev_seq_start`). So does looking up the name of an index (`dev_ifname`),
//! except while a name is being changed.

use std::{
    borrow::Cow,
    collections::HashMap,
    fs::File,
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::net::UnixDatagram,
    },
};

use anyhow::{Context as _, Result};
use rustix::{buffer::spare_capacity, io::pread};

use super::Counters;

const PATH: &str = "/proc/thread-self/net/dev";
const TITLE_LINES: usize = 2;

/// The counters of every interface of one network namespace: the one it was opened in.
pub struct Statistics {
    file: File,
}

/// The text of one reading.
#[derive(Default)]
pub struct Snapshot {
    text: Vec<u8>,
}

impl Statistics {
    pub fn open() -> Result<Self> {
        let file = File::open(PATH).with_context(|| format!("open {PATH}"))?;
        Ok(Self { file })
    }

    /// Reads into `snapshot`, and reuses its memory.
    pub fn read(&self, snapshot: &mut Snapshot) -> Result<()> {
        snapshot
            .read(&self.file)
            .with_context(|| format!("read {PATH}"))
    }
}

/// A read returns at most one page of the kernel, and kernel pages may be larger than this.
const PAGE: usize = 4096;

impl Snapshot {
    fn read(&mut self, file: &File) -> io::Result<()> {
        self.text.clear();
        loop {
            self.text.reserve(PAGE);
            let so_far = self.text.len() as u64;
            if pread(file, spare_capacity(&mut self.text), so_far)? == 0 {
                return Ok(());
            }
        }
    }

    /// Whether the two have the same names and counters for all interfaces.
    pub fn is_like(&self, other: &Self) -> bool {
        self.text == other.text
    }

    /// The counters, by the names that the interfaces had then.
    pub fn by_name(&self) -> HashMap<Cow<'_, str>, Counters> {
        let lines = self.text.split(|&byte| byte == b'\n').skip(TITLE_LINES);
        lines.filter_map(counters).collect()
    }
}

/// Parses a line of `dev_seq_printf_stats`: a name, eight numbers for received and eight for sent packets. A name may
/// have any bytes except spaces, colons and slashes (`dev_valid_name`); invalid UTF-8 is replaced as in [`Names::of`].
fn counters(line: &[u8]) -> Option<(Cow<'_, str>, Counters)> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let name = String::from_utf8_lossy(line[..colon].trim_ascii_start());
    let numbers = str::from_utf8(&line[colon + 1..]).ok()?;
    let mut columns = [0; 16];
    let mut numbers = numbers.split_ascii_whitespace();
    for column in &mut columns {
        *column = numbers.next()?.parse().ok()?;
    }
    let [rx_bytes, rx_packets, rx_errors, rx_dropped, ..] = columns;
    let [tx_bytes, tx_packets, tx_errors, tx_dropped] = *columns[8..].first_chunk()?;
    let counters = Counters {
        rx_packets,
        rx_bytes,
        rx_dropped,
        rx_errors,
        tx_packets,
        tx_bytes,
        tx_dropped,
        tx_errors,
    };
    Some((name, counters))
}

/// A socket that asks for interface names in the network namespace it was opened in.
pub struct Names {
    socket: OwnedFd,
}

impl Names {
    pub fn open() -> Result<Self> {
        let socket = UnixDatagram::unbound().context("open a socket to ask for names")?;
        Ok(Self {
            socket: socket.into(),
        })
    }

    /// The current name of an index. Fails with ENODEV if no interface has it.
    pub fn of(&self, ifindex: u32) -> io::Result<String> {
        // SAFETY: `struct ifreq` is plain data, and all zeros are a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = ifindex.cast_signed();
        // SAFETY: the request is valid for the call, which reads the index and writes the name.
        let refused =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFNAME, &raw mut request) };
        if refused != 0 {
            return Err(io::Error::last_os_error());
        }
        let name = request.ifr_name.map(libc::c_char::cast_unsigned);
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(name).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{LOOPBACK_IFINDEX, link_counters},
        *,
    };

    #[test]
    fn the_counters_are_those_that_netlink_tells() {
        let (statistics, mut snapshot) = (Statistics::open().unwrap(), Snapshot::default());
        let before = link_counters(LOOPBACK_IFINDEX).unwrap();
        for _ in 0..2 {
            statistics.read(&mut snapshot).unwrap();
            let between = snapshot.by_name()["lo"];
            let after = link_counters(LOOPBACK_IFINDEX).unwrap();
            let bytes = [before, between, after].map(|counters| counters.rx_bytes);
            let packets = [before, between, after].map(|counters| counters.tx_packets);
            assert!(bytes.is_sorted() && packets.is_sorted());
        }
    }

    #[test]
    fn each_column_is_its_counter() {
        let line = "  eth0:1 2 3 4 5 6 7 8 11 12 13 14 15 16 17 18";
        let expected = Counters {
            rx_bytes: 1,
            rx_packets: 2,
            rx_errors: 3,
            rx_dropped: 4,
            tx_bytes: 11,
            tx_packets: 12,
            tx_errors: 13,
            tx_dropped: 14,
        };
        assert_eq!(counters(line.as_bytes()), Some(("eth0".into(), expected)));
        assert_eq!(counters(b"eth0: 1 2 3"), None);
        // A name that is not UTF-8.
        let line = [b"  \xff0".as_slice(), &line.as_bytes()[6..]].concat();
        assert_eq!(counters(&line), Some(("\u{fffd}0".into(), expected)));
    }

    #[test]
    fn readings_that_are_alike_have_the_same_counters() {
        let of = |text: &[u8]| Snapshot {
            text: text.to_vec(),
        };
        let (one, same) = (of(b"a:1"), of(b"a:1"));
        assert!(one.is_like(&same) && !one.is_like(&of(b"a:2")) && !one.is_like(&of(b"a:1rest")));
    }

    #[test]
    fn an_index_has_a_name_or_none() {
        let names = Names::open().unwrap();
        assert_eq!(names.of(LOOPBACK_IFINDEX).unwrap(), "lo");
        let error = names.of(0x7fff_fff0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
