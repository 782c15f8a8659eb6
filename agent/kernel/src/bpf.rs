//! Raw `bpf(2)` on file descriptors of maps and programs: the calls that aya 0.14 lacks, and those whose aya version
//! may leave something behind.

use std::{
    ffi::{CString, c_char},
    io, mem, ops,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    time::Duration,
};

use agent_common::Direction;
use aya_obj::generated::{
    BPF_F_AFTER, BPF_F_BEFORE, BPF_F_XDP_DEV_BOUND_ONLY, BPF_F_XDP_HAS_FRAGS, BPF_OBJ_NAME_LEN,
    XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE, bpf_attach_type, bpf_attr, bpf_cmd, bpf_func_info,
    bpf_insn, bpf_link_info, bpf_link_type, bpf_map_type, bpf_prog_info, bpf_prog_type,
    bpf_stats_type,
};

/// Where a link attaches its program to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkPlace {
    /// Before the programs that are already there (kernel 6.6).
    TcxFirst(Direction),
    /// After the programs that are already there (kernel 6.6).
    TcxLast(Direction),
    XdpNative,
    XdpGeneric,
}

impl LinkPlace {
    /// The direction of the packets that a program there sees.
    pub fn direction(self) -> Direction {
        match self {
            Self::TcxFirst(direction) | Self::TcxLast(direction) => direction,
            Self::XdpNative | Self::XdpGeneric => Direction::Ingress,
        }
    }

    /// Whether an interface takes only one program there.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Self::XdpNative | Self::XdpGeneric)
    }
}

/// A map's shape, as `BPF_MAP_CREATE` has it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// `BPF_MAP_TYPE_*`.
    pub map_type: u32,
    pub key_len_bytes: u32,
    pub value_len_bytes: u32,
    pub max_entries: u32,
    /// `BPF_F_*`; must equal the flags of the outer map's template.
    pub flags: u32,
}

/// Zeroed attributes: each call requires zeros in the fields that it does not use.
fn attributes() -> bpf_attr {
    // SAFETY: every member of the union is made of integers and of unions of integers.
    unsafe { mem::zeroed() }
}

/// Makes the system call. A kernel that knows a shorter union accepts a tail of zeros
/// (`bpf_check_uarg_tail_zero`).
fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<libc::c_long> {
    // SAFETY: the callers below keep the memory alive that the attributes point to.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<bpf_attr>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Makes a call that returns a file descriptor.
fn bpf_fd(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    let fd = bpf(command, attr)?;
    // SAFETY: the kernel has just made the descriptor for this call, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Creates an array with one entry of eight bytes, to find out whether this process may create maps.
pub fn create_small_array() -> io::Result<OwnedFd> {
    let mut attr = attributes();
    attr.__bindgen_anon_1.map_type = bpf_map_type::BPF_MAP_TYPE_ARRAY as u32;
    attr.__bindgen_anon_1.key_size = 4;
    attr.__bindgen_anon_1.value_size = 8;
    attr.__bindgen_anon_1.max_entries = 1;
    bpf_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr)
}

/// Creates a map with the given key and value types of `types`. Truncates a name that is too long.
pub fn create_map(
    name: &str,
    shape: Shape,
    types: BorrowedFd<'_>,
    key_type: u32,
    value_type: u32,
) -> io::Result<OwnedFd> {
    let mut attr = attributes();
    attr.__bindgen_anon_1.map_type = shape.map_type;
    attr.__bindgen_anon_1.key_size = shape.key_len_bytes;
    attr.__bindgen_anon_1.value_size = shape.value_len_bytes;
    attr.__bindgen_anon_1.max_entries = shape.max_entries;
    attr.__bindgen_anon_1.map_flags = shape.flags;
    attr.__bindgen_anon_1.map_name = cut(name);
    attr.__bindgen_anon_1.btf_fd = fd(types);
    attr.__bindgen_anon_1.btf_key_type_id = key_type;
    attr.__bindgen_anon_1.btf_value_type_id = value_type;
    bpf_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr)
}

