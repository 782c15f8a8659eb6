//! Asks a family of generic netlink, given by its name.

use anyhow::{Context as _, Result};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::netlink::{Message, NetlinkSocket, attributes, field, push_attribute};

// linux/genetlink.h.
const GENL_ID_CTRL: u16 = 0x10;
const HEADER_LEN_BYTES: usize = 4;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// A socket in the network namespace of the thread that opened it.
pub(crate) struct GenericSocket {
    netlink: NetlinkSocket,
    family: u16,
}

impl GenericSocket {
    /// Fails if the kernel does not know the family.
    pub(crate) fn open(family: &str) -> Result<Self> {
        let mut netlink = NetlinkSocket::open(NETLINK_GENERIC)?;
        let mut name = Vec::new();
        push_attribute(
            &mut name,
            CTRL_ATTR_FAMILY_NAME,
            &[family.as_bytes(), &[0]].concat(),
        );
        let answer = netlink
            .get(request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &name))
            .with_context(|| format!("ask for the generic netlink family {family}"))?;
        let id = attribute(body(&answer), CTRL_ATTR_FAMILY_ID)?;
        let family = u16::from_ne_bytes(field(id, 0)?);
        Ok(Self { netlink, family })
    }

    /// The attributes with which the family answers a command.
    pub(crate) fn get(&mut self, command: u8, attributes: &[u8]) -> Result<Vec<u8>> {
        let request = request(self.family, command, attributes);
        Ok(body(&self.netlink.get(request)?).to_vec())
    }
}

fn request(family: u16, command: u8, attributes: &[u8]) -> Message {
    let mut body = vec![command, 1, 0, 0];
    body.extend(attributes);
    Message { kind: family, body }
}

fn body(answer: &Message) -> &[u8] {
    answer.body.get(HEADER_LEN_BYTES..).unwrap_or_default()
}

/// The value of one attribute. Fails if it is missing.
pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Result<&[u8]> {
    let found = attributes(bytes).find(|(kind, _)| *kind == wanted);
    let (_, value) = found.with_context(|| format!("the answer has no attribute {wanted}"))?;
    Ok(value)
}
