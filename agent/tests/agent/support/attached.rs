//! Asks the kernel for the programs attached to an interface, and attaches programs there as a stranger would.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    path::Path,
    process::Command,
};

use lab::{Host, kernel};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_GET_FD_BY_ID: libc::c_long = 30;
const BPF_LINK_GET_NEXT_ID: libc::c_long = 31;
const BPF_LINK_DETACH: libc::c_long = 34;
const ARRAY: u32 = 2;
const SCHED_CLS: u32 = 3;
const XDP: u32 = 6;
const CGROUP_SOCK: u32 = 9;
pub const TCX_INGRESS: u32 = 46;
pub const TCX_EGRESS: u32 = 47;
const XDP_HOOK: u32 = 37;
const SOCK_CREATE: u32 = 2;
const XDP_GENERIC: u32 = 1 << 1;
const XDP_NATIVE: u32 = 1 << 2;
const BEFORE: u32 = 1 << 3;

/// Programs on the TCX hooks, ingress and egress.
pub fn tcx_programs(host: &Host) -> [u32; 2] {
    tcx_programs_on(host, host.ifindex)
}

/// The same on any interface of the host.
pub fn tcx_programs_on(host: &Host, ifindex: u32) -> [u32; 2] {
    lab::tcx_programs(&host.namespace, ifindex).unwrap()
}

pub fn has_xdp(host: &Host) -> bool {
    !xdp_of(host, &host.interface).is_null()
}

/// The output of `ip` about an interface's XDP program; null if there is none.
fn xdp_of(host: &Host, interface: &str) -> serde_json::Value {
    let show = ["-d", "-j", "link", "show", interface];
    let link = host.namespace.ip(&show).unwrap();
    let links: serde_json::Value = serde_json::from_slice(&link).unwrap();
    links[0]["xdp"].clone()
}

/// The id of the program on the XDP hook.
pub fn xdp_id(host: &Host) -> u64 {
    xdp_of(host, &host.interface)["prog"]["id"]
        .as_u64()
        .unwrap()
}

/// The filters on both sides of an interface, as `tc` shows them.
pub fn filters(host: &Host, interface: &str) -> String {
    ["ingress", "egress"]
        .map(|side| tc(host, &format!("filter show dev {interface} {side}")))
        .concat()
}

pub fn qdiscs(host: &Host, interface: &str) -> String {
    tc(host, &format!("qdisc show dev {interface}"))
}

pub fn nothing_is_attached(host: &Host) -> bool {
    nothing_is_attached_to(host, &host.interface, host.ifindex)
}

/// The same of all interfaces of the host.
pub fn nothing_is_attached_anywhere(host: &Host) -> bool {
    let links = host.namespace.ip(&["-j", "link", "show"]).unwrap();
    let links: Vec<serde_json::Value> = serde_json::from_slice(&links).unwrap();
    assert!(links.len() > 1, "loopback, and the wire: {links:?}");
    links.iter().all(|link| {
        let ifindex = link["ifindex"].as_u64().unwrap();
        nothing_is_attached_to(
            host,
            link["ifname"].as_str().unwrap(),
            ifindex.try_into().unwrap(),
        )
    })
}

fn nothing_is_attached_to(host: &Host, interface: &str, ifindex: u32) -> bool {
    let has_tcx = kernel::has_tcx();
    (!has_tcx || tcx_programs_on(host, ifindex) == [0, 0])
        && xdp_of(host, interface).is_null()
        && !filters(host, interface).contains("flow-agent")
}

