//! The state that TCP keeps for this host's connections: round trips, retransmissions. See [`agent_common::tcp`].
//!
//! A packet whose sender is looked up brings its socket's TCP state. After a connection's last packet, the program at
//! `tcp_destroy_sock` reports the socket's final state for the flow that looked it up last.

use core::ffi::c_void;

use agent_common::{
    FlowKey, L4Kind, Packet, TcpInfo,
    flow::tcp_flags,
    process::KeptWithSockets,
    protocol::TCP,
    senders::Question,
    tcp::{EndedConnection, Role, TcpLayout},
};
use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_NO_PREALLOC, BPF_TCP_LISTEN, bpf_sock},
    btf_maps::{Array, RingBuf},
    helpers::generated::{bpf_sk_fullsock, bpf_skc_to_tcp_sock, bpf_tcp_sock},
    macros::btf_map,
};

use crate::{
    atomic, clock,
    kernel_types::{at, fixed},
    socket_storage::{self, KeptWithSocket, SocketStorage},
};

const BPF_RB_NO_WAKEUP: u64 = 1;

/// Set when the programs are loaded: the verifier accepts offsets into the kernel's structures only if they are
/// constant.
#[unsafe(no_mangle)]
static TCP_LAYOUT: TcpLayout = TcpLayout {
    tcp_sock: [0; TcpLayout::MEMBERS.len()],
    max_ack_backlog: 0,
    multicast_v4: 0,
    ipv6: 0,
    multicast_v6: 0,
};

/// The flow of each socket's packets.
#[btf_map]
static FLOWS: SocketStorage<FlowOfSocket, { BPF_F_NO_PREALLOC as usize }> = SocketStorage::new();

/// The final state of connections whose sockets were destroyed. Userspace sets the size, and reads the ring at each
/// scan.
#[btf_map]
static ENDED: RingBuf<EndedConnection, 4096> = RingBuf::new();

/// How often the ring was full.
#[btf_map]
static ENDS_LOST: Array<u64, 1> = Array::new();

#[repr(C)]
struct FlowOfSocket {
    key: FlowKey,
    direction: u64,
    asked_ns: u64,
}

/// The TCP state of the socket that sent the packet. Unknown if the packet is not TCP, or no connection of this host
/// sent it. The end of the socket is reported for this flow from then on.
#[inline(always)]
pub fn of_packet(skb: *mut __sk_buff, packet: &Packet, question: Question) -> TcpInfo {
    if packet.key.protocol != TCP || packet.key.kind() != Some(L4Kind::Ports) {
        return TcpInfo::default();
    }
    // SAFETY: the context is valid for the program's run.
    let socket = unsafe { (*skb).__bindgen_anon_2.sk };
    if socket.is_null() {
        return TcpInfo::default();
    }
    // SAFETY: it is not null, as was just checked.
    let socket = unsafe { bpf_sk_fullsock(socket) };
    if socket.is_null() || !is_connection(socket) {
        return TcpInfo::default();
    }
    // SAFETY: as above.
    let tcp = unsafe { bpf_tcp_sock(socket) };
    if tcp.is_null() {
        return TcpInfo::default();
    }
    // SAFETY: it is not null, as was just checked. Volatile, so that each field is read by itself.
    let info = unsafe {
        TcpInfo {
            rtt_us: (&raw const (*tcp).srtt_us).read_volatile() >> SRTT_SHIFT,
            min_rtt_us: (&raw const (*tcp).rtt_min).read_volatile(),
            total_retrans: (&raw const (*tcp).total_retrans).read_volatile(),
            delivered: (&raw const (*tcp).delivered).read_volatile(),
            delivered_ce: (&raw const (*tcp).delivered_ce).read_volatile(),
            data_segs_out: (&raw const (*tcp).data_segs_out).read_volatile(),
            snd_cwnd: (&raw const (*tcp).snd_cwnd).read_volatile(),
            rate_delivered: (&raw const (*tcp).rate_delivered).read_volatile(),
            rate_interval_us: (&raw const (*tcp).rate_interval_us).read_volatile(),
            mss: (&raw const (*tcp).mss_cache).read_volatile(),
        }
    };
    // The answer to a segment delivers something. A socket that its program resets clears these counters, possibly
    // before its RST gets here.
    if info.delivered == 0 && packet.tcp_flags & tcp_flags::SYN == 0 {
        return TcpInfo::default();
    }
    let info = info.with_role(role_of(socket.cast(), packet.key.ip_version));
    if note_flow(socket.cast(), &packet.key, question) == ENDS_UNTOLD {
        info.without_end()
    } else {
        info
    }
}

