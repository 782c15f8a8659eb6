//! Writes the log to systemd's journal in its native protocol, so that it can be filtered by priority and by field:
//! `journalctl -u flow-agent FLOW_AGENT_INTERFACE=eth0`.

use std::{
    env,
    fmt::{self, Debug, Write as _},
    io::{self, Write as _},
    os::unix::net::UnixDatagram,
};

use formats::harmless::harmless;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, format::Writer},
    registry::{LookupSpan, Scope},
};

use crate::log_queue::Output;

const SOCKET: &str = "/run/systemd/journal/socket";
const IDENTIFIER: &str = "flow-agent";
/// Prefix of the field names.
const PREFIX: &str = "FLOW_AGENT_";

/// The journal's socket. Each event is one datagram.
pub struct Journal(UnixDatagram);

impl Journal {
    /// The journal, if stderr leads there. systemd says so in `JOURNAL_STREAM`, which a child of the service inherits
    /// even if its stderr leads elsewhere.
    pub fn behind_stderr() -> Option<io::Result<Self>> {
        let stream = env::var("JOURNAL_STREAM").ok()?;
        let stderr = rustix::fs::fstat(io::stderr()).ok()?;
        let is_it = stream == format!("{}:{}", stderr.st_dev, stderr.st_ino);
        is_it.then(Self::open)
    }

    fn open() -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(SOCKET)?;
        Ok(Self(socket))
    }

    /// Sends a message. One that is too long for the socket goes to stderr instead, without fields.
    fn send(&self, message: &[u8]) -> io::Result<()> {
        match self.0.send(message) {
            Ok(_) => Ok(()),
            Err(_) => io::stderr().write_all(text_of(message)),
        }
    }
}

/// The text behind the fields.
fn text_of(message: &[u8]) -> &[u8] {
    const START: &[u8] = b"\nMESSAGE=";
    let start = message.windows(START.len()).position(|part| part == START);
    start.map_or(message, |start| &message[start + START.len()..])
}

impl Output for Journal {
    fn event(&mut self, event: &[u8]) -> io::Result<()> {
        self.send(event)
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        io::stderr().write_all(with_priority(text, Level::ERROR).as_bytes())
    }
}

/// Prefixes each line with its priority, the form that the journal reads from stderr. The service manager opened stderr
/// for the unit, so these lines always belong to it. For a native message the journal looks up the sender's cgroup,
/// which an exiting process may have left by then; the unit's log would lack the reason for its end.
fn with_priority(text: &str, level: Level) -> String {
    let priority = priority(level);
    text.trim_end()
        .lines()
        .fold(String::new(), |mut all, line| {
            // Writing to a string does not fail.
            let _ = writeln!(all, "<{priority}>{line}");
            all
        })
}

/// Priority numbers as in syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Formats an event as lines `NAME=VALUE`. Values contain no line breaks.
pub struct JournalFormat;

impl<S, N> FormatEvent<S, N> for JournalFormat
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        writeln!(writer, "PRIORITY={}", priority(*metadata.level()))?;
        writeln!(writer, "SYSLOG_IDENTIFIER={IDENTIFIER}")?;
        let mut fields = Fields {
            lines: String::new(),
            target: metadata.target().to_owned(),
        };
        event.record(&mut fields);
        writeln!(writer, "TARGET={}", fields.target)?;
        writer.write_str(&fields.lines)?;
        // The network namespace that a thread works in; see `Namespace::span`.
        let mut place = String::new();
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                let name: String = span.name().chars().map(as_in_a_name).collect();
                let value = fields.strip_prefix("name=").unwrap_or(fields);
                writeln!(writer, "{PREFIX}{name}={value}")?;
                write!(place, "{}{{{fields}}}: ", span.name())?;
            }
        }
        write!(writer, "MESSAGE={place}")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// An event's fields. [`FormatFields`] writes the message as well.
struct Fields {
    lines: String,
    /// The module that logged the event.
    target: String,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str) {
        let value = harmless(value);
        match field.name() {
            "message" => {}
            // Events of the `log` crate carry their origin in fields.
            "log.target" => self.target = value.into_owned(),
            name if name.starts_with("log.") => {}
            name => {
                let name: String = name.chars().map(as_in_a_name).collect();
                // Writing to a string does not fail.
                let _ = writeln!(self.lines, "{PREFIX}{name}={value}");
            }
        }
    }
}

/// Replaces everything but the characters that the journal takes: capital letters, digits and underscores.
fn as_in_a_name(character: char) -> char {
    match character.to_ascii_uppercase() {
        character @ ('A'..='Z' | '0'..='9') => character,
        _ => '_',
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use formats::log;
    use tracing::{error_span, subscriber::with_default, warn};

    use super::*;
    use crate::log_queue::LogQueue;

    /// The message that the journal gets for an event.
    fn message(event: impl FnOnce()) -> String {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let queue = LogQueue::start(Journal(ours)).unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .event_format(JournalFormat)
            .fmt_fields(log::fields())
            .with_writer(queue.clone())
            .finish();
        with_default(subscriber, event);
        let mut message = [0; 4096];
        let len = theirs.recv(&mut message).unwrap();
        String::from_utf8(message[..len].to_vec()).unwrap()
    }

    #[test]
    fn an_event_is_one_message_with_a_line_for_each_field() {
        let name = "eth0\nMESSAGE=forged";
        let sent =
            message(|| warn!(interface = name, of.packets = 5, kind = ?Some(1), "lost in {name}"));
        assert_eq!(
            sent,
            "PRIORITY=4\nSYSLOG_IDENTIFIER=flow-agent\nTARGET=agent::journal::tests\n\
             FLOW_AGENT_INTERFACE=eth0\\u{a}MESSAGE=forged\nFLOW_AGENT_OF_PACKETS=5\n\
             FLOW_AGENT_KIND=Some(1)\n\
             MESSAGE=lost in eth0\\u{a}MESSAGE=forged interface=\"eth0\\nMESSAGE=forged\" of.packets=5 \
             kind=Some(1)\n"
        );
    }

    #[test]
    fn an_event_in_a_network_namespace_has_its_name() {
        let in_netns = || {
            let span = error_span!("netns", name = %"blue");
            span.in_scope(|| warn!("lost"));
        };
        assert_eq!(
            message(in_netns),
            "PRIORITY=4\nSYSLOG_IDENTIFIER=flow-agent\nTARGET=agent::journal::tests\n\
             FLOW_AGENT_NETNS=blue\nMESSAGE=netns{name=blue}: lost\n"
        );
    }

    #[test]
    fn what_is_too_long_for_the_journal_has_its_text_on_stderr() {
        assert_eq!(text_of(b"PRIORITY=3\nMESSAGE=too long\n"), b"too long\n");
        assert_eq!(text_of(b"too long\n"), b"too long\n");
    }

    #[test]
    fn each_line_of_a_text_has_its_priority() {
        let text = with_priority("one\ntwo\n", Level::ERROR);
        assert_eq!(text, "<3>one\n<3>two\n");
    }
}
