//! Compares our account with an interface's counters, and gives a verdict with its reasons.
//!
//! The interface is read before and after each of the two moments between which we count, so its growth has a lower and
//! an upper bound. Our count is right if it lies between them. If it does not, the known ways in which interfaces count
//! differently are tried, the smallest sets first.

use agent_common::{Pair, Reason};
use proto::{Account, Hook, HookStatus, InterfaceCounters};
use serde::Serialize;

const FCS_LEN_BYTES: i128 = 4;
/// `veth_xdp_rcv_skb` counts an skb after `eth_type_trans`; seen on 6.18.
const ETHERNET_HEADER_LEN_BYTES: i128 = 14;
/// A dropped packet has at least an Ethernet header, and at most the length of the largest super-frame.
const PACKET_LEN_BYTES: (i128, i128) = (14, 65_535 + 22);
/// The most header bytes repeated in a super-frame's segment: more than the deepest tunnel has.
const REPEATED_HEADERS_LEN_BYTES: i128 = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Equal to the interface's count, in packets and bytes.
    Exact,
    /// Equal to the interface's count after applying the explanations.
    Explained,
    Unexplained,
    /// The agent has not read the interface's counters since it attached its program there: no scan has begun yet.
    NotScanned,
    /// The interface is gone, or its counters were not read at all four moments.
    Unknown,
}

/// The result for one direction of an interface.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub interface: String,
    pub ifindex: u32,
    pub netns: u32,
    pub netns_name: String,
    pub direction: &'static str,
    pub hook: &'static str,
    pub mode: &'static str,
    pub ours: Figures,
    pub interface_least: Option<Figures>,
    pub interface_most: Option<Figures>,
    /// Ours minus the interface's; zero if ours lies within the bounds.
    pub difference: Option<Figures>,
    pub explanations: Vec<String>,
    /// The part of the difference that no explanation covers.
    pub unexplained: Option<Figures>,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    pub packets: i64,
    pub bytes: i64,
}

pub fn compare(status: &HookStatus) -> Comparison {
    let interface = status.interface.clone().unwrap_or_default();
    let account = status.account.clone().unwrap_or_default();
    let is_egress = status.hook() == Hook::TcEgress;
    let seen = proto::pair(account.seen);
    let mut comparison = Comparison {
        interface: interface.name,
        ifindex: interface.ifindex,
        netns: interface.netns,
        netns_name: interface.netns_name,
        direction: if is_egress { "egress" } else { "ingress" },
        hook: status.hook().name(),
        mode: status.mode().name(),
        ours: Figures {
            packets: seen.packets.cast_signed(),
            bytes: seen.bytes.cast_signed(),
        },
        interface_least: None,
        interface_most: None,
        difference: None,
        explanations: Vec::new(),
        unexplained: None,
        verdict: Verdict::Unknown,
    };
    if status.interface_gone {
        comparison
            .explanations
            .push("the interface has left, and its last counters are unknown".to_owned());
        return comparison;
    }
    if status.after_attach.is_some() && status.after_flip.is_none() {
        comparison.verdict = Verdict::NotScanned;
        return comparison;
    }
    let Some(growth) = Growth::of(status) else {
        comparison
            .explanations
            .push("the interface's counters are not known".to_owned());
        return comparison;
    };
    let theirs = growth.counted(is_egress);
    comparison.interface_least = Some(Figures::at(&theirs, Range::least));
    comparison.interface_most = Some(Figures::at(&theirs, Range::most));
    comparison.difference = Some(Counted::exactly(seen).beyond(&theirs));
    let passed = theirs.packets.most - theirs.packets.least;
    if passed > 0 {
        comparison.explanations.push(format!(
            "up to {passed} packets passed while the counters were read"
        ));
    }
    let causes = causes(&account, status, &growth, is_egress);
    let found = explain(seen, &theirs, &causes);
    let names = found.causes.iter().map(|cause| cause.text.clone());
    comparison.explanations.extend(names);
    let copies = account.beside(Reason::LoopedBack).packets;
    if copies > 0 {
        comparison.explanations.push(format!(
            "{copies} broadcasts and multicasts of this host were looped back to it, which neither counts"
        ));
    }
    comparison.unexplained = Some(found.rest);
    comparison.verdict = match (found.rest == Figures::default(), found.causes.is_empty()) {
        (true, true) => Verdict::Exact,
        (true, false) => Verdict::Explained,
        (false, _) => Verdict::Unexplained,
    };
    comparison
}

