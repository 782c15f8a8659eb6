//! Where the running kernel keeps the fields that the programs read beyond `__sk_buff` and `xdp_md`.

use std::fs;

use agent_common::{
    drops::DropLayout, interface::DeviceLayout, process::TaskLayout, segmentation::SkbLayout,
    tcp::TcpLayout,
};
use anyhow::{Context as _, Result, ensure};

use super::{bpf, btf::Btf, signals};

const BTF: &str = "/sys/kernel/btf/vmlinux";

/// The consequence for the user if [`of_this_kernel`] fails.
pub const LOSS: &str = "super-frames (GSO, GRO) of UDP and of tunnels count as inexact, since it is unknown how the \
     kernel cuts them; and an interface that moves to another network namespace may be mistaken for another one \
     until the agent hears of the move";

/// Advice for the user.
pub const REMEDY: &str = "use a kernel with CONFIG_DEBUG_INFO_BTF=y that is not locked down to confidentiality, as root \
     or with CAP_BPF and CAP_PERFMON";

/// Both are known or both are unknown, so a single answer describes everything that the programs read of a kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    pub skb: SkbLayout,
    pub device: DeviceLayout,
}

impl Layout {
    pub const UNKNOWN: Self = Self {
        skb: SkbLayout::UNKNOWN,
        device: DeviceLayout::UNKNOWN,
    };
}

/// The layout of the running kernel, if its BTF has it and programs may read kernel memory.
pub fn of_this_kernel() -> Result<Layout> {
    ensure_kernel_memory_can_be_read()?;
    read(&types_of_this_kernel()?).with_context(|| format!("read the types in {BTF}"))
}

/// Offsets of the fields that the programs read of a dropped packet, if they may read kernel memory.
pub fn drops_of_this_kernel() -> Result<DropLayout> {
    ensure_kernel_memory_can_be_read()?;
    drops(&types_of_this_kernel()?).with_context(|| format!("read the types in {BTF}"))
}

fn ensure_kernel_memory_can_be_read() -> Result<()> {
    // Hold signals, since an interrupted call would look like a refusal by the kernel.
    let _held = signals::Held::new();
    bpf::load_reader_of_kernel_memory().map_err(|error| {
        let why = if error.raw_os_error() == Some(libc::EPERM) {
            "this process may load no program that reads the kernel's memory (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)"
        } else {
            "the kernel lets no program read its memory: it may be locked down \
             (confidentiality), or built without CONFIG_BPF_EVENTS"
        };
        anyhow::Error::new(error).context(why)
    })
}

/// Offsets of the fields that the programs read of tasks and sockets through verified pointers.
pub fn tasks_of_this_kernel() -> Result<TaskLayout> {
    tasks(&types_of_this_kernel()?).with_context(|| format!("read the types in {BTF}"))
}

/// Offsets of the fields that the programs read when a connection's socket is destroyed.
pub fn tcp_of_this_kernel() -> Result<TcpLayout> {
    tcp(&types_of_this_kernel()?).with_context(|| format!("read the types in {BTF}"))
}

fn drops(btf: &Btf) -> Result<DropLayout> {
    let of_skb = |member| btf.offset_of("sk_buff", member);
    let reason = |name| btf.constant(name).unwrap_or(DropLayout::NO_REASON);
    let device = device(btf)?;
    let layout = DropLayout {
        head: of_skb("head")?,
        network_header: of_skb("network_header")?,
        tail: of_skb("tail")?,
        arrived_by: of_skb("skb_iif")?,
        device: device.skb_device,
        packet_type: of_skb("pkt_type")?,
        device_ifindex: btf.offset_of("net_device", "ifindex")?,
        device_netns: device.device_netns,
        netns_inode: device.netns_inode,
        other_host: reason("SKB_DROP_REASON_OTHERHOST"),
        packet_socket: reason("SKB_DROP_REASON_PACKET_SOCK_ERROR"),
    };
    ensure!(
        layout.is_known(),
        "sk_buff.head has the offset 0, by which the programs know a layout that was not found"
    );
    Ok(layout)
}

