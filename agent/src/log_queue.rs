//! Writes the log from its own thread, so that logging never blocks.
//!
//! If the reader of the log stops, up to [`QUEUED_LINES`] lines are queued; further ones are dropped and counted.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, Receiver, SyncSender, TrySendError},
    },
    thread,
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

const QUEUED_LINES: usize = 1024;

/// How long the process waits at exit until the log is written.
pub const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends lines to the thread. Clones write to the same queue.
#[derive(Clone)]
pub struct LogQueue {
    sender: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

enum Message {
    Event(Vec<u8>),
    Text(String),
    /// Asks for a reply once everything queued before it is written.
    Written(SyncSender<()>),
}

/// The destination of the log.
pub trait Output: Send + 'static {
    /// Writes an event in the bytes of its formatter.
    fn event(&mut self, event: &[u8]) -> io::Result<()>;
    /// Writes plain text for people.
    fn text(&mut self, text: &str) -> io::Result<()>;
}

impl<W: Write + Send + 'static> Output for W {
    fn event(&mut self, event: &[u8]) -> io::Result<()> {
        self.write_all(event)
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.write_all(text.as_bytes())
    }
}

impl LogQueue {
    /// Starts the thread that writes to `output`.
    pub fn start(output: impl Output) -> io::Result<Self> {
        let (sender, messages) = mpsc::sync_channel(QUEUED_LINES);
        let lost = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&lost);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write(&messages, &counter, output))?;
        Ok(Self { sender, lost })
    }

    /// Queues lines that end with a line break. Drops them if the queue is full.
    pub fn text(&self, text: String) {
        self.queue(Message::Text(text));
    }

    fn queue(&self, message: Message) {
        match self.sender.try_send(message) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.lost.fetch_add(1, Relaxed);
            }
        }
    }

    /// Waits until everything logged so far is written, `timeout` at most.
    pub fn flush(&self, timeout: Duration) {
        let (written, is_written) = mpsc::sync_channel(1);
        // A full queue means that nobody reads it, so waiting would not help.
        if self.sender.try_send(Message::Written(written)).is_ok() {
            let _ = is_written.recv_timeout(timeout);
        }
    }
}

/// Writes messages until the last sender is gone.
fn write(messages: &Receiver<Message>, lost: &AtomicU64, mut output: impl Output) {
    for message in messages {
        match message {
            // If the log cannot be written, there is no place left to report that.
            Message::Event(event) => drop(output.event(&event)),
            Message::Text(text) => drop(output.text(&text)),
            Message::Written(written) => drop(written.try_send(())),
        }
        let lost = lost.swap(0, Relaxed);
        if lost != 0 {
            let _ = output.text(&format!(
                "{lost} log lines were lost here: nobody read them\n"
            ));
        }
    }
}

impl Write for LogQueue {
    /// Queues one whole event. Drops it if the queue is full.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.queue(Message::Event(event.to_vec()));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogQueue {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use super::*;

    #[test]
    fn a_reader_that_stops_holds_nobody_and_learns_what_it_missed() {
        let (reader, writer) = io::pipe().unwrap();
        let mut queue = LogQueue::start(writer).unwrap();
        let line = [&[b'x'; 999][..], b"\n"].concat();
        // More lines than the pipe and the queue hold together, at any page size.
        let written = 10_000;
        for _ in 0..written {
            queue.write_all(&line).unwrap();
        }
        drop(queue);
        let (mut read, mut lost) = (0, 0);
        for line in BufReader::new(reader).lines() {
            let line = line.unwrap();
            match line.split_once(" log lines were lost") {
                Some((number, _)) => lost += number.parse::<u64>().unwrap(),
                None => read += 1,
            }
        }
        assert!(lost > 0 && read >= QUEUED_LINES as u64);
        assert_eq!(read + lost, written);
    }

    #[test]
    fn a_flush_returns_when_all_is_written() {
        let (reader, writer) = io::pipe().unwrap();
        let mut queue = LogQueue::start(writer).unwrap();
        queue.write_all(b"one\n").unwrap();
        LogQueue::flush(&queue, Duration::from_mins(1));
        drop(queue);
        let lines: Vec<_> = BufReader::new(reader).lines().map(Result::unwrap).collect();
        assert_eq!(lines, ["one"]);
    }
}
