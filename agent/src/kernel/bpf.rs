//! Raw `bpf(2)` on file descriptors of maps and programs: the calls that aya 0.14 does not have, or
//! has in a form that may leave something behind.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_BTF_LOAD: libc::c_long = 18;
const BPF_MAP_LOOKUP_AND_DELETE_BATCH: libc::c_long = 25;
const BPF_LINK_CREATE: libc::c_long = 28;

// linux/bpf.h, linux/if_link.h.
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
const BPF_F_BEFORE: u32 = 1 << 3;
const BPF_F_AFTER: u32 = 1 << 4;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Where on an interface a link hangs its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPlace {
    /// Before the programs that are there (kernel 6.6).
    TcxIngressFirst,
    /// Behind the programs that are there (kernel 6.6).
    TcxEgressLast,
    XdpNative,
    XdpGeneric,
}

/// A map's shape, as `BPF_MAP_CREATE` has it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// `BPF_MAP_TYPE_*`.
    pub map_type: u32,
    pub key_len_bytes: u32,
    pub value_len_bytes: u32,
    pub max_entries: u32,
    /// `BPF_F_*`; the same as the pattern's.
    pub flags: u32,
}

/// The head of `union bpf_attr` for `BPF_MAP_CREATE`.
#[repr(C, align(8))]
#[derive(Default)]
struct MapCreateAttr {
    map_type: u32,
    key_size_bytes: u32,
    value_size_bytes: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; MAP_NAME_LEN_BYTES],
    map_ifindex: u32,
    btf_fd: u32,
    btf_key_type_id: u32,
    btf_value_type_id: u32,
    btf_vmlinux_value_type_id: u32,
}

/// `BPF_OBJ_NAME_LEN`, with the zero at the end.
const MAP_NAME_LEN_BYTES: usize = 16;

/// The head of `union bpf_attr` for `BPF_BTF_LOAD`.
#[repr(C, align(8))]
#[derive(Default)]
struct BtfLoadAttr {
    btf: u64,
    log: u64,
    btf_len_bytes: u32,
    log_len_bytes: u32,
}

/// The head of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C, align(8))]
#[derive(Default)]
struct ProgramLoadAttr {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
}

