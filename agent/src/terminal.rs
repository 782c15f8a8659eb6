//! The log as a person reads it at a terminal: the time of day and what happened, without modules.

use std::{
    collections::BTreeMap,
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
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::{Format, Writer},
    },
    registry::{LookupSpan, Scope},
};

const DIMMED: &str = "\x1b[2m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// Modules whose informational events are left out: two lines for each interface, which "counting" names, and the sums of each
/// consumer that left.
const LEFT_OUT: [&str; 2] = [ATTACHED, "hub"];
const ATTACHED: &str = "kernel::attach::attacher";

/// The most interfaces that are named.
const MOST_NAMES: usize = 4;

/// Whether a person reads the log at a terminal.
pub fn is_read() -> bool {
    io::stderr().is_terminal()
}

/// Says what is counted, and where to look next.
pub fn greet(status: &AgentStatus, scan_interval: Duration, connect: Option<&str>) {
    for line in greeting(status, scan_interval, connect) {
        tracing::info!("{line}");
    }
}

/// Says how it went: the packets of the flows, and of all at the hooks.
pub fn part(flows: u64, packets: u64, seen: u64, missing: u64) {
    if missing == 0 {
        let others = seen - packets.min(seen);
        let (packets, flows) = (human::exact(packets, "packet"), human::exact(flows, "flow"));
        if others == 0 {
            tracing::info!("counted {packets} in {flows}");
        } else {
            tracing::info!(
                "counted {packets} in {flows}; {others} more were left out, each for a known reason"
            );
        }
    } else {
        tracing::error!(
            "{seen} packets seen, of which {missing} are unaccounted for: this is a bug"
        );
    }
}

fn greeting(status: &AgentStatus, scan_interval: Duration, connect: Option<&str>) -> Vec<String> {
    // An interface has a hook for each direction.
    let hooks = status
        .hooks
        .iter()
        .filter_map(|hook| hook.interface.as_ref());
    let interfaces: BTreeMap<_, _> = hooks
        .map(|one| {
            let name = human::interface(&one.netns_name, &one.name);
            ((one.netns, one.ifindex), name)
        })
        .collect();
    let mut names: Vec<String> = interfaces.into_values().collect();
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    let mut at = names.join(", ");
    if more > 0 {
        let ending = if more == 1 { "" } else { "s" };
        at = format!("{at} and {more} more interface{ending}");
    } else if names.is_empty() {
        "no interface yet".clone_into(&mut at);
    }
    let interval = human::duration(scan_interval);
    let mut lines = vec![format!(
        "counting packets at {}, with a scan every {interval}; Ctrl-C stops",
        harmless(&at)
    )];
    if let Some(address) = connect {
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
    !(*event.level() == Level::INFO && LEFT_OUT.contains(&event.target()))
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
        // The network namespace that a thread works in; see `Namespace::span`.
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                let value = fields.strip_prefix("name=").unwrap_or(fields);
                write!(writer, "{} {value}: ", span.name())?;
            }
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

    use proto::{HookStatus, Interface};
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
    fn a_greeting_names_each_interface_once_and_commands_that_work() {
        let hook = |netns, ifindex, name: &str, netns_name: &str| HookStatus {
            interface: Some(Interface {
                netns,
                ifindex,
                name: name.to_owned(),
                netns_name: netns_name.to_owned(),
                ..Interface::default()
            }),
            ..HookStatus::default()
        };
        let one = [hook(1, 1, "lo", "a"), hook(2, 1, "lo", "b")];
        let mut hooks = [one.clone(), one].concat();
        let greeted = |hooks: &[HookStatus], connect| {
            let status = AgentStatus {
                hooks: hooks.to_vec(),
                ..AgentStatus::default()
            };
            greeting(&status, Duration::from_secs(10), connect)
        };
        let lines = greeted(&hooks, Some("https://127.0.0.1:5000"));
        let begin = "counting packets at a/lo, b/lo, with a scan every 10s";
        assert!(lines[0].starts_with(begin), "{lines:?}");
        assert!(lines[1].contains("flow-agent top --connect https://127.0.0.1:5000`"));
        hooks.extend((3..6).map(|index| hook(3, index, &format!("v{index}"), "")));
        let lines = greeted(&hooks, Some(view::client::DEFAULT_TARGET));
        let at = "a/lo, b/lo, v3, v4 and 1 more interface, with";
        assert!(lines[0].contains(at), "{lines:?}");
        assert!(lines[1].contains("`flow-agent top` shows"), "{lines:?}");
        assert_eq!(greeted(&hooks, None).len(), 1);
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
        let text = logged(false, || {
            let _entered = tracing::info_span!("netns", name = "/run/netns/blue").entered();
            warn!("the table is full");
        });
        let line = r#"warning: netns "/run/netns/blue": the table is full"#;
        assert!(text.contains(line), "{text}");
        let text = logged(true, || warn!("the table is full"));
        assert!(
            text.contains("\x1b[33mwarning: \x1b[0mthe table is full"),
            "{text:?}"
        );
    }
}
