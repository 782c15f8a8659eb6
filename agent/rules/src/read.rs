//! Reads the rules of the arguments and of a file, in order.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    PacketRules, Parts, Rule,
    bounds::{Bounds, MAX_READ_RULES, MAX_RULES},
    parse::{self, Hosts},
};
use crate::fault::Fault;

/// Some editors put it at the start of a file.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The most bytes that a file of rules may have: enough for a million IPv6 networks, with room to spare.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Reads the rules of all arguments, then the rules of the file, as one set. A line may have several rules. `#` begins a
/// comment at the start of a line and after white space. Fails if a rule cannot be parsed, or if there are too many.
pub fn read(arguments: &[PacketRules], file: Option<&Path>) -> Result<Vec<Rule>> {
    let mut rules = Parts::default();
    for PacketRules(parts) in arguments {
        rules.add(parts.clone());
    }
    if let Some(path) = file {
        let what = || format!("read the filter rules in {}", path.display());
        let file = File::open(path).with_context(what)?;
        // Read line by line, so that an endless file without rules, such as a device, fails at its first line.
        let mut file = BufReader::new(file.take(MAX_FILE_BYTES + 1));
        let (mut line, mut number, mut read_bytes) = (Vec::new(), 0_u64, 0);
        let mut bounds = Bounds::default();
        loop {
            line.clear();
            let line_bytes = file.read_until(b'\n', &mut line).with_context(what)? as u64;
            if line_bytes == 0 {
                break;
            }
            read_bytes += line_bytes;
            ensure!(
                read_bytes <= MAX_FILE_BYTES,
                "{} has more than the {} MiB that a file of filter rules may have; name another file",
                path.display(),
                MAX_FILE_BYTES >> 20
            );
            number += 1;
            let place = || format!("{}:{number}", path.display());
            let text =
                Fault::utf8(without_frame(&line, number)).map_err(|fault| fault.at(&place()))?;
            if !text.starts_with('#') {
                bounds.add(text).with_context(place)?;
            }
            let parts = parse::line_of_file(text, Hosts::Unknown);
            rules.add(parts.map_err(|fault| fault.at(&place()))?);
            ensure!(
                rules.len() <= MAX_READ_RULES,
                "{}: more than {MAX_READ_RULES} filter rules; a set has at most {MAX_RULES} (a term takes several \
                 values: net A,B)",
                place(),
            );
        }
    }
    Ok(rules.into_set())
}

/// Removes the line's end and, from the first line, the byte order mark.
fn without_frame(line: &[u8], number: u64) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    match line.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) if number == 1 => rest,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn written(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("filters");
        fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn shown(bytes: &[u8]) -> Vec<String> {
        let (_folder, path) = written(bytes);
        let rules = read(&[], Some(&path)).unwrap();
        rules.iter().map(ToString::to_string).collect()
    }

    fn fault(bytes: &[u8]) -> String {
        let (_folder, path) = written(bytes);
        let error = read(&[], Some(&path)).unwrap_err().to_string();
        let place = format!("{}:", path.display());
        error.strip_prefix(&place).unwrap().to_owned()
    }

    #[test]
    fn arguments_come_before_the_file() {
        let (_folder, path) = written(b"# ours\n\ninclude net 10.0.0.0/8 # but\r\n");
        let read = read(&["exclude all".parse().unwrap()], Some(&path)).unwrap();
        let shown: Vec<String> = read.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["exclude all", "include net 10.0.0.0/8"]);
    }

    #[test]
    fn a_fault_in_a_file_names_line_and_column() {
        let fault = fault(b"# ours\n\ninclude net 10.0.0.0/8 # but\nexclude nets ::/0\n");
        assert!(
            fault.starts_with("4:9: no term begins like this"),
            "{fault}"
        );
    }

    #[test]
    fn a_line_is_shown_with_its_comment() {
        assert_eq!(
            fault(b"exclude src # the backup\n"),
            "1:13: expected net, host or port here\n  exclude src # the backup\n              ^"
        );
    }

    #[test]
    fn a_comment_begins_at_the_start_and_after_white_space_alone() {
        let text = b"#exclude all\n\t# exclude all\nexclude on eth#1\t#eth0\nexclude on a#,b# #";
        assert_eq!(shown(text), ["exclude on eth#1", "exclude on a#,b#"]);
        let shown = shown(b"exclude on [#]1,eth#1");
        assert_eq!(self::shown(shown.join("\n").as_bytes()), shown);
    }

    #[test]
    fn a_byte_order_mark_is_not_a_part_of_the_first_rule() {
        assert_eq!(shown("\u{feff}exclude all\n".as_bytes()), ["exclude all"]);
        assert_eq!(shown("\u{feff}".as_bytes()), [""; 0]);
        let second = fault("exclude all\n\u{feff}exclude all\n".as_bytes());
        assert!(second.starts_with("2:1: "), "{second}");
    }

    #[test]
    fn what_is_not_utf_8_is_told_with_its_place() {
        assert_eq!(
            fault(b"exclude all\n# \xe2\x98\x83 gr\xfcn\n"),
            "2:7: the byte 0xfc is not UTF-8; save the file as UTF-8\n  # ☃ gr\u{fffd}n\n        ^"
        );
        let utf_16 = fault(b"\xff\xfee\0x\0");
        assert!(
            utf_16.starts_with("1:1: the byte 0xff is not UTF-8"),
            "{utf_16}"
        );
    }

    /// In memory these rules take many times their bytes in the file.
    #[test]
    fn what_no_set_can_have_is_refused_where_it_is_too_much() {
        let (_folder, path) = written(&b"exclude all\n".repeat(5_000_000));
        let error = read(&[], Some(&path)).unwrap_err().to_string();
        let told = "65537: more than 65536 filter rules; a set has at most 1024";
        assert!(error.contains(told), "{error}");
        let (_folder, path) = written(&[b"exclude all\n#", &b", ".repeat(2_000_000)[..]].concat());
        assert_eq!(read(&[], Some(&path)).unwrap().len(), 1);
        let lines = format!("exclude port {}1\n", "1,".repeat(100)).repeat(20_000);
        let (_folder, path) = written(lines.as_bytes());
        let error = format!("{:#}", read(&[], Some(&path)).unwrap_err());
        assert!(error.contains("more than 1100000 commas"), "{error}");
    }

    #[test]
    fn a_file_without_an_end_is_refused_before_it_fills_the_memory() {
        let error = read(&[], Some(Path::new("/dev/zero"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/dev/zero has more than the 64 MiB that a file of filter rules may have; name another file"
        );
        let error = read(&[], Some(Path::new("/dev/urandom"))).unwrap_err();
        assert!(error.to_string().starts_with("/dev/urandom:"), "{error}");
    }
}