/// Runs `tc`. Spaces separate the arguments; an underscore stands for a space within one.
pub fn tc(host: &Host, arguments: &str) -> String {
    let mut command: Command = host.command("tc");
    let arguments = arguments.split(' ').map(|one| one.replace('_', " "));
    let output = command.args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Adds a stranger's filter that gives every packet this verdict.
pub fn add_filter(host: &Host, place: &str, verdict: i32) {
    let interface = &host.interface;
    let verdict = verdict.cast_unsigned();
    tc(
        host,
        &format!("filter add dev {interface} {place} bpf da bytecode 1,6_0_0_{verdict},"),
    );
}

/// A stranger's program on the TCX ingress, before all others, until the value is dropped.
pub fn tcx_ingress(host: &Host, verdict: i32) -> Attached {
    link(host, &load(SCHED_CLS, verdict), TCX_INGRESS, BEFORE)
}

/// A stranger's program on the XDP hook, in generic mode, that lets everything pass.
pub fn xdp(host: &Host) -> Attached {
    link(host, &load(XDP, 2), XDP_HOOK, XDP_GENERIC)
}

/// The same with a name of its own, of at most 15 bytes.
pub fn xdp_named(host: &Host, name: &str) -> Attached {
    let program = load_named(XDP, &[mov_verdict(2), EXIT], name);
    link(host, &program, XDP_HOOK, XDP_GENERIC)
}

/// The same in native mode.
pub fn xdp_native(host: &Host) -> Attached {
    link(host, &load(XDP, 2), XDP_HOOK, XDP_NATIVE)
}

/// Attaches the only program on the host's TCX ingress to another interface, too.
pub fn hang_ours_on(host: &Host, ifindex: u32) -> Attached {
    let program = program_of(tcx_ingress_id(host));
    link_to(host, ifindex, &program, TCX_INGRESS, 0)
}

/// The id of the only program on the host's TCX ingress.
pub fn tcx_ingress_id(host: &Host) -> u32 {
    let mut id = 0_u32;
    let mut query = [0_u64; 8];
    query[0] = u64::from(host.ifindex) | u64::from(TCX_INGRESS) << 32;
    query[2] = &raw mut id as u64;
    query[3] = 1;
    host.namespace
        .enter(|| Ok(bpf(BPF_PROG_QUERY, &mut query)?))
        .unwrap();
    id
}

/// The ids of the programs at the root of the cgroups that run where sockets are made.
pub fn sock_create_programs() -> BTreeSet<u32> {
    const MOST: usize = 64;
    let root = File::open(enrich::unit::cgroups::find().unwrap()).unwrap();
    let mut ids = [0_u32; MOST];
    let mut query = [0_u64; 8];
    query[0] = u64::from(root.as_raw_fd().cast_unsigned()) | u64::from(SOCK_CREATE) << 32;
    query[2] = ids.as_mut_ptr() as u64;
    query[3] = MOST as u64;
    bpf(BPF_PROG_QUERY, &mut query).unwrap();
    ids.into_iter().filter(|&id| id != 0).collect()
}

/// The ids of the programs of this type's links that a process has open, as `/proc` says it.
pub fn programs_of_links(pid: u32, link_type: &str) -> BTreeSet<u32> {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo"));
    let files = files.unwrap().flatten();
    let infos = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    let programs = infos.filter_map(|info| {
        let value = |name: &str| {
            let mut lines = info.lines();
            lines.find_map(|line| Some(line.strip_prefix(name)?.trim()))
        };
        (value("link_type:")? == link_type).then(|| value("prog_id:")?.parse().ok())?
    });
    programs.collect()
}

/// A stranger's program that refuses sockets to the processes of a cgroup, until the value is dropped.
pub fn no_sockets_in(cgroup: &Path) -> Attached {
    let program = load(CGROUP_SOCK, 0);
    let folder = File::open(cgroup).unwrap();
    let mut attr = [0_u32; 16];
    attr[0] = program.as_raw_fd().cast_unsigned();
    attr[1] = folder.as_raw_fd().cast_unsigned();
    attr[2] = SOCK_CREATE;
    Attached(owned(bpf(BPF_LINK_CREATE, &mut attr).unwrap()))
}

/// Detaches the links of a program, as root may with `bpftool link detach`. Returns how many there were.
pub fn detach_links_of(program: u32) -> usize {
    let mut detached = 0;
    let mut ids = [0_u32; 16];
    while bpf(BPF_LINK_GET_NEXT_ID, &mut ids).is_ok() {
        ids[0] = ids[1];
        let mut by_id = [0_u32; 16];
        by_id[0] = ids[1];
        // Others come and go meanwhile.
        let Ok(fd) = bpf(BPF_LINK_GET_FD_BY_ID, &mut by_id) else {
            continue;
        };
        let link = owned(fd);
        let fd = link.as_raw_fd().cast_unsigned();
        let mut info = [0_u32; 32];
        let mut ask = [0_u64; 8];
        ask[0] = u64::from(fd) | (size_of_val(&info) as u64) << 32;
        ask[1] = info.as_mut_ptr() as u64;
        bpf(BPF_OBJ_GET_INFO_BY_FD, &mut ask).unwrap();
        let [_, _, of_program, ..] = info;
        if of_program == program {
            bpf(BPF_LINK_DETACH, &mut [fd]).unwrap();
            detached += 1;
        }
    }
    detached
}

/// Attaches the XDP program of an interface to another one, too, in native mode.
pub fn hang_our_xdp_on(host: &Host, interface: &str, ifindex: u32) -> Attached {
    let id = xdp_of(host, interface)["prog"]["id"].as_u64().unwrap();
    let program = program_of(id.try_into().unwrap());
    link_to(host, ifindex, &program, XDP_HOOK, XDP_NATIVE)
}

fn program_of(id: u32) -> OwnedFd {
    let mut by_id = [0_u32; 16];
    by_id[0] = id;
    owned(bpf(BPF_PROG_GET_FD_BY_ID, &mut by_id).unwrap())
}

/// A program at a hook, until the value is dropped. Closing the link would not do: a child that another test is
/// about to start may still have it open.
pub struct Attached(OwnedFd);

impl Drop for Attached {
    fn drop(&mut self) {
        let mut attr = [self.0.as_raw_fd().cast_unsigned()];
        // An error means that its interface is gone.
        let _ = bpf(BPF_LINK_DETACH, &mut attr);
    }
}

fn link(host: &Host, program: &OwnedFd, attach_type: u32, flags: u32) -> Attached {
    link_to(host, host.ifindex, program, attach_type, flags)
}

fn link_to(host: &Host, ifindex: u32, program: &OwnedFd, attach_type: u32, flags: u32) -> Attached {
    let mut attr = [0_u32; 16];
    attr[0] = program.as_raw_fd().cast_unsigned();
    attr[1] = ifindex;
    attr[2] = attach_type;
    attr[3] = flags;
    let enter = || Ok(bpf(BPF_LINK_CREATE, &mut attr)?);
    Attached(owned(host.namespace.enter(enter).unwrap()))
}

/// Puts a VLAN tag beside every frame that leaves the host, until the value is dropped.
pub fn tag_beside(host: &Host, vlan_id: u16) -> Attached {
    tag_beside_on(host, host.ifindex, vlan_id)
}

/// The same on another interface.
pub fn tag_beside_on(host: &Host, ifindex: u32, vlan_id: u16) -> Attached {
    let tagger = load_instructions(
        SCHED_CLS,
        &[
            // r2 = the EtherType in network byte order; r3 = the tag; call bpf_skb_vlan_push
            0x02b7 | u64::from(0x8100_u16.to_be()) << 32,
            0x03b7 | u64::from(vlan_id) << 32,
            0x85 | 18 << 32,
            mov_verdict(-1),
            EXIT,
        ],
    );
    link_to(host, ifindex, &tagger, TCX_EGRESS, 0)
}

/// A stranger's map: an array of one number.
pub fn strange_map() -> OwnedFd {
    let mut attr = [0_u32; 16];
    // One entry, with a key of 4 bytes and a value of 8.
    attr[..4].copy_from_slice(&[ARRAY, 4, 8, 1]);
    owned(bpf(BPF_MAP_CREATE, &mut attr).unwrap())
}

/// Counts the frames of a TCX hook that are longer than this, until the value is dropped.
pub struct LongFrames {
    count: OwnedFd,
    _attached: Attached,
}

impl LongFrames {
    pub fn at(host: &Host, attach_type: u32, longer_than_bytes: u32) -> Self {
        let count = strange_map();
        let counter = load_instructions(
            SCHED_CLS,
            &[
                // r2 = the frame's length; the next four make no difference if it is no longer
                0x1261,
                0x02b5 | 4 << 16 | u64::from(longer_than_bytes) << 32,
                // r1 = the address of the map's value
                0x2118 | u64::from(count.as_raw_fd().cast_unsigned()) << 32,
                0,
                // r2 = 1; *(u64 *)r1 += r2, atomically
                0x02b7 | 1 << 32,
                0x21db,
                mov_verdict(-1),
                EXIT,
            ],
        );
        Self {
            count,
            _attached: link(host, &counter, attach_type, BEFORE),
        }
    }

    pub fn so_far(&self) -> u64 {
        let (key, mut count) = (0_u32, 0_u64);
        let mut attr = [0_u64; 4];
        attr[0] = u64::from(self.count.as_raw_fd().cast_unsigned());
        attr[1] = &raw const key as u64;
        attr[2] = &raw mut count as u64;
        bpf(BPF_MAP_LOOKUP_ELEM, &mut attr).unwrap();
        count
    }
}

const EXIT: u64 = 0x95;

/// `r0 = verdict`
fn mov_verdict(verdict: i32) -> u64 {
    0xb7 | u64::from(verdict.cast_unsigned()) << 32
}

fn load(program_type: u32, verdict: i32) -> OwnedFd {
    load_instructions(program_type, &[mov_verdict(verdict), EXIT])
}

fn load_instructions(program_type: u32, instructions: &[u64]) -> OwnedFd {
    load_named(program_type, instructions, "")
}

fn load_named(program_type: u32, instructions: &[u64], name: &str) -> OwnedFd {
    let mut program_name = [0; 16];
    program_name[..name.len()].copy_from_slice(name.as_bytes());
    let [first, last] = [0, 8].map(|at| {
        let half = program_name[at..].first_chunk();
        u64::from_ne_bytes(*half.unwrap())
    });
    let license = c"GPL";
    let mut attr = [0_u64; 8];
    attr[0] = u64::from(program_type) | (instructions.len() as u64) << 32;
    attr[1] = instructions.as_ptr() as u64;
    attr[2] = license.as_ptr() as u64;
    [attr[6], attr[7]] = [first, last];
    owned(bpf(BPF_PROG_LOAD, &mut attr).unwrap())
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<i32> {
    let attr_len = size_of::<T>();
    // SAFETY: `attr` is at least the part of `union bpf_attr` that the command reads. Everything else in it
    // is zero, and what it points to outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, attr_len) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as i32)
    }
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel answered with a descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
