//! The hooks on which a test runs.

use agent_common::Pair;
use lab::{Counters, Host, Lab};

use super::{Agent, GENERIC_XDP, NATIVE_XDP, Report, wait_until};

const ETHERNET_HEADER_LEN_BYTES: u64 = 14;

/// A hook, which decides what the agent sees and how its interface counts that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    TcIngress,
    TcEgress,
    NativeXdp,
    GenericXdp,
}

impl Hook {
    pub fn settings(self) -> &'static [&'static str] {
        match self {
            Self::TcIngress | Self::TcEgress => &[],
            Self::NativeXdp => NATIVE_XDP,
            Self::GenericXdp => GENERIC_XDP,
        }
    }

    pub fn ends(self, lab: &Lab) -> (&Host, &Host) {
        match self {
            Self::TcEgress => (&lab.agent, &lab.peer),
            Self::TcIngress | Self::NativeXdp | Self::GenericXdp => (&lab.peer, &lab.agent),
        }
    }

    /// The growth of the interface's counter, as frame bytes.
    pub fn counted(self, growth: Counters) -> Pair {
        let (packets, bytes) = match self {
            Self::TcEgress => (growth.tx_packets, growth.tx_bytes),
            Self::TcIngress | Self::GenericXdp => (growth.rx_packets, growth.rx_bytes),
            // See `lab::Counters` for the header.
            Self::NativeXdp => (
                growth.rx_packets,
                growth.rx_bytes + ETHERNET_HEADER_LEN_BYTES * growth.rx_packets,
            ),
        };
        Pair { packets, bytes }
    }
}

/// Lets `traffic` pass the agent's hook and returns the report, which must agree with the interface.
/// `traffic` returns how many frames it sent.
pub fn report_of(
    hook: Hook,
    settings: &[&str],
    traffic: impl FnOnce(&Host, &Host) -> u64,
) -> Report {
    let lab = Lab::quiet().unwrap();
    let agent = Agent::start(&lab, &[hook.settings(), settings].concat());
    let before = lab.agent.counters().unwrap();
    let (from, to) = hook.ends(&lab);
    let sent = traffic(from, to);
    let mut counted = Pair::default();
    wait_until("the frames are through", || {
        counted = hook.counted(lab.agent.counters().unwrap() - before);
        counted.packets >= sent
    });
    let report = agent.stop();
    assert_eq!(report.seen(), counted);
    assert_eq!(counted.packets, sent);
    report
}
