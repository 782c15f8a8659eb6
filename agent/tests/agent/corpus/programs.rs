//! The loaded programs, attached nowhere, to be run on single frames.

use std::{io, os::fd::AsFd as _, sync::LazyLock};

use agent_common::{FlowCounters, FlowKey, HookAccount, LinkType, Outer, Senders};
use aya::{
    maps::{HashMap, Map, MapData},
    programs::{ProgramError, SchedClassifier, TestRun as _, TestRunOptions, Xdp},
};
use corpus::RawFrame;
use kernel::{
    links,
    load::{Kernel, LoadSettings},
};

/// The loopback interface, on which the kernel pretends that the frame is (`net/bpf/test_run.c`).
pub const IFINDEX: u32 = 1;

/// The namespace of that loopback interface, which is this process's. The programs check it.
pub fn netns() -> u32 {
    links::netns_inode().unwrap()
}

/// More flows than one frame can make, and few enough to drain a page in no time.
const MAX_FLOWS: u32 = 16;
/// The kernel runs no program on fewer bytes (`bpf_test_init`), whatever the link type.
const SHORTEST_FRAME: usize = 14;
/// A safe length for one buffer. A page minus headroom and tailroom fits, and these depend on the kernel's
/// configuration. No frame of the corpus is between this length and a page.
pub const LONGEST_BUFFER: usize = 3_000;
pub const PAGE: usize = 4_096;

/// How a program takes its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    TcIngress,
    TcEgress,
    Xdp,
    XdpFrags,
}

pub const PROGRAMS: &[(&str, Hook, LinkType)] = &[
    ("tc_ingress", Hook::TcIngress, LinkType::Ethernet),
    ("tc_egress", Hook::TcEgress, LinkType::Ethernet),
    ("xdp_ingress", Hook::Xdp, LinkType::Ethernet),
    ("xdp_frags", Hook::XdpFrags, LinkType::Ethernet),
    ("tc_ingress_ip", Hook::TcIngress, LinkType::Ip),
    ("tc_egress_ip", Hook::TcEgress, LinkType::Ip),
    ("xdp_ingress_ip", Hook::Xdp, LinkType::Ip),
    ("xdp_frags_ip", Hook::XdpFrags, LinkType::Ip),
];

/// Whether the kernel has frames in several buffers, and programs that accept them.
static HAS_FRAGS: LazyLock<bool> = LazyLock::new(|| lab::kernel::is_at_least(5, 18));

/// Why a frame cannot be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotRun {
    TooShort,
    TooLong,
    /// The call would give the program only the first of several buffers, which no driver does.
    SeveralBuffers,
    /// An skb so short that some kernels refuse it.
    ShortSkb,
    /// The call takes every skb for an Ethernet frame, and so do the programs, where one without a link header could be one.
    TakenForEthernet,
    /// The kernel has no such programs.
    NoFrags,
    /// The call cannot set `skb->vlan_tci`, and XDP has no such field.
    OffloadedTag,
    /// XDP has no super-frames of this length.
    SuperFrame,
}

impl Hook {
    fn is_known(self) -> bool {
        self != Self::XdpFrags || *HAS_FRAGS
    }

    pub fn refuses(self, frame: &RawFrame) -> Option<NotRun> {
        if frame.tag.is_some() {
            Some(NotRun::OffloadedTag)
        } else if frame.is_super_frame && !self.takes_skbs() {
            Some(NotRun::SuperFrame)
        } else if self.takes_skbs()
            && frame.link_type == LinkType::Ip
            && matches!(frame.bytes.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd]))
        {
            Some(NotRun::TakenForEthernet)
        } else if !self.is_known() {
            Some(NotRun::NoFrags)
        } else if frame.bytes.len() < SHORTEST_FRAME {
            Some(NotRun::TooShort)
        } else if frame.bytes.len() > LONGEST_BUFFER {
            match self {
                Self::TcIngress | Self::TcEgress => Some(NotRun::TooLong),
                Self::Xdp => Some(NotRun::SeveralBuffers),
                Self::XdpFrags => None,
            }
        } else {
            None
        }
    }
}

/// Whether the frame promises an IP header that is not whole. `bpf_prog_test_run_skb` reads that header,
/// whatever the program does.
pub fn is_short_skb(bytes: &[u8]) -> bool {
    match bytes.get(12..14) {
        Some([0x08, 0x00]) => bytes.len() < 14 + 20,
        Some([0x86, 0xdd]) => bytes.len() < 14 + 40,
        _ => bytes.len() == SHORTEST_FRAME,
    }
}

/// What one run left in the maps.
pub struct Counted {
    pub hook: Hook,
    /// The segments of the super-frame; 0 for a plain frame.
    pub segments: u32,
    pub account: HookAccount,
    pub flows: Vec<(FlowKey, FlowCounters)>,
    /// The endpoints of the tunnels that the flows came through.
    pub outers: Vec<(FlowKey, Outer)>,
}

/// The loaded programs, attached nowhere.
pub struct Programs {
    kernel: Kernel,
    /// The first fragments: when each was seen, in nanoseconds, and what it said.
    pub fragments: HashMap<MapData, [u8; DATAGRAM_LEN], [u8; 16]>,
}

/// The length of a remembered datagram's key: a flow's key, identification, direction.
const DATAGRAM_LEN: usize = size_of::<FlowKey>() + 8;

