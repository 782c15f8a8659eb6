//! Messages over a TCP connection. Flows count as sent once the receiver's kernel has acknowledged them; a receiver
//! that exits may not have read them all.

use std::{
    hash::{BuildHasher as _, RandomState},
    mem::{replace, take},
    net::{Shutdown, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use proto::RecordSum;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, lookup_host},
    time::{sleep, timeout},
};

use super::{
    PATIENCE,
    underway::{Receipts, Underway, unacknowledged_bytes},
};
use crate::settings::HostPort;

/// How long sent data may stay unacknowledged before the receiver counts as gone. The kernel's default takes a quarter
/// of an hour.
const UNANSWERED: Duration = Duration::from_secs(30);

/// How often to check at shutdown whether everything is acknowledged.
const ACKNOWLEDGED: Duration = Duration::from_millis(10);

const CLOSED: &str = "the receiver closed the connection";

pub(crate) struct Tcp {
    pub(super) to: HostPort,
    connection: Option<Connection>,
    /// Receipts from connections that have ended.
    receipts: Receipts,
}

struct Connection {
    stream: TcpStream,
    underway: Underway,
    /// The last message was started and perhaps not completed.
    is_in_message: bool,
}

impl Tcp {
    pub(crate) fn new(to: HostPort) -> Self {
        Self {
            to,
            connection: None,
            receipts: Receipts::default(),
        }
    }

    pub(super) async fn send(&mut self, message: &[u8]) -> Result<()> {
        let connection = if let Some(connection) = &mut self.connection {
            connection
        } else {
            let stream = connect(&self.to, PATIENCE).await?;
            self.connection.insert(Connection::new(stream))
        };
        let sent = connection.send(message).await;
        if sent.is_err() {
            self.end_connection();
        }
        sent
    }

    pub(super) async fn close(&mut self) -> Result<()> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        let closed = connection.close(&mut self.receipts).await;
        self.end_connection();
        closed
    }

    /// Assigns these flows to the message written last.
    pub(super) fn took(&mut self, flows: RecordSum) {
        if let Some(connection) = &mut self.connection {
            connection.underway.ends_message(flows);
        }
    }

    pub(super) fn is_underway(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| !connection.underway.is_empty())
    }

    /// Receipts since the previous call.
    pub(super) fn receipts(&mut self) -> Receipts {
        let mut receipts = take(&mut self.receipts);
        if let Some(connection) = &mut self.connection {
            receipts.arrived += connection.arrived();
        }
        receipts
    }

    /// Fails if the receiver has closed the connection.
    pub(super) fn notice(&mut self) -> Result<()> {
        let connection = self.connection.as_ref();
        if connection.is_none_or(|connection| is_open(&connection.stream)) {
            return Ok(());
        }
        self.end_connection();
        bail!(CLOSED)
    }

    /// Ends the connection. Unacknowledged flows count as lost.
    pub(super) fn end_connection(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            self.receipts.arrived += connection.arrived();
            if !connection.underway.is_empty() {
                // Reset the connection. Otherwise the kernel would keep sending flows that count as lost.
                let socket = SockRef::from(&connection.stream);
                if let Err(error) = socket.set_linger(Some(Duration::ZERO)) {
                    tracing::warn!(%error, "flows that count as lost may still arrive at {}", self.to);
                }
            }
            self.receipts.lost += connection.underway.rest();
        }
    }
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            underway: Underway::default(),
            is_in_message: false,
        }
    }

    async fn send(&mut self, message: &[u8]) -> Result<()> {
        // Templates announced on a closed connection are gone, so the caller must encode the message again.
        if !is_open(&self.stream) {
            bail!(CLOSED);
        }
        // The previous send was cancelled in the middle of a message.
        if replace(&mut self.is_in_message, true) {
            bail!("a message was cut off");
        }
        self.write(message).await?;
        self.is_in_message = false;
        Ok(())
    }

    /// Writes for as long as the receiver keeps taking data.
    async fn write(&mut self, mut message: &[u8]) -> Result<()> {
        while !message.is_empty() {
            let written = self.write_some(message).await?;
            self.underway.writes(written);
            message = &message[written..];
        }
        Ok(())
    }

    /// Writes what fits. The socket becomes writable only when a third of the send buffer is free, but a slow receiver
    /// acknowledges data long before that. So check for progress on every timeout.
    async fn write_some(&mut self, message: &[u8]) -> Result<usize> {
        let mut before = self.unacknowledged_bytes();
        loop {
            if let Ok(written) = timeout(PATIENCE, self.stream.write(message)).await {
                return written.context("write");
            }
            let now = self.unacknowledged_bytes();
            if now >= before {
                bail!("the receiver takes no data");
            }
            before = now;
        }
    }

    async fn close(&mut self, receipts: &mut Receipts) -> Result<()> {
        // Not tokio's shutdown, which does not report that the connection has already ended.
        let closed = SockRef::from(&self.stream).shutdown(Shutdown::Write);
        closed.context("close the connection")?;
        // The FIN takes a sequence number, like a byte.
        self.underway.writes(1);
        // When a receiver closes its side too, it has usually read everything.
        while self
            .stream
            .read(&mut [0; 4096])
            .await
            .context("wait for the receiver's end")?
            > 0
        {}
        // The receiver may have closed its side earlier, so wait for the acknowledgement too.
        loop {
            receipts.arrived += self.arrived();
            if self.underway.is_empty() {
                return Ok(());
            }
            // Fails if the kernel has dropped the connection.
            self.stream.peer_addr().context(CLOSED)?;
            sleep(ACKNOWLEDGED).await;
        }
    }

    fn arrived(&mut self) -> RecordSum {
        self.underway.arrived(self.unacknowledged_bytes())
    }

    /// `u64::MAX`, so that nothing counts as arrived, if the kernel does not say.
    fn unacknowledged_bytes(&self) -> u64 {
        unacknowledged_bytes(&self.stream).unwrap_or(u64::MAX)
    }
}

