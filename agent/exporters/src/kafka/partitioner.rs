//! Maps keys to partitions as Kafka's own producer does, so that messages of other producers with the same key land in
//! the same partition.

/// The partition of a key, from 0 to `partitions` - 1, as in `BuiltInPartitioner.partitionForKey` of Kafka's clients.
/// `partitions` must not be 0.
pub(super) fn partition(key: &[u8], partitions: usize) -> usize {
    (murmur2(key) & 0x7fff_ffff) as usize % partitions
}

/// `MurmurHash2` over little-endian words with Kafka's seed: `org.apache.kafka.common.utils.Utils.murmur2`.
fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    let mut hash = SEED ^ data.len() as u32;
    let (words, rest) = data.as_chunks();
    for word in words {
        let mut word = u32::from_le_bytes(*word).wrapping_mul(M);
        word = (word ^ (word >> R)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ word;
    }
    if !rest.is_empty() {
        for (at, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * at);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of `UtilsTest.testMurmur2` in Kafka.
    #[test]
    fn hashes_are_those_of_kafka() {
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
        }
    }

    #[test]
    fn a_key_has_one_partition_of_those_that_there_are() {
        // -973932308 without its sign is 1173551340.
        assert_eq!(partition(b"21", 7), 1_173_551_340 % 7);
        assert_eq!(partition(b"", 1), 0);
        let used: std::collections::BTreeSet<_> = (0..100)
            .map(|number: u32| partition(&number.to_be_bytes(), 6))
            .collect();
        assert_eq!(used, (0..6).collect());
    }
}
