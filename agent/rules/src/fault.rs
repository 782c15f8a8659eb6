//! A fault in a user's text, such as a filter rule or a file of settings: shown as a message, the line, and a mark
//! under the place. A long line is cut to the part around the place.

use std::fmt;

/// How many characters of a line are shown at most.
const SHOWN_CHARS: usize = 76;
/// How many of them are before the place, if the line is longer.
const BEFORE_CHARS: usize = 36;

/// A line that cannot be read, with the place of the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file and the line number, if there are any.
    place: Option<String>,
    /// The place in the whole line, in characters, from 0.
    column: usize,
    message: String,
    /// The part of the line around the place.
    shown: String,
    /// Where the mark under it begins, in characters.
    mark_from: usize,
    mark_width: usize,
    corrected: Option<Box<Corrected>>,
}

/// A line as it was probably meant.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Corrected {
    line: String,
    /// The length of the faulty one.
    instead_of_chars: usize,
}

impl Fault {
    /// `column` and `width` give the place of the fault in `line`, in characters. If something is missing,
    /// the column may be beyond the line's end.
    pub fn new(line: &str, column: usize, width: usize, message: &str) -> Self {
        let line = line.trim_end();
        let chars = line.chars().count();
        let from = column
            .saturating_sub(BEFORE_CHARS)
            .min(chars.saturating_sub(SHOWN_CHARS));
        let to = chars.min(from + SHOWN_CHARS);
        let (before, behind) = (
            if from > 0 { "…" } else { "" },
            if to < chars { "…" } else { "" },
        );
        // A tab is shown as one column, which is how the mark counts it. Control characters are replaced,
        // since a terminal would obey them.
        let part: String = line
            .chars()
            .skip(from)
            .take(to - from)
            .map(|character| {
                if character.is_control() {
                    ' '
                } else {
                    character
                }
            })
            .collect();
        Self {
            place: None,
            column,
            message: message.to_owned(),
            shown: format!("{before}{part}{behind}"),
            mark_from: column - from + before.chars().count(),
            mark_width: width.min(to.saturating_sub(column)).max(1),
            corrected: None,
        }
    }

    /// Reads a line of a file. Fails at the first byte that is not UTF-8.
    pub fn utf8(line: &[u8]) -> Result<&str, Self> {
        std::str::from_utf8(line).map_err(|error| {
            let (before, rest) = line.split_at(error.valid_up_to());
            let column = String::from_utf8_lossy(before).chars().count();
            let byte = rest.first().copied().unwrap_or_default();
            let message = format!("the byte 0x{byte:02x} is not UTF-8; save the file as UTF-8");
            Self::new(&String::from_utf8_lossy(line), column, 1, &message)
        })
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// The whole line as it was probably meant.
    pub fn corrected(&self) -> Option<&str> {
        self.corrected.as_ref().map(|corrected| &*corrected.line)
    }

    /// Adds the line that was probably meant instead of `line`.
    #[must_use]
    pub fn corrected_to(self, line: &str, corrected: String) -> Self {
        let corrected = Corrected {
            line: corrected,
            instead_of_chars: line.chars().count(),
        };
        Self {
            corrected: Some(Box::new(corrected)),
            ..self
        }
    }

    /// The same fault in a line that has the faulty one at `column`.
    #[must_use]
    pub fn within(&self, line: &str, column: usize) -> Self {
        let fault = Self::new(line, column + self.column, self.mark_width, &self.message);
        let Some(corrected) = &self.corrected else {
            return fault;
        };
        let chars = |skipped, most| line.trim_end().chars().skip(skipped).take(most);
        let before: String = chars(0, column).collect();
        let behind: String = chars(column + corrected.instead_of_chars, usize::MAX).collect();
        fault.corrected_to(line, format!("{before}{}{behind}", corrected.line))
    }

    /// The place, if it has a name, and the mistake.
    fn head(&self) -> String {
        let message = &self.message;
        match &self.place {
            Some(place) => format!("{place}:{}: {message}", self.column + 1),
            None => message.clone(),
        }
    }

    /// Adds the name of the place.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        Self {
            place: Some(place.to_owned()),
            ..self
        }
    }
}

