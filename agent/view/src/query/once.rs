//! Counts each record once. A collector's files may have a record twice, and a file completed during the query may be
//! read both before and after.

use std::collections::{BTreeMap, HashMap};

/// The numbers counted so far, as ranges, by folder and stream.
#[derive(Default)]
pub(super) struct Once(HashMap<Stream, BTreeMap<u128, u128>>);

/// A folder's number, and a hash that identifies a stream in it.
pub(super) type Stream = (usize, u64);

/// The number of a record: its batch's number on the stream, and its own in the batch.
pub(super) fn number(stream_seq: u64, record: u32) -> u128 {
    u128::from(stream_seq) << u32::BITS | u128::from(record)
}

impl Once {
    /// Whether this number was counted.
    pub(super) fn has(&self, stream: Stream, number: u128) -> bool {
        let ranges = self.0.get(&stream);
        let before = ranges.and_then(|ranges| ranges.range(..=number).next_back());
        before.is_some_and(|(_, &end)| number < end)
    }

    /// Adds a number. Returns whether it is new.
    pub(super) fn is_new(&mut self, stream: Stream, number: u128) -> bool {
        // Maps the first number of each range to the one after its last.
        let ranges = self.0.entry(stream).or_default();
        let before = ranges.range(..=number).next_back();
        let before = before.map(|(&first, &end)| (first, end));
        if before.is_some_and(|(_, end)| number < end) {
            return false;
        }
        let first = match before {
            Some((first, end)) if end == number => first,
            _ => number,
        };
        let next = number + 1;
        let end = ranges.remove(&next).unwrap_or(next);
        ranges.insert(first, end);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_a_stream_is_new_once_in_whatever_order_they_come() {
        let mut once = Once::default();
        for seq in [5, 1, 2, 4, 3, 9, 7, 8, 0] {
            assert!(!once.has((0, 7), seq), "{seq}");
            assert!(once.is_new((0, 7), seq), "{seq}");
            assert!(!once.is_new((0, 7), seq) && once.has((0, 7), seq), "{seq}");
        }
        assert_eq!(once.0[&(0, 7)], BTreeMap::from([(0, 6), (7, 10)]));
        assert!(!once.is_new((0, 7), 4) && once.is_new((0, 7), 6));
        assert_eq!(once.0[&(0, 7)], BTreeMap::from([(0, 10)]));
        // Other streams and folders number independently.
        assert!(once.is_new((0, 8), 4) && once.is_new((1, 7), 4));
    }
}