fn cut(name: &str) -> [c_char; BPF_OBJ_NAME_LEN as usize] {
    let mut cut = [0; BPF_OBJ_NAME_LEN as usize];
    // The last byte stays zero.
    for (to, from) in cut[..BPF_OBJ_NAME_LEN as usize - 1]
        .iter_mut()
        .zip(name.bytes())
    {
        *to = c_char::from_ne_bytes([from]);
    }
    cut
}

/// An XDP program that is loaded for one interface.
pub struct BoundProgram {
    pub name: &'static str,
    pub license: CString,
    pub instructions: Vec<bpf_insn>,
    pub functions: Vec<bpf_func_info>,
    /// The types that the functions refer to.
    pub types: OwnedFd,
}

impl BoundProgram {
    /// Loads it for the native hook of this interface, in the calling thread's network namespace. An error includes the
    /// verifier's log.
    pub fn load(&self, ifindex: u32) -> Result<OwnedFd, (io::Error, String)> {
        /// Makes the verifier log why it refuses; the level that aya uses.
        const LOG_LEVEL: u32 = 1;
        let refusal = match bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut self.attributes(ifindex)) {
            Ok(program) => return Ok(program),
            Err(error) => error,
        };
        let mut log = vec![0_u8; 1 << 24];
        let mut attr = self.attributes(ifindex);
        attr.__bindgen_anon_3.log_level = LOG_LEVEL;
        attr.__bindgen_anon_3.log_buf = log.as_mut_ptr() as u64;
        attr.__bindgen_anon_3.log_size = log.len() as u32;
        bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr).map_err(|_| {
            let log = log.split(|byte| *byte == 0).next().unwrap_or_default();
            (refusal, String::from_utf8_lossy(log).into_owned())
        })
    }

    fn attributes(&self, ifindex: u32) -> bpf_attr {
        let mut attr = attributes();
        attr.__bindgen_anon_3.prog_type = bpf_prog_type::BPF_PROG_TYPE_XDP as u32;
        attr.__bindgen_anon_3.expected_attach_type = bpf_attach_type::BPF_XDP as u32;
        attr.__bindgen_anon_3.prog_name = cut(self.name);
        attr.__bindgen_anon_3.prog_flags = BPF_F_XDP_HAS_FRAGS | BPF_F_XDP_DEV_BOUND_ONLY;
        attr.__bindgen_anon_3.prog_ifindex = ifindex;
        attr.__bindgen_anon_3.license = self.license.as_ptr() as u64;
        attr.__bindgen_anon_3.insns = self.instructions.as_ptr() as u64;
        attr.__bindgen_anon_3.insn_cnt = self.instructions.len() as u32;
        attr.__bindgen_anon_3.prog_btf_fd = fd(self.types.as_fd());
        attr.__bindgen_anon_3.func_info = self.functions.as_ptr() as u64;
        attr.__bindgen_anon_3.func_info_cnt = self.functions.len() as u32;
        attr.__bindgen_anon_3.func_info_rec_size = size_of::<bpf_func_info>() as u32;
        attr
    }
}

/// Loads type information (BTF).
pub fn load_btf(btf: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = attributes();
    attr.__bindgen_anon_7.btf = btf.as_ptr() as u64;
    attr.__bindgen_anon_7.btf_size = btf.len() as u32;
    bpf_fd(bpf_cmd::BPF_BTF_LOAD, &mut attr)
}

/// Operation, registers (source, destination), offset, and the operand: `struct bpf_insn`.
const fn instruction(operation: u8, registers: u8, operand: i32) -> u64 {
    let bytes = operand.to_ne_bytes();
    u64::from_ne_bytes([
        operation, registers, 0, 0, bytes[0], bytes[1], bytes[2], bytes[3],
    ])
}