/// A connection with `TCP_NODELAY` that notices an unreachable receiver.
pub(super) async fn connect(to: &HostPort, patience: Duration) -> Result<TcpStream> {
    let looking_up = lookup_host((to.host.as_str(), to.port));
    let found = timeout(patience, looking_up)
        .await
        .context("looking up the host timed out")?
        .context("look up the host")?;
    let mut addresses: Vec<_> = found.collect();
    begin_anywhere(&mut addresses);
    let stream = connect_to_one(&addresses, patience).await?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_nodelay(true).context("send without delay")?;
    socket
        .set_tcp_user_timeout(Some(UNANSWERED))
        .context("notice a receiver that is gone")?;
    Ok(stream)
}

/// Starts at a random address. Receivers that share a name share the load, and one that accepts connections but takes
/// no data is not chosen forever.
fn begin_anywhere(addresses: &mut [SocketAddr]) {
    let random = RandomState::new().hash_one(0) as usize;
    addresses.rotate_left(random % addresses.len().max(1));
}

/// Tries the addresses in turn. Each gets an equal share of the time, so that an unresponsive one does not use it up.
async fn connect_to_one(addresses: &[SocketAddr], patience: Duration) -> Result<TcpStream> {
    let share = patience / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
    let mut failure = anyhow!("the host has no address");
    for &address in addresses {
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = anyhow!(error).context("connect"),
            Err(_) => failure = anyhow!("nobody answers"),
        }
    }
    Err(failure)
}

