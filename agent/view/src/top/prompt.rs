//! A line of text that the user edits, with the keys of readline.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The text on both sides of the cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    before: String,
    after: String,
}

impl Prompt {
    /// The cursor is at the end.
    pub fn of(text: String) -> Self {
        Self {
            before: text,
            after: String::new(),
        }
    }

    pub fn text(&self) -> String {
        format!("{}{}", self.before, self.after)
    }

    pub fn sides(&self) -> [&str; 2] {
        [&self.before, &self.after]
    }

    /// Inserts the printable characters of a pasted text.
    pub fn paste(&mut self, pasted: &str) {
        let printable = pasted.chars().filter(|letter| !letter.is_control());
        self.before.extend(printable);
    }

    pub fn key(&mut self, key: KeyEvent) {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (key.code, is_control) {
            (KeyCode::Char(letter), false) => self.before.push(letter),
            (KeyCode::Backspace, _) | (KeyCode::Char('h'), true) => {
                self.before.pop();
            }
            (KeyCode::Delete, _) | (KeyCode::Char('d'), true) => {
                pop_first(&mut self.after);
            }
            (KeyCode::Char('u'), true) => self.before.clear(),
            (KeyCode::Char('k'), true) => self.after.clear(),
            (KeyCode::Char('w'), true) => {
                let end = self.before.trim_end();
                let word = end.rsplit(char::is_whitespace).next().unwrap_or_default();
                self.before.truncate(end.len() - word.len());
            }
            (KeyCode::Left, _) | (KeyCode::Char('b'), true) => {
                if let Some(letter) = self.before.pop() {
                    self.after.insert(0, letter);
                }
            }
            (KeyCode::Right, _) | (KeyCode::Char('f'), true) => {
                self.before.extend(pop_first(&mut self.after));
            }
            (KeyCode::Home, _) | (KeyCode::Char('a'), true) => {
                self.after.insert_str(0, &self.before);
                self.before.clear();
            }
            (KeyCode::End, _) | (KeyCode::Char('e'), true) => {
                self.before.push_str(&self.after);
                self.after.clear();
            }
            _ => {}
        }
    }
}

fn pop_first(text: &mut String) -> Option<char> {
    let first = text.chars().next()?;
    text.remove(0);
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_edit_as_in_readline() {
        let mut prompt = Prompt::of("proto tcp  port 443,80 ".to_owned());
        let mut after = |code, modifiers, sides: [&str; 2]| {
            prompt.key(KeyEvent::new(code, modifiers));
            assert_eq!(prompt.sides(), sides, "{code}");
        };
        let control = KeyModifiers::CONTROL;
        let none = KeyModifiers::NONE;
        after(KeyCode::Char('w'), control, ["proto tcp  port ", ""]);
        after(KeyCode::Char('w'), control, ["proto tcp  ", ""]);
        after(KeyCode::Char('é'), none, ["proto tcp  é", ""]);
        after(KeyCode::Left, none, ["proto tcp  ", "é"]);
        after(KeyCode::Backspace, none, ["proto tcp ", "é"]);
        after(KeyCode::Char('w'), control, ["proto ", "é"]);
        after(KeyCode::Char('d'), control, ["proto ", ""]);
        after(KeyCode::Home, none, ["", "proto "]);
        for code in [KeyCode::Backspace, KeyCode::Left, KeyCode::Char('h')] {
            let modifiers = if code == KeyCode::Char('h') {
                control
            } else {
                none
            };
            after(code, modifiers, ["", "proto "]);
        }
        after(KeyCode::Char('w'), control, ["", "proto "]);
        after(KeyCode::Right, none, ["p", "roto "]);
        after(KeyCode::Char('k'), control, ["p", ""]);
        after(KeyCode::Right, none, ["p", ""]);
        after(KeyCode::Delete, none, ["p", ""]);
        after(KeyCode::Char('x'), control, ["p", ""]);
        after(KeyCode::Char('a'), control, ["", "p"]);
        after(KeyCode::End, none, ["p", ""]);
        after(KeyCode::Char('u'), control, ["", ""]);
        prompt.paste("net\t10.0.0.0/8\n");
        assert_eq!(prompt.text(), "net10.0.0.0/8");
    }
}