// linux/bpf_common.h, linux/bpf.h.
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const ADD: u8 = 0x07;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Loads a TC program that calls `bpf_probe_read_kernel` and unloads it, to find out whether programs may call it.
pub fn load_reader_of_kernel_memory() -> io::Result<()> {
    const PROBE_READ_KERNEL: i32 = 113;
    let instructions = [
        // Eight bytes of the stack, from address 0.
        instruction(MOVE_REGISTER, 0xa1, 0),
        instruction(ADD, 1, -8),
        instruction(MOVE, 2, 8),
        instruction(MOVE, 3, 0),
        instruction(CALL, 0, PROBE_READ_KERNEL),
        instruction(MOVE, 0, 0),
        instruction(EXIT, 0, 0),
    ];
    let mut attr = attributes();
    attr.__bindgen_anon_3.prog_type = bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS as u32;
    attr.__bindgen_anon_3.insn_cnt = instructions.len() as u32;
    attr.__bindgen_anon_3.insns = instructions.as_ptr() as u64;
    attr.__bindgen_anon_3.license = c"GPL".as_ptr() as u64;
    bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr).map(drop)
}

/// Loads a program for this place that lets every packet pass. With `has_frags`, XDP takes frames of several buffers
/// (kernel 5.18).
pub fn load_passing(place: LinkPlace, has_frags: bool) -> io::Result<OwnedFd> {
    /// `TCX_NEXT`.
    const NEXT: i32 = -1;
    /// `XDP_PASS`.
    const PASS: i32 = 2;
    let mut attr = attributes();
    let pass = if place.is_exclusive() {
        attr.__bindgen_anon_3.prog_type = bpf_prog_type::BPF_PROG_TYPE_XDP as u32;
        attr.__bindgen_anon_3.expected_attach_type = bpf_attach_type::BPF_XDP as u32;
        if has_frags {
            attr.__bindgen_anon_3.prog_flags = BPF_F_XDP_HAS_FRAGS;
        }
        PASS
    } else {
        attr.__bindgen_anon_3.prog_type = bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS as u32;
        NEXT
    };
    let instructions = [instruction(MOVE, 0, pass), instruction(EXIT, 0, 0)];
    attr.__bindgen_anon_3.insn_cnt = instructions.len() as u32;
    attr.__bindgen_anon_3.insns = instructions.as_ptr() as u64;
    attr.__bindgen_anon_3.license = c"GPL".as_ptr() as u64;
    bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr)
}

/// Asks for the programs on an interface's TCX ingress hook. Fails with EINVAL before kernel 6.6, which introduced TCX.
pub fn query_tcx_ingress(ifindex: u32) -> io::Result<()> {
    let mut attr = attributes();
    attr.query.__bindgen_anon_1.target_ifindex = ifindex;
    attr.query.attach_type = bpf_attach_type::BPF_TCX_INGRESS as u32;
    bpf(bpf_cmd::BPF_PROG_QUERY, &mut attr).map(drop)
}

/// The kernel's description of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkInfo {
    pub id: u32,
    pub program_id: u32,
    pub is_xdp: bool,
    /// The interface that the link is on; 0 if the interface is gone or the link is detached. Valid for XDP and TCX links
    /// only.
    pub ifindex: u32,
}

/// Asks about a link of this process.
pub fn link(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    // SAFETY: `struct bpf_link_info` is made of integers and of unions of integers.
    let mut info: bpf_link_info = unsafe { mem::zeroed() };
    let mut attr = attributes();
    attr.info.bpf_fd = fd(link);
    attr.info.info_len = size_of::<bpf_link_info>() as u32;
    attr.info.info = &raw mut info as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    // SAFETY: every member of the union is made of integers, and all of it was zero before the call. A TCX link's index
    // is at the same place.
    let ifindex = unsafe { info.__bindgen_anon_1.xdp.ifindex };
    Ok(LinkInfo {
        id: info.id,
        program_id: info.prog_id,
        is_xdp: info.type_ == bpf_link_type::BPF_LINK_TYPE_XDP as u32,
        ifindex,
    })
}

