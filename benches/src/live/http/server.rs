//! A single-threaded server that answers each request with 1 KB after a constant delay.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{
    message::{answer, is_request},
    ready::Ready,
};

const LISTENER: u64 = 0;

pub struct Server {
    listener: TcpListener,
    /// Between the end of a request and its answer.
    delay: Duration,
    ready: Ready,
    connections: HashMap<u64, Connection>,
    last_token: u64,
    /// Sorted by time, since every request has the same delay.
    due: VecDeque<(Instant, u64)>,
}

struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Server {
    pub fn new(listener: TcpListener, delay: Duration) -> Result<Self> {
        listener
            .set_nonblocking(true)
            .context("make the listener non-blocking")?;
        let ready = Ready::new()?;
        ready.add(&listener, LISTENER)?;
        Ok(Self {
            listener,
            delay,
            ready,
            connections: HashMap::new(),
            last_token: LISTENER,
            due: VecDeque::new(),
        })
    }

    /// Serves until the process is killed.
    pub fn run(mut self) -> Result<()> {
        let answer = answer();
        let mut tokens = Vec::new();
        loop {
            let next = self.due.front().map(|(due, _)| *due);
            self.ready.wait(next, &mut tokens)?;
            for &token in &tokens {
                if token == LISTENER {
                    self.accept()?;
                } else {
                    self.read(token);
                }
            }
            while let Some((due, token)) = self.due.front().copied()
                && due <= Instant::now()
            {
                self.due.pop_front();
                self.answer(token, &answer);
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    self.last_token += 1;
                    self.ready.add(&stream, self.last_token)?;
                    let connection = Connection {
                        stream,
                        received: Vec::new(),
                    };
                    self.connections.insert(self.last_token, connection);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("accept a connection"),
            }
        }
    }

    /// Closes a connection that ended or failed. The client accounts for its request.
    fn read(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let mut buffer = [0; 1024];
        match connection.stream.read(&mut buffer) {
            Ok(len) if len > 0 => connection.received.extend(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(_) | Err(_) => {
                self.connections.remove(&token);
                return;
            }
        }
        if is_request(&connection.received) {
            connection.received.clear();
            self.due.push_back((Instant::now() + self.delay, token));
        }
    }

    fn answer(&mut self, token: u64, answer: &[u8]) {
        // The send buffer has room: a connection has at most one answer outstanding.
        let sent = self
            .connections
            .get_mut(&token)
            .map(|connection| connection.stream.write(answer));
        if !matches!(sent, Some(Ok(len)) if len == answer.len()) {
            self.connections.remove(&token);
        }
    }
}
