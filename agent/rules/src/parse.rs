//! The parser for rules. A [`Fault`] points at the first part of a line that cannot be parsed, and has the line as it
//! was probably meant.

use agent_common::Direction;

use super::{
    Action, Net, Parts, Rule, Sides,
    correct::{self, CANNOT_NEGATE, Edit},
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
    /// The probable correction.
    pub edits: Vec<Edit>,
    /// The correction for a line that had an `and`, if that differs.
    pub edits_after_and: Option<Vec<Edit>>,
    /// Whether it is an `and`.
    pub is_and: bool,
}

impl Mistake {
    fn at(word: Word<'_>, message: impl Into<String>) -> Self {
        Self {
            column: word.column,
            width: word.text.chars().count(),
            message: message.into(),
            edits: Vec::new(),
            edits_after_and: None,
            is_and: false,
        }
    }

    fn or(self, edits: impl IntoIterator<Item = Edit>) -> Self {
        let edits = edits.into_iter().collect();
        Self { edits, ..self }
    }

    /// After an `and`, values of a repeated term are not alternatives.
    fn after_and(self, edits: Vec<Edit>) -> Self {
        Self {
            edits_after_and: Some(edits),
            ..self
        }
    }
}

/// Reads rules separated by semicolons. There may be none.
pub fn line(line: &str, hosts: Hosts) -> Result<Parts, Fault> {
    with_fault(line, line, &|line| rules(line, hosts))
}

/// Reads a line of a file, which may also have a comment. A name may contain `#`, so a comment begins only at
/// the start of the line or after white space.
pub fn line_of_file(line: &str, hosts: Hosts) -> Result<Parts, Fault> {
    with_fault(line, without_comment(line), &|line| rules(line, hosts))
}

