//! Complete conversations over real sockets between the two hosts of a lab with addresses.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use crate::Host;

/// Longer than any answer on a veth takes.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Selects one of a host's two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    V4,
    V6,
}

/// The endpoints of a finished conversation.
#[derive(Clone, Copy, Debug)]
pub struct Conversation {
    pub client: SocketAddr,
    pub server: SocketAddr,
}

impl Host {
    pub fn address(&self, version: IpVersion) -> IpAddr {
        match version {
            IpVersion::V4 => self.ipv4.into(),
            IpVersion::V6 => self.ipv6.into(),
        }
    }
}

/// The client connects, sends `bytes` bytes and closes. The server reads to the end, then closes.
pub fn tcp(
    client: &Host,
    server: &Host,
    version: IpVersion,
    port: u16,
    bytes: u64,
) -> Result<Conversation> {
    let listener = server.namespace.enter(|| {
        TcpListener::bind((server.address(version), port)).context("bind a TCP listener")
    })?;
    let server_address = listener.local_addr().context("the listener's address")?;
    thread::scope(|scope| {
        let reader = scope.spawn(move || read_to_end(&listener));
        let client_address = client.namespace.enter(|| {
            let mut stream = TcpStream::connect_timeout(&server_address, TIMEOUT)
                .with_context(|| format!("connect to {server_address}"))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            // A frame is at most as long as one write. This much fills a BIG TCP frame.
            let chunk = vec![0x5A; 1 << 20];
            let mut rest = bytes;
            while rest > 0 {
                let len = rest.min(chunk.len() as u64) as usize;
                stream
                    .write_all(&chunk[..len])
                    .context("send to the TCP server")?;
                rest -= len as u64;
            }
            stream
                .shutdown(Shutdown::Write)
                .context("shut the TCP stream down")?;
            ensure!(
                stream.read(&mut [0])? == 0,
                "the TCP server answers nothing"
            );
            Ok(stream.local_addr()?)
        });
        // If the client failed, return its error. The server gives up on its own.
        let client_address = client_address?;
        let received = reader
            .join()
            .map_err(|_| anyhow::anyhow!("the TCP server panicked"))??;
        ensure!(
            received == bytes,
            "{received} of {bytes} bytes arrived over TCP"
        );
        Ok(Conversation {
            client: client_address,
            server: server_address,
        })
    })
}

/// The client sends datagrams with the given payload length. The server answers each with one of the same length.
pub fn udp(
    client: &Host,
    server: &Host,
    version: IpVersion,
    port: u16,
    datagrams: u32,
    payload_len_bytes: usize,
) -> Result<Conversation> {
    let bind = |host: &Host, port: u16| {
        host.namespace.enter(|| {
            let socket =
                UdpSocket::bind((host.address(version), port)).context("bind a UDP socket")?;
            socket
                .set_read_timeout(Some(TIMEOUT))
                .context("set a read timeout")?;
            Ok(socket)
        })
    };
    let answering = bind(server, port)?;
    let asking = bind(client, 0)?;
    let server_address = answering.local_addr()?;
    asking
        .connect(server_address)
        .context("connect a UDP socket")?;
    let payload = vec![0x5A; payload_len_bytes];
    let mut buffer = vec![0; 1 << 16];
    for _ in 0..datagrams {
        asking.send(&payload).context("send a datagram")?;
        let (len, from) = answering
            .recv_from(&mut buffer)
            .context("receive a datagram")?;
        answering
            .send_to(&buffer[..len], from)
            .context("answer a datagram")?;
        asking.recv(&mut buffer).context("receive the answer")?;
    }
    Ok(Conversation {
        client: asking.local_addr()?,
        server: server_address,
    })
}

/// Sends ten echo requests a second with the `ping` command. Each must be answered.
pub fn ping(from: &Host, to: &Host, version: IpVersion, count: u32) -> Result<()> {
    let target = to.address(version).to_string();
    let status = from
        .command("ping")
        .args([
            "-n",
            "-q",
            "-i",
            "0.1",
            "-W",
            "5",
            "-c",
            &count.to_string(),
            &target,
        ])
        .stdout(Stdio::null())
        .status()
        .context("start ping")?;
    ensure!(status.success(), "ping {target}: {status}");
    Ok(())
}

/// Accepts the next stream. It times out, so that a failed client does not block the test.
fn accept(listener: &TcpListener) -> Result<TcpStream> {
    listener
        .set_nonblocking(true)
        .context("make the listener non-blocking")?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream
                    .set_nonblocking(false)
                    .context("make the stream blocking")?;
                return Ok(stream);
            }
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).context("accept a TCP stream"),
        }
    }
}

/// Accepts one stream and counts its bytes to the end.
fn read_to_end(listener: &TcpListener) -> Result<u64> {
    let mut stream = accept(listener)?;
    stream
        .set_read_timeout(Some(TIMEOUT))
        .context("set a read timeout")?;
    let mut buffer = vec![0; 1 << 16];
    let mut received = 0;
    loop {
        match stream.read(&mut buffer).context("receive over TCP")? {
            0 => return Ok(received),
            len => received += len as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lab, privilege::is_root_or_skip};

    #[test]
    fn conversations_put_only_their_own_packets_on_the_wire() {
        if !is_root_or_skip("lab::conversations_put_only_their_own_packets_on_the_wire") {
            return;
        }
        let lab = Lab::addressed().unwrap();
        for version in [IpVersion::V4, IpVersion::V6] {
            let before = lab.agent.counters().unwrap();
            udp(&lab.peer, &lab.agent, version, 5000, 10, 100).unwrap();
            ping(&lab.peer, &lab.agent, version, 3).unwrap();
            let seen = lab.agent.counters().unwrap() - before;
            assert_eq!((seen.rx_packets, seen.tx_packets), (13, 13));

            let ends = tcp(&lab.peer, &lab.agent, version, 5001, 1_000_000).unwrap();
            assert_eq!(
                ends.server,
                SocketAddr::new(lab.agent.address(version), 5001)
            );
            assert_eq!(ends.client.ip(), lab.peer.address(version));
            let seen = lab.agent.counters().unwrap() - before;
            assert!(
                seen.rx_bytes > 1_000_000 && seen.rx_packets > 13 + 600,
                "{seen:?}"
            );
        }
    }
}
