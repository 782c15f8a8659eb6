//! The log as a person reads it at a terminal: the time of day and what happened, without modules.

use std::{
    fmt,
    io::{self, IsTerminal as _},
    time::{Duration, SystemTime},
};

use formats::{harmless::harmless, human};
use proto::AgentStatus;
use sys::local_time::Zone;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Writer},
    },
    registry::LookupSpan,
};

const DIMMED: &str = "\x1b[2m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// There are two of these lines for each interface, and "counting" names the interfaces.
const ATTACHED: &str = "kernel::attach::attacher";

/// The most interfaces that are named.
const MOST_NAMES: usize = 4;

/// Whether a person reads the log at a terminal.
pub fn is_read() -> bool {
    io::stderr().is_terminal()
}

/// Says what is counted, and where to look next.
pub fn greet(status: &AgentStatus, scan_interval: Duration, listens_at: Option<&str>) {
    for line in greeting(status, scan_interval, listens_at) {
        tracing::info!("{line}");
    }
}

/// Says how it went: the packets of the flows, and of all at the hooks.
pub fn part(flows: u64, packets: u64, seen: u64, missing: u64) {
    if missing == 0 {
        let others = seen - packets.min(seen);
        let [packets, flows] = [(packets, "packet"), (flows, "flow")].map(|(number, what)| {
            let ending = if number == 1 { "" } else { "s" };
            format!("{number} {what}{ending}")
        });
        tracing::info!(
            "counted {packets} in {flows}; {others} more packets were left out, each for a known reason"
        );
    } else {
        tracing::error!(
            "{seen} packets seen, of which {missing} are unaccounted for: this is a bug"
        );
    }
}

fn greeting(
    status: &AgentStatus,
    scan_interval: Duration,
    listens_at: Option<&str>,
) -> Vec<String> {
    let hooks = status.hooks.iter();
    let mut names: Vec<&str> = hooks
        .filter_map(|hook| Some(hook.interface.as_ref()?.name.as_str()))
        .collect();
    names.dedup();
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    let mut at = names.join(", ");
    if more > 0 {
        at = format!("{at} and {more} more interfaces");
    } else if names.is_empty() {
        "no interface yet".clone_into(&mut at);
    }
    let interval = human::duration(scan_interval);
    let mut lines = vec![format!(
        "counting packets at {}, with a scan every {interval}; Ctrl-C stops",
        harmless(&at)
    )];
    if let Some(address) = listens_at {
        let connect = if address == view::client::DEFAULT_TARGET {
            String::new()
        } else {
            format!(" --connect {address}")
        };
        lines.push(format!(
            "`flow-agent top{connect}` shows the flows live, `flow-agent status{connect}` what counting costs"
        ));
    }
    lines
}

/// Formats an event as `12:34:56 warning: what happened name=value`. Developers' events have their module as elsewhere.
pub struct TerminalFormat;

/// Whether an event is shown at a terminal.
pub fn shows(event: &Metadata<'_>) -> bool {
    !(*event.level() == Level::INFO && event.target() == ATTACHED)
}

impl<S, N> FormatEvent<S, N> for TerminalFormat
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
        let (color, word) = match *event.metadata().level() {
            Level::ERROR => (RED, "error: "),
            Level::WARN => (YELLOW, "warning: "),
            Level::INFO => ("", ""),
            _ => return Format::default().format_event(context, writer, event),
        };
        let now = Zone::Local.civil(SystemTime::now());
        let now = now.format("%H:%M:%S");
        if writer.has_ansi_escapes() {
            write!(writer, "{DIMMED}{now}{PLAIN} {color}{word}{PLAIN}")?;
        } else {
            write!(writer, "{now} {word}")?;
        }
        context
            .field_format()
            .format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use regex::Regex;
    use tracing::{info, subscriber::with_default, warn};
    use tracing_subscriber::{Layer as _, filter::filter_fn, layer::SubscriberExt as _};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(in_color: bool, event: impl FnOnce()) -> String {
        let log = Log::default();
        let writer = log.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_ansi(in_color)
            .fmt_fields(formats::log::fields())
            .event_format(TerminalFormat)
            .with_writer(move || writer.clone())
            .with_filter(filter_fn(shows));
        with_default(tracing_subscriber::registry().with(layer), event);
        String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_line_has_the_time_and_what_happened_and_no_module() {
        let text = logged(false, || {
            info!(address = "unix:/a", "listening");
            info!(target: ATTACHED, interface = "lo", "attached");
            warn!("the table is full");
        });
        let lines = Regex::new(
            r#"\A\d\d:\d\d:\d\d listening address="unix:/a"\n\d\d:\d\d:\d\d warning: the table is full\n\z"#,
        );
        assert!(lines.unwrap().is_match(&text), "{text}");
        let text = logged(true, || warn!("the table is full"));
        assert!(
            text.contains("\x1b[33mwarning: \x1b[0mthe table is full"),
            "{text:?}"
        );
    }
}
