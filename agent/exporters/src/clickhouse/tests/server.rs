//! A server that accepts, refuses or breaks INSERTs as the test says.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use parquet::{
    file::reader::{FileReader as _, SerializedFileReader},
    record::Field,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream},
    net::{TcpListener, TcpStream},
    time::sleep,
};

const TAKEN: &str = "HTTP/1.1 200 OK\r\nx-clickhouse-query-id: 1\r\ncontent-length: 0\r\n\r\n";

/// What the server does with an INSERT.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    Take,
    TakeLate(Duration),
    Say(&'static str),
    /// Answers, then closes the connection.
    SayAndCut(&'static str),
    Cut,
    Hang,
}

/// The INSERTs received so far, and how to answer further ones.
#[derive(Default)]
pub struct Server {
    pub deeds: VecDeque<Deed>,
    /// Refuse an INSERT with one of these batches.
    pub refused: Vec<u64>,
    /// Fail an INSERT with one of these in a materialized view.
    pub thrown: Vec<u64>,
    /// Processing time per batch.
    pub slow: Duration,
    /// Each accepted INSERT: whether it went to the table of batches, and its batch numbers.
    pub taken: Vec<(bool, Vec<u64>)>,
    pub heads: Vec<String>,
}

pub type Shared = Arc<Mutex<Server>>;

pub fn lock(server: &Shared) -> std::sync::MutexGuard<'_, Server> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Also returns the port.
pub async fn listen(server: Server) -> (u16, Shared) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let shared = Arc::new(Mutex::new(server));
    let seen = Arc::clone(&shared);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(BufStream::new(stream), Arc::clone(&seen)));
        }
    });
    (port, shared)
}

async fn serve(mut stream: BufStream<TcpStream>, server: Shared) {
    while let Some((head, body)) = request(&mut stream).await {
        let deed = answer(&server, &head, body);
        if let Deed::TakeLate(pause) = deed {
            sleep(pause).await;
        }
        let answer = match deed {
            Deed::Take | Deed::TakeLate(_) => TAKEN,
            Deed::Say(answer) => answer,
            Deed::SayAndCut(answer) => {
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
                return;
            }
            Deed::Cut => return,
            Deed::Hang => std::future::pending().await,
        };
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    }
}

fn answer(server: &Shared, head: &str, body: Bytes) -> Deed {
    let mut server = lock(server);
    server.heads.push(head.to_owned());
    let deed = server.deeds.pop_front().unwrap_or(Deed::Take);
    if !matches!(deed, Deed::Take) {
        return deed;
    }
    let numbers = numbers(body);
    if server.refused.iter().any(|seq| numbers.contains(seq)) {
        return Deed::Say(
            "HTTP/1.1 400 Bad Request\r\nx-clickhouse-exception-code: 117\r\ncontent-length: 9\r\n\r\nCode: 117",
        );
    }
    if server.thrown.iter().any(|seq| numbers.contains(seq)) {
        return Deed::Say(
            "HTTP/1.1 500 Oh\r\nx-clickhouse-exception-code: 395\r\ncontent-length: 9\r\n\r\nCode: 395",
        );
    }
    let pause = server.slow * u32::try_from(numbers.len()).unwrap();
    server.taken.push((head.contains("t_batches"), numbers));
    Deed::TakeLate(pause)
}

/// The head and the body of a request.
async fn request(stream: &mut BufStream<TcpStream>) -> Option<(String, Bytes)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let (_, length) = head.split_once("content-length: ").unwrap();
    let (length, _) = length.split_once("\r\n").unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body.into()))
}

/// The batch numbers of these rows.
fn numbers(rows: Bytes) -> Vec<u64> {
    let file = SerializedFileReader::new(rows).unwrap();
    let rows = file.get_row_iter(None).unwrap();
    let number = |row: parquet::record::Row| {
        let mut columns = row.into_columns().into_iter();
        let (_, value) = columns.find(|(name, _)| name == "stream_seq").unwrap();
        let Field::ULong(number) = value else {
            panic!("{value}");
        };
        number
    };
    let mut numbers: Vec<_> = rows.map(|row| number(row.unwrap())).collect();
    numbers.dedup();
    numbers
}