/// A value between two bounds.
#[derive(Debug, Clone, Copy, Default)]
struct Range {
    least: i128,
    most: i128,
}

impl Range {
    fn exactly(value: i128) -> Self {
        Self {
            least: value,
            most: value,
        }
    }

    fn least(&self) -> i128 {
        self.least
    }

    fn most(&self) -> i128 {
        self.most
    }

    /// How far this range lies above `other`; negative below it, zero if they overlap.
    fn beyond(self, other: Self) -> i128 {
        (self.least - other.most).max(0) + (self.most - other.least).min(0)
    }
}

impl std::ops::Add for Range {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            least: self.least + other.least,
            most: self.most + other.most,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    packets: Range,
    bytes: Range,
}

impl Counted {
    fn exactly(pair: Pair) -> Self {
        Self {
            packets: Range::exactly(pair.packets.into()),
            bytes: Range::exactly(pair.bytes.into()),
        }
    }

    fn beyond(&self, other: &Self) -> Figures {
        Figures {
            packets: self.packets.beyond(other.packets) as i64,
            bytes: self.bytes.beyond(other.bytes) as i64,
        }
    }
}

impl Figures {
    fn at(counted: &Counted, end: impl Fn(&Range) -> i128) -> Self {
        Self {
            packets: end(&counted.packets) as i64,
            bytes: end(&counted.bytes) as i64,
        }
    }

    /// Compares packets first, then bytes.
    fn weight(self) -> (u64, u64) {
        (self.packets.unsigned_abs(), self.bytes.unsigned_abs())
    }
}

/// The growth of the interface's counters between attachment and the flip of the last scan.
struct Growth {
    before_attach: InterfaceCounters,
    after_attach: InterfaceCounters,
    before_flip: InterfaceCounters,
    after_flip: InterfaceCounters,
}

impl Growth {
    fn of(status: &HookStatus) -> Option<Self> {
        Some(Self {
            before_attach: status.before_attach?,
            after_attach: status.after_attach?,
            before_flip: status.before_flip?,
            after_flip: status.after_flip?,
        })
    }

    fn counted(&self, is_egress: bool) -> Counted {
        if is_egress {
            let packets = self.range(|counters| counters.tx_packets);
            Counted {
                packets,
                bytes: self.range(|counters| counters.tx_bytes),
            }
        } else {
            let packets = self.range(|counters| counters.rx_packets);
            Counted {
                packets,
                bytes: self.range(|counters| counters.rx_bytes),
            }
        }
    }

    fn range(&self, counter: impl Fn(&InterfaceCounters) -> u64) -> Range {
        let least =
            i128::from(counter(&self.before_flip)) - i128::from(counter(&self.after_attach));
        let most = i128::from(counter(&self.after_flip)) - i128::from(counter(&self.before_attach));
        // A counter reset between two reads must not make an empty range.
        Range {
            least: least.min(most),
            most,
        }
    }
}

/// A way in which the interface counts differently, as an amount added to our figures.
struct Cause {
    adds: Counted,
    text: String,
}

/// Packets of an interface that carried our program into another network namespace.
fn departed(account: &Account) -> Option<Cause> {
    let departed = account.unparsed(Reason::UnknownInterface);
    let lacks = |ours: u64| Range::exactly(-i128::from(ours));
    (departed.packets > 0).then(|| Cause {
        adds: Counted {
            packets: lacks(departed.packets),
            bytes: lacks(departed.bytes),
        },
        text: format!(
            "{} packets came from an interface that went to another network namespace, where its index is \
             that of this one",
            departed.packets
        ),
    })
}

