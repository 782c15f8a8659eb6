//! Messages on a TCP connection. What the kernel has taken counts as sent; a receiver that goes away may not have read
//! all of it.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, lookup_host},
    time::{sleep, timeout},
};

use super::PATIENCE;
use crate::outputs::settings::HostPort;

/// How long what was sent may stay unanswered before the receiver's machine counts as gone. The kernel alone would take a
/// quarter of an hour.
const UNANSWERED: Duration = Duration::from_secs(30);

pub(in crate::outputs) struct Tcp {
    pub(super) to: HostPort,
    stream: Option<TcpStream>,
}

impl Tcp {
    pub(in crate::outputs) fn new(to: HostPort) -> Self {
        Self { to, stream: None }
    }

    pub(super) async fn send(&mut self, message: &[u8]) -> Result<()> {
        // Taken, so that a future that is dropped in the middle of a message leaves no connection for the next one.
        let connected = self.stream.take();
        let mut stream = match connected {
            Some(stream) if is_open(&stream) => stream,
            // What was announced on the old connection is gone, so the caller makes the message anew.
            Some(_) => bail!("the receiver closed the connection"),
            None => connect(&self.to, PATIENCE).await?,
        };
        write(&mut stream, message).await?;
        self.stream = Some(stream);
        Ok(())
    }

    pub(super) async fn close(&mut self) -> Result<()> {
        if let Some(mut stream) = self.stream.take() {
            stream.shutdown().await.context("close the connection")?;
            // The receiver has read everything when it closes its side, too.
            while stream
                .read(&mut [0; 4096])
                .await
                .context("wait for the receiver's end")?
                > 0
            {}
        }
        Ok(())
    }
}

/// A connection that does not wait to fill packets, and that notices a receiver which is gone.
pub(super) async fn connect(to: &HostPort, patience: Duration) -> Result<TcpStream> {
    let looking_up = lookup_host((to.host.as_str(), to.port));
    let found = timeout(patience, looking_up)
        .await
        .context("nobody tells the address of the host")?
        .context("look up the host")?;
    let stream = connect_to_one(&found.collect::<Vec<_>>(), patience).await?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_nodelay(true).context("send without delay")?;
    socket
        .set_tcp_user_timeout(Some(UNANSWERED))
        .context("notice a receiver that is gone")?;
    Ok(stream)
}

/// Tries one address after the other. Each has its share of the time, so that one from which nothing comes back does not
/// keep the next from being tried.
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

/// Writes as long as the receiver takes something.
async fn write(stream: &mut TcpStream, mut message: &[u8]) -> Result<()> {
    while !message.is_empty() {
        let written = tokio::select! {
            written = stream.write(message) => written.context("write")?,
            () = sleep(PATIENCE) => bail!("the receiver takes nothing"),
        };
        message = &message[written..];
    }
    Ok(())
}

/// Whether the receiver has not closed it. It has nothing to say: what it says is read a piece at a time and forgotten.
fn is_open(stream: &TcpStream) -> bool {
    match stream.try_read(&mut [0; 4096]) {
        Ok(read) => read > 0,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::*;

    #[tokio::test]
    async fn an_address_from_which_nothing_comes_back_keeps_none_from_the_next() {
        // Its queue is full with one connection, and then the kernel answers no more.
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

    #[tokio::test]
    async fn of_what_a_receiver_says_one_piece_is_read_at_a_time() {
        const SAID_BYTES: usize = 64 << 10;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(connecting, listener.accept());
        let (mut stream, (mut receiver, _)) = (stream.unwrap(), accepted.unwrap());
        receiver.write_all(&vec![b'x'; SAID_BYTES]).await.unwrap();
        // Only then is it known that there is something to read.
        stream.readable().await.unwrap();
        assert!(is_open(&stream));
        drop(receiver);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert!(rest.len() >= SAID_BYTES - 4096, "{}", rest.len());
        assert!(!is_open(&stream));
    }
}
