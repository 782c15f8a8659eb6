//! Which way a packet passes an interface, and how the hooks are numbered.

/// A direction, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// The packet arrives.
    Ingress = 0,
    /// The packet leaves.
    Egress = 1,
}

impl Direction {
    pub const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];

    /// 0 is ingress, everything else egress.
    pub const fn from_bit(bit: u8) -> Self {
        if bit == 0 {
            Self::Ingress
        } else {
            Self::Egress
        }
    }

    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Ingress => Self::Egress,
            Self::Egress => Self::Ingress,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// The number of the hook that counts one direction (0 ingress, 1 egress) of an interface. It is also the index of the
/// hook's account on a page: two per interface slot.
#[inline(always)]
pub const fn hook_number(slot: u32, direction: u32) -> u32 {
    slot * 2 + direction
}

/// The interface slot of a hook.
pub const fn slot_of_hook(number: u32) -> u32 {
    number / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_number_gives_its_slot_back() {
        for slot in [0, 1, 700] {
            for direction in Direction::BOTH {
                let number = hook_number(slot, direction as u32);
                assert_eq!(slot_of_hook(number), slot);
                assert_eq!(Direction::from_bit((number % 2) as u8), direction);
            }
        }
        assert_eq!(hook_number(1, Direction::Egress as u32), 3);
    }
}