/// Whether the receiver has not closed the connection. Data from it is read and discarded, one piece per call.
fn is_open(stream: &TcpStream) -> bool {
    match stream.try_read(&mut [0; 4096]) {
        Ok(read) => read > 0,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use futures_util::FutureExt as _;
    use socket2::{Domain, Socket, Type};

    use super::*;

    const MOST_TIME: Duration = Duration::from_mins(2);

    #[tokio::test]
    async fn an_address_from_which_nothing_comes_back_keeps_none_from_the_next() {
        // One connection fills the backlog. Then the kernel no longer answers.
        let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        silent.bind(&any.into()).unwrap();
        silent.listen(0).unwrap();
        let address = silent.local_addr().unwrap().as_socket().unwrap();
        let _queued = TcpStream::connect(address).await.unwrap();
        let listener = tokio::net::TcpListener::bind(any).await.unwrap();
        let other = listener.local_addr().unwrap();
        let connected = connect_to_one(&[address, other], Duration::from_secs(10)).await;
        assert_eq!(connected.unwrap().peer_addr().unwrap(), other);
        let alone = connect_to_one(&[address], Duration::from_millis(100)).await;
        assert_eq!(alone.unwrap_err().to_string(), "nobody answers");
    }

    #[test]
    fn each_address_of_a_name_is_the_first_one_at_times() {
        let all = ["10.0.0.1:1", "10.0.0.2:1", "[::1]:1"].map(|one| one.parse().unwrap());
        let mut firsts = BTreeSet::new();
        for _ in 0..1000 {
            let mut addresses = all;
            begin_anywhere(&mut addresses);
            firsts.insert(addresses[0]);
            addresses.sort_unstable();
            assert_eq!(addresses, all, "none is forgotten");
        }
        assert_eq!(firsts.len(), all.len());
        begin_anywhere(&mut []);
    }

    /// The first message fits the receiver's kernel. The others are longer than its buffer.
    #[tokio::test]
    async fn what_a_receiver_that_resets_has_not_acknowledged_is_lost() {
        const SHORT: usize = 100;
        const LONG: usize = 30_000;
        let flows = |records| RecordSum {
            records,
            packets: 10 * records,
            bytes: 100 * records,
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let buffer = SockRef::from(&listener);
        buffer.set_recv_buffer_size(4096).unwrap();
        let address = listener.local_addr().unwrap();
        let mut tcp = Tcp::new(HostPort {
            host: address.ip().to_string(),
            port: address.port(),
        });
        let (sent, accepted) = tokio::join!(tcp.send(&[1; SHORT]), listener.accept());
        sent.unwrap();
        tcp.took(flows(1));
        let receiver = accepted.unwrap().0;
        let mut receipts = tcp.receipts();
        let acknowledged = async {
            while tcp.is_underway() {
                sleep(Duration::from_millis(1)).await;
                receipts.arrived += tcp.receipts().arrived;
            }
        };
        timeout(MOST_TIME, acknowledged).await.unwrap();
        assert_eq!(receipts.arrived, flows(1));

        let stream = SockRef::from(&tcp.connection.as_ref().unwrap().stream);
        stream.set_send_buffer_size(4 * LONG).unwrap();
        for records in [2, 4] {
            tcp.send(&vec![2; LONG]).await.unwrap();
            tcp.took(flows(records));
        }
        assert_eq!(tcp.receipts(), Receipts::default());
        let receiver = receiver.into_std().unwrap();
        let socket = SockRef::from(&receiver);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        drop(receiver);
        let reset = async {
            while tcp.send(&[3; SHORT]).await.is_ok() {
                tcp.took(flows(8));
            }
        };
        timeout(MOST_TIME, reset).await.unwrap();
        let Receipts { arrived, mut lost } = tcp.receipts();
        assert_eq!(arrived, flows(0));
        // Messages that the kernel accepted before it noticed the reset.
        while lost.records >= 8 {
            lost -= flows(8);
        }
        assert_eq!(lost, flows(6));
        assert!(!tcp.is_underway());
    }

    #[tokio::test]
    async fn a_message_that_was_broken_off_leaves_no_connection_for_the_next_one() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tcp = Tcp::new(HostPort {
            host: address.ip().to_string(),
            port: address.port(),
        });
        tcp.send(&[1; 10]).await.unwrap();
        let _silent = listener.accept().await.unwrap();
        // Longer than any buffer of the kernel.
        let long = vec![2; 64 << 20];
        assert!(tcp.send(&long).now_or_never().is_none());
        let next = tcp.send(&[3; 10]).await.unwrap_err();
        assert_eq!(next.to_string(), "a message was cut off");
        tcp.send(&[3; 10]).await.unwrap();
        let mut again = listener.accept().await.unwrap().0;
        let mut read = [0; 10];
        again.read_exact(&mut read).await.unwrap();
        assert_eq!(read, [3; 10]);
    }

    #[tokio::test]
    async fn of_what_a_receiver_says_one_piece_is_read_at_a_time() {
        const SAID_BYTES: usize = 64 << 10;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(connecting, listener.accept());
        let (mut stream, (mut receiver, _)) = (stream.unwrap(), accepted.unwrap());
        receiver.write_all(&vec![b'x'; SAID_BYTES]).await.unwrap();
        // Wait until the data is readable.
        stream.readable().await.unwrap();
        assert!(is_open(&stream));
        drop(receiver);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert!(rest.len() >= SAID_BYTES - 4096, "{}", rest.len());
        assert!(!is_open(&stream));
    }
}