/// An error with its causes on one line; a fault is reduced to its message and place. Some libraries repeat a cause in
/// the error's own text, so skip such causes.
pub fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let fault = cause.downcast_ref::<Fault>();
        let cause = fault.map_or_else(|| cause.to_string(), Fault::head);
        let cause = cause.replace('\n', " ");
        if line.is_empty() {
            line = cause;
        } else if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

/// Three lines: the mistake, the line, and a mark under the place. The probable meaning, if known, is a fourth line.
impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, mark) = (" ".repeat(self.mark_from), "^".repeat(self.mark_width));
        write!(
            formatter,
            "{}\n  {}\n  {before}{mark}",
            self.head(),
            self.shown
        )?;
        match &self.corrected {
            Some(corrected) => {
                write!(formatter, "\n  did you mean: {}", corrected.line.trim())
            }
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line that is shown, and the characters above the mark.
    fn shown(line: &str, column: usize, width: usize) -> (String, String) {
        let text = Fault::new(line, column, width, "wrong").to_string();
        let [_, line, mark] = text.lines().collect::<Vec<_>>()[..] else {
            panic!("three lines: {text}");
        };
        let marked = mark
            .chars()
            .zip(line.chars())
            .filter(|(mark, _)| *mark == '^');
        let marked = marked.map(|(_, character)| character).collect();
        assert!(line.chars().count() <= SHOWN_CHARS + 4, "{line}");
        (line.trim_start().to_owned(), marked)
    }

    #[test]
    fn of_a_long_line_the_part_around_the_place_is_shown() {
        let (before, behind) = ("a".repeat(3_000_000), "z".repeat(3_000_000));
        let (line, marked) = shown(&format!("{before}wrong{behind}"), before.len(), 5);
        assert!(line.starts_with("…aaa") && line.ends_with("zzz…"), "{line}");
        assert_eq!(marked, "wrong");

        let (line, marked) = shown(&format!("wrong{behind}"), 0, 5);
        assert!(
            line.starts_with("wrongzzz") && line.ends_with('…'),
            "{line}"
        );
        assert_eq!(marked, "wrong");

        let (line, marked) = shown(&format!("{before}☃"), before.len(), 1);
        assert!(line.starts_with('…') && line.ends_with('☃'), "{line}");
        assert_eq!(marked, "☃");

        // The mark ends where the shown part ends.
        let (line, marked) = shown(&behind, 10, behind.len() - 10);
        assert_eq!(line.chars().count(), SHOWN_CHARS + 1);
        assert_eq!(marked.len(), SHOWN_CHARS - 10);
    }

    #[test]
    fn a_log_has_the_place_and_the_message_in_one_line() {
        let fault = Fault::new("linger = soon", 9, 4, "expected a text").at("config.toml:3");
        let error = anyhow::Error::new(fault).context("read the settings");
        assert_eq!(
            in_one_line(&error),
            "read the settings: config.toml:3:10: expected a text"
        );
        let other = anyhow::anyhow!("no file").context("look at it");
        assert_eq!(in_one_line(&other), "look at it: no file");
    }

    #[test]
    fn the_line_that_was_meant_stands_in_the_line_around_it() {
        let text = "exclude all, 1";
        let fault = Fault::new(text, 11, 1, "wrong").corrected_to(text, "exclude all".to_owned());
        let line = "    'exclude all, 1', # ours";
        let fault = fault.within(line, 5);
        assert_eq!(fault.corrected(), Some("    'exclude all', # ours"));
        let shown = fault.to_string();
        let last = shown.lines().last().unwrap();
        assert_eq!(last, "  did you mean: 'exclude all', # ours");
    }

    #[test]
    fn the_mark_stands_under_its_place_behind_tabs_and_behind_the_end() {
        let (line, marked) = shown("exclude\tnett\u{1b}[31m ::/0", 8, 4);
        assert_eq!((&*line, &*marked), ("exclude nett [31m ::/0", "nett"));
        let long = format!("exclude net {} port", "10.0.0.0/8,".repeat(100));
        let text = Fault::new(&long, long.len() + 1, 0, "missing").to_string();
        let [_, line, mark] = text.lines().collect::<Vec<_>>()[..] else {
            panic!("three lines: {text}");
        };
        assert!(line.ends_with("10.0.0.0/8, port"), "{line}");
        assert_eq!(mark.chars().count(), line.chars().count() + 2);
    }
}
