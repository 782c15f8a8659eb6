//! A receiver of OTLP over HTTP that behaves as a test wants.

use std::{
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Instant,
};

use flate2::read::GzDecoder;
use lab::Lab;

#[derive(Clone)]
pub struct Request {
    pub path: String,
    pub is_gzip: bool,
    /// Unpacked.
    pub body: Vec<u8>,
    pub at: Instant,
}

pub enum Answer {
    /// Taken, with this message.
    Ok(Vec<u8>),
    /// Another status, with header lines.
    Status(&'static str, &'static str),
    Garbage,
    /// The connection ends without an answer.
    Hangup,
    /// Nothing ever comes.
    Hang,
}

impl Answer {
    pub fn ok() -> Self {
        Self::Ok(Vec::new())
    }

    pub fn status(status: &'static str, headers: &'static str) -> Self {
        Self::Status(status, headers)
    }
}

pub struct Receiver {
    pub port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    /// Listens on the agent's host. `answer` gets each request with its number, from 0.
    pub fn start(lab: &Lab, answer: impl Fn(&Request, usize) -> Answer + Send + 'static) -> Self {
        let listen = || Ok(TcpListener::bind("127.0.0.1:0")?);
        let listener = lab.agent.namespace.enter(listen).unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let seen = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                serve(&stream.unwrap(), &seen, &answer);
            }
        });
        Self { port, requests }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

/// One connection; the agent has one at a time.
fn serve(
    stream: &TcpStream,
    seen: &Mutex<Vec<Request>>,
    answer: &impl Fn(&Request, usize) -> Answer,
) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        let mut stream = stream;
        let (head, body) = match answer(&request, number) {
            Answer::Ok(body) => {
                let kind = "content-type: application/x-protobuf\r\n";
                (format!("HTTP/1.1 200 OK\r\n{kind}"), body)
            }
            Answer::Status(status, headers) => {
                (format!("HTTP/1.1 {status}\r\n{headers}"), Vec::new())
            }
            Answer::Garbage => {
                let _ = stream.write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n");
                return;
            }
            Answer::Hangup => return,
            Answer::Hang => {
                // Until the agent gives up.
                let _ = reader.read_to_end(&mut Vec::new());
                return;
            }
        };
        let answer = format!("{head}content-length: {}\r\n\r\n", body.len());
        let answer = [answer.as_bytes(), &body].concat();
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

/// `None` at the end of the connection.
fn read(reader: &mut impl BufRead) -> Option<Request> {
    let first = line(reader)?;
    let path = first.split(' ').nth(1)?.to_owned();
    let (mut len, mut is_gzip) = (0, false);
    loop {
        let header = line(reader)?.to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length: ") {
            len = value.parse().unwrap();
        }
        is_gzip |= header == "content-encoding: gzip";
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    if is_gzip {
        let mut unpacked = Vec::new();
        GzDecoder::new(&body[..])
            .read_to_end(&mut unpacked)
            .unwrap();
        body = unpacked;
    }
    Some(Request {
        path,
        is_gzip,
        body,
        at: Instant::now(),
    })
}

fn line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    let read = reader.read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim_end().to_owned())
}
