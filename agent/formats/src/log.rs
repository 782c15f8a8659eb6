//! Formats the fields of a log event.

use std::fmt::{self, Debug};

use tracing::field::Field;
use tracing_subscriber::{
    field::MakeExt as _,
    fmt::{
        FormatFields,
        format::{self, Writer},
    },
};

use super::harmless::harmless;

const ITALIC: &str = "\x1b[3m";
const DIMMED: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Formats the fields like tracing's own formatter, but with [`harmless`] values. tracing does not escape line breaks
/// in any value, nor terminal escapes in values after the message.
pub fn fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    format::debug_fn(field).delimited(" ")
}

fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let name = field.name();
    let value = format!("{value:?}");
    let value = harmless(&value);
    // These fields of the `log` crate give a line's origin, which the line's head already has.
    if name.starts_with("log.") {
        return Ok(());
    }
    if name == "message" {
        return writer.write_str(&value);
    }
    if writer.has_ansi_escapes() {
        return write!(writer, "{ITALIC}{name}{PLAIN}{DIMMED}={PLAIN}{value}");
    }
    write!(writer, "{name}={value}")
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use tracing::{subscriber::with_default, warn};

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

    /// The logged line, without its time and level.
    fn logged(is_terminal: bool, event: impl FnOnce()) -> String {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_level(false)
            .with_target(false)
            .with_ansi(is_terminal)
            .fmt_fields(fields())
            .with_writer(move || writer.clone())
            .finish();
        with_default(subscriber, event);
        let bytes = log.0.lock().unwrap();
        String::from_utf8(bytes.clone()).unwrap()
    }

    #[test]
    fn values_from_elsewhere_stay_on_their_line_and_move_nothing() {
        let name = "a\nb\u{1b}[2J\u{9b}\u{202e}☃";
        let event = || warn!(name, shown = %name, number = 5, "of {name}");
        let plain = r"a\u{a}b\u{1b}[2J\u{9b}\u{202e}☃";
        let quoted = r#""a\nb\u{1b}[2J\u{9b}\u{202e}☃""#;
        assert_eq!(
            logged(false, event),
            format!("of {plain} name={quoted} shown={plain} number=5\n")
        );
        let equals = "\x1b[0m\x1b[2m=\x1b[0m";
        assert_eq!(
            logged(true, event),
            format!(
                "of {plain} \x1b[3mname{equals}{quoted} \x1b[3mshown{equals}{plain} \
                 \x1b[3mnumber{equals}5\n"
            )
        );
    }
}
