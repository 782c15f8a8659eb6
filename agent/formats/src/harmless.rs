//! Escapes foreign text for a terminal, so that it stays on its line and cannot control the terminal.
//!
//! A consumer chooses its own name. A Linux interface may have any bytes but `/`, `:` and white space in its
//! name. An agent at the other end of a connection may send anything.

use std::{borrow::Cow, fmt::Write as _};

/// Longest excerpt of a receiver's message.
const MOST_SAID_CHARS: usize = 200;

/// Escapes, in the form `\u{1b}`, every character that is invisible or acts on the terminal: control characters and
/// line breaks, Unicode's format characters, which reverse the writing direction or join characters, and spaces other
/// than U+0020. All other text is unchanged, including text that is already escaped.
pub fn harmless(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmless, |shown, character| {
        shown.extend(character.escape_unicode());
    })
}

/// The same for JSON, by JSON's own escapes, so a JSON reader gets the original characters. They occur only in strings.
pub fn json(text: &str) -> Cow<'_, str> {
    let may_stay = |character| character == '\n' || is_harmless(character);
    escaped(text, may_stay, |shown, character| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(shown, "\\u{unit:04x}");
        }
    })
}

/// The text, with `write` called for each character that may not stay.
fn escaped(
    text: &str,
    may_stay: impl Fn(char) -> bool,
    write: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    if text.chars().all(&may_stay) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if may_stay(character) {
            shown.push(character);
        } else {
            write(&mut shown, character);
        }
    }
    Cow::Owned(shown)
}

/// The lines, escaped, so that each stays one line whatever it contains.
pub fn lines<S: AsRef<str>>(lines: impl IntoIterator<Item = S>) -> String {
    let mut text = String::new();
    for line in lines {
        text += &harmless(line.as_ref());
        text.push('\n');
    }
    text
}

/// A receiver's message as one line of limited length, for the log.
pub fn one_line(said: &str) -> String {
    let said = said.trim().chars().take(MOST_SAID_CHARS);
    said.map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

fn is_harmless(character: char) -> bool {
    match character {
        ' '..='~' => true,
        _ => is_printable(character) && !is_invisible(character),
    }
}

/// Whether the character is assigned and not one of Unicode's control, format, surrogate, private or
/// white-space characters. `std` has the tables: a string's `Debug` escapes those characters. It also escapes
/// combining characters, but only at the start of a string, hence the space in front.
fn is_printable(character: char) -> bool {
    let mut bytes = [b' '; 5];
    let len = 1 + character.encode_utf8(&mut bytes[1..]).len();
    let text = std::str::from_utf8(&bytes[..len]).unwrap_or_default();
    text.escape_debug().count() == 2
}

/// Whether the character is a letter or mark without a shape (Unicode's `Default_Ignorable_Code_Point`, besides
/// the format characters).
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{34f}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{e0100}'..='\u{e01ef}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_can_see_stays() {
        for name in [
            "eth0",
            r#"a "quoted" \ 'name' `$(x)` %s"#,
            "Zürich, cafe\u{301}, Ελλάδα, Россия, 日本, ไทย้, हिन्दी",
            "عربي, עברית",
            "☃ 🦀",
        ] {
            assert!(
                matches!(harmless(name), Cow::Borrowed(same) if same == name),
                "{name:?}"
            );
        }
    }

    #[test]
    fn what_acts_or_hides_is_spelled_out() {
        let faults = [
            "\0",
            "\t",
            "\n",
            "\r",
            "\u{7}",
            "\u{8}",
            "\u{1b}",
            "\u{7f}",
            "\u{85}",
            "\u{9b}",
            "\u{a0}",
            "\u{ad}",
            "\u{34f}",
            "\u{61c}",
            "\u{115f}",
            "\u{200b}",
            "\u{200d}",
            "\u{200e}",
            "\u{2028}",
            "\u{2029}",
            "\u{202a}",
            "\u{202e}",
            "\u{2060}",
            "\u{2066}",
            "\u{2069}",
            "\u{3000}",
            "\u{3164}",
            "\u{e000}",
            "\u{fe0f}",
            "\u{feff}",
            "\u{fff9}",
            "\u{1d173}",
            "\u{e0001}",
            "\u{e0061}",
            "\u{e01ef}",
            "\u{10ffff}",
        ];
        for fault in faults {
            let code = u32::from(fault.chars().next().unwrap());
            let shown = harmless(fault);
            assert_eq!(shown, format!("\\u{{{code:x}}}"));
            assert_eq!(harmless(&shown), shown);
        }
        assert_eq!(harmless("a\u{1b}[2Jb\u{202e}c"), "a\\u{1b}[2Jb\\u{202e}c");
    }

    #[test]
    fn json_stays_the_same_to_whoever_reads_it() {
        let names = [
            "Zürich 🦀",
            "a\u{7f}\u{9b}b\u{202e}",
            "\u{e0001}\"\\\u{1b}\n",
        ];
        let plain = serde_json::to_string_pretty(&names).unwrap();
        let shown = json(&plain);
        assert!(shown.contains(r"a\u007f\u009bb\u202e"), "{shown}");
        assert!(shown.contains(r#"\udb40\udc01\"\\\u001b\n"#), "{shown}");
        assert!(shown.contains("Zürich 🦀"), "{shown}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&shown).unwrap(), names);
        assert!(matches!(json("{\n  \"a\": 1\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_line_stays_one() {
        assert_eq!(lines(["a\nb", "", "c"]), "a\\u{a}b\n\nc\n");
    }
}
