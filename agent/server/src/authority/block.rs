//! Walks a header block (HPACK, RFC 7541) without decoding it: finds the end of each field, and replaces offending
//! bytes in the value of `:authority`.

use super::huffman;

/// The bytes are not a header block; h2 reports that.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

const NAME: &[u8] = b":authority";
/// Its index in the static table.
const NAME_INDEX: u32 = 1;

/// The longest integer that h2 accepts: its `decode_int` refuses a fifth byte after the prefix.
const INTEGER_BYTES_AFTER_PREFIX: u8 = 4;

/// The parser's position in a header block.
///
/// A name given by an index of the dynamic table is never taken for `:authority`: encoders use its index in the static
/// table, or spell it out.
#[derive(Debug, Default)]
pub(super) struct Block {
    at: At,
}

#[derive(Debug, Clone, Copy, Default)]
enum At {
    #[default]
    Field,
    Integer(Integer),
    Len(Role),
    Text(Text),
}

/// An integer that is longer than its prefix (section 5.1).
#[derive(Debug, Clone, Copy)]
struct Integer {
    of: Number,
    value: u32,
    bytes: u8,
}

#[derive(Debug, Clone, Copy)]
enum Number {
    /// The index of a whole field, or the size of the table.
    Unread,
    NameIndex,
    Len {
        role: Role,
        is_huffman: bool,
    },
}

/// The role of a string in its field.
#[derive(Debug, Clone, Copy)]
enum Role {
    Name,
    Value { of_authority: bool },
}

#[derive(Debug, Clone, Copy)]
struct Text {
    left: u32,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Name {
        is_huffman: bool,
        matched: Option<usize>,
    },
    Other,
    Authority(Plain),
    HuffmanAuthority(huffman::Authority),
}

impl Block {
    /// Filters a block's next bytes, which may begin and end anywhere.
    pub(super) fn pass(&mut self, bytes: &mut [u8]) -> Result<(), Malformed> {
        let mut rest = bytes;
        while let [first, ..] = *rest {
            let taken;
            (self.at, taken) = match self.at {
                At::Field => (field(first), 1),
                At::Integer(integer) => (integer.next(first)?, 1),
                At::Len(role) => (len(role, first), 1),
                At::Text(text) => text.pass(rest),
            };
            rest = &mut rest[taken..];
        }
        Ok(())
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        match self.at {
            At::Field => Ok(()),
            At::Integer(_) | At::Len(_) | At::Text(_) => Err(Malformed),
        }
    }
}

/// Reads a field's first byte (section 6).
fn field(first: u8) -> At {
    match first.leading_zeros() {
        0 => integer(Number::Unread, first, 0x7f),
        1 => integer(Number::NameIndex, first, 0x3f),
        2 => integer(Number::Unread, first, 0x1f),
        _ => integer(Number::NameIndex, first, 0x0f),
    }
}

/// Reads a string's first byte (section 5.2).
fn len(role: Role, first: u8) -> At {
    let is_huffman = first & 0x80 != 0;
    integer(Number::Len { role, is_huffman }, first, 0x7f)
}

fn integer(of: Number, first: u8, prefix: u8) -> At {
    let value = u32::from(first & prefix);
    if value < u32::from(prefix) {
        return of.is(value);
    }
    At::Integer(Integer {
        of,
        value,
        bytes: 0,
    })
}

impl Integer {
    fn next(mut self, byte: u8) -> Result<At, Malformed> {
        // Cannot overflow: at most 28 bits and the prefix.
        self.value += u32::from(byte & 0x7f) << (7 * self.bytes);
        self.bytes += 1;
        if byte & 0x80 == 0 {
            Ok(self.of.is(self.value))
        } else if self.bytes < INTEGER_BYTES_AFTER_PREFIX {
            Ok(At::Integer(self))
        } else {
            Err(Malformed)
        }
    }
}

impl Number {
    fn is(self, value: u32) -> At {
        match self {
            Self::Unread => At::Field,
            Self::NameIndex if value == 0 => At::Len(Role::Name),
            Self::NameIndex => At::Len(Role::Value {
                of_authority: value == NAME_INDEX,
            }),
            Self::Len { role, is_huffman } => Text::new(value, role, is_huffman).or_next(),
        }
    }
}

impl Text {
    fn new(left: u32, role: Role, is_huffman: bool) -> Self {
        let kind = match role {
            Role::Name => Kind::Name {
                is_huffman,
                matched: Some(0),
            },
            Role::Value {
                of_authority: false,
            } => Kind::Other,
            Role::Value { of_authority: true } if is_huffman => {
                Kind::HuffmanAuthority(huffman::Authority::default())
            }
            Role::Value { of_authority: true } => Kind::Authority(Plain::default()),
        };
        Self { left, kind }
    }

    /// Returns the number of bytes consumed, at least one.
    fn pass(mut self, bytes: &mut [u8]) -> (At, usize) {
        let taken = bytes.len().min(self.left as usize);
        self.left -= taken as u32;
        let bytes = &mut bytes[..taken];
        match &mut self.kind {
            Kind::Name {
                is_huffman,
                matched,
            } => {
                let name = name(*is_huffman);
                *matched = matched
                    .filter(|&matched| name[matched..].starts_with(bytes))
                    .map(|matched| matched + taken);
            }
            Kind::Other => {}
            Kind::Authority(plain) => plain.mend(bytes),
            Kind::HuffmanAuthority(authority) => authority.mend(bytes),
        }
        (self.or_next(), taken)
    }

    /// Stays in the text while some of it is left; otherwise moves on to what follows.
    fn or_next(self) -> At {
        if self.left > 0 {
            return At::Text(self);
        }
        match self.kind {
            Kind::Name {
                is_huffman,
                matched,
            } => At::Len(Role::Value {
                of_authority: matched == Some(name(is_huffman).len()),
            }),
            Kind::Other | Kind::Authority(_) | Kind::HuffmanAuthority(_) => At::Field,
        }
    }
}

fn name(is_huffman: bool) -> &'static [u8] {
    if is_huffman { huffman::NAME } else { NAME }
}

/// The value of `:authority` in plain bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Plain {
    is_path: bool,
}

impl Plain {
    fn mend(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            match byte {
                b'%' | b'/' | b' ' => {
                    *byte = b'.';
                    self.is_path = true;
                }
                // An authority has one colon, for the port; a path may have more.
                b':' if self.is_path => *byte = b'.',
                _ => {}
            }
        }
    }
}
