use httlib_hpack::{Decoder, Encoder};
use proptest::{collection::vec, prelude::*, sample::Index};
use tonic::codegen::http::uri::Authority;

use super::*;
use client::{
    DATA, HUFFMAN, Sent, authority, block_alone, block_of, frame, header_field, sent, stream,
};

mod client;

/// What C core, Java and a browser send as `:authority`.
const C_CORE: &[u8] = b"run%2Fflow-agent%2Ffl%20ow:1:2.sock";
const JAVA: &[u8] = b"/run/flow-agent/fl ow:1:2.sock";
const HOST: &[u8] = b"[::1]:50051";

/// Passes the bytes through the filter in one piece.
fn filtered(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    Filter::default().pass(&mut bytes);
    bytes
}

fn filtered_in_pieces(bytes: &[u8], cuts: &[Index]) -> Vec<u8> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
    cuts.sort_unstable();
    cuts.push(bytes.len());
    let (mut filter, mut bytes, mut from) = (Filter::default(), bytes.to_vec(), 0);
    for to in cuts {
        filter.pass(&mut bytes[from..to]);
        from = to;
    }
    bytes
}

/// The names and values in one block without padding.
fn decoded(block: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut fields = Vec::new();
    let decoder = &mut Decoder::default();
    decoder.decode(&mut block.to_vec(), &mut fields).unwrap();
    let fields = fields.into_iter();
    fields.map(|(name, value, _)| (name, value)).collect()
}

/// The value that h2 gets.
fn mended(value: &[u8], flags: u8) -> Vec<u8> {
    let block = authority(value, flags);
    let out = filtered(&stream(&[frame(HEADERS, END_HEADERS, &block)]));
    let fields = decoded(&out[PREFACE.len() + FRAME_HEADER_BYTES..]);
    let [(name, value)] = <[_; 1]>::try_from(fields).unwrap();
    assert_eq!(name, b":authority");
    value
}

#[test]
fn a_path_becomes_an_authority_and_an_authority_stays() {
    for indexed in [0, Encoder::WITH_INDEXING, Encoder::NEVER_INDEXED] {
        for named in [0, Encoder::BEST_FORMAT] {
            let plain = indexed | named;
            assert_eq!(
                mended(C_CORE, plain),
                b"run.2Fflow-agent.2Ffl.20ow.1.2.sock"
            );
            assert_eq!(mended(JAVA, plain), b".run.flow-agent.fl.ow.1.2.sock");
            assert_eq!(mended(HOST, plain), HOST);
            let huffman = HUFFMAN | plain;
            assert_eq!(
                mended(C_CORE, huffman),
                b"run.2Fflow-agent.2Ffl.20owB1B2.sock"
            );
            assert_eq!(mended(JAVA, huffman), b"3run3flow-agent3fl-owB1B2.sock");
            assert_eq!(mended(HOST, huffman), HOST);
        }
    }
}

#[test]
fn other_fields_keep_what_an_authority_cannot_have() {
    for name in [
        &b":path"[..],
        b":authoritz",
        b":authorit",
        b":authority2",
        b"x",
    ] {
        for flags in [0, HUFFMAN, Encoder::BEST_FORMAT] {
            let block = header_field(&mut Encoder::default(), (name, C_CORE, flags));
            let sent = stream(&[frame(HEADERS, END_HEADERS, &block)]);
            assert_eq!(filtered(&sent), sent, "{name:?}");
        }
    }
}

/// The connection's preface may be cut, too.
#[test]
fn a_block_may_be_cut_anywhere_and_wrapped_in_anything() {
    let wrapped = |block: &[u8]| {
        let (first, rest) = block.split_at(12);
        let (second, third) = rest.split_at(1);
        let padded = [&[3, 1, 2, 3, 4, 5], first, &[0; 3]].concat();
        stream(&[
            frame(DATA, PADDED, b"\x05/%/%/%"),
            frame(HEADERS, PADDED | PRIORITY, &padded),
            frame(CONTINUATION, 0, second),
            frame(CONTINUATION, 0, b""),
            frame(CONTINUATION, PADDED | END_HEADERS, third),
            frame(DATA, 0, b"/%/%"),
        ])
    };
    for flags in [0, HUFFMAN] {
        let block = authority(C_CORE, flags);
        let mended = block_of(&filtered(&block_alone(&block))[PREFACE.len()..]);
        let (sent, expected) = (wrapped(&block), wrapped(&mended));
        for cut in 0..sent.len() {
            let mut bytes = sent.clone();
            let (left, right) = bytes.split_at_mut(cut);
            let mut filter = Filter::default();
            filter.pass(left);
            filter.pass(right);
            assert_eq!(bytes, expected, "cut at {cut}");
        }
        let mut bytes = sent;
        let mut filter = Filter::default();
        for byte in &mut bytes {
            filter.pass(std::slice::from_mut(byte));
        }
        assert_eq!(bytes, expected, "cut everywhere");
    }
}

