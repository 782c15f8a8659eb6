//! Links in different network namespaces that the same packets pass: the two ends of a cable, or a device that was
//! moved away from the link under it.

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::{AsFd as _, OwnedFd},
};

use anyhow::Result;
use tracing::warn;

use super::{Why, is_tunnel, leave_one_out, tell_of_some};
use crate::{
    links::{Link, LinkSocket},
    netns::Namespace,
};

/// Two links that count the same packets.
#[derive(Debug, Clone)]
pub struct Across<'a> {
    /// The upper link, or one end.
    pub link: &'a Link,
    netns: &'a Namespace,
    pub other: &'a Link,
    other_netns: &'a Namespace,
    why: Why,
}

/// The watched links by network namespace.
type Watched = [(Namespace, Vec<Link>)];

/// The pairs of links in different namespaces that count the same packets, each pair once.
pub fn across(watched: &Watched) -> Result<Vec<Across<'_>>> {
    if watched.len() < 2 {
        return Ok(Vec::new());
    }
    let files = watched.iter().map(|(netns, _)| netns.open_again());
    let files = files.collect::<Result<Vec<OwnedFd>>>()?;
    let numbers = watched.iter().map(|(netns, _)| {
        netns.enter(|| {
            let mut socket = LinkSocket::open()?;
            let mut numbers = BTreeMap::new();
            for (index, file) in files.iter().enumerate() {
                // A namespace without an id here has no link that is connected to one here.
                let number = socket.netns_id(file.as_fd())?;
                numbers.extend(number.map(|number| (number, index)));
            }
            Ok(numbers)
        })
    });
    let numbers = numbers.collect::<Result<Vec<_>>>()?;
    Ok(pairs(watched, &numbers))
}

/// `numbers` has, for each namespace, its ids for the others, mapped to their indexes in `watched`.
fn pairs<'a>(watched: &'a Watched, numbers: &[BTreeMap<i32, usize>]) -> Vec<Across<'a>> {
    let mut pairs: Vec<Across<'a>> = Vec::new();
    for ((netns, links), numbers) in watched.iter().zip(numbers) {
        for link in links {
            let Some((number, ifindex)) = link.elsewhere else {
                continue;
            };
            let Some((other_netns, others)) = numbers.get(&number).map(|&index| &watched[index])
            else {
                continue;
            };
            let Some(other) = others.iter().find(|other| other.ifindex == ifindex) else {
                continue;
            };
            let is_known = |pair: &Across<'_>| {
                pair.why == Why::Ends
                    && pair.other_netns.number() == netns.number()
                    && pair.other.ifindex == link.ifindex
            };
            if !pairs.iter().any(is_known) {
                pairs.push(Across {
                    link,
                    netns,
                    other,
                    other_netns,
                    why: why(link),
                });
            }
        }
    }
    pairs
}

fn why(link: &Link) -> Why {
    if link.is_cable() {
        Why::Ends
    } else if is_tunnel(link) {
        Why::Tunnel
    } else {
        Why::Stacked
    }
}

impl Across<'_> {
    /// Advice for the user. The same patterns select in every namespace.
    pub fn remedy(&self) -> String {
        if self.link.name == self.other.name {
            return "leave one of the network namespaces out of --netns".to_owned();
        }
        leave_one_out(self.link, self.other)
    }
}

/// How the same packets pass both.
impl fmt::Display for Across<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = format!("{} in {}", self.link.name, self.netns.name());
        let other = format!("{} in {}", self.other.name, self.other_netns.name());
        formatter.write_str(&self.why.told(&link, &other))
    }
}

/// Warns of such pairs. The log names a few; `flow-agent check` names all.
pub fn warn_of_across(watched: &Watched) -> Result<()> {
    let pairs = across(watched)?;
    let tell = |pair: &Across<'_>| {
        warn!(
            interface = pair.link.name,
            other = pair.other.name,
            "packets are counted twice: {pair}; {}",
            pair.remedy()
        );
    };
    let further = "further pairs of interfaces in different network namespaces count packets twice";
    tell_of_some(&pairs, tell, further);
    Ok(())
}
