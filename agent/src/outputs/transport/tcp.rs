//! Messages on a TCP connection. What the kernel has taken counts as sent; a receiver that goes away may not have read
//! all of it.

use anyhow::{Context as _, Result, bail};
use socket2::SockRef;
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    time::{sleep, timeout},
};

use super::PATIENCE;
use crate::outputs::settings::HostPort;

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
            None => self.connect().await?,
        };
        write(&mut stream, message).await?;
        self.stream = Some(stream);
        Ok(())
    }

    pub(super) async fn close(&mut self) -> Result<()> {
        if let Some(mut stream) = self.stream.take() {
            stream.shutdown().await.context("close the connection")?;
        }
        Ok(())
    }

    async fn connect(&self) -> Result<TcpStream> {
        let connecting = TcpStream::connect((self.to.host.as_str(), self.to.port));
        let stream = timeout(PATIENCE, connecting)
            .await
            .context("nobody answers")?
            .context("connect")?;
        SockRef::from(&stream)
            .set_tcp_nodelay(true)
            .context("send without delay")?;
        Ok(stream)
    }
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

/// Whether the receiver has not closed it. It has nothing to say otherwise; what it says is not read.
fn is_open(stream: &TcpStream) -> bool {
    let mut said = [0; 64];
    loop {
        match stream.try_read(&mut said) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}