/// An accepted socket is a clone of its listener and records the interface on which the connection arrived. `ip_version` is the IP
/// version of its packets.
#[inline(always)]
fn role_of(socket: *mut c_void, ip_version: u8) -> Role {
    if fixed(&TCP_LAYOUT.max_ack_backlog) == 0 || fixed(&TCP_LAYOUT.multicast_v4) == 0 {
        return Role::Unknown;
    }
    // SAFETY: the socket is the kernel's.
    let tcp: *mut c_void = unsafe { bpf_skc_to_tcp_sock(socket) }.cast();
    if tcp.is_null() {
        return Role::Unknown;
    }
    // SAFETY: the kernel reads its own structures for the program.
    let backlog: u32 = unsafe { at(tcp, &TCP_LAYOUT.max_ack_backlog) };
    // SAFETY: as above.
    let came_by: u32 = unsafe { at(tcp, &TCP_LAYOUT.multicast_v4) };
    // An IPv4 connection sets this field even if its listener is an IPv6 socket (`tcp_v4_syn_recv_sock`).
    let came_by_v6 = if ip_version == 4 {
        Some(0)
    } else {
        came_by_v6(tcp)
    };
    Role::shown(backlog | came_by != 0, came_by_v6)
}

/// `None` if the offset of the field is unknown.
#[inline(always)]
fn came_by_v6(tcp: *mut c_void) -> Option<u32> {
    if fixed(&TCP_LAYOUT.ipv6) == 0 || fixed(&TCP_LAYOUT.multicast_v6) == 0 {
        return None;
    }
    // SAFETY: the kernel reads its own structures for the program.
    let ipv6: *mut c_void = unsafe { at(tcp, &TCP_LAYOUT.ipv6) };
    if ipv6.is_null() {
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { at(ipv6, &TCP_LAYOUT.multicast_v6) })
}

/// The kernel answers some packets by sockets of its own, which only have TCP as their protocol, and some by the
/// listening socket.
#[inline(always)]
fn is_connection(socket: *mut bpf_sock) -> bool {
    const SOCK_STREAM: u32 = 1;
    // SAFETY: the caller has a whole socket.
    let (kind, state) = unsafe {
        (
            (&raw const (*socket).type_).read_volatile(),
            (&raw const (*socket).state).read_volatile(),
        )
    };
    kind == SOCK_STREAM && state != BPF_TCP_LISTEN
}

/// The kernel stores the smoothed round trip times eight.
const SRTT_SHIFT: u32 = 3;

/// The results of [`note_flow`]: whether userspace learns when the socket is destroyed.
const ENDS_TOLD: u32 = 0;
const ENDS_UNTOLD: u32 = 1;

/// A function of its own: a key takes stack.
#[inline(never)]
fn note_flow(socket: *mut c_void, key: &FlowKey, question: Question) -> u32 {
    if !ends_are_told() {
        return ENDS_UNTOLD;
    }
    let asked_ns = clock::boot_ns();
    let flow = FlowOfSocket {
        key: *key,
        direction: question.direction().into(),
        asked_ns,
    };
    // SAFETY: the socket is the kernel's.
    let kept = unsafe { FLOWS.get_or_put(KeptWithSockets::Flow, socket, flow) };
    if kept.is_null() {
        return ENDS_UNTOLD;
    }
    // A connection that is seen on several interfaces has several flows. The last one to look it up gets its end. If
    // two flows write at the same moment, the key may mix both and match no flow; then no flow gets the end.
    // SAFETY: the value stays for the program's run.
    unsafe {
        let words = (&raw mut (*kept).key).cast::<u64>();
        for (index, &word) in key.words().iter().enumerate() {
            words.add(index).write_volatile(word);
        }
        (&raw mut (*kept).direction).write_volatile(question.direction().into());
        (&raw mut (*kept).asked_ns).write_volatile(asked_ns);
    }
    ENDS_TOLD
}

