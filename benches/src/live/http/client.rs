//! The client sends each request when it is due, whether or not earlier ones were answered, and measures how long users
//! would have waited.

use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::{
    latency::{Latencies, Percentiles, Schedule},
    message::{REQUEST, is_answer},
    ready::Ready,
};

/// How long to wait for answers after the last request was due. It is also the latency of a failed request.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub server: SocketAddr,
    pub requests_per_second: u32,
    /// Requests during the warm-up are counted, but not their latency.
    pub warm_up: Duration,
    pub window: Duration,
    /// A request that finds no idle connection waits for one, and the wait counts as latency.
    pub connections: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Only requests that were due in the window.
    pub latency: Percentiles,
    /// Answered requests that were due in the window, divided by the time to the last answer or to the window's end,
    /// whichever is later.
    pub requests_per_second: f64,
    /// Answered requests, including the warm-up.
    pub answered: u64,
    /// Unanswered requests, including the warm-up.
    pub failed: u64,
}

struct Client {
    plan: Plan,
    schedule: Schedule,
    ready: Ready,
    connections: Vec<Connection>,
    idle: VecDeque<usize>,
    /// Requests that are due and wait for an idle connection.
    waiting: VecDeque<u64>,
    under_way: usize,
    warm_up_requests: u64,
    latencies: Latencies,
    answered: u64,
    answered_in_window: u64,
    failed: u64,
    last_answer: Instant,
}

struct Connection {
    stream: TcpStream,
    request: Option<u64>,
    received: Vec<u8>,
}

pub fn run(plan: Plan) -> Result<Outcome> {
    let ready = Ready::new()?;
    let connections = (0..plan.connections)
        .map(|index| Connection::open(plan.server, &ready, index))
        .collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let mut client = Client {
        plan,
        schedule: Schedule {
            start,
            requests_per_second: plan.requests_per_second,
        },
        ready,
        idle: (0..connections.len()).collect(),
        connections,
        waiting: VecDeque::new(),
        under_way: 0,
        warm_up_requests: Schedule::requests_in(plan.requests_per_second, plan.warm_up),
        latencies: Latencies::default(),
        answered: 0,
        answered_in_window: 0,
        failed: 0,
        last_answer: start,
    };
    client.send_all()?;
    client.outcome()
}

impl Client {
    fn send_all(&mut self) -> Result<()> {
        let time = self.plan.warm_up + self.plan.window;
        let requests = Schedule::requests_in(self.plan.requests_per_second, time);
        let give_up = self.schedule.due(requests) + PATIENCE;
        let mut next = 0;
        let mut tokens = Vec::new();
        loop {
            while next < requests && self.schedule.due(next) <= Instant::now() {
                self.waiting.push_back(next);
                next += 1;
            }
            self.send_waiting()?;
            let is_done = next == requests && self.under_way == 0 && self.waiting.is_empty();
            if is_done || Instant::now() >= give_up {
                return Ok(());
            }
            let until = if next < requests {
                self.schedule.due(next)
            } else {
                give_up
            };
            self.ready.wait(Some(until), &mut tokens)?;
            for &token in &tokens {
                self.receive(token as usize)?;
            }
        }
    }

