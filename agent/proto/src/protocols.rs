//! Names of IP protocols.

/// Well-known protocols by IANA number, with their common names.
const NAMES: &[(u8, &str)] = &[
    (1, "icmp"),
    (2, "igmp"),
    (4, "ipip"),
    (6, "tcp"),
    (17, "udp"),
    (33, "dccp"),
    (41, "ipv6"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (58, "icmp6"),
    (89, "ospf"),
    (103, "pim"),
    (112, "vrrp"),
    (132, "sctp"),
    (136, "udplite"),
];

/// The protocol's common name, if it has one here.
pub fn name(number: u8) -> Option<&'static str> {
    NAMES
        .iter()
        .find(|(known, _)| *known == number)
        .map(|(_, name)| *name)
}

/// A protocol as a key of sums: each protocol with a name is one class, and all others together are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class(u8);

impl Class {
    pub const COUNT: usize = NAMES.len() + 1;
    const OTHER: Self = Self(NAMES.len() as u8);
    /// The class of each IANA protocol number.
    const OF: [Self; 256] = {
        let mut of = [Self::OTHER; 256];
        let mut class = 0;
        while class < NAMES.len() {
            of[NAMES[class].0 as usize] = Self(class as u8);
            class += 1;
        }
        of
    };

    pub fn of(number: u8) -> Self {
        Self::OF[usize::from(number)]
    }

    pub fn all() -> impl Iterator<Item = Self> {
        (0..=Self::OTHER.0).map(Self)
    }

    /// The index of the class, below [`Class::COUNT`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    pub fn name(self) -> &'static str {
        NAMES.get(self.index()).map_or("other", |(_, name)| name)
    }
}

/// All names.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(_, name)| *name)
}

/// The protocol number for a name, in upper or lower case.
pub fn number(name: &str) -> Option<u8> {
    NAMES
        .iter()
        .find(|(_, known)| known.eq_ignore_ascii_case(name))
        .map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_protocol_has_the_class_of_its_name() {
        for number in 0..=255 {
            let expected = name(number).unwrap_or("other");
            assert_eq!(Class::of(number).name(), expected, "{number}");
        }
        let names: Vec<_> = Class::all().map(Class::name).collect();
        assert_eq!(names.len(), Class::COUNT);
        assert!(Class::all().map(Class::index).eq(0..Class::COUNT));
    }
}