/// The ids of the links on a TCX hook, with 0 for each program that has no link. Fails with ENODEV if there is no such
/// interface in the calling thread's network namespace.
pub fn tcx_links(ifindex: u32, direction: Direction) -> io::Result<Vec<u32>> {
    /// `BPF_MPROG_MAX` (`linux/bpf_mprog.h`).
    const MOST: usize = 64;
    let (mut programs, mut links) = ([0_u32; MOST], [0_u32; MOST]);
    let mut attr = attributes();
    attr.query.__bindgen_anon_1.target_ifindex = ifindex;
    attr.query.attach_type = tcx(direction) as u32;
    attr.query.__bindgen_anon_2.prog_cnt = MOST as u32;
    // Without this array the kernel returns only the number of programs (`bpf_mprog_query`).
    attr.query.prog_ids = programs.as_mut_ptr() as u64;
    attr.query.link_ids = links.as_mut_ptr() as u64;
    bpf(bpf_cmd::BPF_PROG_QUERY, &mut attr)?;
    // SAFETY: the call was made with this member of the union.
    let query = unsafe { attr.query };
    // SAFETY: both members of the union are the same integer.
    let count = unsafe { query.__bindgen_anon_2.prog_cnt };
    Ok(links.into_iter().take(count as usize).collect())
}

/// Attaches a program to an interface by a link. The link is gone when its last descriptor is closed.
///
/// aya falls back to netlink if the kernel answers EINVAL, and a netlink attachment outlives the process.
pub fn create_link(program: BorrowedFd<'_>, ifindex: u32, place: LinkPlace) -> io::Result<OwnedFd> {
    let (attach_type, flags) = match place {
        LinkPlace::TcxFirst(direction) => (tcx(direction), BPF_F_BEFORE),
        LinkPlace::TcxLast(direction) => (tcx(direction), BPF_F_AFTER),
        LinkPlace::XdpNative => (bpf_attach_type::BPF_XDP, XDP_FLAGS_DRV_MODE),
        LinkPlace::XdpGeneric => (bpf_attach_type::BPF_XDP, XDP_FLAGS_SKB_MODE),
    };
    let mut attr = attributes();
    attr.link_create.__bindgen_anon_1.prog_fd = fd(program);
    attr.link_create.__bindgen_anon_2.target_ifindex = ifindex;
    attr.link_create.attach_type = attach_type as u32;
    attr.link_create.flags = flags;
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

/// Switches a link to another program of the same type. Each packet is seen by one of the two. Fails with ENOLINK if the
/// link is on no interface.
pub fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = attributes();
    attr.link_update.link_fd = fd(link);
    attr.link_update.__bindgen_anon_1.new_prog_fd = fd(program);
    bpf(bpf_cmd::BPF_LINK_UPDATE, &mut attr).map(drop)
}

/// Detaches an XDP or TCX link, whoever else has descriptors of it. Succeeds if it is on no interface. For a TCX link, no
/// packet is with its program once this returns (`tcx_link_release`).
pub fn detach_link(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = attributes();
    attr.link_detach.link_fd = fd(link);
    bpf(bpf_cmd::BPF_LINK_DETACH, &mut attr).map(drop)
}

