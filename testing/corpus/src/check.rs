//! Compares our parser with the second one: they must agree on a frame, or differ for a known reason.

use agent_common::{Packet, Reason, parse, parse_all};

use crate::{Difference, Entry, Parsed, RawFrame, peer};

/// Has both parsers read `frame`. Gives `None` if they agree, and the difference if they do not but the
/// frame explains it. Otherwise it fails, and the error has the frame as an entry for the corpus.
pub fn check(frame: &RawFrame) -> Result<Option<Difference>, String> {
    let ours = frame.parse();
    both_entries_agree(frame)?;
    let theirs = peer::parse(frame);
    if ours == theirs.parsed {
        return Ok(None);
    }
    let explained = theirs.difference.filter(|difference| {
        difference.explains(&ours, &theirs.parsed)
            && (*difference != Difference::InsideATunnel || agree_on_the_outermost(frame))
    });
    explained.map(Some).ok_or_else(|| {
        format!(
            "two parsers differ; ours says\n\n{}\nand the second one\n\n{}",
            found(frame, &ours),
            found(frame, &theirs.parsed),
        )
    })
}

/// The programs ask the first entry of our parser first: it must read the frame like the second one, or leave it to that.
fn both_entries_agree(frame: &RawFrame) -> Result<(), String> {
    let mut packet = Packet::default();
    let first = parse(frame, frame.link_type, frame.tag, &mut packet).map(|()| packet);
    packet = Packet::default();
    let second = parse_all(frame, frame.link_type, frame.tag, &mut packet).map(|()| packet);
    if first == second || first == Err(Reason::NotIp) {
        return Ok(());
    }
    Err(format!(
        "the entries of our parser differ; the first says {first:?} and the second {second:?} of\n\n{}",
        found(frame, &frame.parse()),
    ))
}

/// Whether both read the outermost packet alike, whatever it carries.
fn agree_on_the_outermost(frame: &RawFrame) -> bool {
    let unopened = RawFrame {
        decapsulate: false,
        ..frame.clone()
    };
    unopened.parse() == peer::parse(&unopened).parsed
}

/// A frame that a test found, as an entry that expects what `parsed` says. A person has to judge that
/// before the entry is kept.
pub fn found(frame: &RawFrame, parsed: &Parsed) -> Entry {
    Entry {
        name: "found".to_owned(),
        why: "Found by mutation; judge by the RFC what it should give.".to_owned(),
        frame: frame.clone(),
        expected: *parsed,
    }
}
