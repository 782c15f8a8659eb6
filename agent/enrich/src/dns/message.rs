//! Reads a message of the DNS (RFC 1035), as far as names are learned from it.

use std::{net::IpAddr, time::Duration};

use domain::{
    base::{
        Message as Wire, ParsedName, ParsedRecord,
        iana::{Class, Opcode},
        wire::ParseError,
    },
    rdata::{A, Aaaa, Cname},
};
use proto::ends::{MAX_DNS_ANSWERS, MAX_HOST_NAME_BYTES};

/// The longest chain of aliases that is followed. Resolvers follow no more than some ten (Unbound, BIND).
const MOST_ALIASES: usize = 16;

/// What somebody wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// As it was asked, without the last dot; a colon, and bytes that are no printable ASCII, as `\DDD`.
    pub name: Box<str>,
    /// As IANA numbers them.
    pub record_type: u16,
}

/// An address that the name of the question has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub address: IpAddr,
    /// The shortest one on the way from the question's name.
    pub ttl: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// As IANA numbers them, with the bits that EDNS adds where they were seen.
    pub code: u16,
    /// The server had more to say than fits.
    pub is_truncated: bool,
    pub addresses: Vec<Address>,
}

/// A message whose header and question are read.
#[derive(Debug)]
pub struct Message<'a> {
    pub id: u16,
    pub question: Question,
    pub is_answer: bool,
    asked: Name<'a>,
    wire: Wire<&'a [u8]>,
    is_whole: bool,
}

/// Why nothing is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It does not follow the format.
    Malformed,
    /// It is no query, or has not exactly one question about the Internet: an update, a transfer, a notification. Or its name takes too
    /// much room.
    OfAnotherKind,
}

impl From<ParseError> for Unread {
    fn from(_: ParseError) -> Self {
        Self::Malformed
    }
}

/// `is_whole` says whether all bytes of the message are there. If they are not, what is there is read.
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
    /// Takes as long as a sender likes, within the bounds of one datagram, so it is for those that were asked.
    pub fn answer(&self) -> Result<Answer, Unread> {
        let mut aliases = Vec::new();
        let mut addresses = Vec::new();
        for record in self.wire.answer()?.take(MAX_DNS_ANSWERS) {
            let noted = record.and_then(|record| note(&record, &mut aliases, &mut addresses));
            if let Err(error) = noted {
                // A part has an end somewhere.
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

/// Another name that stands for the first one, and how long it does.
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

/// The addresses of the name that was asked for, whatever aliases lead to them. Those of other names, which no resolver asked for, are
/// left out.
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

/// Names differ in more than the case of their letters (RFC 4343). As text, since to compare two names that point into their message is to
/// follow all pointers each time, and a sender may make many.
fn comparable(name: &Name<'_>) -> String {
    let mut text = name.to_string();
    text.make_ascii_lowercase();
    text
}

/// As it was asked, since some who ask know their answers by the case of the letters. `None` if it takes too much room.
fn text(name: &Name<'_>) -> Option<String> {
    // It is to be told from an address, and from a port behind it.
    let text = name.to_string().replace(':', "\\058");
    (text.len() <= MAX_HOST_NAME_BYTES).then_some(text)
}

#[cfg(test)]
mod tests;