/// Packets redirected here by something like tc mirred. The interface counts only what it receives itself.
fn redirected(account: &Account, is_egress: bool) -> Option<Cause> {
    let redirected = account.beside(Reason::OtherHeader);
    let lacks = |ours: u64| Range::exactly(-i128::from(ours));
    (redirected.packets > 0 && !is_egress).then(|| Cause {
        adds: Counted {
            packets: lacks(redirected.packets),
            bytes: lacks(redirected.bytes),
        },
        text: format!(
            "{} packets with another link header were put here by something (tc mirred), which the interface does \
             not count",
            redirected.packets
        ),
    })
}

/// Packets that IPsec decrypts pass ingress a second time. Their number is bounded by the packets in protocols that can
/// carry IPsec, or in no flow.
fn ipsec(account: &Account, status: &HookStatus) -> Option<Cause> {
    const CARRIERS: [&str; 4] = ["esp", "ah", "udp", "other"];
    let mut seen = proto::pair(account.seen);
    for (protocol, count) in &status.traffic {
        if !CARRIERS.contains(&protocol.as_str()) {
            seen.packets = seen.packets.saturating_sub(count.packets);
            seen.bytes = seen.bytes.saturating_sub(count.bytes);
        }
    }
    let up_to = |ours: u64| Range {
        least: -i128::from(ours),
        most: 0,
    };
    (status.opens_ipsec_tunnels && seen.packets != 0).then(|| Cause {
        adds: Counted {
            packets: up_to(seen.packets),
            bytes: up_to(seen.bytes),
        },
        text: "IPsec decrypts packets in tunnel mode, which are counted as ESP and again as what that carries"
            .to_owned(),
    })
}

/// A VRF device counts the packets of its members.
fn vrf(status: &HookStatus, growth: &Growth, is_egress: bool) -> Option<Cause> {
    let theirs = growth.counted(is_egress);
    let up_to = |theirs: Range| Range {
        least: 0,
        most: theirs.most.max(0),
    };
    status.is_vrf.then(|| Cause {
        adds: Counted {
            packets: up_to(theirs.packets),
            bytes: up_to(theirs.bytes),
        },
        text: "a VRF device counts what its members receive and send, most of which passes their hooks alone"
            .to_owned(),
    })
}

