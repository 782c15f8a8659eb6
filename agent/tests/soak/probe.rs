//! Measures how responsive the host is for others: how late a timer is, and how long a TCP connection on
//! another namespace's loopback takes.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use lab::{AtEnd, Namespace};

const PAUSE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(20);

/// Sorted times.
pub struct Times(Vec<Duration>);

pub struct Responses {
    /// By how much a sleep of five milliseconds was too long.
    pub late: Times,
    /// The time to connect, send a byte and get it back.
    pub echo: Times,
}

impl Times {
    pub fn percentile(&self, percent: usize) -> Duration {
        let last = self.0.len() - 1;
        self.0[(last * percent).div_ceil(100)]
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |percent| self.percentile(percent).as_micros();
        write!(
            f,
            "p50 {} µs, p99 {} µs, most {} µs of {}",
            micros(50),
            micros(99),
            micros(100),
            self.0.len()
        )
    }
}

/// Probes for as long as `work` takes.
pub fn during(work: impl FnOnce()) -> Responses {
    let namespace = Namespace::new("bystander").unwrap();
    let listener = namespace
        .enter(|| Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?))
        .unwrap();
    let address = listener.local_addr().unwrap();
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let end = AtEnd(|| is_over.store(true, Ordering::Relaxed));
        let late = scope.spawn(|| {
            again_until(is_over, || {
                let start = Instant::now();
                thread::sleep(PAUSE);
                start.elapsed().saturating_sub(PAUSE)
            })
        });
        let server = scope.spawn(|| {
            for stream in listener.incoming() {
                let mut byte = [0];
                let mut stream = stream.unwrap();
                // The last client sends nothing.
                if stream.read(&mut byte).unwrap() == 0 {
                    return;
                }
                stream.write_all(&byte).unwrap();
            }
        });
        let echo = scope.spawn(|| {
            let ask = || -> io::Result<Duration> {
                thread::sleep(PAUSE);
                let start = Instant::now();
                let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(&[7])?;
                stream.read_exact(&mut [0])?;
                Ok(start.elapsed())
            };
            let times = namespace.enter(|| {
                let _last = AtEnd(|| drop(TcpStream::connect(address)));
                Ok(again_until(is_over, || ask().unwrap()))
            });
            times.unwrap()
        });
        work();
        drop(end);
        let responses = Responses {
            late: late.join().unwrap(),
            echo: echo.join().unwrap(),
        };
        server.join().unwrap();
        responses
    })
}

/// Repeats until the flag is set, but at least once.
fn again_until(is_over: &AtomicBool, mut once: impl FnMut() -> Duration) -> Times {
    let mut times = vec![once()];
    while !is_over.load(Ordering::Relaxed) {
        times.push(once());
    }
    times.sort_unstable();
    Times(times)
}
