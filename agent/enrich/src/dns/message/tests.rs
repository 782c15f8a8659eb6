use super::*;

/// A name in wire format. Dots separate the labels.
fn name(text: &str) -> Vec<u8> {
    let labels = text.split('.').filter(|label| !label.is_empty());
    let mut bytes: Vec<u8> = labels
        .flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat())
        .collect();
    bytes.push(0);
    bytes
}

/// A message: flags, numbers of questions and answers, and the rest.
fn message(flags: u16, questions: u16, answers: u16, rest: &[&[u8]]) -> Vec<u8> {
    let words = [7, flags, questions, answers, 0, 0];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
    bytes.extend(rest.concat());
    bytes
}

fn question(text: &str, record_type: u16) -> Vec<u8> {
    [&name(text)[..], &record_type.to_be_bytes(), &[0, 1]].concat()
}

fn record(owner: &str, record_type: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let fields = [
        &name(owner)[..],
        &record_type.to_be_bytes(),
        &[0, 1],
        &ttl.to_be_bytes(),
        &(data.len() as u16).to_be_bytes(),
        data,
    ];
    fields.concat()
}

const ANSWER: u16 = 0x8180;

fn answer_of(bytes: &[u8], is_whole: bool) -> Result<Answer, Unread> {
    let message = read(bytes, is_whole)?;
    assert!(message.is_answer);
    message.answer()
}

fn addresses(answer: &Answer) -> Vec<(String, u64)> {
    let one = |one: &Address| (one.address.to_string(), one.ttl.as_secs());
    answer.addresses.iter().map(one).collect()
}

#[test]
fn a_query_has_a_question_and_no_answer() {
    let query = message(0x0100, 1, 0, &[&question("WWW.Example", 28)]);
    let expected = Question {
        name: "WWW.Example".into(),
        record_type: 28,
    };
    let query = read(&query, true).unwrap();
    assert_eq!((query.id, query.is_answer), (7, false));
    assert_eq!(query.question, expected);
}

#[test]
fn addresses_are_those_of_the_name_that_was_asked_for_whatever_aliases_lead_there() {
    let records = [
        question("www.example", 1),
        // In no order, as some servers send them.
        record("c.cdn", 1, 30, &[192, 0, 2, 2]),
        record("b.cdn", 5, 20, &name("C.cdn")),
        record("www.example", 5, 300, &name("b.cdn")),
        record("other.example", 1, 9, &[192, 0, 2, 9]),
        record("c.cdn", 1, 10, &[192, 0, 2, 1]),
        record("c.cdn", 28, 99, &[0x20; 16]),
        // A text record, and one of another class.
        record("c.cdn", 16, 1, b"\x01x"),
    ];
    let all: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    let read = answer_of(&message(ANSWER, 1, 7, &all), true).unwrap();
    let expected = [
        ("192.0.2.2", 20),
        ("192.0.2.1", 10),
        ("2020:2020:2020:2020:2020:2020:2020:2020", 20),
    ];
    assert_eq!(
        addresses(&read),
        expected.map(|(address, ttl)| (address.to_owned(), ttl))
    );
}

#[test]
fn aliases_in_a_circle_have_an_end() {
    let records = [
        question("a.example", 1),
        record("a.example", 5, 1, &name("b.example")),
        record("b.example", 5, 1, &name("a.example")),
        record("x.example", 1, 1, &[192, 0, 2, 1]),
    ];
    let all: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    let read = answer_of(&message(ANSWER, 1, 3, &all), true).unwrap();
    assert_eq!(addresses(&read), []);
}

#[test]
fn codes_and_truncation_are_told() {
    let refused = message(ANSWER | 3 | 0x0200, 1, 0, &[&question("no.example", 1)]);
    let answer = answer_of(&refused, true).unwrap();
    assert_eq!((answer.code, answer.is_truncated), (3, true));
    // EDNS adds the upper bits of the code to the lower ones: BADVERS is 16.
    let mut edns = message(
        ANSWER,
        1,
        0,
        &[
            &question("no.example", 1),
            &[0, 0, 41, 0x10, 0, 1, 0, 0, 0, 0, 0],
        ],
    );
    edns[11] = 1;
    assert_eq!(answer_of(&edns, true).unwrap().code, 16);
}