    fn send_waiting(&mut self) -> Result<()> {
        while let Some(&request) = self.waiting.front()
            && let Some(index) = self.idle.pop_front()
        {
            self.waiting.pop_front();
            self.under_way += 1;
            let connection = &mut self.connections[index];
            connection.request = Some(request);
            // The send buffer is empty, because the previous request was answered.
            let sent = connection.stream.write(REQUEST);
            if !matches!(sent, Ok(len) if len == REQUEST.len()) {
                self.replace(index)?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, index: usize) -> Result<()> {
        let connection = &mut self.connections[index];
        match connection.receive() {
            Ok(false) => {}
            Ok(true) => {
                let request = connection.request.take().context("a request was sent")?;
                self.last_answer = Instant::now();
                let latency = self.last_answer - self.schedule.due(request);
                self.answered += 1;
                self.answered_in_window += u64::from(self.is_measured(request));
                self.settle(request, index, latency);
            }
            Err(_) => self.replace(index)?,
        }
        Ok(())
    }

    fn settle(&mut self, request: u64, index: usize, latency: Duration) {
        self.under_way -= 1;
        self.idle.push_back(index);
        if self.is_measured(request) {
            self.latencies.record(latency);
        }
    }

    fn is_measured(&self, request: u64) -> bool {
        request >= self.warm_up_requests
    }

    /// Replaces a broken connection. Its request, if any, has failed.
    fn replace(&mut self, index: usize) -> Result<()> {
        let request = self.connections[index].request.take();
        self.connections[index] = Connection::open(self.plan.server, &self.ready, index)?;
        if let Some(request) = request {
            self.failed += 1;
            self.settle(request, index, PATIENCE);
        }
        Ok(())
    }

    fn outcome(mut self) -> Result<Outcome> {
        let open = self.connections.iter().filter_map(|one| one.request);
        let unanswered: Vec<u64> = open.chain(self.waiting.iter().copied()).collect();
        self.failed += unanswered.len() as u64;
        let now = Instant::now();
        for request in unanswered {
            if self.is_measured(request) {
                let waited = now - self.schedule.due(request);
                self.latencies.record(waited.max(PATIENCE));
            }
        }
        let window_start = self.schedule.start + self.plan.warm_up;
        let until = self.last_answer.max(window_start + self.plan.window);
        let time = until - window_start;
        Ok(Outcome {
            latency: self
                .latencies
                .percentiles()
                .context("no request was due in the window")?,
            requests_per_second: self.answered_in_window as f64 / time.as_secs_f64(),
            answered: self.answered,
            failed: self.failed,
        })
    }
}

impl Connection {
    fn open(server: SocketAddr, ready: &Ready, index: usize) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)
            .with_context(|| format!("connect to {server}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        ready.add(&stream, index as u64)?;
        Ok(Self {
            stream,
            request: None,
            received: Vec::new(),
        })
    }

    /// Whether the answer is complete. Fails if no complete answer can come.
    fn receive(&mut self) -> Result<bool> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(len) => self.received.extend(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error).context("read an answer"),
        }
        let is_complete = is_answer(&self.received)?;
        if is_complete {
            self.received.clear();
        }
        Ok(is_complete)
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;
    use crate::live::http::{message::answer, server::Server};

    fn plan(server: SocketAddr) -> Plan {
        Plan {
            server,
            requests_per_second: 200,
            warm_up: Duration::from_millis(100),
            window: Duration::from_millis(900),
            connections: 8,
        }
    }

    #[test]
    fn every_request_is_answered_after_the_server_s_delay() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let plan = plan(listener.local_addr().unwrap());
        // The thread ends with the process.
        thread::spawn(|| {
            Server::new(listener, Duration::from_millis(5))
                .unwrap()
                .run()
        });
        let outcome = run(plan).unwrap();
        assert_eq!((outcome.answered, outcome.failed), (200, 0));
        assert!(
            outcome.latency.p50 >= Duration::from_millis(5),
            "{outcome:?}"
        );
    }

    #[test]
    fn requests_that_were_due_during_a_stall_waited() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let plan = Plan {
            connections: 1,
            ..plan(listener.local_addr().unwrap())
        };
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 1024];
            for number in 0.. {
                if stream.read(&mut buffer).unwrap_or(0) == 0 {
                    return;
                }
                if number == 50 {
                    thread::sleep(Duration::from_millis(400));
                }
                if stream.write_all(&answer()).is_err() {
                    return;
                }
            }
        });
        let outcome = run(plan).unwrap();
        // Only one request in 200 hit the sleeping server directly, but 80 became due while it slept.
        assert!(
            outcome.latency.p99 > Duration::from_millis(300),
            "{outcome:?}"
        );
        assert_eq!(outcome.failed, 0);
    }

    #[test]
    fn what_a_server_does_not_answer_failed_and_counts_as_the_longest_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let plan = Plan {
            window: Duration::from_millis(100),
            ..plan(listener.local_addr().unwrap())
        };
        let outcome = run(plan).unwrap();
        assert_eq!((outcome.answered, outcome.failed), (0, 40));
        assert!(outcome.latency.p50 >= PATIENCE, "{outcome:?}");
        drop(listener);
    }
}
