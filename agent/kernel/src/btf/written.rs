//! Writes type information for tests, as a kernel might give it.

use super::{ENUM, MAGIC, STRUCT};

/// Types, with their names, that are put together piece by piece.
#[derive(Default)]
pub struct Written {
    types: Vec<u32>,
    /// Begins with an empty name, which is that of an anonymous enum.
    strings: Vec<u8>,
}

impl Written {
    /// A struct, with the offset of each member in bytes.
    pub fn structure(&mut self, name: &str, members: &[(&str, u32)]) {
        let name = self.name(name);
        self.begin(name, STRUCT, members.len());
        for (member, offset) in members {
            let member = self.name(member);
            self.types.extend([member, 0, offset * 8]);
        }
    }

    /// An enum of these constants.
    pub fn constants(&mut self, constants: &[(&str, u32)]) {
        self.constants_named(0, constants);
    }

    /// The same with a name.
    pub fn constants_of(&mut self, enumeration: &str, constants: &[(&str, u32)]) {
        let name = self.name(enumeration);
        self.constants_named(name, constants);
    }

    fn constants_named(&mut self, name: u32, constants: &[(&str, u32)]) {
        self.begin(name, ENUM, constants.len());
        for (name, value) in constants {
            let name = self.name(name);
            self.types.extend([name, *value]);
        }
    }

    fn begin(&mut self, name: u32, kind: u32, members: usize) {
        self.types.extend([name, kind << 24 | members as u32, 0]);
    }

    fn name(&mut self, name: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        let at = self.strings.len() as u32;
        self.strings.extend(name.bytes().chain([0]));
        at
    }

    /// The contents of a file such as `/sys/kernel/btf/vmlinux`.
    pub fn bytes(&self) -> Vec<u8> {
        let types_len = self.types.len() as u32 * 4;
        let header = [24, 0, types_len, types_len, self.strings.len() as u32];
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        for number in header.iter().chain(&self.types) {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(&self.strings);
        bytes
    }
}
