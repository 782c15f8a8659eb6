//! The observation domains of an output. Collectors identify an exporter by address and domain. Agents that share a
//! host or a NAT share an address, so by default each output has its own numbers.

use std::{
    io::ErrorKind,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

use formats::ipfix::Domains;
use proto::AgentIdentity;
use sha1::{Digest as _, Sha1};

/// How many agents with the same names can get different domains, in the order of their start.
const MOST_ALIKE: u32 = 64;

/// The domains of an output, claimed until this is dropped.
pub(super) struct Claimed {
    pub domains: Domains,
    /// Keeps other processes in this network namespace from taking the same numbers. The kernel drops it with the
    /// process.
    _claim: Option<UnixDatagram>,
}

impl Claimed {
    /// Claims domains for the output `place`, which distinguishes the outputs of this agent and of other agents on the
    /// host. `wished` is the flows' domain from the settings.
    pub fn by(agent: Option<&AgentIdentity>, place: &str, wished: Option<u32>) -> Self {
        let (host, name) = agent.map_or(("", ""), |agent| (&agent.agent_id, &agent.hostname));
        for number in 0..MOST_ALIKE {
            let (flows, process) = numbers([host, name, place], number);
            let claim = claim(flows);
            let is_taken = claim
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::AddrInUse);
            if !is_taken {
                return Self::new(wished.unwrap_or(flows), process, claim.ok());
            }
        }
        let (flows, process) = numbers([host, name, place], MOST_ALIKE);
        Self::new(wished.unwrap_or(flows), process, None)
    }

    fn new(flows: u32, process: u32, claim: Option<UnixDatagram>) -> Self {
        let process = if process == flows {
            process.wrapping_add(1)
        } else {
            process
        };
        Self {
            domains: Domains { flows, process },
            _claim: claim,
        }
    }
}

/// Neither number is 0, which means no domain.
fn numbers(names: [&str; 3], number: u32) -> (u32, u32) {
    let mut hash = Sha1::new();
    hash.update("flow-agent observation domain");
    for name in names {
        hash.update((name.len() as u64).to_be_bytes());
        hash.update(name);
    }
    hash.update(number.to_be_bytes());
    let digest: [u8; 20] = hash.finalize().into();
    let part = |at: usize| {
        let bytes = [digest[at], digest[at + 1], digest[at + 2], digest[at + 3]];
        u32::from_be_bytes(bytes).max(1)
    };
    (part(0), part(4))
}

/// Binds an abstract socket name, which only one process of the network namespace can hold.
fn claim(domain: u32) -> std::io::Result<UnixDatagram> {
    let name = format!("flow-agent/observation-domain/{domain}");
    let address = SocketAddr::from_abstract_name(name)?;
    UnixDatagram::bind_addr(&address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(id: &str) -> AgentIdentity {
        AgentIdentity {
            agent_id: id.to_owned(),
            hostname: "host".to_owned(),
            instance_id: "another with each start".to_owned(),
            ..AgentIdentity::default()
        }
    }

    #[test]
    fn agents_outputs_and_hosts_have_domains_of_their_own_and_keep_them() {
        let claim = |id: &str, place: &str| Claimed::by(Some(&agent(id)), place, None);
        let places = [
            "unix:/run/a.sock ipfix",
            "unix:/run/b.sock ipfix",
            "unix:/run/a.sock ipfix-2",
        ];
        let all = places.map(|place| claim("a", place));
        let mut numbers: Vec<_> = all
            .iter()
            .chain([&claim("b", places[0])])
            .flat_map(|one| [one.domains.flows, one.domains.process])
            .collect();
        assert!(!numbers.contains(&0));
        let first = numbers[0];
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 8);
        // The same settings again on the same host.
        let beside = claim("a", places[0]);
        let Domains { flows, process } = beside.domains;
        assert!(!numbers.contains(&flows) && !numbers.contains(&process));
        drop((all, beside));
        assert_eq!(claim("a", places[0]).domains.flows, first);
    }

    #[test]
    fn a_wished_domain_is_that_of_flows_alone() {
        let wished = Claimed::by(Some(&agent("wished")), "", Some(7));
        assert_eq!(wished.domains.flows, 7);
        assert!(![0, 7].contains(&wished.domains.process));
    }
}
