//! A netlink request comes in, the kernel's answers go out as raw messages for the caller to read.
//!
//! Only the attributes that the agent uses are decoded, each by its own reader: an attribute that a
//! later kernel adds or lengthens cannot make a link unreadable.

use std::{convert::Infallible, io};

use anyhow::{Context as _, Result, bail};
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_ALIGNTO, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr};

/// The kernel fills at most 32 KiB a datagram of a dump (`netlink_dump`, 5.10).
const RECEIVE_BUFFER_LEN_BYTES: usize = 64 * 1024;

/// A dump that changes under the reader is asked for again this often.
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

/// A socket of the network namespace in which the thread was that opened it.
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
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(RECEIVE_BUFFER_LEN_BYTES),
            sequence_number: 0,
        })
    }

    /// The one message that answers `request`. An error of the kernel is an [`io::Error`] in the chain.
    pub(crate) fn get(&mut self, request: Message) -> Result<Message> {
        self.send(request, NLM_F_REQUEST)?;
        let (answers, _) = self.receive(false)?;
        let answer = answers.into_iter().next();
        answer.context("the kernel acknowledged a netlink request and answered nothing")
    }

    /// All messages of a dump that did not change while it was read.
    pub(crate) fn dump(&mut self, request: &Message) -> Result<Vec<Message>> {
        for _ in 0..DUMP_ATTEMPTS {
            self.send(request.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let (answers, interrupted) = self.receive(true)?;
            if !interrupted {
                return Ok(answers);
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

    /// Reads to the end of a dump, or to the first answer; says whether the dump was interrupted.
    fn receive(&mut self, is_dump: bool) -> Result<(Vec<Message>, bool)> {
        let mut answers = Vec::new();
        let mut interrupted = false;
        loop {
            let datagram = self.datagram()?;
            let mut rest = datagram.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<Message>::deserialize(rest)
                    .context("decode a netlink message")?;
                let aligned_len = message.header.length.next_multiple_of(NLMSG_ALIGNTO.into());
                rest = rest.get(aligned_len as usize..).unwrap_or_default();
                if message.header.sequence_number != self.sequence_number {
                    continue; // What an abandoned request left behind.
                }
                interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                #[expect(
                    clippy::wildcard_enum_match_arm,
                    reason = "the enum is non-exhaustive; Noop alone is left"
                )]
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io()).context("the kernel refused a netlink request");
                    }
                    NetlinkPayload::Overrun(_) => bail!("the kernel's netlink answer overran"),
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        let error = io::Error::from_raw_os_error(-done.code);
                        return Err(error).context("the kernel ended a netlink dump early");
                    }
                    NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => {
                        return Ok((answers, interrupted));
                    }
                    _ => {}
                }
            }
            if !is_dump && !answers.is_empty() {
                return Ok((answers, interrupted));
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

/// The attributes in `bytes` as type and value, to the first that is malformed.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes)
        .map_while(Result::ok)
        .map(|attribute| {
            let value_len = attribute.value_length();
            (attribute.kind(), &attribute.into_inner()[4..4 + value_len])
        })
}

/// The `N` bytes of `bytes` at `offset`.
pub(crate) fn field<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N]> {
    let field = bytes.get(offset..).and_then(<[u8]>::first_chunk).copied();
    field.with_context(|| {
        let len = bytes.len();
        format!("a netlink message of {len} bytes ends before its {N} bytes at {offset}")
    })
}