#[test]
fn after_a_breach_of_the_rules_everything_passes_untouched() {
    let path = authority(C_CORE, 0);
    let with = |first: &[u8]| [first, &path].concat();
    let breaches = [
        ("no preface", frame(HEADERS, END_HEADERS, &path)),
        (
            "HTTP/1",
            b"GET /% HTTP/1.1\r\n:authority: /%\r\n\r\n".to_vec(),
        ),
        ("padding of all", stream(&[frame(HEADERS, PADDED, &[2, 0])])),
        (
            "no place for padding",
            stream(&[frame(HEADERS, PADDED, &[])]),
        ),
        (
            "no place for priority",
            stream(&[frame(HEADERS, PRIORITY, &[0; 4])]),
        ),
        (
            "a block without a beginning",
            stream(&[frame(CONTINUATION, 0, &path)]),
        ),
        (
            "a block without an end",
            stream(&[frame(HEADERS, 0, &[]), frame(DATA, 0, &[])]),
        ),
        (
            "a second block in a block",
            stream(&[frame(HEADERS, 0, &[]), frame(HEADERS, 0, &path)]),
        ),
        ("half a field", block_alone(&path[..9])),
        ("half an integer", block_alone(&[0x7f, 0x80])),
        ("no value", block_alone(&[0x41])),
        (
            "an integer of five bytes",
            block_alone(&with(&[0xff, 0x80, 0x80, 0x80, 0x80, 0])),
        ),
        (
            "a length of 256 MiB",
            block_alone(&with(&[0x41, 0x7f, 0xff, 0xff, 0xff, 0xff])),
        ),
    ];
    for (name, breach) in breaches {
        let sent = [breach, frame(HEADERS, END_HEADERS, &path)].concat();
        assert_eq!(filtered(&sent), sent, "{name}");
    }
}

/// Otherwise the filter would look for the rest of the field in the next block.
#[test]
fn a_block_that_ends_within_a_field_is_a_breach() {
    let sent = [
        block_alone(&[0x41]),
        frame(HEADERS, END_HEADERS, b"\x03a/b"),
    ]
    .concat();
    assert_eq!(filtered(&sent), sent);
}

#[test]
fn a_long_value_ends_where_its_length_says() {
    for len in [126, 127, 128, 254, 255, 300, 20_000, 3_000_000] {
        let long = header_field(&mut Encoder::default(), (b"x", &vec![b'a'; len], 0));
        let block = [long.clone(), authority(JAVA, 0)].concat();
        let mended = block_of(&filtered(&block_alone(&block))[PREFACE.len()..]);
        let expected = [long, authority(&mend(JAVA, 0), 0)].concat();
        assert!(mended == expected, "{len}");
    }
}

/// RFC 7541 section 6. A field that is mistaken for another form would end elsewhere.
#[test]
fn the_forms_of_a_field_are_told_apart_by_its_first_bits() {
    let forms: [&[u8]; 6] = [
        // A whole field by index.
        &[0x82],
        // A change of the table's size: to 1, and to 4096.
        &[0x21],
        &[0x3f, 0xe1, 0x1f],
        // A name by an index of more than four bits: to be indexed, not to be, and never to be.
        &[0x50, 1, b'x'],
        &[0x0f, 0x01, 1, b'x'],
        &[0x1f, 0x01, 1, b'x'],
    ];
    for form in forms {
        let block = [form, &authority(JAVA, 0)].concat();
        let mended = block_of(&filtered(&block_alone(&block))[PREFACE.len()..]);
        let expected = [form, &authority(&mend(JAVA, 0), 0)].concat();
        assert_eq!(mended, expected, "{form:x?}");
    }
}

