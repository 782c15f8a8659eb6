//! Text from elsewhere for a terminal: names that peers and hosts chose for themselves come in, text
//! that stays on its line and moves nothing goes out.
//!
//! A consumer calls itself what it likes, a Linux interface may have any bytes but `/`, `:` and white
//! space in its name, and an agent at the other end of a connection may send anything.

use std::{borrow::Cow, fmt::Write as _};

/// What cannot be seen, or acts instead of being seen, comes as `\u{1b}`: control characters and line
/// breaks, Unicode's format characters, which turn the writing direction or join what stands apart, and
/// spaces that are not the usual one. All else stays as it is; so does what is harmless already.
pub fn harmless(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_harmless(character) {
            shown.push(character);
        } else {
            // Writing to a string does not fail.
            let _ = write!(shown, "{}", character.escape_unicode());
        }
    }
    Cow::Owned(shown)
}

/// The lines, each on one of its own whatever stands in it.
pub fn lines<S: AsRef<str>>(lines: impl IntoIterator<Item = S>) -> String {
    let mut text = String::new();
    for line in lines {
        text += &harmless(line.as_ref());
        text.push('\n');
    }
    text
}

fn is_harmless(character: char) -> bool {
    match character {
        ' '..='~' => true,
        _ => is_printable(character) && !is_invisible(character),
    }
}

/// Assigned, and none of Unicode's categories of control, format, surrogate, private and white-space
/// characters. `std` knows the tables: `Debug` of a string escapes the others, and what combines with
/// the character before only at the string's start.
fn is_printable(character: char) -> bool {
    let mut bytes = [b' '; 5];
    let len = 1 + character.encode_utf8(&mut bytes[1..]).len();
    let text = std::str::from_utf8(&bytes[..len]).unwrap_or_default();
    text.escape_debug().count() == 2
}

/// Letters and marks that have no shape (Unicode's `Default_Ignorable_Code_Point`, beside the format
/// characters).
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
    fn a_line_stays_one() {
        assert_eq!(lines(["a\nb", "", "c"]), "a\\u{a}b\n\nc\n");
    }
}
