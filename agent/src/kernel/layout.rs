//! Where the running kernel keeps the fields that the programs read beyond `__sk_buff` and `xdp_md`.

use std::fs;

use agent_common::{interface::DeviceLayout, segmentation::SkbLayout};
use anyhow::{Context as _, Result};

use super::{bpf, btf::Btf};

const BTF: &str = "/sys/kernel/btf/vmlinux";

/// What is lost if [`of_this_kernel`] fails, for the user.
pub const LOSS: &str = "super-frames (GSO, GRO) of UDP and of tunnels count as inexact, since the kernel does not tell \
     how it cuts them; and an interface that moves to another network namespace may count as another one \
     until the agent hears of it";

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
    bpf::load_reader_of_kernel_memory().map_err(|error| {
        let why = if error.raw_os_error() == Some(libc::EPERM) {
            "this process may load no program that reads the kernel's memory (CAP_BPF, CAP_PERFMON)"
        } else {
            "the kernel lets no program read its memory: it may be locked down \
             (confidentiality), or built without CONFIG_BPF_EVENTS"
        };
        anyhow::Error::new(error).context(why)
    })?;
    let btf = fs::read(BTF).with_context(|| format!("read {BTF} (CONFIG_DEBUG_INFO_BTF)"))?;
    read(&Btf::parse(btf)?).with_context(|| format!("read the types in {BTF}"))
}

fn read(btf: &Btf) -> Result<Layout> {
    Ok(Layout {
        skb: skb(btf)?,
        device: device(btf)?,
    })
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