/// Parses the part of the line that is before a comment.
fn with_fault(
    line: &str,
    rules: &str,
    parse: &dyn Fn(&str) -> Result<Parts, Mistake>,
) -> Result<Parts, Fault> {
    parse(rules).map_err(|mistake| {
        let fault = Fault::new(line, mistake.column, mistake.width, &mistake.message);
        match correct::corrected(rules, parse) {
            Some(corrected) => {
                let behind = &line[rules.trim_end().len()..];
                fault.corrected_to(line, format!("{corrected}{}", behind.trim_end()))
            }
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
    /// The first word of the term.
    first: Word<'a>,
    values: Word<'a>,
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
            return Err(self.missing(TERMS));
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
                let meant = meant.map(|meant| of_side(side, &meant));
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
            let mistake = Mistake::at(word, "the direction is already given");
            return Err(mistake.or(edits).after_and(Vec::new()));
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
            let message = "the term is given twice; separate its values by commas";
            let mistake = Mistake::at(first, message);
            if let Term::Ends(side) = term {
                // Whether one of them or both of them are meant is not certain without a word.
                let between = (side == Side::Either).then(|| self.between(earlier, first, list));
                return Err(mistake.after_and(between.flatten().into_iter().collect()));
            }
            let end = earlier.values.end();
            let edits = [
                Edit::new(end..end, format!(",{}", list.text)),
                self.removal_of(first, list),
            ];
            return Err(mistake.or(edits).after_and(Vec::new()));
        }
        self.lists.push(List {
            term,
            first,
            values: list,
        });
        let mut values = Vec::new();
        for value in parts(list.text, list.column, |character| character == ',') {
            if value.text.is_empty() {
                let message = "expected a value at the comma; a list has no spaces";
                return Err(Mistake::at(value, message).or([self.closed_gap(list, value)]));
            }
            if correct::is_negation(value.text) && parse(value.text).is_err() {
                return Err(Mistake::at(value, CANNOT_NEGATE));
            }
            let parsed = parse(value.text).map_err(|bad| {
                let before = self.before(list);
                let keyword = bad.keyword.map(|keyword| match before {
                    Some(before) if matches!(before.text, "net" | "host") => {
                        before.replaced_by(keyword)
                    }
                    _ => Edit::new(list.column..list.column, format!("{keyword} ")),
                });
                let value_edit = bad.value.map(|text| match term {
                    Term::Ends(side) => value.replaced_by(of_side(side, &text)),
                    Term::Ports(_) | Term::Protocols | Term::Interfaces => value.replaced_by(text),
                });
                Mistake::at(value, bad.message).or(keyword.into_iter().chain(value_edit))
            })?;
            values.push(parsed);
        }
        Ok(values)
    }

    /// The rule for packets between two ends, of which the second begins with `first`: one rule for each direction.
    fn between(&self, earlier: &List<'a>, first: Word<'a>, list: Word<'a>) -> Option<Edit> {
        if !are_disjoint(earlier.values.text, list.text) {
            return None;
        }
        let term = |first: Word<'a>, last: Word<'a>| {
            let words = self.words.iter();
            let words =
                words.filter(move |word| (first.column..=last.column).contains(&word.column));
            let words: Vec<&str> = words.map(|word| word.text).collect();
            words.join(" ")
        };
        let one = (
            earlier.first,
            earlier.values,
            term(earlier.first, earlier.values),
        );
        let other = (first, list, term(first, list));
        let rule = |src: &str, dst: &str| {
            let mut text: Vec<String> = Vec::new();
            for word in self.words {
                if word.column == one.0.column {
                    text.push(format!("src {src}"));
                } else if word.column == other.0.column {
                    text.push(format!("dst {dst}"));
                } else if word.column != one.1.column && word.column != other.1.column {
                    text.push(word.text.to_owned());
                }
            }
            text.join(" ")
        };
        let rules = format!("{}; {}", rule(&one.2, &other.2), rule(&other.2, &one.2));
        Some(Edit::new(self.words[0].column..self.end(), rules))
    }

    /// Takes the spaces or the comma out where a list has a comma and no value.
    fn closed_gap(&self, list: Word<'a>, value: Word<'a>) -> Edit {
        let (before, after) = (self.before(list), self.words.get(self.next));
        if value.column == list.end() {
            return match after {
                Some(after) if !is_no_value(after.text) => Edit::new(list.end()..after.column, ""),
                _ => Edit::new(value.column - 1..value.column, ""),
            };
        }
        if value.column > list.column {
            return Edit::new(value.column..value.column + 1, "");
        }
        match before {
            Some(before) if !is_no_value(before.text) => Edit::new(before.end()..list.column, ""),
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
                let message = "leave out `and`: all terms of a rule have to match";
                let mut mistake = mistake(message);
                mistake.is_and = true;
                // In tcpdump's language a value is for the side of the one before.
                return match self.continued() {
                    Some((_, Side::Src | Side::Dst)) => mistake,
                    _ => mistake.or([self.removal(word)]),
                };
            }
            ("or" | "||", Some(before)) => {
                let message = "alternatives are values with a comma between, or rules with a semicolon between";
                if action_of(before.text).is_some() {
                    return mistake(message);
                }
                let Some(after) = self.words.get(self.next) else {
                    return mistake(message).or([self.removal(word)]);
                };
                if let Some((list, _)) = self.continued() {
                    let comma = Edit::new(list.end()..after.column, ",");
                    let is_last = match self.words.get(self.next + 1) {
                        Some(next) => matches!(next.text, "or" | "||"),
                        None => true,
                    };
                    return mistake(message)
                        .or(is_last.then_some(comma))
                        .after_and(Vec::new());
                }
                let action = if has_action { self.words[0].text } else { "" };
                let text = if action.is_empty() {
                    ";".to_owned()
                } else {
                    format!("; {action}")
                };
                return mistake(message).or([Edit::new(before.end()..word.end(), text)]);
            }
            ("or" | "||", None) => {}
            (negation, _) if correct::is_negation(negation) => return mistake(CANNOT_NEGATE),
            ("include" | "exclude", Some(before)) => {
                let message =
                    "a rule begins with include or exclude: end the one before with a semicolon";
                let is_rule = action_of(before.text).is_none();
                let end = Edit::new(before.end()..before.end(), ";");
                return mistake(message).or(is_rule.then_some(end));
            }
            _ => {}
        }
        // A value behind the values of a term.
        let is_port = ports(word.text).is_ok();
        let of_ports = self.lists.last().filter(|last| {
            is_port
                && matches!(last.term, Term::Ports(_))
                && before.is_some_and(|before| before.column == last.values.column)
        });
        let is_alternative = of_ports.is_some();
        let edit = match (of_ports, before) {
            (Some(last), _) => Some(Edit::new(last.values.end()..word.column, ",")),
            (None, _) if word.text.starts_with(',') => {
                before.map(|before| Edit::new(before.end()..word.column, ""))
            }
            (None, _) => self.meant(word).map(|meant| {
                if meant.is_empty() {
                    self.removal(word)
                } else {
                    word.replaced_by(meant)
                }
            }),
        };
        let mistake = mistake(&format!("no term begins like this; expected {TERMS}")).or(edit);
        if is_alternative {
            mistake.after_and(Vec::new())
        } else {
            mistake
        }
    }

    /// The meaning of the word. `ip` and the like mean a host only in front of one.
    fn meant(&self, word: Word<'a>) -> Option<String> {
        let meant = correct::meant(word.text)?;
        let after = self.words.get(self.next);
        let has_value = after.is_some_and(|after| !is_no_value(after.text));
        (meant != "host" || has_value).then_some(meant)
    }

    /// The list and its side, if `and` or `or` stands between it and a value without a keyword.
    fn continued(&self) -> Option<(Word<'a>, Side)> {
        let (last, value) = (self.lists.last()?, self.words.get(self.next)?);
        let before = self.words[..self.next - 1].last()?;
        let (is_same_kind, side) = match last.term {
            Term::Ends(side) => (
                is_addresses(value.text) || correct::may_be_a_name(value.text),
                side,
            ),
            Term::Ports(side) => (ports(value.text).is_ok(), side),
            Term::Protocols | Term::Interfaces => return None,
        };
        (is_same_kind && before.column == last.values.column).then_some((last.values, side))
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

/// Whether a word cannot be meant as a value.
fn is_no_value(text: &str) -> bool {
    correct::is_keyword(text) || correct::is_logic(text)
}

/// An address with a port is for one side, if it is at one.
fn of_side(side: Side, meant: &str) -> String {
    match side {
        Side::Src => meant.replace(" port ", " src port "),
        Side::Dst => meant.replace(" port ", " dst port "),
        Side::Either => meant.to_owned(),
    }
}

/// Whether no end can be in both lists. Otherwise one end alone could match both.
fn are_disjoint(one: &str, other: &str) -> bool {
    let nets = |list: &str| -> Option<Vec<Net>> {
        let values = list.split(',').map(|text| Net::parse(text).ok());
        values.collect()
    };
    let is_name = |text: &str| correct::may_be_a_name(text) && !text.contains('*');
    match (nets(one), nets(other)) {
        (Some(one), Some(other)) => one.iter().all(|one| {
            let mut other = other.iter();
            other.all(|other| !one.covers(other) && !other.covers(one))
        }),
        (None, None) => one.split(',').all(|one| {
            let mut others = other.split(',');
            is_name(one) && others.all(|other| is_name(other) && !one.eq_ignore_ascii_case(other))
        }),
        _ => false,
    }
}
