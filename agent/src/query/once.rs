//! Counts each batch once, though a collector's files may have it twice, and a file that is completed meanwhile is read as
//! what it was made of, too.

use std::collections::{BTreeMap, HashMap};

/// The batches that were counted, as ranges of their numbers, by folder and stream.
#[derive(Default)]
pub(super) struct Once(HashMap<(usize, u64), BTreeMap<u64, u64>>);

impl Once {
    /// Whether the batch comes for the first time.
    pub(super) fn is_new(&mut self, stream: (usize, u64), seq: u64) -> bool {
        // From the first number of each range to the one behind its last.
        let ranges = self.0.entry(stream).or_default();
        let before = ranges.range(..=seq).next_back();
        let before = before.map(|(&first, &end)| (first, end));
        if before.is_some_and(|(_, end)| seq < end) {
            return false;
        }
        let first = match before {
            Some((first, end)) if end == seq => first,
            _ => seq,
        };
        let next = seq.saturating_add(1);
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
            assert!(once.is_new((0, 7), seq), "{seq}");
            assert!(!once.is_new((0, 7), seq), "{seq}");
        }
        assert_eq!(once.0[&(0, 7)], BTreeMap::from([(0, 6), (7, 10)]));
        assert!(!once.is_new((0, 7), 4) && once.is_new((0, 7), 6));
        assert_eq!(once.0[&(0, 7)], BTreeMap::from([(0, 10)]));
        // Other streams and folders have numbers of their own.
        assert!(once.is_new((0, 8), 4) && once.is_new((1, 7), 4));
    }
}