/// Whatever a client announces and repeats, there is no buffer that it could fill.
#[test]
fn the_filter_keeps_some_bytes_whatever_comes() {
    const { assert!(size_of::<Filter>() <= 64) };
    let mut announced = vec![0x41, 0x7f, 0x80, 0xff, 0xff, 0x7f];
    announced.extend([b'a'; 16_000]);
    let mut filter = Filter::default();
    filter.pass(&mut PREFACE.to_vec());
    filter.pass(&mut frame(HEADERS, 0, &announced));
    for _ in 0..1000 {
        filter.pass(&mut frame(CONTINUATION, 0, &[b'/'; 16_000]));
    }
    let mut last = frame(CONTINUATION, 0, b"/");
    filter.pass(&mut last);
    assert!(last.ends_with(b"."), "the value goes on");
}

/// The fields as h2 must see them.
fn expected(sent: &Sent) -> Vec<(Vec<u8>, Vec<u8>)> {
    let fields = sent.fields.iter();
    let expected = fields.map(|(name, value, flags)| {
        let is_authority = name == b":authority";
        let value = if is_authority {
            mend(value, *flags)
        } else {
            value.clone()
        };
        (name.clone(), value)
    });
    expected.collect()
}

fn mend(value: &[u8], flags: u8) -> Vec<u8> {
    let is_huffman = flags & Encoder::HUFFMAN_VALUE != 0;
    let replacements = if is_huffman { b"-.3B" } else { b"...." };
    let mut is_path = false;
    let mend = |&byte: &u8| {
        let found = b" %/:".iter().position(|&fault| fault == byte);
        is_path |= found.is_some_and(|found| found < 3);
        found
            .filter(|_| is_path)
            .map_or(byte, |found| replacements[found])
    };
    value.iter().map(mend).collect()
}

proptest! {
    /// Checked with a decoder that keeps the client's table over all requests, so values that are sent by
    /// their index must be mended too.
    #[test]
    fn what_clients_send_comes_out_with_another_authority_alone(
        requests in prop_oneof![vec(sent(0), 1..5), vec(sent(HUFFMAN), 1..5)],
        cuts in vec(any::<Index>(), 0..20),
    ) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let blocks: Vec<Vec<u8>> = requests.iter().map(|sent| sent.block(&mut encoder)).collect();
        let frames = requests.iter().zip(&blocks).map(|(sent, block)| sent.frames(block));
        let whole = stream(&frames.collect::<Vec<_>>());
        let out = filtered_in_pieces(&whole, &cuts);
        prop_assert_eq!(&out, &filtered(&whole));

        // The blocks have the same lengths, in the same frames.
        let mut rest = &out[PREFACE.len()..];
        for (sent, block) in requests.iter().zip(&blocks) {
            let frames = sent.frames(block);
            let (these, others) = rest.split_at(frames.len());
            rest = others;
            let mended = block_of(these);
            prop_assert_eq!(&sent.frames(&mended), these);
            let mut fields = Vec::new();
            decoder.decode(&mut mended.clone(), &mut fields).unwrap();
            let fields: Vec<_> = fields.into_iter().map(|(name, value, _)| (name, value)).collect();
            prop_assert_eq!(fields, expected(sent));
        }
    }

    #[test]
    fn garbage_passes_without_a_panic(
        has_preface: bool,
        kinds in vec((0..10_u8, any::<u8>(), vec(any::<u8>(), 0..40)), 0..8),
        garbage in vec(any::<u8>(), 0..200),
        cuts in vec(any::<Index>(), 0..8),
    ) {
        let frames = kinds.iter().map(|(kind, flags, payload)| frame(*kind, *flags, payload));
        let mut sent = frames.collect::<Vec<_>>().concat();
        sent.extend(garbage);
        if has_preface {
            sent.splice(0..0, PREFACE.iter().copied());
        }
        prop_assume!(!sent.is_empty());
        let whole = filtered(&sent);
        prop_assert_eq!(filtered_in_pieces(&sent, &cuts), whole.clone());
        if !has_preface {
            prop_assert_eq!(whole, sent);
        }
    }

    /// Checked with the rule that h2 applies.
    #[test]
    fn any_path_is_an_authority_afterwards(path in "/[a-zA-Z0-9._~:/ -]{0,90}") {
        let mut percent_encoded = String::new();
        for byte in path.chars().skip(1) {
            match byte {
                '/' => percent_encoded += "%2F",
                ' ' => percent_encoded += "%20",
                _ => percent_encoded.push(byte),
            }
        }
        for name in [path, format!("%2F{percent_encoded}")] {
            for flags in [0, HUFFMAN] {
                let mended = mended(name.as_bytes(), flags);
                prop_assert!(Authority::try_from(&mended[..]).is_ok(), "{:?}", mended);
            }
        }
    }
}