impl Programs {
    pub fn load(decapsulate: bool) -> Self {
        let mut kernel = Kernel::load(&LoadSettings {
            min_flows: MAX_FLOWS,
            max_flows: MAX_FLOWS,
            max_fragments: 1024,
            decapsulate,
            ..LoadSettings::smallest(vec![netns()])
        })
        .unwrap();
        kernel.register(0, IFINDEX, "lo", 0).unwrap();
        for &(name, hook, _) in PROGRAMS.iter().filter(|(_, hook, _)| hook.is_known()) {
            let program = &mut kernel.sets[0].programs;
            let program = program.program_mut(name).unwrap();
            match hook {
                Hook::TcIngress | Hook::TcEgress => {
                    <&mut SchedClassifier>::try_from(program).unwrap().load()
                }
                Hook::Xdp | Hook::XdpFrags => <&mut Xdp>::try_from(program).unwrap().load(),
            }
            .unwrap();
        }
        let fragments = kernel.fragments.map.fd().as_fd();
        let fragments = fragments.try_clone_to_owned().unwrap();
        let fragments = Map::LruHashMap(MapData::from_fd(fragments).unwrap());
        Self {
            kernel,
            fragments: fragments.try_into().unwrap(),
        }
    }

    /// Runs a program once, on a super-frame if `segments` is not 0, and forgets its fragments, so that no frame
    /// joins the flow of an earlier one.
    pub fn run(
        &mut self,
        name: &str,
        hook: Hook,
        frame: &RawFrame,
        segments: u32,
    ) -> io::Result<Counted> {
        let counted = self.run_and_remember(name, hook, &frame.bytes, segments);
        self.forget_fragments();
        counted
    }

    /// The same, but keeps its fragments. Nothing else runs these programs, so their page is idle between two runs and
    /// can be emptied without a flip.
    pub fn run_and_remember(
        &mut self,
        name: &str,
        hook: Hook,
        bytes: &[u8],
        segments: u32,
    ) -> io::Result<Counted> {
        let program = &self.kernel.sets[0].programs;
        let program = program.program(name).unwrap();
        let skb = skb_of(segments);
        let mut left = vec![0; bytes.len() + 1];
        let options = TestRunOptions {
            data_in: Some(bytes),
            data_out: Some(&mut left),
            ctx_in: (segments != 0).then_some(&skb),
            ..TestRunOptions::new()
        };
        let result = match hook {
            Hook::TcIngress | Hook::TcEgress => <&SchedClassifier>::try_from(program)
                .unwrap()
                .test_run(options),
            Hook::Xdp | Hook::XdpFrags => <&Xdp>::try_from(program).unwrap().test_run(options),
        };
        let result = result.map_err(os_error)?;
        assert_eq!(result.return_value, hook.verdict(), "the packet goes on");
        left.truncate(result.data_size_out as usize);
        assert!(left == bytes, "the packet is as it came");
        Ok(Counted {
            hook,
            segments,
            account: self.take_account(hook),
            flows: self.take_flows(),
            outers: self.take_outers(),
        })
    }

    fn take_account(&mut self, hook: Hook) -> HookAccount {
        let mut accounts = self.kernel.accounts.of_idle(0);
        accounts.take(hook.account()).unwrap()
    }

    pub fn forget_fragments(&mut self) {
        let datagrams: Vec<_> = self.fragments.keys().map(Result::unwrap).collect();
        for datagram in &datagrams {
            self.fragments.remove(datagram).unwrap();
        }
    }

    fn take_outers(&mut self) -> Vec<(FlowKey, Outer)> {
        let map = &mut self.kernel.outers.map;
        let outers: Vec<_> = map.iter().map(Result::unwrap).collect();
        for (flow, _) in &outers {
            map.remove(flow).unwrap();
        }
        outers
    }

    fn take_flows(&mut self) -> Vec<(FlowKey, FlowCounters)> {
        let mut flows = Vec::new();
        let take = |keys: &[FlowKey], counters: &[FlowCounters], _: &[Senders]| {
            flows.extend(keys.iter().copied().zip(counters.iter().copied()));
        };
        self.kernel.pages.take(0, take).unwrap();
        flows
    }
}

impl Hook {
    pub fn takes_skbs(self) -> bool {
        matches!(self, Self::TcIngress | Self::TcEgress)
    }

    /// `TC_ACT_UNSPEC` and `XDP_PASS`.
    fn verdict(self) -> u32 {
        match self {
            Self::TcIngress | Self::TcEgress => u32::MAX,
            Self::Xdp | Self::XdpFrags => 2,
        }
    }

    /// Which of the interface's two accounts: 0 for ingress, 1 for egress.
    pub fn account(self) -> u32 {
        u32::from(self == Self::TcEgress)
    }
}

/// A `struct __sk_buff` (linux/bpf.h) that has segments of any length.
fn skb_of(segments: u32) -> [u8; 184] {
    const GSO_SEGS: usize = 164;
    const GSO_SIZE: usize = 176;
    let mut skb = [0; 184];
    skb[GSO_SEGS..][..4].copy_from_slice(&segments.to_ne_bytes());
    skb[GSO_SIZE..][..4].copy_from_slice(&0xffff_u32.to_ne_bytes());
    skb
}

fn os_error(error: ProgramError) -> io::Error {
    let ProgramError::SyscallError(error) = error else {
        panic!("{error}");
    };
    error.io_error
}
