//! Looks up struct members and constants in the kernel's own type information (BTF).
//!
//! Written by hand because the crates that read BTF build all of its types, which takes 57 MiB that the process would
//! keep.

use anyhow::{Context as _, Result, ensure};

#[cfg(test)]
pub mod written;

const MAGIC: u16 = 0xeb9f;
const TYPE_LEN_BYTES: usize = 12;
const MEMBER_LEN_BYTES: usize = 12;
const ENUMERATOR_LEN_BYTES: usize = 8;
const ENUMERATOR64_LEN_BYTES: usize = 12;
/// No kernel nests anonymous structs and unions deeper than this. It also ends a loop in a broken file.
const MAX_DEPTH: u32 = 16;

// linux/btf.h: `BTF_KIND_*`.
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FUNCTION: u32 = 12;
const ENUM64: u32 = 19;

/// The contents of a file such as `/sys/kernel/btf/vmlinux`.
pub struct Btf {
    bytes: Vec<u8>,
    strings_at: usize,
    /// Where each type begins. Type numbers start at 1.
    types_at: Vec<usize>,
}

impl Btf {
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        // `struct btf_header`.
        ensure!(
            half(&bytes, 0)? == MAGIC,
            "it is no BTF of this machine's byte order"
        );
        let header_len = word(&bytes, 4)? as usize;
        let start = header_len + word(&bytes, 8)? as usize;
        let end = start + word(&bytes, 12)? as usize;
        let strings_at = header_len + word(&bytes, 16)? as usize;
        let mut types_at = Vec::new();
        let mut at = start;
        while at < end {
            types_at.push(at);
            at += TYPE_LEN_BYTES + detail_len(word(&bytes, at + 4)?)?;
        }
        Ok(Self {
            bytes,
            strings_at,
            types_at,
        })
    }

    /// The offset of a struct's member, in bytes. Also finds members of anonymous structs and unions inside it.
    pub fn offset_of(&self, structure: &str, member: &str) -> Result<u32> {
        for (at, members) in self.types(STRUCT) {
            if members != 0
                && self.name(at)? == structure.as_bytes()
                && let Some(bits) = self.find(at, member.as_bytes(), MAX_DEPTH)?
            {
                ensure!(bits % 8 == 0, "{structure}.{member} is a bit field");
                return Ok(bits / 8);
            }
        }
        anyhow::bail!("the kernel's BTF has no {structure}.{member}")
    }

    /// The lower 32 bits of a constant of an enum.
    pub fn constant(&self, name: &str) -> Result<u32> {
        for (kind, len_bytes) in [
            (ENUM, ENUMERATOR_LEN_BYTES),
            (ENUM64, ENUMERATOR64_LEN_BYTES),
        ] {
            for (at, enumerators) in self.types(kind) {
                for index in 0..enumerators {
                    let entry = at + TYPE_LEN_BYTES + index * len_bytes;
                    if self.name(entry)? == name.as_bytes() {
                        return word(&self.bytes, entry + 4);
                    }
                }
            }
        }
        anyhow::bail!("the kernel's BTF has no {name}")
    }

    /// The constants of an enum of 32 bits, with their names.
    pub fn constants_of(&self, enumeration: &str) -> Result<Vec<(String, u32)>> {
        for (at, enumerators) in self.types(ENUM) {
            if enumerators == 0 || self.name(at)? != enumeration.as_bytes() {
                continue;
            }
            let constants = (0..enumerators).map(|index| {
                let entry = at + TYPE_LEN_BYTES + index * ENUMERATOR_LEN_BYTES;
                let name = String::from_utf8_lossy(self.name(entry)?).into_owned();
                Ok((name, word(&self.bytes, entry + 4)?))
            });
            return constants.collect();
        }
        anyhow::bail!("the kernel's BTF has no enum {enumeration}")
    }

    /// The type number of a function.
    pub fn function(&self, name: &str) -> Result<u32> {
        for (number, &at) in (1..).zip(&self.types_at) {
            if kind(word(&self.bytes, at + 4)?) == FUNCTION && self.name(at)? == name.as_bytes() {
                return Ok(number);
            }
        }
        anyhow::bail!("the kernel's BTF has no function {name}")
    }

    /// The offsets of all types of a kind, each with its number of members.
    fn types(&self, wanted: u32) -> impl Iterator<Item = (usize, usize)> {
        self.types_at.iter().filter_map(move |&at| {
            let info = word(&self.bytes, at + 4).ok()?;
            (kind(info) == wanted).then_some((at, members(info)))
        })
    }

    /// The offset of a member in bits, from the start of the struct or union at `at`.
    fn find(&self, at: usize, member: &[u8], depth: u32) -> Result<Option<u32>> {
        let info = word(&self.bytes, at + 4)?;
        if depth == 0 || !matches!(kind(info), STRUCT | UNION) {
            return Ok(None);
        }
        for index in 0..members(info) {
            let entry = at + TYPE_LEN_BYTES + index * MEMBER_LEN_BYTES;
            let name = self.name(entry)?;
            // The upper byte is the width of a bit field, if the struct has any.
            let bits = word(&self.bytes, entry + 8)? & 0x00ff_ffff;
            if name == member {
                return Ok(Some(bits));
            }
            let number = word(&self.bytes, entry + 4)? as usize;
            if name.is_empty()
                && let Some(&inside) = number.checked_sub(1).and_then(|it| self.types_at.get(it))
                && let Some(more) = self.find(inside, member, depth - 1)?
            {
                return Ok(Some(bits + more));
            }
        }
        Ok(None)
    }

    /// The name of a type, member or constant, which begins with the offset of its name.
    fn name(&self, at: usize) -> Result<&[u8]> {
        let start = self.strings_at + word(&self.bytes, at)? as usize;
        let rest = self.bytes.get(start..).context("a name lies outside")?;
        Ok(rest.split(|byte| *byte == 0).next().unwrap_or_default())
    }
}