fn tcp(btf: &Btf) -> Result<TcpLayout> {
    let mut tcp_sock = [0; TcpLayout::MEMBERS.len()];
    for (offset, member) in tcp_sock.iter_mut().zip(TcpLayout::MEMBERS) {
        *offset = btf.offset_of("tcp_sock", member)?;
    }
    // The minimum over the recent window is the first of its samples.
    tcp_sock[TcpLayout::RTT_MIN] +=
        btf.offset_of("minmax", "s")? + btf.offset_of("minmax_sample", "v")?;
    Ok(TcpLayout {
        tcp_sock,
        max_ack_backlog: btf.offset_of("sock", "sk_max_ack_backlog").unwrap_or(0),
        multicast_v4: btf.offset_of("inet_sock", "mc_index").unwrap_or(0),
        ipv6: btf.offset_of("inet_sock", "pinet6").unwrap_or(0),
        multicast_v6: btf.offset_of("ipv6_pinfo", "mcast_oif").unwrap_or(0),
    })
}

fn tasks(btf: &Btf) -> Result<TaskLayout> {
    Ok(TaskLayout {
        group_leader: btf.offset_of("task_struct", "group_leader")?,
        comm: btf.offset_of("task_struct", "comm")?,
        tgid: btf.offset_of("task_struct", "tgid")?,
        cred: btf.offset_of("task_struct", "cred")?,
        cred_uid: btf.offset_of("cred", "uid")?,
        socket_sock: btf.offset_of("socket", "sk")?,
        sock_family: btf.offset_of("sock", "__sk_common")?
            + btf.offset_of("sock_common", "skc_family")?,
        sock_state: btf.offset_of("sock", "__sk_common")?
            + btf.offset_of("sock_common", "skc_state")?,
        sock_type: btf.offset_of("sock", "sk_type")?,
    })
}

/// The running kernel's type information.
pub fn types_of_this_kernel() -> Result<Btf> {
    let btf = fs::read(BTF).with_context(|| format!("read {BTF} (CONFIG_DEBUG_INFO_BTF)"))?;
    Btf::parse(btf).with_context(|| format!("read the types in {BTF}"))
}

/// The whole layout, or an error that names the first missing part.
fn read(btf: &Btf) -> Result<Layout> {
    let layout = Layout {
        skb: skb(btf)?,
        device: device(btf)?,
    };
    // To the programs, offset 0 in either of these means that the layout is unknown.
    for (offset, name) in [
        (layout.skb.head, "sk_buff.head"),
        (layout.device.netns_inode, "net.ns.inum"),
    ] {
        ensure!(
            offset != 0,
            "{name} has the offset 0, by which the programs know a layout that was not found"
        );
    }
    Ok(layout)
}

fn device(btf: &Btf) -> Result<DeviceLayout> {
    Ok(DeviceLayout {
        skb_device: btf.offset_of("sk_buff", "dev")?,
        xdp_queue: btf.offset_of("xdp_buff", "rxq")?,
        queue_device: btf.offset_of("xdp_rxq_info", "dev")?,
        device_netns: btf.offset_of("net_device", "nd_net")?,
        netns_inode: btf.offset_of("net", "ns")? + btf.offset_of("ns_common", "inum")?,
    })
}

