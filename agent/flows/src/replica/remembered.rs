//! Remembers who opened the connections that ended without a FIN. Such a connection may be quiet and go on later, and
//! then the end that sends first need not be the one that opened it.

/// How many connections there is room for, in sets of [`WAYS`].
pub const MOST: usize = 1 << 16;
const WAYS: usize = 8;
const SETS: usize = MOST / WAYS;

/// The hash of a connection's key, and its end time with the initiator's bits. All zero means no connection.
type Place = [u64; 2];

/// Takes 1 MiB from the first connection on. A key is identified by a 64-bit hash with a secret seed.
#[derive(Default)]
pub struct Remembered {
    sets: Vec<[Place; WAYS]>,
    len: usize,
    forgotten: u64,
}

/// The end that opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initiator {
    /// The direction of its packets.
    pub direction: u8,
    /// A handshake or a socket proved it.
    pub is_known: bool,
}

impl Initiator {
    const IS_KNOWN: u64 = 2;
    const BITS: u32 = 2;

    fn bits(self) -> u64 {
        let is_known = if self.is_known { Self::IS_KNOWN } else { 0 };
        u64::from(self.direction & 1) | is_known
    }

    fn of(bits: u64) -> Self {
        Self {
            direction: bits as u8 & 1,
            is_known: bits & Self::IS_KNOWN != 0,
        }
    }
}

impl Remembered {
    /// Remembers a connection that ended at this time since boot. If its set is full, forgets the connection in it
    /// that ended first.
    pub fn put(&mut self, hash: u64, initiator: Initiator, ended_ns: u64) {
        // The lowest bit tells a connection that ended at 0 from an empty place.
        let value = (ended_ns | 1 << Initiator::BITS) & !((1 << Initiator::BITS) - 1);
        if self.sets.is_empty() {
            self.sets = vec![[[0; 2]; WAYS]; SETS];
        }
        let set = self.set_of(hash);
        let at = set
            .iter_mut()
            .min_by_key(|place| (place[1] == 0 || place[0] != hash, place[1]))
            .expect("a set has places");
        let had = at[1] != 0;
        let is_same = had && at[0] == hash;
        *at = [hash, value | initiator.bits()];
        self.len += usize::from(!had);
        self.forgotten += u64::from(had && !is_same);
    }

    /// Who opened the connection with this key. Forgets it, since the connection goes on from here.
    pub fn take(&mut self, hash: u64) -> Option<Initiator> {
        if self.len == 0 {
            return None;
        }
        let place = self
            .set_of(hash)
            .iter_mut()
            .find(|place| place[1] != 0 && place[0] == hash)?;
        let [_, value] = std::mem::take(place);
        self.len -= 1;
        Some(Initiator::of(value))
    }

    /// How many connections were forgotten because others needed their places.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn set_of(&mut self, hash: u64) -> &mut [Place; WAYS] {
        // The replica's index uses other bits of the hash first.
        &mut self.sets[(hash >> 32) as usize % SETS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Initiator = Initiator {
        direction: 1,
        is_known: true,
    };
    const ASSUMED: Initiator = Initiator {
        direction: 0,
        is_known: false,
    };

    #[test]
    fn what_was_put_is_taken_once_and_the_last_of_two_stays() {
        let mut remembered = Remembered::default();
        remembered.put(7, ASSUMED, 0);
        remembered.put(7, KNOWN, 5);
        remembered.put(8, ASSUMED, 0);
        assert_eq!(remembered.take(9), None);
        assert_eq!(remembered.take(7), Some(KNOWN));
        assert_eq!(remembered.take(7), None);
        assert_eq!(remembered.take(8), Some(ASSUMED));
        assert_eq!((remembered.len, remembered.forgotten()), (0, 0));
    }

    #[test]
    fn in_a_full_set_the_connection_that_ended_first_is_forgotten() {
        let mut remembered = Remembered::default();
        let ways = WAYS as u64;
        for number in 0..=ways {
            remembered.put(number, KNOWN, (10 + number) * 1_000);
        }
        assert_eq!((remembered.len, remembered.forgotten()), (WAYS, 1));
        assert_eq!(remembered.take(0), None);
        assert!((1..=ways).all(|number| remembered.take(number) == Some(KNOWN)));
    }
}
