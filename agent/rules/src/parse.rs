//! The parser for rules. A [`Fault`] points at the first part of a line that cannot be parsed, and has the line as it
//! was probably meant.

use agent_common::Direction;

use super::{
    Action, Parts, Rule, Sides,
    correct::{self, Edit},
    values::{BadValue, End, host, interface, is_addresses, is_protocols, net, ports, protocol},
};
use crate::fault::Fault;

const TERMS: &str =
    "src, dst, net, host, port, proto, on, ingress, egress, all, an address or a protocol";

/// Whether a rule can name hosts. Records have names, packets do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    Known,
    Unknown,
}

/// A part of the line, with the number of its first character.
#[derive(Clone, Copy)]
pub(super) struct Word<'a> {
    pub text: &'a str,
    pub column: usize,
}

impl Word<'_> {
    /// The column after it.
    pub fn end(&self) -> usize {
        self.column + self.text.chars().count()
    }

    fn replaced_by(&self, text: impl Into<String>) -> Edit {
        Edit::new(self.column..self.end(), text)
    }
}

/// The first place of a line that cannot be parsed.
#[derive(Debug)]
pub(super) struct Mistake {
    column: usize,
    width: usize,
    message: String,
    /// What probably corrects it.
    pub edits: Vec<Edit>,
}

impl Mistake {
    fn at(word: Word<'_>, message: impl Into<String>) -> Self {
        Self {
            column: word.column,
            width: word.text.chars().count(),
            message: message.into(),
            edits: Vec::new(),
        }
    }

    fn or(self, edits: impl IntoIterator<Item = Edit>) -> Self {
        let edits = edits.into_iter().collect();
        Self { edits, ..self }
    }
}

/// Reads rules separated by semicolons. There may be none.
pub fn line(line: &str, hosts: Hosts) -> Result<Parts, Fault> {
    with_fault(line, |line| rules(line, hosts))
}

/// Reads a line of a file, which may also have a comment. A name may contain `#`, so a comment begins only at
/// the start of the line or after white space.
pub fn line_of_file(line: &str, hosts: Hosts) -> Result<Parts, Fault> {
    with_fault(line, |line| rules(without_comment(line), hosts))
}

fn with_fault(line: &str, parse: impl Fn(&str) -> Result<Parts, Mistake>) -> Result<Parts, Fault> {
    parse(line).map_err(|mistake| {
        let fault = Fault::new(line, mistake.column, mistake.width, &mistake.message);
        match correct::corrected(line, mistake, parse) {
            Some(corrected) => fault.corrected_to(line, corrected),
            None => fault,
        }
    })
}

fn without_comment(line: &str) -> &str {
    let mut before = ' ';
    let comment = line.char_indices().find(|(_, character)| {
        let is_at_start = std::mem::replace(&mut before, *character).is_whitespace();
        *character == '#' && is_at_start
    });
    &line[..comment.map_or(line.len(), |(index, _)| index)]
}

fn rules(text: &str, hosts: Hosts) -> Result<Parts, Mistake> {
    let mut parts = Parts::default();
    for part in self::parts(text, 0, |character| character == ';') {
        let words: Vec<Word<'_>> = self::parts(part.text, part.column, char::is_whitespace)
            .filter(|word| !word.text.is_empty())
            .collect();
        if words.is_empty() {
            continue;
        }
        let rule = Reader::new(&words, hosts).rule()?;
        if words_begin_with_an_action(&words) {
            parts.rules.push(rule);
        } else {
            parts.conditions.push(rule);
        }
    }
    Ok(parts)
}

fn words_begin_with_an_action(words: &[Word<'_>]) -> bool {
    words
        .first()
        .is_some_and(|word| action_of(word.text).is_some())
}

fn action_of(text: &str) -> Option<Action> {
    match text {
        "include" => Some(Action::Include),
        "exclude" => Some(Action::Exclude),
        _ => None,
    }
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Src,
    Dst,
    Either,
}

impl Side {
    fn of<T>(self, sides: &mut Sides<T>) -> &mut Vec<T> {
        match self {
            Self::Src => &mut sides.src,
            Self::Dst => &mut sides.dst,
            Self::Either => &mut sides.either,
        }
    }
}

/// A term that a rule can have once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Term {
    Ends(Side),
    Ports(Side),
    Protocols,
    Interfaces,
}

