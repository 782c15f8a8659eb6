//! The parser for rules. A [`Fault`] points at the first part of a line that cannot be parsed.

use agent_common::Direction;
use proto::protocols;

use super::{Action, Net, Ports, Rule, Sides, net::BadNet};
use crate::{fault::Fault, pattern::Pattern};

const TERMS: &str = "src, dst, net, port, proto, on, ingress, egress or all";

/// A part of the line, with the number of its first character.
#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    column: usize,
}

/// The unread words of one rule.
struct Words<'a> {
    line: &'a str,
    rest: std::vec::IntoIter<Word<'a>>,
    /// The column after the last word, to report a missing one.
    end: usize,
}

/// Reads rules separated by semicolons. There may be none.
pub fn line(line: &str) -> Result<Vec<Rule>, Fault> {
    rules(line, line)
}

/// Reads a line of a file, which may also have a comment. A name may contain `#`, so a comment begins only at
/// the start of the line or after white space.
pub fn line_of_file(line: &str) -> Result<Vec<Rule>, Fault> {
    let mut before = ' ';
    let comment = line.char_indices().find(|(_, character)| {
        let is_at_start = std::mem::replace(&mut before, *character).is_whitespace();
        *character == '#' && is_at_start
    });
    let end = comment.map_or(line.len(), |(index, _)| index);
    rules(&line[..end], line)
}

/// Reads the rules in `text`, which is the beginning of `line`.
fn rules(text: &str, line: &str) -> Result<Vec<Rule>, Fault> {
    let mut rules = Vec::new();
    for part in parts(text, 0, |character| character == ';') {
        let words: Vec<Word<'_>> = parts(part.text, part.column, char::is_whitespace)
            .filter(|word| !word.text.is_empty())
            .collect();
        let Some(last) = words.last() else { continue };
        let end = last.column + last.text.chars().count() + 1;
        rules.push(rule(Words {
            line,
            rest: words.into_iter(),
            end,
        })?);
    }
    Ok(rules)
}

/// The parts between separators. A separator is one character.
fn parts(
    text: &str,
    column: usize,
    is_separator: impl Fn(char) -> bool + 'static,
) -> impl Iterator<Item = Word<'_>> {
    let mut column = column;
    text.split(is_separator).map(move |text| {
        let word = Word { text, column };
        column += text.chars().count() + 1;
        word
    })
}

fn rule(mut words: Words<'_>) -> Result<Rule, Fault> {
    let action = words.next("include or exclude")?;
    let mut rule = Rule::new(match action.text {
        "include" => Action::Include,
        "exclude" => Action::Exclude,
        _ => return Err(words.fault(action, "a rule begins with include or exclude")),
    });
    let mut all = None;
    let first = words.next(TERMS)?;
    let mut next = Some(first);
    while let Some(word) = next {
        if word.text == "all" {
            all = Some(word);
        } else {
            term(&mut rule, word, &mut words)?;
        }
        next = words.rest.next();
    }
    match all {
        Some(all) if !rule.matches_all() => {
            Err(words.fault(all, "all stands alone, without another term"))
        }
        _ => Ok(rule),
    }
}

fn term(rule: &mut Rule, word: Word<'_>, words: &mut Words<'_>) -> Result<(), Fault> {
    match word.text {
        side @ ("src" | "dst") => {
            let kind = words.next("net or port")?;
            match kind.text {
                "net" => nets(side_of(&mut rule.nets, side), kind, words),
                "port" => ports(side_of(&mut rule.ports, side), kind, words),
                _ => Err(words.fault(kind, &format!("expected net or port after {side}"))),
            }
        }
        "net" => nets(&mut rule.nets.either, word, words),
        "port" => ports(&mut rule.ports.either, word, words),
        "proto" => {
            let expected = "a protocol's name or number, as tcp or 47";
            words.values(&mut rule.protocols, word, expected, |text| {
                let number = protocols::number(text).or_else(|| decimal(text)?.try_into().ok());
                number.ok_or_else(|| format!("no protocol that is known; expected {expected}"))
            })
        }
        "on" => {
            let expected = "an interface's name, or a glob such as veth*";
            words.values(&mut rule.interfaces, word, expected, |text| {
                if text.starts_with('#') {
                    return Err("# begins a comment: write [#] for it".to_owned());
                }
                Pattern::name_or_glob(text)
                    .map_err(|fault| format!("this {fault}; expected {expected}"))
            })
        }
        direction @ ("ingress" | "egress") => {
            if rule.direction.is_some() {
                return Err(words.fault(word, "the direction is already given"));
            }
            rule.direction = Some(if direction == "ingress" {
                Direction::Ingress
            } else {
                Direction::Egress
            });
            Ok(())
        }
        _ => Err(words.fault(word, &format!("no term begins like this; expected {TERMS}"))),
    }
}

fn side_of<'a, T>(sides: &'a mut Sides<T>, side: &str) -> &'a mut Vec<T> {
    if side == "src" {
        &mut sides.src
    } else {
        &mut sides.dst
    }
}

fn nets(to: &mut Vec<Net>, word: Word<'_>, words: &mut Words<'_>) -> Result<(), Fault> {
    let expected = "a network or an address, as 10.0.0.0/8 or 2001:db8::1";
    words.values(to, word, expected, |text| {
        Net::parse(text).map_err(|error| match error {
            BadNet::NotAnAddress => format!("expected {expected}"),
            BadNet::BadLength(most) => format!("the prefix length is a number from 0 to {most}"),
            BadNet::HostBits(net) => {
                format!("the address has bits behind its prefix; the network is {net}")
            }
        })
    })
}

fn ports(to: &mut Vec<Ports>, word: Word<'_>, words: &mut Words<'_>) -> Result<(), Fault> {
    let expected = "a port or a range of ports, as 443 or 1024-65535";
    words.values(to, word, expected, |text| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text| decimal(text)?.try_into().ok();
        let (Some(first), Some(last)) = (port(first), port(last)) else {
            return Err(format!("expected {expected}"));
        };
        if first > last {
            return Err(format!("the range is empty; {last}-{first} is not"));
        }
        Ok(first..=last)
    })
}

/// Accepts digits only; `parse` alone would accept a sign.
fn decimal(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

impl<'a> Words<'a> {
    fn next(&mut self, expected: &str) -> Result<Word<'a>, Fault> {
        self.rest.next().ok_or_else(|| {
            let nowhere = Word {
                text: "",
                column: self.end,
            };
            self.fault(nowhere, &format!("expected {expected} here"))
        })
    }

    /// Reads the values of a term, separated by commas. A rule can have each term once.
    fn values<T>(
        &mut self,
        to: &mut Vec<T>,
        word: Word<'_>,
        expected: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<(), Fault> {
        if !to.is_empty() {
            let message = "the term is given twice; separate its values by commas";
            return Err(self.fault(word, message));
        }
        let list = self.next(expected)?;
        for value in parts(list.text, list.column, |character| character == ',') {
            if value.text.is_empty() {
                let message = format!("expected {expected} at the comma; a list has no spaces");
                return Err(self.fault(value, &message));
            }
            let parsed = parse(value.text);
            to.push(parsed.map_err(|message| self.fault(value, &message))?);
        }
        Ok(())
    }

    fn fault(&self, word: Word<'_>, message: &str) -> Fault {
        Fault::new(self.line, word.column, word.text.chars().count(), message)
    }
}