#[test]
fn of_a_message_that_is_not_whole_what_is_there_is_read() {
    let records = [
        question("www.example", 1),
        record("www.example", 1, 30, &[192, 0, 2, 1]),
        record("www.example", 1, 30, &[192, 0, 2, 2]),
    ];
    let all: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    let whole = message(ANSWER, 1, 2, &all);
    let cut = &whole[..whole.len() - 1];
    assert_eq!(answer_of(cut, true), Err(Unread::Malformed));
    let first = [("192.0.2.1".to_owned(), 30)];
    assert_eq!(addresses(&answer_of(cut, false).unwrap()), first);
    assert_eq!(addresses(&answer_of(&whole, true).unwrap()).len(), 2);
}

#[test]
fn what_is_no_question_about_the_internet_is_left() {
    let question = question("www.example", 1);
    let mut chaos = question.clone();
    *chaos.last_mut().unwrap() = 3;
    for (bytes, expected) in [
        (message(0x2800, 1, 0, &[&question]), Unread::OfAnotherKind),
        (message(0, 0, 0, &[]), Unread::OfAnotherKind),
        (
            message(0, 2, 0, &[&question, &question]),
            Unread::OfAnotherKind,
        ),
        (message(0, 1, 0, &[&chaos]), Unread::OfAnotherKind),
        (message(0, 1, 0, &[]), Unread::Malformed),
        (message(0, 1, 0, &[&[0xc0, 12]]), Unread::Malformed),
        (vec![0; 11], Unread::Malformed),
        (Vec::new(), Unread::Malformed),
    ] {
        assert_eq!(read(&bytes, true).err(), Some(expected), "{bytes:?}");
    }
}

#[test]
fn a_name_is_harmless_text() {
    let odd = message(0, 1, 0, &[&question("a\x1b[2J b", 1)]);
    assert_eq!(&*read(&odd, true).unwrap().question.name, "a\\027[2J\\ b");
    let like_an_address = message(0, 1, 0, &[&question("::1", 1)]);
    let read = read(&like_an_address, true).unwrap();
    assert_eq!(&*read.question.name, "\\058\\0581");
}

#[test]
fn the_root_has_no_name() {
    let root = message(0, 1, 0, &[&question(".", 2)]);
    assert_eq!(&*read(&root, true).unwrap().question.name, "");
}

proptest::proptest! {
    #[test]
    fn whatever_comes_is_read_or_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..600), whole: bool) {
        let _ = read(&bytes, whole).map(|message| message.answer());
    }

    /// Almost valid messages get further into the parser.
    #[test]
    fn whatever_was_changed_on_the_way_is_read_or_refused(at in 0_usize..120, byte: u8, whole: bool) {
        let records = [
            question("www.example", 1),
            record("www.example", 5, 300, &name("b.cdn")),
            record("b.cdn", 1, 30, &[192, 0, 2, 2]),
        ];
        let all: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let mut bytes = message(ANSWER, 1, 2, &all);
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = read(&bytes, whole).map(|message| message.answer());
    }
}

/// Each name of such a message has about 250 pointers, which a comparison follows.
#[test]
fn a_message_of_pointers_costs_no_more_than_its_names() {
    let mut bytes = message(ANSWER, 1, 0, &[&question("a", 1)]);
    let mut owners = Vec::new();
    while bytes.len() + 500 < 1400 {
        let at = bytes.len() as u16;
        let owner = [&b"\x01a"[..], &(0xc000 | at).to_be_bytes()].concat();
        owners.push(owner);
        bytes.extend(record("a", 5, 1, &name("b")));
    }
    for owner in &owners {
        bytes.extend(owner);
        bytes.extend([0, 5, 0, 1, 0, 0, 0, 1, 0, 2, 0xc0, 12]);
    }
    bytes[7] = (2 * owners.len()) as u8;
    let read = answer_of(&bytes, true).unwrap();
    assert_eq!(addresses(&read), []);
}
