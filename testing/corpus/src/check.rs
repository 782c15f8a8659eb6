//! Compares our parser with the second one: they must agree on a frame, or differ for a known reason.

use agent_common::{Packet, Reason, parse, parse_all};

use crate::{Difference, Entry, Parsed, RawFrame, peer};

/// Parses `frame` with both parsers. Returns `None` if they agree, or the known difference that explains a
/// disagreement. Otherwise fails with an error that contains the frame as an entry for the corpus.
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

/// The programs try the first entry of our parser first. It must agree with the second entry, or leave the frame to it.
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

/// Whether both parsers agree on the outermost packet, whatever it carries.
fn agree_on_the_outermost(frame: &RawFrame) -> bool {
    let unopened = RawFrame {
        decapsulate: false,
        ..frame.clone()
    };
    unopened.parse() == peer::parse(&unopened).parsed
}

/// A frame found by a test, as an entry that expects the result `parsed`. Review it before keeping the entry.
pub fn found(frame: &RawFrame, parsed: &Parsed) -> Entry {
    Entry {
        name: "found".to_owned(),
        why: "Found by mutation; judge by the RFC what it should give.".to_owned(),
        frame: frame.clone(),
        expected: *parsed,
    }
}
