//! Records which process created a socket. Programs that run when sockets are created store the process with the
//! socket, and every connection that a socket accepts inherits it. A packet's flow gets the process's key; a map that
//! userspace reads resolves the keys. See [`agent_common::process`].
//!
//! For sockets that existed before, userspace runs a program once over all open files.

use core::ffi::c_void;

use agent_common::{
    Process,
    process::{KeptWithSockets, TaskLayout},
};
use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_CLONE, BPF_F_NO_PREALLOC, BPF_TCP_LISTEN},
    btf_maps::LruHashMap,
    helpers::generated::{
        bpf_get_current_task_btf, bpf_get_current_uid_gid, bpf_get_listener_sock,
        bpf_sock_from_file,
    },
    macros::btf_map,
};

use crate::{
    kernel_types::at,
    socket_storage::{KeptWithSocket, SocketStorage},
};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SOCK_DGRAM: u16 = 2;
const SOCK_RAW: u16 = 3;

/// Set when the programs are loaded: the verifier accepts offsets into the kernel's structures only if they are
/// constant.
#[unsafe(no_mangle)]
static TASK_LAYOUT: TaskLayout = TaskLayout {
    group_leader: 0,
    comm: 0,
    tgid: 0,
    cred: 0,
    cred_uid: 0,
    socket_sock: 0,
    sock_family: 0,
    sock_state: 0,
    sock_type: 0,
};

/// The processes by the keys that flows looked up. The kernel evicts the least recently used ones. Userspace sets the
/// size.
#[btf_map]
static PROCESSES: LruHashMap<u64, Process, 1> = LruHashMap::new();

/// The process that created each socket.
#[btf_map]
static SOCKETS: SocketStorage<Maker, { (BPF_F_NO_PREALLOC | BPF_F_CLONE) as usize }> =
    SocketStorage::new();

#[repr(C)]
struct Maker {
    key: u64,
    process: Process,
}

impl Maker {
    #[inline(always)]
    fn of(process: Process) -> Self {
        Self {
            key: process.key(),
            process,
        }
    }
}

/// The key of the process that created the packet's socket; 0 if the packet has no socket or the process is unknown.
#[inline(always)]
pub fn of_packet(skb: *mut __sk_buff) -> u64 {
    // SAFETY: the context is valid for the program's run.
    let socket = unsafe { (*skb).__bindgen_anon_2.sk };
    if socket.is_null() {
        return 0;
    }
    // SAFETY: it is not null, as was just checked.
    let mut maker = unsafe { SOCKETS.get(socket.cast()) };
    if maker.is_null() {
        // The answer to a SYN has a request socket, which leads to its listener.
        // SAFETY: as above.
        let listener = unsafe { bpf_get_listener_sock(socket) };
        if listener.is_null() {
            return 0;
        }
        // SAFETY: as above.
        maker = unsafe { SOCKETS.get(listener.cast()) };
    }
    if maker.is_null() {
        return 0;
    }
    // SAFETY: the value stays for the program's run, and does not change once it is stored.
    let Maker { key, process } = unsafe { maker.read() };
    // The look-up marks the entry as used.
    if PROCESSES.get_ptr(&key).is_none() {
        // If it fails, another CPU may have inserted the process first.
        let _ = PROCESSES.insert(&key, &process, 0);
    }
    key
}

/// Records the process that creates a socket, or binds one that no process created itself. `context` is the context of
/// a program at one of these cgroup hooks.
#[inline(always)]
pub fn note_maker(context: *mut c_void) {
    // SAFETY: the helpers read the current task.
    let (task, ids) = unsafe { (bpf_get_current_task_btf(), bpf_get_current_uid_gid()) };
    // SAFETY: the verifier accepts the context as the socket.
    unsafe {
        let maker = Maker::of(process_of(task.cast(), ids as u32));
        SOCKETS.get_or_put(KeptWithSockets::Process, context, maker);
    }
}

/// The context of a program at `iter/task_file`: the kernel's `struct bpf_iter__task_file`.
#[repr(C)]
pub struct OpenFile {
    meta: *mut c_void,
    task: *mut c_void,
    fd: u64,
    file: *mut c_void,
}

/// Records the process that has a socket open, if the socket has no process yet.
#[inline(always)]
pub fn note_holder(open: *mut OpenFile) {
    // SAFETY: the context is valid for the program's run.
    let (task, file) = unsafe { ((*open).task, (*open).file) };
    if task.is_null() || file.is_null() {
        return;
    }
    // SAFETY: the file is the kernel's, and not null, as was just checked.
    let socket = unsafe { bpf_sock_from_file(file.cast()) };
    if socket.is_null() {
        return;
    }
    // SAFETY: the kernel reads its own structures for the program, and reads zeros if a pointer is invalid.
    let sock: *mut c_void = unsafe { at(socket.cast(), &TASK_LAYOUT.socket_sock) };
    if sock.is_null() {
        return;
    }
    // SAFETY: as above.
    let family: u16 = unsafe { at(sock, &TASK_LAYOUT.sock_family) };
    if family != AF_INET && family != AF_INET6 {
        return;
    }
    // SAFETY: as above.
    let cred: *mut c_void = unsafe { at(task, &TASK_LAYOUT.cred) };
    // SAFETY: as above.
    let uid: u32 = unsafe { at(cred, &TASK_LAYOUT.cred_uid) };
    // SAFETY: the socket is the kernel's.
    unsafe {
        let maker = Maker::of(process_of(task, uid));
        SOCKETS.get_or_put(KeptWithSockets::Process, sock, maker);
    }
}

/// Counts a socket that carries its process, and deletes that beyond the bound, since accepted connections inherit it
/// without a check. Listening, datagram and raw sockets come first: otherwise a process with many connections would
/// take the place of others.
#[inline(always)]
pub fn count_kept(kept: *mut KeptWithSocket) {
    // SAFETY: the context is valid for the program's run.
    let socket = unsafe { KeptWithSocket::socket(kept) };
    if socket.is_null() {
        return;
    }
    // SAFETY: the kernel reads its own structures for the program.
    let (state, kind): (u8, u16) = unsafe {
        (
            at(socket, &TASK_LAYOUT.sock_state),
            at(socket, &TASK_LAYOUT.sock_type),
        )
    };
    let lasts = u32::from(state) == BPF_TCP_LISTEN || kind == SOCK_DGRAM || kind == SOCK_RAW;
    SOCKETS.count(KeptWithSockets::Process, socket, lasts);
}

/// `task` is a pointer that the verifier knows as a task.
#[inline(always)]
fn process_of(task: *mut c_void, uid: u32) -> Process {
    // SAFETY: the kernel reads its own structures for the program, and reads zeros if a pointer is invalid.
    unsafe {
        let leader: *mut c_void = at(task, &TASK_LAYOUT.group_leader);
        Process {
            name: at(leader, &TASK_LAYOUT.comm),
            uid,
            pid: at(task, &TASK_LAYOUT.tgid),
        }
    }
}
