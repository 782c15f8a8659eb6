//! The process that created a socket, as the programs store it.

/// The process that created a socket. It is not necessarily the one that uses it: a socket can be passed on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The name of its first thread (`comm`), padded with zeros. In words, since the programs read whole words.
    pub name: [u64; 2],
    /// The user id in the initial user namespace.
    pub uid: u32,
    /// The process id in the initial PID namespace (the kernel's `tgid`).
    pub pid: u32,
}

const _: () = assert!(size_of::<Process>() == 24);

impl Process {
    /// Identifies the process in one number: its pid, and half a hash of name and user. Two processes share a key only
    /// if they had the same pid one after the other and their hashes collide, one case in four billion. Never 0, since
    /// no process that creates sockets has pid 0.
    #[inline(always)]
    #[must_use]
    pub const fn key(&self) -> u64 {
        let hash = mixed(mixed(mixed(self.uid as u64) ^ self.name[0]) ^ self.name[1]);
        (self.pid as u64) << 32 | hash >> 32
    }

    /// The pid in a key.
    #[must_use]
    pub const fn pid_of(key: u64) -> u32 {
        (key >> 32) as u32
    }
}

/// The finalizer of `splitmix64`.
#[inline(always)]
const fn mixed(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// The bound on sockets that carry one kind of data. The kernel charges that memory to the agent, whoever creates the
/// sockets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketBound {
    /// Sockets that carry the data. Connections that were accepted since the last count are missing: they inherit it
    /// without being counted.
    pub kept: u64,
    /// The limit. Userspace sets it.
    pub most: u64,
    /// How often the limit was reached.
    pub refused: u64,
    /// Sockets found by the count in progress that lose the data beyond the limit. Starts at the lasting sockets of the
    /// previous count.
    pub seen: u64,
    /// Lasting sockets found by the count in progress. They keep the data.
    pub lasting: u64,
}

impl SocketBound {
    /// `kept`, or 0 while it is negative for a moment: a socket that closes during a count may be subtracted twice.
    #[inline(always)]
    #[must_use]
    pub const fn held(kept: u64) -> u64 {
        if kept.cast_signed() < 0 { 0 } else { kept }
    }

    /// The size in words.
    pub const WORDS: usize = size_of::<Self>() / size_of::<u64>();
}

/// The kinds of data that sockets carry. The number is the index of the kind's [`SocketBound`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptWithSockets {
    Process,
    Flow,
}

impl KeptWithSockets {
    pub const COUNT: usize = 2;
}

/// Offsets in bytes of the fields of tasks and sockets that the programs read. If any is unknown, the programs that
/// read them are not loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskLayout {
    pub group_leader: u32,
    pub comm: u32,
    pub tgid: u32,
    pub cred: u32,
    pub cred_uid: u32,
    /// In `struct socket`: its `sock`.
    pub socket_sock: u32,
    /// In `struct sock`: the address family, the TCP state and the type.
    pub sock_family: u32,
    pub sock_state: u32,
    pub sock_type: u32,
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: repr(C), integers only, no padding (asserted by size above).
    unsafe impl aya::Pod for super::Process {}
    // SAFETY: repr(C), integers of one size only.
    unsafe impl aya::Pod for super::TaskLayout {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_off_twice_takes_no_room() {
        assert_eq!([0, 7].map(SocketBound::held), [0, 7]);
        assert_eq!(SocketBound::held(1u64.wrapping_sub(8)), 0);
    }

    #[test]
    fn a_key_tells_processes_apart_and_has_their_number() {
        let first = Process {
            name: [u64::from_ne_bytes(*b"nginx\0\0\0"), 0],
            uid: 33,
            pid: 4711,
        };
        let others = [
            Process { pid: 4712, ..first },
            Process { uid: 34, ..first },
            Process {
                name: [first.name[0], 1],
                ..first
            },
            Process {
                name: [first.name[0] ^ 1, 0],
                ..first
            },
        ];
        for other in others {
            assert_ne!(other.key(), first.key());
            assert_eq!(Process::pid_of(other.key()), other.pid);
        }
        assert_eq!(first.key(), Process { ..first }.key());
    }
}
