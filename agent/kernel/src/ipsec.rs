//! Finds out whether IPsec decrypts tunnel-mode packets in a network namespace. A decrypted packet passes its interface
//! a second time (`xfrm_input`, 6.1 to 6.19), so the agent counts it as ESP and again as the inner packet. The
//! interface's own counters count it once.

use std::fs;

use anyhow::{Context as _, Result};

use crate::{
    links::netlink::{Message, NetlinkSocket, attributes, field},
    netns::Namespace,
};

const NETLINK_XFRM: isize = 6;

// linux/xfrm.h.
const GET_STATES: u16 = 0x12;
const NEW_STATE: u16 = 0x10;
const COUNT_STATES: u16 = 0x23;
const COUNT: u16 = 1;
const STATE_LEN_BYTES: usize = 224;
const MODE_AT: usize = 214;
const TUNNEL_MODE: u8 = 1;
const BEET_MODE: u8 = 4;
const IPTFS_MODE: u8 = 5;
const DEVICE_ID: u16 = 31;

/// List the states again after this many counts even if their number is unchanged, since one state may replace another.
const LISTED_EVERY: u32 = 16;

/// The states of one network namespace.
pub struct Ipsec {
    namespace: Namespace,
    socket: Option<NetlinkSocket>,
    known: Known,
}

/// Result of the last listing of the states.
#[derive(Default)]
struct Known {
    states: u32,
    has_tunnels: bool,
    /// How often the states were counted since then.
    counted: u32,
}

impl Known {
    /// Whether to list the states again, given that there are `states` of them.
    fn is_due(&mut self, states: u32) -> bool {
        self.counted += 1;
        states != self.states || states != 0 && self.counted >= LISTED_EVERY
    }
}

impl Ipsec {
    #[must_use]
    pub fn of(namespace: &Namespace) -> Self {
        Self {
            namespace: namespace.clone(),
            socket: None,
            known: Known::default(),
        }
    }

    /// Whether IPsec hands packets of tunnels back to the interfaces that received them. Packets handed to an IPsec
    /// device (`type xfrm`) count as that device's and do not matter here.
    pub fn has_tunnels(&mut self) -> Result<bool> {
        if self.socket.is_none() {
            self.socket = self.namespace.enter(open_if_there)?;
        }
        let Some(socket) = &mut self.socket else {
            return Ok(false);
        };
        let states = count(socket)?;
        if self.known.is_due(states) {
            self.known = Known {
                states,
                has_tunnels: states != 0 && has_tunnels(socket)?,
                counted: 0,
            };
        }
        Ok(self.known.has_tunnels)
    }
}

/// Opens a socket if the kernel has the protocol already, so that it does not load the module. Without the module
/// nobody has set up IPsec.
fn open_if_there() -> Result<Option<NetlinkSocket>> {
    let path = "/proc/thread-self/net/netlink";
    let sockets = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let protocol = NETLINK_XFRM.to_string();
    let is_there = sockets
        .lines()
        .any(|line| line.split_whitespace().nth(1) == Some(&protocol));
    let socket = is_there.then(|| NetlinkSocket::open(NETLINK_XFRM));
    socket.transpose().context("ask the kernel for IPsec")
}

fn count(socket: &mut NetlinkSocket) -> Result<u32> {
    let request = Message {
        kind: COUNT_STATES,
        body: vec![0; 4],
    };
    let answer = socket.get(request).context("count the states of IPsec")?;
    let rest = answer.body.get(4..).unwrap_or_default();
    let count = attributes(rest).find(|(kind, _)| *kind == COUNT);
    let (_, count) = count.context("the kernel does not say how many states of IPsec there are")?;
    Ok(u32::from_ne_bytes(field(count, 0)?))
}

fn has_tunnels(socket: &mut NetlinkSocket) -> Result<bool> {
    let request = Message {
        kind: GET_STATES,
        body: Vec::new(),
    };
    let take = |found: &mut bool, answer: Message| {
        *found |= answer.kind == NEW_STATE && opens_a_tunnel(&answer.body)?;
        Ok(())
    };
    let found = socket.fold(&request, take);
    found.context("list the states of IPsec")
}

/// Reads a `struct xfrm_usersa_info` and its attributes.
fn opens_a_tunnel(state: &[u8]) -> Result<bool> {
    let [mode] = field(state, MODE_AT)?;
    // The modes with `XFRM_MODE_FLAG_TUNNEL` (net/xfrm/xfrm_state.c).
    let is_tunnel = matches!(mode, TUNNEL_MODE | BEET_MODE | IPTFS_MODE);
    let rest = state.get(STATE_LEN_BYTES..).unwrap_or_default();
    let has_device = attributes(rest).any(|(kind, _)| kind == DEVICE_ID);
    Ok(is_tunnel && !has_device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::netlink::push_attribute;

    #[test]
    fn a_state_opens_a_tunnel_if_it_is_in_tunnel_mode_and_has_no_device() {
        let state = |mode, device: Option<u32>| {
            let mut state = vec![0; STATE_LEN_BYTES];
            state[MODE_AT] = mode;
            push_attribute(&mut state, 12, &[7; 5]);
            if let Some(id) = device {
                push_attribute(&mut state, DEVICE_ID, &id.to_ne_bytes());
            }
            state
        };
        for mode in [TUNNEL_MODE, BEET_MODE, IPTFS_MODE] {
            assert!(opens_a_tunnel(&state(mode, None)).unwrap());
        }
        assert!(!opens_a_tunnel(&state(TUNNEL_MODE, Some(3))).unwrap());
        assert!(!opens_a_tunnel(&state(0, None)).unwrap());
        assert!(opens_a_tunnel(&[0; 100]).is_err());
    }

    #[test]
    fn states_are_listed_when_their_number_changes_and_now_and_then() {
        let mut known = Known::default();
        assert!(!(0..100).any(|_| known.is_due(0)), "there are none");
        assert!(known.is_due(2));
        let mut known = Known {
            states: 2,
            ..Known::default()
        };
        let due = (1..=LISTED_EVERY).map(|_| known.is_due(2));
        assert!(due.eq((1..=LISTED_EVERY).map(|at| at == LISTED_EVERY)));
    }
}