/// Attaches an iterator that needs no map, for [`open_iterator`]. The link keeps the program.
pub fn create_iterator(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = attributes();
    attr.link_create.__bindgen_anon_1.prog_fd = fd(program);
    attr.link_create.attach_type = bpf_attach_type::BPF_TRACE_ITER as u32;
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

/// Attaches an iterator to a map, for [`open_iterator`]. The link keeps the program and the map.
pub fn create_map_iterator(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // `union bpf_iter_link_info`: for a map, its descriptor.
    let map = fd(map);
    let mut attr = attributes();
    attr.link_create.__bindgen_anon_1.prog_fd = fd(program);
    attr.link_create.attach_type = bpf_attach_type::BPF_TRACE_ITER as u32;
    attr.link_create.__bindgen_anon_3.__bindgen_anon_1.iter_info = std::ptr::from_ref(&map) as u64;
    attr.link_create
        .__bindgen_anon_3
        .__bindgen_anon_1
        .iter_info_len = size_of_val(&map) as u32;
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

/// Opens an iterator. Reading the descriptor to its end runs the iterator once.
pub fn open_iterator(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = attributes();
    attr.iter_create.link_fd = fd(link);
    bpf_fd(bpf_cmd::BPF_ITER_CREATE, &mut attr)
}

fn tcx(direction: Direction) -> bpf_attach_type {
    match direction {
        Direction::Ingress => bpf_attach_type::BPF_TCX_INGRESS,
        Direction::Egress => bpf_attach_type::BPF_TCX_EGRESS,
    }
}

/// Runs a program once on a copy of `packet`, and stores the program's output packet there.
pub fn run(program: BorrowedFd<'_>, packet: &mut [u8]) -> io::Result<()> {
    let sent = packet.to_vec();
    let mut attr = attributes();
    attr.test.prog_fd = fd(program);
    attr.test.data_in = sent.as_ptr() as u64;
    attr.test.data_size_in = sent.len() as u32;
    attr.test.data_out = packet.as_mut_ptr() as u64;
    attr.test.data_size_out = packet.len() as u32;
    bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr).map(drop)
}

/// How often a program ran while the kernel counted runs, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    pub count: u64,
    pub time: Duration,
}

impl ops::AddAssign for Runs {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.time += other.time;
    }
}

impl ops::Sub for Runs {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            time: self.time.saturating_sub(earlier.time),
        }
    }
}

/// Has the kernel count the runs of all programs until the descriptor is closed (kernel 5.8).
pub fn count_runs() -> io::Result<OwnedFd> {
    let mut attr = attributes();
    attr.enable_stats.type_ = bpf_stats_type::BPF_STATS_RUN_TIME as u32;
    bpf_fd(bpf_cmd::BPF_ENABLE_STATS, &mut attr)
}

/// Instructions that the verifier processed; its limit is a million.
pub fn verified_instructions(program: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(program_info(program)?.verified_insns)
}

fn program_info(program: BorrowedFd<'_>) -> io::Result<bpf_prog_info> {
    // SAFETY: `struct bpf_prog_info` is made of integers and of arrays of integers.
    let mut info: bpf_prog_info = unsafe { mem::zeroed() };
    let mut attr = attributes();
    attr.info.bpf_fd = fd(program);
    attr.info.info_len = size_of::<bpf_prog_info>() as u32;
    attr.info.info = &raw mut info as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(info)
}

/// How often a program was skipped because it was already running on the same CPU (kernel 5.12).
pub fn missed_runs(program: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(program_info(program)?.recursion_misses)
}

pub fn runs(program: BorrowedFd<'_>) -> io::Result<Runs> {
    let info = program_info(program)?;
    Ok(Runs {
        count: info.run_cnt,
        time: Duration::from_nanos(info.run_time_ns),
    })
}

/// Stores `value` under `key`. `value` must have the map's value size.
pub fn update(map: BorrowedFd<'_>, key: u32, value: &[u8]) -> io::Result<()> {
    update_by_bytes(map, &key.to_ne_bytes(), value)
}

/// Stores `value` under a key of any type. `key` must have the map's key size, `value` its value size.
pub fn update_by_bytes(map: BorrowedFd<'_>, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut attr = element(map, key.as_ptr(), value.as_ptr());
    bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr).map(drop)
}

/// Removes `key` and its value from the map.
pub fn delete(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    delete_by_bytes(map, &key.to_ne_bytes())
}

/// Removes a key of any type, which must have the map's key size. Succeeds if the key is already gone.
pub fn delete_if_there(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    match delete_by_bytes(map, key) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        deleted => deleted,
    }
}

fn delete_by_bytes(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    let mut attr = element(map, key.as_ptr(), std::ptr::null());
    bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &mut attr).map(drop)
}