/// Counts a socket that carries its flow. The kernel skips a program that already runs on the same CPU, so [`note_end`]
/// misses the end of some sockets and does not release their place.
#[inline(always)]
pub fn count_kept(kept: *mut KeptWithSocket) {
    // SAFETY: the context is valid for the program's run.
    let socket = unsafe { KeptWithSocket::socket(kept) };
    if !socket.is_null() {
        FLOWS.count(KeptWithSockets::Flow, socket, false);
    }
}

/// Whether userspace has found the offsets of TCP's fields.
#[inline(always)]
fn ends_are_told() -> bool {
    fixed(&TCP_LAYOUT.tcp_sock[TcpLayout::SRTT]) != 0
}

#[inline(always)]
fn note_lost() {
    if let Some(lost) = ENDS_LOST.get_ptr_mut(0) {
        // SAFETY: elements of an array stay where they are.
        unsafe { atomic::add(lost, 1) };
    }
}

/// Reports the final state of a socket that the kernel destroys. `socket` is a pointer that the verifier knows as the
/// kernel's socket.
#[inline(always)]
pub fn note_end(socket: *mut c_void) {
    // SAFETY: the socket is the kernel's.
    let flow = unsafe { FLOWS.get(socket) };
    if flow.is_null() {
        return;
    }
    socket_storage::leave(KeptWithSockets::Flow);
    // SAFETY: as above.
    let tcp: *mut c_void = unsafe { bpf_skc_to_tcp_sock(socket) }.cast();
    if tcp.is_null() {
        return;
    }
    let mut info = known(tcp);
    // Nothing was answered, or the program reset the socket, which clears its counters. Report only that it is gone.
    if info.delivered == 0 && info.total_retrans == 0 {
        info = TcpInfo::default();
    }
    let Some(mut ended) = ENDED.reserve(0) else {
        note_lost();
        return;
    };
    let told = ended.as_mut_ptr();
    // SAFETY: the value stays for the program's run, and the reserved memory has room. Copied word by word, since a
    // copy on the stack would take room there.
    unsafe {
        let from = (&raw const (*flow).key).cast::<u64>();
        let to = (&raw mut (*told).key).cast::<u64>();
        for index in 0..FlowKey::WORDS {
            to.add(index)
                .write_volatile(from.add(index).read_volatile());
        }
        (*told).direction = (*flow).direction;
        (*told).asked_ns = (*flow).asked_ns;
        (*told).info = info;
    }
    ended.submit(BPF_RB_NO_WAKEUP);
}

#[inline(always)]
fn known(tcp: *mut c_void) -> TcpInfo {
    // SAFETY: the kernel reads its own structures for the program.
    let word = |member: usize| -> u32 { unsafe { at(tcp, &TCP_LAYOUT.tcp_sock[member]) } };
    TcpInfo {
        rtt_us: word(TcpLayout::SRTT) >> SRTT_SHIFT,
        min_rtt_us: word(TcpLayout::RTT_MIN),
        total_retrans: word(TcpLayout::TOTAL_RETRANS),
        delivered: word(TcpLayout::DELIVERED),
        delivered_ce: word(TcpLayout::DELIVERED_CE),
        data_segs_out: word(TcpLayout::DATA_SEGS_OUT),
        snd_cwnd: word(TcpLayout::SND_CWND),
        rate_delivered: word(TcpLayout::RATE_DELIVERED),
        rate_interval_us: word(TcpLayout::RATE_INTERVAL_US),
        mss: word(TcpLayout::MSS),
    }
}