fn skb(btf: &Btf) -> Result<SkbLayout> {
    let any_of = |names: &[&str]| {
        let mut bits = names.iter().map(|name| btf.constant(name));
        bits.try_fold(0, |all, bit| bit.map(|bit| all | bit))
    };
    // Some supported kernels lack some of these.
    let those_known = |names: &[&str]| {
        let bits = names.iter().filter_map(|name| btf.constant(name).ok());
        bits.fold(0, |all, bit| all | bit)
    };
    Ok(SkbLayout {
        head: btf.offset_of("sk_buff", "head")?,
        data: btf.offset_of("sk_buff", "data")?,
        end: btf.offset_of("sk_buff", "end")?,
        inner_transport_header: btf.offset_of("sk_buff", "inner_transport_header")?,
        gso_type: btf.offset_of("skb_shared_info", "gso_type")?,
        tcp: any_of(&["SKB_GSO_TCPV4", "SKB_GSO_TCPV6"])?,
        datagrams: any_of(&["SKB_GSO_UDP_L4"])?,
        fragments: any_of(&["SKB_GSO_UDP"])?,
        tunnels: any_of(&[
            "SKB_GSO_GRE",
            "SKB_GSO_GRE_CSUM",
            "SKB_GSO_IPXIP4",
            "SKB_GSO_IPXIP6",
            "SKB_GSO_UDP_TUNNEL",
            "SKB_GSO_UDP_TUNNEL_CSUM",
        ])?,
        harmless: any_of(&["SKB_GSO_DODGY", "SKB_GSO_PARTIAL", "SKB_GSO_TCP_ECN"])?
            | those_known(&[
                "SKB_GSO_TCP_FIXEDID",
                "SKB_GSO_TCP_FIXEDID_INNER",
                "SKB_GSO_TCP_ACCECN",
                "SKB_GSO_TUNNEL_REMCSUM",
                "SKB_GSO_FRAGLIST",
            ]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::written::Written;

    const MEMBERS: [(&str, &[&str]); 7] = [
        (
            "sk_buff",
            &[
                "len",
                "head",
                "data",
                "end",
                "dev",
                "inner_transport_header",
            ],
        ),
        ("skb_shared_info", &["flags", "gso_type"]),
        ("xdp_buff", &["data", "rxq"]),
        ("xdp_rxq_info", &["dev"]),
        ("net_device", &["name", "nd_net"]),
        ("net", &["count", "ns"]),
        ("ns_common", &["stashed", "inum"]),
    ];
    const BITS: [&str; 14] = [
        "SKB_GSO_TCPV4",
        "SKB_GSO_TCPV6",
        "SKB_GSO_UDP_L4",
        "SKB_GSO_UDP",
        "SKB_GSO_GRE",
        "SKB_GSO_GRE_CSUM",
        "SKB_GSO_IPXIP4",
        "SKB_GSO_IPXIP6",
        "SKB_GSO_UDP_TUNNEL",
        "SKB_GSO_UDP_TUNNEL_CSUM",
        "SKB_GSO_DODGY",
        "SKB_GSO_PARTIAL",
        "SKB_GSO_TCP_ECN",
        "SKB_GSO_FRAGLIST",
    ];
    /// Members that take the first place of their struct, and a bit that some supported kernels lack.
    const UNUSED: [&str; 6] = [
        "len",
        "flags",
        "name",
        "count",
        "stashed",
        "SKB_GSO_FRAGLIST",
    ];

    /// Reads the layout of a made-up kernel. `number` gets each member and constant with its usual number (an offset or
    /// a bit) and returns the number to use, or `None` if the kernel lacks it.
    fn found(number: impl Fn(&str, u32) -> Option<u32>) -> Result<Layout> {
        let numbered = |names: &[&'static str], usual: fn(u32) -> u32| -> Vec<(&str, u32)> {
            let names = (0..).zip(names.iter().copied());
            names
                .filter_map(|(place, name)| Some((name, number(name, usual(place))?)))
                .collect()
        };
        let mut btf = Written::default();
        for (structure, members) in MEMBERS {
            btf.structure(structure, &numbered(members, |place| place * 8));
        }
        btf.constants(&numbered(&BITS, |place| 1 << place));
        read(&Btf::parse(btf.bytes())?)
    }

    #[test]
    fn a_layout_of_which_one_part_is_missing_is_none_and_names_it() {
        let whole = found(|_, usual| Some(usual)).unwrap();
        assert_eq!((whole.skb.head, whole.skb.tcp), (8, 0b11));
        assert_eq!(whole.device.netns_inode, 16);

        let members = MEMBERS.iter().flat_map(|(_, members)| members.iter());
        for missing in members.chain(&BITS) {
            let outcome = found(|name, usual| (name != *missing).then_some(usual));
            if UNUSED.contains(missing) {
                assert!(outcome.is_ok(), "{missing}");
            } else {
                let error = outcome.unwrap_err().to_string();
                assert!(error.ends_with(missing), "{missing}: {error}");
            }
        }
    }

    #[test]
    fn an_offset_that_means_unknown_to_the_programs_makes_everything_unknown() {
        for (at_zero, named) in [
            (["head", "head"], "sk_buff.head"),
            (["ns", "inum"], "net.ns.inum"),
        ] {
            let outcome =
                found(|name, usual| Some(if at_zero.contains(&name) { 0 } else { usual }));
            let error = outcome.unwrap_err().to_string();
            assert!(error.starts_with(named), "{error}");
        }
    }
}
