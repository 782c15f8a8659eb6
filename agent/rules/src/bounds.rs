//! Bounds the text of a rule set before it is parsed. In memory, rules and values take many times the two bytes that
//! the shortest of them take as text.

use thiserror::Error;

pub use agent_common::filter::MAX_RULES;

use super::MAX_NETWORKS;

/// Rules that are read before they are counted.
pub const MAX_READ_RULES: usize = 64 << 10;
/// Semicolons between rules. The limit on rules is checked where rules are counted.
const MAX_SEMICOLONS: usize = MAX_READ_RULES;
/// Commas between the values of all terms: the networks, and room for ports, protocols and interfaces.
const MAX_COMMAS: usize = MAX_NETWORKS + 100_000;
/// Spaces between words, and bytes of characters that are not ASCII.
const MAX_SPACES: usize = 1_000_000;

/// The largest message with a set of rules: a million IPv6 networks of up to 49 bytes each, and some room.
pub const MAX_MESSAGE_BYTES: usize = 48 << 20;
const _: () = {
    let longest = "2001:0db8:0000:0000:0000:ffff:255.255.255.255/128,".len();
    assert!(MAX_NETWORKS * longest + MAX_RULES * 64 <= MAX_MESSAGE_BYTES);
};

#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "the filter rules have more than {most} {what}; a set has at most {MAX_RULES} rules and \
     {MAX_NETWORKS} networks"
)]
pub struct TooMuch {
    most: usize,
    what: &'static str,
}

/// Fails if parsing the rules would take much more memory than their text.
pub fn check(texts: &[&str]) -> Result<(), TooMuch> {
    let mut bounds = Bounds::default();
    texts.iter().try_for_each(|text| bounds.add(text))
}

/// Counts the parts of a rule set's text that take memory.
#[derive(Default)]
pub struct Bounds {
    semicolons: usize,
    commas: usize,
    spaces: usize,
}

impl Bounds {
    /// Adds a part of the text, and fails as [`check`] does.
    pub fn add(&mut self, text: &str) -> Result<(), TooMuch> {
        for byte in text.bytes() {
            match byte {
                b';' => self.semicolons += 1,
                b',' => self.commas += 1,
                // Unicode has more white space than ASCII.
                _ if byte.is_ascii_whitespace() || byte == 0x0b || !byte.is_ascii() => {
                    self.spaces += 1;
                }
                _ => {}
            }
        }
        for (count, most, what) in [
            (self.semicolons, MAX_SEMICOLONS, "semicolons"),
            (self.commas, MAX_COMMAS, "commas"),
            (self.spaces, MAX_SPACES, "spaces"),
        ] {
            if count > most {
                return Err(TooMuch { most, what });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_would_become_large_is_refused_and_the_largest_set_is_not() {
        let refused = |text: &str| check(&[text]).unwrap_err().what;
        assert_eq!(refused(&";".repeat(65_537)), "semicolons");
        assert_eq!(refused(&"1,".repeat(1_100_001)), "commas");
        assert_eq!(refused(&"a ".repeat(1_000_001)), "spaces");
        assert_eq!(refused(&"\u{85}".repeat(1_000_000)), "spaces");

        let most = [
            ";".repeat(65_536),
            "1,".repeat(1_100_000),
            "a ".repeat(1_000_000),
        ];
        for text in most {
            assert_eq!(check(&[&text]), Ok(()));
        }
        let net = "2001:0db8:85a3:08d3:1319:8a2e:0370:7344/128,";
        let networks = net.repeat(MAX_NETWORKS / MAX_RULES + 1);
        let rule = format!("exclude src net {networks} dst port 1,2,3 proto tcp,udp on eth0");
        assert_eq!(check(&[rule.as_str(); MAX_RULES]), Ok(()));
    }
}
