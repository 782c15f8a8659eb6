//! Sends netlink requests and returns the kernel's answers as raw messages.
//!
//! The callers decode only the attributes that they use, so an attribute that a later kernel adds or
//! lengthens cannot make a link unreadable.

use std::{convert::Infallible, io};

use anyhow::{Context as _, Result, bail};
use netlink_packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_ALIGNTO,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
    NlasIterator,
};
use netlink_sys::{Socket, SocketAddr};

/// Enough for any datagram of a dump: the kernel fills at most 32 KiB (`netlink_dump`, 5.10).
const RECEIVE_BUFFER_LEN_BYTES: usize = 64 * 1024;

/// `struct nlmsghdr`.
const HEADER_LEN_BYTES: usize = 16;

/// The attribute with an error's text (`NLMSGERR_ATTR_MSG`, linux/netlink.h).
const ERROR_MESSAGE: u16 = 1;

/// How often to try a dump that changes while it is read.
const DUMP_ATTEMPTS: usize = 8;

/// One message: its type and what follows the netlink header, in host byte order.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub kind: u16,
    pub body: Vec<u8>,
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.body);
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self {
            kind: header.message_type,
            body: payload.to_vec(),
        })
    }
}

/// A socket in the network namespace of the thread that opened it.
pub(crate) struct NetlinkSocket {
    socket: Socket,
    buffer: Vec<u8>,
    sequence_number: u32,
}

impl NetlinkSocket {
    /// `protocol` is one of `netlink_sys::protocols`.
    pub(crate) fn open(protocol: isize) -> Result<Self> {
        let mut socket = Socket::new(protocol).context("open a netlink socket")?;
        socket.bind_auto().context("bind a netlink socket")?;
        socket
            .connect(&SocketAddr::new(0, 0))
            .context("connect a netlink socket to the kernel")?;
        socket
            .set_cap_ack(true)
            .and_then(|()| socket.set_ext_ack(true))
            .context("ask for netlink errors in words")?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(RECEIVE_BUFFER_LEN_BYTES),
            sequence_number: 0,
        })
    }

    /// The one message that answers `request`. If the kernel refuses, the error chain has an [`io::Error`].
    pub(crate) fn get(&mut self, request: Message) -> Result<Message> {
        self.send(request, NLM_F_REQUEST)?;
        let mut first = None;
        self.receive(false, |answer| {
            first.get_or_insert(answer);
        })?;
        first.context("the kernel acknowledged a netlink request and answered nothing")
    }

    /// Has the kernel change something; `flags` such as `NLM_F_CREATE` say how. If the kernel refuses, the
    /// error chain has an [`io::Error`].
    pub(crate) fn change(&mut self, request: Message, flags: u16) -> Result<()> {
        self.send(request, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.receive(false, drop).map(drop)
    }

    /// All messages of a dump that did not change while it was read.
    pub(crate) fn dump(&mut self, request: &Message) -> Result<Vec<Message>> {
        self.fold(request, |answers: &mut Vec<_>, answer| {
            answers.push(answer);
            Ok(())
        })
    }

    /// What `take` makes of the messages of a dump that did not change while it was read. It begins with the
    /// default, more than once if need be. For dumps that are too long to be kept.
    pub(crate) fn fold<T: Default>(
        &mut self,
        request: &Message,
        mut take: impl FnMut(&mut T, Message) -> Result<()>,
    ) -> Result<T> {
        for _ in 0..DUMP_ATTEMPTS {
            self.send(request.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let (mut folded, mut refused) = (T::default(), Ok(()));
            let interrupted = self.receive(true, |answer| {
                // A dump is read to its end. Otherwise the kernel would refuse the next one (EBUSY).
                if refused.is_ok() {
                    refused = take(&mut folded, answer);
                }
            })?;
            refused?;
            if !interrupted {
                return Ok(folded);
            }
        }
        bail!("the kernel's answer changed during each of {DUMP_ATTEMPTS} readings")
    }

    fn send(&mut self, request: Message, flags: u16) -> Result<()> {
        self.sequence_number = self.sequence_number.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence_number;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket
            .send(&bytes, 0)
            .context("send a netlink request")?;
        Ok(())
    }

    /// Reads to the end of a dump, or to the first answer. Returns whether the dump was interrupted.
    fn receive(&mut self, is_dump: bool, mut take: impl FnMut(Message)) -> Result<bool> {
        let (mut has_answer, mut interrupted) = (false, false);
        loop {
            let datagram = self.datagram()?;
            let mut rest = datagram.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<Message>::deserialize(rest)
                    .context("decode a netlink message")?;
                let aligned_len = message.header.length.next_multiple_of(NLMSG_ALIGNTO.into());
                rest = rest.get(aligned_len as usize..).unwrap_or_default();
                if message.header.sequence_number != self.sequence_number {
                    continue; // An answer to an earlier request that was abandoned.
                }
                interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                #[expect(
                    clippy::wildcard_enum_match_arm,
                    reason = "the enum is non-exhaustive; Noop alone is left"
                )]
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => {
                        take(answer);
                        has_answer = true;
                    }
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(refusal(&error));
                    }
                    NetlinkPayload::Overrun(_) => bail!("the kernel's netlink answer overran"),
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        let error = io::Error::from_raw_os_error(-done.code);
                        return Err(error).context("the kernel ended a netlink dump early");
                    }
                    NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => {
                        return Ok(interrupted);
                    }
                    _ => {}
                }
            }
            if !is_dump && has_answer {
                return Ok(interrupted);
            }
        }
    }

    fn datagram(&mut self) -> Result<Vec<u8>> {
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, libc::MSG_TRUNC) {
                Ok(len) if len > self.buffer.len() => {
                    bail!("a netlink answer of {len} bytes is longer than the agent reads")
                }
                Ok(_) => return Ok(self.buffer.clone()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("receive a netlink answer"),
            }
        }
    }
}

/// The error, with the kernel's own text if there is one. It follows the header of our request.
fn refusal(error: &ErrorMessage) -> anyhow::Error {
    let refused = anyhow::Error::new(error.to_io());
    let words = error.header.get(HEADER_LEN_BYTES..).unwrap_or_default();
    match attributes(words).find(|(kind, _)| *kind == ERROR_MESSAGE) {
        Some((_, text)) => {
            let text = String::from_utf8_lossy(text);
            let text = text.trim_end_matches(['\0', '.']);
            refused.context(format!("the kernel refused: {text}"))
        }
        None => refused.context("the kernel refused a netlink request"),
    }
}

/// The errno with which the kernel refused.
pub(crate) fn errno(error: &anyhow::Error) -> Option<i32> {
    error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())
}

/// The attributes in `bytes` as type and value, up to the first malformed one.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes)
        .map_while(Result::ok)
        .map(|attribute| {
            let value_len = attribute.value_length();
            (attribute.kind(), &attribute.into_inner()[4..4 + value_len])
        })
}

/// Appends an attribute with its padding.
pub(crate) fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend((value.len() as u16 + 4).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The `N` bytes of `bytes` at `offset`.
pub(crate) fn field<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N]> {
    let field = bytes.get(offset..).and_then(<[u8]>::first_chunk).copied();
    field.with_context(|| {
        let len = bytes.len();
        format!("a netlink message of {len} bytes ends before its {N} bytes at {offset}")
    })
}