/// The list of a term.
struct List<'a> {
    term: Term,
    list: Word<'a>,
}

/// Reads the words of one rule.
struct Reader<'a> {
    words: &'a [Word<'a>],
    hosts: Hosts,
    /// The next word.
    next: usize,
    rule: Rule,
    lists: Vec<List<'a>>,
    all: Option<Word<'a>>,
    direction: Option<Word<'a>>,
}

impl<'a> Reader<'a> {
    fn new(words: &'a [Word<'a>], hosts: Hosts) -> Self {
        let action = words.first().and_then(|word| action_of(word.text));
        Self {
            words,
            hosts,
            next: usize::from(action.is_some()),
            rule: Rule::new(action.unwrap_or(Action::Include)),
            lists: Vec::new(),
            all: None,
            direction: None,
        }
    }

    fn rule(mut self) -> Result<Rule, Mistake> {
        if self.next == self.words.len() {
            let end = self.end();
            return Err(self.missing(TERMS).or([Edit::new(end..end, " all")]));
        }
        while let Some(&word) = self.words.get(self.next) {
            self.next += 1;
            if word.text == "all" {
                self.all = Some(word);
            } else {
                self.term(word)?;
            }
        }
        match self.all {
            Some(all) if !self.rule.matches_all() => {
                let mistake = Mistake::at(all, "all stands alone, without another term");
                Err(mistake.or([self.removal(all)]))
            }
            _ => Ok(self.rule),
        }
    }

    fn term(&mut self, word: Word<'a>) -> Result<(), Mistake> {
        match word.text {
            "src" => self.term_of_side(Side::Src, word),
            "dst" => self.term_of_side(Side::Dst, word),
            "net" | "host" | "port" => self.term_of(Side::Either, word, word),
            "proto" => {
                let list = self.list("a protocol's name or number, as tcp or 47")?;
                self.protocols(word, list)
            }
            "on" => {
                let list = self.list("an interface's name, or a glob such as veth*")?;
                self.interfaces(word, list)
            }
            "ingress" | "egress" => self.direction(word),
            text if is_addresses(text) => self.ends(Side::Either, word, word),
            text if is_protocols(text) => self.protocols(word, word),
            _ => Err(self.unknown(word)),
        }
    }

    fn term_of_side(&mut self, side: Side, first: Word<'a>) -> Result<(), Mistake> {
        let word = self.list("net, host or port")?;
        match word.text {
            "net" | "host" | "port" => self.term_of(side, first, word),
            text if is_addresses(text) => self.ends(side, first, word),
            _ => {
                let message = format!(
                    "expected net, host, port or an address after {}",
                    first.text
                );
                let meant = correct::meant(word.text);
                let edits = meant.map(|meant| word.replaced_by(meant));
                Err(Mistake::at(word, message).or(edits))
            }
        }
    }

    /// A term that begins with net, host or port. `first` is the word before that, if there is one.
    fn term_of(&mut self, side: Side, first: Word<'a>, keyword: Word<'a>) -> Result<(), Mistake> {
        let expected = match keyword.text {
            "net" => "a network or an address, as 10.0.0.0/8 or 2001:db8::1",
            "host" => "an address or a name, as 192.0.2.1 or example.com",
            _ => "a port, a service or a range of ports, as 443, https or 1024-65535",
        };
        let list = self.list(expected)?;
        if keyword.text == "port" {
            self.ports(side, first, list)
        } else {
            self.ends(side, first, list)
        }
    }

    /// Networks, addresses and names.
    fn ends(&mut self, side: Side, first: Word<'a>, list: Word<'a>) -> Result<(), Mistake> {
        let hosts = self.hosts;
        let is_host = self.before(list).is_some_and(|word| word.text == "host");
        let ends = self.values(Term::Ends(side), first, list, |text| {
            if is_host {
                host(text, hosts)
            } else {
                net(text).map(End::Net)
            }
        })?;
        for end in ends {
            match end {
                End::Net(net) => side.of(&mut self.rule.nets).push(net),
                End::Name(name) => side.of(&mut self.rule.names).push(name),
            }
        }
        Ok(())
    }

    fn ports(&mut self, side: Side, first: Word<'a>, list: Word<'a>) -> Result<(), Mistake> {
        let ports = self.values(Term::Ports(side), first, list, ports)?;
        side.of(&mut self.rule.ports).extend(ports);
        Ok(())
    }

    fn protocols(&mut self, first: Word<'a>, list: Word<'a>) -> Result<(), Mistake> {
        let protocols = self.values(Term::Protocols, first, list, protocol)?;
        self.rule.protocols.extend(protocols);
        Ok(())
    }

    fn interfaces(&mut self, first: Word<'a>, list: Word<'a>) -> Result<(), Mistake> {
        let interfaces = self.values(Term::Interfaces, first, list, interface)?;
        self.rule.interfaces.extend(interfaces);
        Ok(())
    }

    fn direction(&mut self, word: Word<'a>) -> Result<(), Mistake> {
        if let Some(first) = self.direction {
            // Both directions are all packets.
            let edits = [self.removal(first), self.removal(word)];
            return Err(Mistake::at(word, "the direction is already given").or(edits));
        }
        self.direction = Some(word);
        self.rule.direction = Some(if word.text == "ingress" {
            Direction::Ingress
        } else {
            Direction::Egress
        });
        Ok(())
    }

    /// Reads the values of a term, separated by commas. A rule can have each term once.
    fn values<T>(
        &mut self,
        term: Term,
        first: Word<'a>,
        list: Word<'a>,
        parse: impl Fn(&str) -> Result<T, BadValue>,
    ) -> Result<Vec<T>, Mistake> {
        if let Some(earlier) = self.lists.iter().find(|known| known.term == term) {
            let end = earlier.list.end();
            let edits = [
                Edit::new(end..end, format!(",{}", list.text)),
                self.removal_of(first, list),
            ];
            let message = "the term is given twice; separate its values by commas";
            return Err(Mistake::at(first, message).or(edits));
        }
        self.lists.push(List { term, list });
        let mut values = Vec::new();
        for value in parts(list.text, list.column, |character| character == ',') {
            if value.text.is_empty() {
                let message = "expected a value at the comma; a list has no spaces";
                return Err(Mistake::at(value, message).or([self.closed_gap(list, value)]));
            }
            let parsed = parse(value.text).map_err(|bad| {
                let before = self.before(list);
                let keyword = bad.keyword.map(|keyword| match before {
                    Some(before) if matches!(before.text, "net" | "host") => {
                        before.replaced_by(keyword)
                    }
                    _ => Edit::new(list.column..list.column, format!("{keyword} ")),
                });
                let value_edit = bad.value.map(|text| value.replaced_by(text));
                Mistake::at(value, bad.message).or(keyword.into_iter().chain(value_edit))
            })?;
            values.push(parsed);
        }
        Ok(values)
    }

    /// Takes the spaces or the comma out where a list has a comma and no value.
    fn closed_gap(&self, list: Word<'a>, value: Word<'a>) -> Edit {
        let (before, after) = (self.before(list), self.words.get(self.next));
        if value.column == list.end() {
            return match after {
                Some(after) if !correct::is_keyword(after.text) => {
                    Edit::new(list.end()..after.column, "")
                }
                _ => Edit::new(value.column - 1..value.column, ""),
            };
        }
        if value.column > list.column {
            return Edit::new(value.column..value.column + 1, "");
        }
        match before {
            Some(before) if !correct::is_keyword(before.text) => {
                Edit::new(before.end()..list.column, "")
            }
            _ => Edit::new(list.column..list.column + 1, ""),
        }
    }

    /// A word that begins no term.
    fn unknown(&self, word: Word<'a>) -> Mistake {
        let before = self.before(word);
        let has_action = words_begin_with_an_action(self.words);
        let lower = word.text.to_ascii_lowercase();
        let mistake = |message: &str| Mistake::at(word, message);
        match (&*lower, before) {
            ("and" | "&&", _) => {
                let message = "terms follow each other without and: all of them have to match";
                return mistake(message).or([self.removal(word)]);
            }
            ("or" | "||", Some(before)) => {
                let action = if has_action { self.words[0].text } else { "" };
                let text = if action.is_empty() {
                    ";".to_owned()
                } else {
                    format!("; {action}")
                };
                let message = "alternatives are values with a comma between, or rules with a semicolon between";
                return mistake(message).or([Edit::new(before.end()..word.end(), text)]);
            }
            ("not" | "!", None) => {
                let message = "no term begins like this; a rule with exclude leaves packets out";
                return mistake(message).or([word.replaced_by("exclude")]);
            }
            ("not" | "!", Some(before)) if !has_action => {
                let first = self.words[0].column;
                let rest = &self.words[self.next..];
                let rest: Vec<&str> = rest.iter().map(|word| word.text).collect();
                let message = "no term begins like this; a rule with exclude leaves packets out";
                return mistake(message).or([
                    Edit::new(first..first, format!("exclude {}; ", rest.join(" "))),
                    Edit::new(before.end()..self.end(), ""),
                ]);
            }
            ("include" | "exclude", Some(before)) => {
                let message =
                    "a rule begins with include or exclude: end the one before with a semicolon";
                return mistake(message).or([Edit::new(before.end()..before.end(), ";")]);
            }
            _ => {}
        }
        // A value behind the values of a term.
        let is_port = ports(word.text).is_ok();
        let of_ports = self.lists.last().filter(|last| {
            is_port
                && matches!(last.term, Term::Ports(_))
                && before.is_some_and(|before| before.column == last.list.column)
        });
        let edit = match (of_ports, before) {
            (Some(last), _) => Some(Edit::new(last.list.end()..word.column, ",")),
            (None, _) if word.text.starts_with(',') => {
                before.map(|before| Edit::new(before.end()..word.column, ""))
            }
            (None, _) => correct::meant(word.text).map(|meant| {
                if meant.is_empty() {
                    self.removal(word)
                } else {
                    word.replaced_by(meant)
                }
            }),
        };
        mistake(&format!("no term begins like this; expected {TERMS}")).or(edit)
    }

    /// The next word, which has a term's values or continues it.
    fn list(&mut self, expected: &str) -> Result<Word<'a>, Mistake> {
        let word = self.words.get(self.next);
        let word = word.copied().ok_or_else(|| self.missing(expected))?;
        self.next += 1;
        Ok(word)
    }

    fn missing(&self, expected: &str) -> Mistake {
        let nowhere = Word {
            text: "",
            column: self.end() + 1,
        };
        Mistake::at(nowhere, format!("expected {expected} here"))
    }

    /// The column after the last word.
    fn end(&self) -> usize {
        self.words.last().map_or(0, Word::end)
    }

    fn before(&self, word: Word<'a>) -> Option<Word<'a>> {
        let mut before = self.words.iter().rev();
        before.find(|other| other.column < word.column).copied()
    }

    fn removal(&self, word: Word<'a>) -> Edit {
        self.removal_of(word, word)
    }

    /// Takes out the words from `first` to `last`, and the space on one side.
    fn removal_of(&self, first: Word<'a>, last: Word<'a>) -> Edit {
        if let Some(before) = self.before(first) {
            return Edit::new(before.end()..last.end(), "");
        }
        let mut after = self.words.iter();
        let after = after.find(|other| other.column > last.column);
        let end = after.map_or(last.end(), |after| after.column);
        Edit::new(first.column..end, "")
    }
}
