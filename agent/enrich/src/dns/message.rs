//! Parses a DNS message (RFC 1035) as far as needed to learn names from it.

use std::{net::IpAddr, time::Duration};

use domain::{
    base::{
        Message as Wire, ParsedName, ParsedRecord,
        iana::{Class, Opcode},
        wire::ParseError,
    },
    rdata::{A, Aaaa, Cname},
};
use proto::limits::{MAX_DNS_ANSWERS, MAX_HOST_NAME_BYTES};

/// The longest chain of aliases that is followed. Resolvers follow about ten at most (Unbound, BIND).
const MOST_ALIASES: usize = 16;

/// The question of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The name as it was asked, without the last dot. A colon, and bytes that are not printable ASCII, are written as
    /// `\DDD`.
    pub name: Box<str>,
    /// The type number assigned by IANA.
    pub record_type: u16,
}

/// An address of the name in the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub address: IpAddr,
    /// The shortest TTL in the chain from the question's name to the address.
    pub ttl: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The code assigned by IANA, with the bits that EDNS adds if they were seen.
    pub code: u16,
    /// The server had more to say than fits.
    pub is_truncated: bool,
    pub addresses: Vec<Address>,
}

/// A message whose header and question are parsed.
#[derive(Debug)]
pub struct Message<'a> {
    pub id: u16,
    pub question: Question,
    pub is_answer: bool,
    asked: Name<'a>,
    wire: Wire<&'a [u8]>,
    is_whole: bool,
}

/// Why a message is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It does not follow the format.
    Malformed,
    /// It is not a query, or does not have exactly one question of class IN: an update, a transfer, a notification. Or
    /// its name is too long.
    OfAnotherKind,
}

impl From<ParseError> for Unread {
    fn from(_: ParseError) -> Self {
        Self::Malformed
    }
}

/// Parses a message. `is_whole` says whether all of its bytes are there; if not, parses the bytes that are.
pub fn read(bytes: &[u8], is_whole: bool) -> Result<Message<'_>, Unread> {
    let wire = Wire::from_octets(bytes).map_err(|_| Unread::Malformed)?;
    let header = wire.header();
    if header.opcode() != Opcode::QUERY || wire.header_counts().qdcount() != 1 {
        return Err(Unread::OfAnotherKind);
    }
    let asked = wire.question().next().ok_or(Unread::Malformed)??;
    if asked.qclass() != Class::IN {
        return Err(Unread::OfAnotherKind);
    }
    let name = text(asked.qname()).ok_or(Unread::OfAnotherKind)?;
    Ok(Message {
        id: header.id(),
        question: Question {
            name: name.into_boxed_str(),
            record_type: asked.qtype().to_int(),
        },
        is_answer: header.qr(),
        asked: *asked.qname(),
        wire,
        is_whole,
    })
}

/// The code of an answer without an error.
pub const NO_ERROR: u16 = 0;

type Name<'a> = ParsedName<&'a [u8]>;

impl Message<'_> {
    /// Parses the answer. The sender decides how long this takes, within the bounds of one datagram, so call it only
    /// for answers to known queries.
    pub fn answer(&self) -> Result<Answer, Unread> {
        let mut aliases = Vec::new();
        let mut addresses = Vec::new();
        for record in self.wire.answer()?.take(MAX_DNS_ANSWERS) {
            let noted = record.and_then(|record| note(&record, &mut aliases, &mut addresses));
            if let Err(error) = noted {
                // Only the start of the message was kept, so it ends in the middle of something.
                if self.is_whole {
                    return Err(error.into());
                }
                break;
            }
        }
        Ok(Answer {
            code: self.wire.opt_rcode().to_int(),
            is_truncated: self.wire.header().tc(),
            addresses: of_name(comparable(&self.asked), &aliases, addresses),
        })
    }
}

/// An alias, the name it stands for, and its TTL.
type Alias = (String, String, Duration);

fn note<'a>(
    record: &ParsedRecord<'a, &'a [u8]>,
    aliases: &mut Vec<Alias>,
    addresses: &mut Vec<(String, Address)>,
) -> Result<(), ParseError> {
    if record.class() != Class::IN {
        return Ok(());
    }
    let ttl = record.ttl().into_duration();
    if let Some(alias) = record.to_record::<Cname<_>>()? {
        let target = comparable(alias.data().cname());
        aliases.push((comparable(alias.owner()), target, ttl));
        return Ok(());
    }
    let (owner, address) = if let Some(found) = record.to_record::<A>()? {
        (comparable(found.owner()), IpAddr::V4(found.data().addr()))
    } else if let Some(found) = record.to_record::<Aaaa>()? {
        (comparable(found.owner()), IpAddr::V6(found.data().addr()))
    } else {
        return Ok(());
    };
    addresses.push((owner, Address { address, ttl }));
    Ok(())
}

/// The addresses of the name in the question, through any chain of aliases. Leaves out addresses of other names, which
/// no resolver asked for.
fn of_name(mut name: String, aliases: &[Alias], addresses: Vec<(String, Address)>) -> Vec<Address> {
    let mut shortest = Duration::MAX;
    for _ in 0..MOST_ALIASES {
        let alias = aliases.iter().find(|(alias, ..)| *alias == name);
        let Some((_, target, ttl)) = alias else {
            break;
        };
        name.clone_from(target);
        shortest = shortest.min(*ttl);
    }
    let of_it = addresses.into_iter().filter(|(owner, _)| *owner == name);
    of_it
        .map(|(_, Address { address, ttl })| Address {
            address,
            ttl: ttl.min(shortest),
        })
        .collect()
}

/// The name as lower-case text: names that differ only in case are the same (RFC 4343). Text, because comparing two
/// names inside their message follows all compression pointers each time, and a sender may make many.
fn comparable(name: &Name<'_>) -> String {
    let mut text = name.to_string();
    text.make_ascii_lowercase();
    text
}

/// The name in its original case, since some clients match an answer by it. `None` if it is too long.
fn text(name: &Name<'_>) -> Option<String> {
    // Escapes the colon, so that a name cannot be taken for an IPv6 address or for a name with a port.
    let text = name.to_string().replace(':', "\\058");
    (text.len() <= MAX_HOST_NAME_BYTES).then_some(text)
}

#[cfg(test)]
mod tests;