fn kind(info: u32) -> u32 {
    info >> 24 & 0x1f
}

fn members(info: u32) -> usize {
    (info & 0xffff) as usize
}

/// The length of what follows a type's first three words (linux/btf.h).
fn detail_len(info: u32) -> Result<usize> {
    let each = match kind(info) {
        // Pointers, forward declarations, typedefs, qualifiers, functions, floats, type tags.
        2 | 7..=12 | 16 | 18 => return Ok(0),
        // Integers, variables, declaration tags.
        1 | 14 | 17 => return Ok(4),
        // Arrays.
        3 => return Ok(12),
        STRUCT | UNION => MEMBER_LEN_BYTES,
        // 13 is a function prototype with its parameters.
        ENUM | 13 => ENUMERATOR_LEN_BYTES,
        ENUM64 => ENUMERATOR64_LEN_BYTES,
        // Sections.
        15 => 12,
        kind => anyhow::bail!("it has types of the unknown kind {kind}"),
    };
    Ok(each * members(info))
}

fn half(bytes: &[u8], at: usize) -> Result<u16> {
    let half = bytes.get(at..).and_then(<[u8]>::first_chunk);
    Ok(u16::from_ne_bytes(*half.context("it is cut")?))
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    Ok(u32::from_ne_bytes(*word.context("it is cut")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct a { int b; struct { int c:24; union { int d; int e; }; }; }; enum { f = 6, g = 0x40 };` `h` of an
    /// enum of 64 bits, and a function `i`.
    fn example() -> Vec<u8> {
        let strings = b"\0a\0b\0c\0d\0e\0f\0g\0h\0i\0";
        let offset = |name: u8| strings.iter().position(|it| *it == name).unwrap() as u32;
        let info = |kind: u32, members: u32| kind << 24 | members;
        let types: Vec<u32> = [
            vec![0, info(1, 0), 4, 32],
            vec![
                offset(b'a'),
                info(STRUCT, 2),
                12,
                offset(b'b'),
                1,
                0,
                0,
                3,
                32,
            ],
            vec![
                0,
                info(STRUCT, 2) | 1 << 31,
                8,
                offset(b'c'),
                1,
                24 << 24,
                0,
                4,
                32,
            ],
            vec![0, info(UNION, 2), 4, offset(b'd'), 1, 0, offset(b'e'), 1, 0],
            vec![0, info(ENUM, 2), 4, offset(b'f'), 6, offset(b'g'), 0x40],
            vec![0, info(ENUM64, 1), 8, offset(b'h'), 7, 1],
            vec![offset(b'i'), info(FUNCTION, 0), 0],
        ]
        .concat();
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        let types_len = types.len() as u32 * 4;
        let header = [24, 0, types_len, types_len, strings.len() as u32];
        for number in header.into_iter().chain(types) {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn members_are_found_within_anonymous_ones() {
        let btf = Btf::parse(example()).unwrap();
        let offsets = ["b", "c", "d", "e"].map(|member| btf.offset_of("a", member).unwrap());
        assert_eq!(offsets, [0, 4, 8, 8]);
        assert!(btf.offset_of("a", "f").is_err());
        assert!(btf.offset_of("b", "b").is_err());
    }

    #[test]
    fn constants_are_found_by_name() {
        let btf = Btf::parse(example()).unwrap();
        let constants = ["f", "g", "h"].map(|name| btf.constant(name).unwrap());
        assert_eq!(constants, [6, 0x40, 7]);
        assert!(btf.constant("a").is_err());
    }

    #[test]
    fn functions_are_found_by_name() {
        let btf = Btf::parse(example()).unwrap();
        assert_eq!(btf.function("i").unwrap(), 7);
        // The name of a struct.
        assert!(btf.function("a").is_err());
    }

    #[test]
    fn what_is_cut_is_an_error() {
        let whole = example();
        for len in 0..whole.len() - 2 {
            let cut = Btf::parse(whole[..len].to_vec());
            assert!(cut.and_then(|btf| btf.function("i")).is_err(), "{len}");
        }
    }
}
