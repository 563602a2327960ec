//! The partition of a key, as Kafka's own clients compute it.

/// Returns the partition of a key, as the Java client chooses it: by the murmur2 hash of the key.
///
/// # Panics
/// If there are no partitions.
pub fn partition_of_key(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions
}

fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let word = word.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let word = word.wrapping_mul(M);
        let word = (word ^ word >> 24).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ word;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        hash ^= rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors are those of Kafka's own tests.
    #[test]
    fn the_hash_is_that_of_kafka() {
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
        assert_eq!(partition_of_key(b"21", 10), (-973_932_308i32 as u32 & 0x7fff_ffff) % 10);
        assert_eq!(partition_of_key(b"", 7), (murmur2(b"") & 0x7fff_ffff) % 7);
    }
}