fn causes(account: &Account, status: &HookStatus, growth: &Growth, is_egress: bool) -> Vec<Cause> {
    let mut causes = departed(account)
        .into_iter()
        .chain(redirected(account, is_egress))
        .chain(ipsec(account, status))
        .chain(vrf(status, growth, is_egress))
        .collect::<Vec<_>>();
    let mut cause = |packets: Range, bytes: Range, text: String| {
        causes.push(Cause {
            adds: Counted { packets, bytes },
            text,
        });
    };
    let none = Range::default();
    let supers = account.beside(Reason::SuperFrames);
    let segments = account.beside(Reason::SuperFrameSegments);
    if segments != supers {
        let fewer = |ours: u64, theirs: u64| Range::exactly(i128::from(theirs) - i128::from(ours));
        cause(
            fewer(segments.packets, supers.packets),
            fewer(segments.bytes, supers.bytes),
            format!(
                "the interface counts {} super-frames once each, we the {} frames on the wire",
                supers.packets, segments.packets
            ),
        );
    }
    let tags = account.beside(Reason::OffloadedTags);
    if tags.packets > 0 {
        let text = format!(
            "the interface does not count the VLAN tags that {} packets carry beside their data",
            tags.packets
        );
        cause(none, Range::exactly(-i128::from(tags.bytes)), text);
    }
    let short = account.beside(Reason::Short);
    if short.packets > 0 {
        let text = format!(
            "the interface counts {} short frames padded to 60 bytes",
            short.packets
        );
        cause(none, Range::exactly(short.bytes.into()), text);
    }
    let inexact = account.beside(Reason::Inexact);
    if inexact.packets > 0 {
        let most = i128::from(segments.packets) * REPEATED_HEADERS_LEN_BYTES;
        let text = format!(
            "{} super-frames repeat headers of unknown length",
            inexact.packets
        );
        cause(none, Range { least: 0, most }, text);
    }
    if let Some((packets, text)) = drops(status, growth, is_egress) {
        // Packets dropped after the hook are missing from the interface's count, packets dropped before it from ours.
        let (low, high) = PACKET_LEN_BYTES;
        if is_egress {
            let bytes = Range {
                least: -packets * high,
                most: 0,
            };
            cause(
                Range {
                    least: -packets,
                    most: 0,
                },
                bytes,
                text,
            );
        } else {
            let bytes = Range {
                least: low.min(packets * high),
                most: packets * high,
            };
            cause(
                Range {
                    least: 0,
                    most: packets,
                },
                bytes,
                text,
            );
        }
    }
    let frames = i128::from(proto::pair(account.seen).packets);
    if frames > 0 && !is_egress {
        let text = "the interface counts frames without their Ethernet header, like a veth end that polls (GRO on, \
                    or native XDP)";
        // Once per super-frame, or once per frame if the frames arrived before they were merged.
        let fewest = frames - i128::from(segments.packets) + i128::from(supers.packets);
        let bytes = Range {
            least: -frames * ETHERNET_HEADER_LEN_BYTES,
            most: -fewest * ETHERNET_HEADER_LEN_BYTES,
        };
        cause(none, bytes, text.to_owned());
    }
    if frames > 0 {
        let text = "the interface counts four bytes of FCS for each frame".to_owned();
        cause(none, Range::exactly(frames * FCS_LEN_BYTES), text);
    }
    causes
}

/// The most packets that can have been dropped on the other side of the hook.
fn drops(status: &HookStatus, growth: &Growth, is_egress: bool) -> Option<(i128, String)> {
    let (packets, text) = if is_egress {
        let qdisc = status.qdisc_drops.unwrap_or_default();
        let dropped = growth.range(|counters| counters.tx_dropped).most.max(0);
        let errors = growth.range(|counters| counters.tx_errors).most.max(0);
        let text = format!(
            "behind the hook, qdiscs dropped {qdisc} packets, the interface {dropped}, and {errors} failed"
        );
        (i128::from(qdisc) + dropped + errors, text)
    } else {
        let dropped = growth.range(|counters| counters.rx_dropped).most.max(0);
        let text = format!(
            "the interface counts {dropped} dropped packets, which may not have come to the hook"
        );
        (dropped, text)
    };
    (packets > 0).then_some((packets, text))
}

struct Explanation<'a> {
    causes: Vec<&'a Cause>,
    rest: Figures,
}

/// Finds the fewest causes that leave the smallest difference.
fn explain<'a>(seen: Pair, theirs: &Counted, causes: &'a [Cause]) -> Explanation<'a> {
    let subsets = 0..1u32 << causes.len();
    let explanations = subsets.map(|subset| {
        let chosen = causes
            .iter()
            .enumerate()
            .filter(|(index, _)| subset & 1 << index != 0);
        let causes: Vec<&Cause> = chosen.map(|(_, cause)| cause).collect();
        let ours = causes
            .iter()
            .fold(Counted::exactly(seen), |ours, cause| Counted {
                packets: ours.packets + cause.adds.packets,
                bytes: ours.bytes + cause.adds.bytes,
            });
        Explanation {
            causes,
            rest: ours.beyond(theirs),
        }
    });
    explanations
        .min_by_key(|explanation| (explanation.rest.weight(), explanation.causes.len()))
        .unwrap_or(Explanation {
            causes: Vec::new(),
            rest: Counted::exactly(seen).beyond(theirs),
        })
}

#[cfg(test)]
mod tests;
