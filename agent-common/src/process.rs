//! The process that made a socket, as the programs note it.

/// What is known of one. It says who made a socket, and not who uses it: a socket can be passed on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The name of its first thread (`comm`), padded with zeros. A word at a time, since programs read it so.
    pub name: [u64; 2],
    /// The user, as the first user namespace numbers it.
    pub uid: u32,
    /// The number of the process, as the first PID namespace gives it (the kernel's `tgid`).
    pub pid: u32,
}

const _: () = assert!(size_of::<Process>() == 24);

impl Process {
    /// Stands for all of it where there is room for one number: the process's own number, and half a hash of the rest. So two
    /// processes have the same key only if they had the same number one after the other, and then the same name and user but for
    /// one case in four billion. Never 0, since no process that makes sockets has the number 0.
    #[inline(always)]
    #[must_use]
    pub const fn key(&self) -> u64 {
        let hash = mixed(mixed(mixed(self.uid as u64) ^ self.name[0]) ^ self.name[1]);
        (self.pid as u64) << 32 | hash >> 32
    }

    /// The number of the process that a key stands for.
    #[must_use]
    pub const fn pid_of(key: u64) -> u32 {
        (key >> 32) as u32
    }
}

/// As in the finalizer of `splitmix64`.
#[inline(always)]
const fn mixed(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// How many sockets have something kept with them, of one kind. Memory for that is charged to the agent, whoever makes the sockets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketBound {
    /// At least as many as there are, but for those that accepted connections have inherited since they were counted.
    pub kept: u64,
    /// Userspace sets it.
    pub most: u64,
    /// How often there was no room.
    pub refused: u64,
    /// While they are counted, so many were seen that are forgotten beyond the bound, on top of the lasting ones of the time before.
    pub seen: u64,
    /// Likewise, so many that are not forgotten.
    pub lasting: u64,
}

impl SocketBound {
    /// `kept` without what makes it negative for a moment: sockets that go while they are counted may be taken off twice.
    #[inline(always)]
    #[must_use]
    pub const fn held(kept: u64) -> u64 {
        if kept.cast_signed() < 0 { 0 } else { kept }
    }

    /// In numbers.
    pub const WORDS: usize = size_of::<Self>() / size_of::<u64>();
}

/// What is kept with sockets, as the place of its [`SocketBound`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptWithSockets {
    Process,
    Flow,
}

impl KeptWithSockets {
    pub const COUNT: usize = 2;
}

/// Where the running kernel keeps what the programs read of tasks and of sockets, in bytes. All are known, or the programs that read
/// them are not loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskLayout {
    pub group_leader: u32,
    pub comm: u32,
    pub tgid: u32,
    pub cred: u32,
    pub cred_uid: u32,
    /// Of a `socket`: its `sock`.
    pub socket_sock: u32,
    /// Of a `sock`: its address family, its state as TCP has it, and its type.
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