/// Reads the value under `key` into `value`, which must have the map's value size (for a per-CPU map, the sizes for all
/// possible CPUs together).
pub fn lookup(map: BorrowedFd<'_>, key: u32, value: &mut [u8]) -> io::Result<()> {
    let mut attr = element(map, (&raw const key).cast(), value.as_mut_ptr());
    bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut attr).map(drop)
}

/// Moves all entries out of a hash map that no program uses.
pub fn take_all<K: Copy + Default, V: Copy + Default>(
    map: BorrowedFd<'_>,
    mut each: impl FnMut(&K, &V),
) -> io::Result<()> {
    let command = bpf_cmd::BPF_MAP_LOOKUP_AND_DELETE_BATCH;
    all(command, map, |keys, values| {
        for (key, value) in keys.iter().zip(values) {
            each(key, value);
        }
    })
}

/// Reads all entries of a hash map that no program uses, many at a time.
pub fn read_all<K: Copy + Default, V: Copy + Default>(
    map: BorrowedFd<'_>,
    each: impl FnMut(&[K], &[V]),
) -> io::Result<()> {
    all(bpf_cmd::BPF_MAP_LOOKUP_BATCH, map, each)
}

fn all<K: Copy + Default, V: Copy + Default>(
    command: bpf_cmd,
    map: BorrowedFd<'_>,
    mut each: impl FnMut(&[K], &[V]),
) -> io::Result<()> {
    const AT_ONCE: usize = 512;
    let mut cursor = None;
    let (mut keys, mut values) = (vec![K::default(); AT_ONCE], vec![V::default(); AT_ONCE]);
    loop {
        match batch(command, map, &mut cursor, &mut keys, &mut values) {
            Ok((count, last)) => {
                each(&keys[..count], &values[..count]);
                if last {
                    return Ok(());
                }
            }
            // A bucket has more entries than the buffers hold.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                keys.resize(2 * keys.len(), K::default());
                values.resize(keys.len(), V::default());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads up to `keys.len()` entries of a hash map.
///
/// `cursor` is `None` at the first call; each call advances it. Returns how many entries were read, and whether they were
/// the last. Source: `kernel/bpf/hashtab.c`, `__htab_map_lookup_and_delete_batch`.
pub fn read_batch<K, V>(
    map: BorrowedFd<'_>,
    cursor: &mut Option<u32>,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<(usize, bool)> {
    batch(bpf_cmd::BPF_MAP_LOOKUP_BATCH, map, cursor, keys, values)
}

fn batch<K, V>(
    command: bpf_cmd,
    map: BorrowedFd<'_>,
    cursor: &mut Option<u32>,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<(usize, bool)> {
    assert_eq!(keys.len(), values.len(), "a key for each value");
    let mut next = 0_u32;
    let mut attr = attributes();
    attr.batch.in_batch = cursor
        .as_ref()
        .map_or(0, |cursor| std::ptr::from_ref(cursor) as u64);
    attr.batch.out_batch = std::ptr::from_mut(&mut next) as u64;
    attr.batch.keys = keys.as_mut_ptr() as u64;
    attr.batch.values = values.as_mut_ptr() as u64;
    attr.batch.count = keys.len() as u32;
    attr.batch.map_fd = fd(map);
    let last = match bpf(command, &mut attr) {
        Ok(_) => false,
        // The end of the table. The last `count` entries come with this error.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
        Err(error) => return Err(error),
    };
    *cursor = Some(next);
    // SAFETY: the call was made with this member of the union, and the kernel writes an integer there.
    let count = unsafe { attr.batch.count };
    Ok((count as usize, last))
}

/// The attributes of a call on one element.
fn element(map: BorrowedFd<'_>, key: *const u8, value: *const u8) -> bpf_attr {
    let mut attr = attributes();
    attr.__bindgen_anon_2.map_fd = fd(map);
    attr.__bindgen_anon_2.key = key as u64;
    attr.__bindgen_anon_2.__bindgen_anon_1.value = value as u64;
    attr
}

fn fd(descriptor: BorrowedFd<'_>) -> u32 {
    u32::try_from(descriptor.as_raw_fd()).expect("an open file descriptor is not negative")
}