/// `union bpf_attr` for `BPF_PROG_QUERY` (kernel 6.6; earlier ones take a tail of zeros).
#[repr(C, align(8))]
#[derive(Default)]
struct QueryAttr {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    count: u32,
    pad: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

/// `union bpf_attr` for the calls on one element.
#[repr(C, align(8))]
#[derive(Default)]
struct ElementAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `union bpf_attr` for the batch calls (kernel 5.6).
#[repr(C, align(8))]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// `union bpf_attr` for `BPF_LINK_CREATE` on an interface; before 6.6 the tail must be zero.
#[repr(C, align(8))]
#[derive(Default)]
struct LinkCreateAttr {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    pad: u32,
    expected_revision: u64,
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is one of the structs above, whose pointers the callers below keep alive
    // for the call; the size tells the kernel how much of the union is there.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// An array of one entry of eight bytes: whether this process may make maps at all.
pub fn create_small_array() -> io::Result<OwnedFd> {
    let mut attr = MapCreateAttr {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size_bytes: 4,
        value_size_bytes: 8,
        max_entries: 1,
        ..MapCreateAttr::default()
    };
    let fd = bpf(BPF_MAP_CREATE, &mut attr)?;
    // SAFETY: BPF_MAP_CREATE answers with a file descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Makes a map whose key and value are of the given types of `types`. A name that is too long is cut.
pub fn create_map(
    name: &str,
    shape: Shape,
    types: BorrowedFd<'_>,
    key_type: u32,
    value_type: u32,
) -> io::Result<OwnedFd> {
    let mut map_name = [0; MAP_NAME_LEN_BYTES];
    for (to, from) in map_name[..MAP_NAME_LEN_BYTES - 1]
        .iter_mut()
        .zip(name.bytes())
    {
        *to = from;
    }
    let mut attr = MapCreateAttr {
        map_type: shape.map_type,
        key_size_bytes: shape.key_len_bytes,
        value_size_bytes: shape.value_len_bytes,
        max_entries: shape.max_entries,
        map_flags: shape.flags,
        map_name,
        btf_fd: fd(types),
        btf_key_type_id: key_type,
        btf_value_type_id: value_type,
        ..MapCreateAttr::default()
    };
    let map = bpf(BPF_MAP_CREATE, &mut attr)?;
    // SAFETY: BPF_MAP_CREATE answers with a file descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(map as i32) })
}

/// Loads type information (BTF).
pub fn load_btf(btf: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = BtfLoadAttr {
        btf: btf.as_ptr() as u64,
        btf_len_bytes: btf.len() as u32,
        ..BtfLoadAttr::default()
    };
    let fd = bpf(BPF_BTF_LOAD, &mut attr)?;
    // SAFETY: BPF_BTF_LOAD answers with a file descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Loads a TC program that calls `bpf_probe_read_kernel`, and lets it go: whether programs may.
pub fn load_reader_of_kernel_memory() -> io::Result<()> {
    /// Operation, registers (source, destination), offset, and the operand: `struct bpf_insn`.
    const fn instruction(operation: u8, registers: u8, operand: i32) -> u64 {
        let bytes = operand.to_ne_bytes();
        u64::from_ne_bytes([
            operation, registers, 0, 0, bytes[0], bytes[1], bytes[2], bytes[3],
        ])
    }
    const MOVE: u8 = 0xb7;
    const MOVE_REGISTER: u8 = 0xbf;
    const ADD: u8 = 0x07;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
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
    let mut attr = ProgramLoadAttr {
        program_type: BPF_PROG_TYPE_SCHED_CLS,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
    };
    let fd = bpf(BPF_PROG_LOAD, &mut attr)?;
    // SAFETY: BPF_PROG_LOAD answers with a file descriptor that nobody else owns.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
}

/// Asks for the programs on an interface's TCX ingress: EINVAL where the kernel has no TCX (6.6).
pub fn query_tcx_ingress(ifindex: u32) -> io::Result<()> {
    let mut attr = QueryAttr {
        target_ifindex: ifindex,
        attach_type: BPF_TCX_INGRESS,
        ..QueryAttr::default()
    };
    bpf(BPF_PROG_QUERY, &mut attr).map(drop)
}

/// Hangs a program on an interface by a link, which is gone when its last descriptor is closed.
///
/// aya falls back to netlink where the kernel says EINVAL; what is attached so outlives the process.
pub fn create_link(program: BorrowedFd<'_>, ifindex: u32, place: LinkPlace) -> io::Result<OwnedFd> {
    let (attach_type, flags) = match place {
        LinkPlace::TcxIngressFirst => (BPF_TCX_INGRESS, BPF_F_BEFORE),
        LinkPlace::TcxEgressLast => (BPF_TCX_EGRESS, BPF_F_AFTER),
        LinkPlace::XdpNative => (BPF_XDP, XDP_FLAGS_DRV_MODE),
        LinkPlace::XdpGeneric => (BPF_XDP, XDP_FLAGS_SKB_MODE),
    };
    let mut attr = LinkCreateAttr {
        prog_fd: fd(program),
        target_ifindex: ifindex,
        attach_type,
        flags,
        ..LinkCreateAttr::default()
    };
    let link = bpf(BPF_LINK_CREATE, &mut attr)?;
    // SAFETY: BPF_LINK_CREATE answers with a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(link as i32) })
}

/// Stores `value` under `key`. `value` must have the map's value size.
pub fn update(map: BorrowedFd<'_>, key: u32, value: &[u8]) -> io::Result<()> {
    update_by_bytes(map, &key.to_ne_bytes(), value)
}

/// The same under a key of any kind; `key` must have the map's key size.
pub fn update_by_bytes(map: BorrowedFd<'_>, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut attr = ElementAttr {
        map_fd: fd(map),
        key: key.as_ptr() as u64,
        value: value.as_ptr() as u64,
        ..ElementAttr::default()
    };
    bpf(BPF_MAP_UPDATE_ELEM, &mut attr).map(drop)
}

/// Takes what is under `key` out of the map.
pub fn delete(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    let mut attr = ElementAttr {
        map_fd: fd(map),
        key: std::ptr::from_ref(&key) as u64,
        ..ElementAttr::default()
    };
    bpf(BPF_MAP_DELETE_ELEM, &mut attr).map(drop)
}

/// Reads the value under `key` into `value`, which must have the map's value size (for a per-CPU
/// map, that of all possible CPUs).
pub fn lookup(map: BorrowedFd<'_>, key: u32, value: &mut [u8]) -> io::Result<()> {
    let mut attr = ElementAttr {
        map_fd: fd(map),
        key: std::ptr::from_ref(&key) as u64,
        value: value.as_mut_ptr() as u64,
        ..ElementAttr::default()
    };
    bpf(BPF_MAP_LOOKUP_ELEM, &mut attr).map(drop)
}

/// Moves up to `keys.len()` entries out of a hash map.
///
/// `cursor` is `None` at the first call and is moved on; the answer is how many entries were
/// moved and whether they were the last. Source: `kernel/bpf/hashtab.c`,
/// `__htab_map_lookup_and_delete_batch`.
pub fn take_batch<K, V>(
    map: BorrowedFd<'_>,
    cursor: &mut Option<u32>,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<(usize, bool)> {
    assert_eq!(keys.len(), values.len(), "a key for each value");
    let mut next = 0_u32;
    let mut attr = BatchAttr {
        in_batch: cursor
            .as_ref()
            .map_or(0, |cursor| std::ptr::from_ref(cursor) as u64),
        out_batch: std::ptr::from_mut(&mut next) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: keys.len() as u32,
        map_fd: fd(map),
        ..BatchAttr::default()
    };
    let result = bpf(BPF_MAP_LOOKUP_AND_DELETE_BATCH, &mut attr);
    let last = match result {
        Ok(_) => false,
        // The end of the table; `count` entries came with it.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
        Err(error) => return Err(error),
    };
    *cursor = Some(next);
    Ok((attr.count as usize, last))
}

fn fd(descriptor: BorrowedFd<'_>) -> u32 {
    u32::try_from(descriptor.as_raw_fd()).expect("an open file descriptor is not negative")
}
