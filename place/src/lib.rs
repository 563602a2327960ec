//! The places of keys: from key to partition to worker, as pure functions.
//!
//! `place` must not know anything but `core`: it reads no tables and moves nothing. A partition is
//! the unit of placement. There is a fixed, large number of partitions, so that moving one moves
//! little. The same partitions route connections and place state.

use tidemill_core::{DataType, Key, TableSpec};

/// The number of partitions. It is fixed for ever, because stored state is arranged by it.
pub const PARTITIONS: u16 = 4096;

/// A partition of the key space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u16);

/// Returns the partition of a key: a stable hash of its encoding.
///
/// ```
/// use tidemill_core::{Key, Value};
/// let key = Key::of([&Value::Int(7)]);
/// assert_eq!(tidemill_place::partition(&key), tidemill_place::partition(&key));
/// ```
pub fn partition(key: &Key) -> Partition {
    of_bytes(&key.0)
}

/// Returns the partition of a row of a table, by its key.
///
/// The whole key counts, or the leading columns that the table's `partition_prefix` names. So rows
/// with one prefix (the rows of one warehouse, say) live together.
pub fn partition_in(spec: &TableSpec, key: &Key) -> Partition {
    partition_of_bytes(spec, &key.0)
}

/// Returns [`partition_in`] of a key's bytes.
#[inline]
pub fn partition_of_bytes(spec: &TableSpec, key: &[u8]) -> Partition {
    let Some(columns) = spec.partition_prefix else { return of_bytes(key) };
    let mut rest = key;
    for _ in 0..columns {
        tidemill_core::encode::skip_key(&mut rest).expect("the key is of this table");
    }
    of_bytes(&key[..key.len() - rest.len()])
}

/// Returns the partition of an integer key, without creating its [`Key`].
#[inline]
pub fn partition_of_word(ty: &DataType, word: u64) -> Partition {
    partition_of_hash(hash_of_word(ty, word))
}

/// Returns the hash of a key of one word that decides its partition.
#[inline]
pub fn hash_of_word(ty: &DataType, word: u64) -> u64 {
    let mut bytes = Short { bytes: [0; 9], len: 0 };
    tidemill_core::encode::word(ty, word, &mut bytes);
    match bytes {
        Short { bytes, len: 9 } => hash_of_nine(bytes),
        Short { bytes, len } => hash_of_bytes(&bytes[..len]),
    }
}

/// Returns the xxh3 hash of nine bytes.
///
/// Nearly all keys of one word have so many. The library reads them from memory in other pieces
/// than they were written in, which takes as long as all the rest.
#[inline]
fn hash_of_nine(bytes: [u8; 9]) -> u64 {
    // Words of the default secret of xxh3.
    const FLIP: [u64; 2] = [
        0x1f67_b3b7_a4a4_4072 ^ 0x78e5_c0cc_4ee6_79cb,
        0x2172_ffcc_7dd0_5a82 ^ 0x8e24_43f7_7446_08b8,
    ];
    let [first, rest @ ..] = bytes;
    let rest = u64::from_le_bytes(rest);
    let low = (u64::from(first) | rest << 8) ^ FLIP[0];
    let high = rest ^ FLIP[1];
    let product = u128::from(low) * u128::from(high);
    let folded = product as u64 ^ (product >> 64) as u64;
    let mut hash = 9u64.wrapping_add(low.swap_bytes()).wrapping_add(high).wrapping_add(folded);
    hash ^= hash >> 37;
    hash = hash.wrapping_mul(0x1656_6791_9e37_79f9);
    hash ^ hash >> 32
}

/// Returns the hash of a key's bytes that decides its partition, in a table without a
/// `partition_prefix`.
#[inline]
pub fn hash_of_bytes(bytes: &[u8]) -> u64 {
    // xxh3 is stable for ever.
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// Returns the partition of a key with this hash.
#[inline]
pub fn partition_of_hash(hash: u64) -> Partition {
    // The remainder takes the well-mixed low bits.
    Partition((hash % u64::from(PARTITIONS)) as u16)
}

fn of_bytes(bytes: &[u8]) -> Partition {
    partition_of_hash(hash_of_bytes(bytes))
}

/// The encoding of a word, which needs no heap memory.
struct Short {
    bytes: [u8; 9],
    len: usize,
}

impl tidemill_core::encode::Bytes for Short {
    #[inline]
    fn extend(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Returns the worker of a partition if all workers have equal shares.
///
/// Neighbouring partitions go to one worker, so that a change of the number of workers moves whole
/// ranges.
pub fn worker(partition: Partition, workers: usize) -> usize {
    usize::from(partition.0) * workers / usize::from(PARTITIONS)
}

/// A set of partitions.
#[derive(Clone, PartialEq, Eq)]
pub struct PartitionSet([u64; PARTITIONS as usize / 64]);

impl PartitionSet {
    /// Returns whether a partition is in the set.
    #[inline]
    pub fn contains(&self, partition: Partition) -> bool {
        self.0[usize::from(partition.0 / 64)] >> (partition.0 % 64) & 1 == 1
    }

    /// Whether the set has no partition.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Returns the partitions of this set that another one has, or has not.
    pub fn only(&self, other: &PartitionSet, has: bool) -> PartitionSet {
        let flip = if has { 0 } else { u64::MAX };
        let both = |nth| self.0[nth] & (other.0[nth] ^ flip);
        PartitionSet(std::array::from_fn(both))
    }
}

impl FromIterator<Partition> for PartitionSet {
    fn from_iter<I: IntoIterator<Item = Partition>>(partitions: I) -> PartitionSet {
        let mut set = PartitionSet([0; PARTITIONS as usize / 64]);
        for Partition(number) in partitions {
            set.0[usize::from(number / 64)] |= 1 << (number % 64);
        }
        set
    }
}

impl std::fmt::Debug for PartitionSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count: u32 = self.0.iter().map(|word| word.count_ones()).sum();
        write!(f, "{count} partitions")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::{Column, Schema, Value};

    #[test]
    fn sets_of_partitions() {
        let of = |all: &[u16]| all.iter().copied().map(Partition).collect::<PartitionSet>();
        let set = of(&[0, 63, 64, 4095]);
        assert!(set.contains(Partition(63)) && !set.contains(Partition(62)));
        assert_eq!(set.only(&of(&[63, 64, 70]), true), of(&[63, 64]));
        assert_eq!(set.only(&of(&[63, 64, 70]), false), of(&[0, 4095]));
        assert!(of(&[]).is_empty() && !set.is_empty());
    }

    #[test]
    fn rows_with_one_prefix_live_together() {
        let columns = ["warehouse", "district"].map(|c| Column::new(c, DataType::Str));
        let schema = Schema::new(columns.to_vec()).into();
        let mut spec = TableSpec::new("stock", vec![0, 1], schema);
        let key = |w: &str, d: &str| Key::of([&Value::str(w), &Value::str(d)]);
        let of = |spec: &TableSpec, w: &str, d: &str| partition_in(spec, &key(w, d));
        assert_ne!(of(&spec, "w", "1"), of(&spec, "w", "2"));
        spec.partition_prefix = Some(1);
        assert_eq!(of(&spec, "w", "1"), of(&spec, "w", "2"));
        assert_ne!(of(&spec, "w", "1"), of(&spec, "v", "1"));
        spec.partition_prefix = Some(2);
        assert_eq!(of(&spec, "w", "1"), partition(&key("w", "1")));
    }

    #[test]
    fn partitions_are_stable_for_ever() {
        // Stored state is arranged by these numbers. A change of them is a change of format.
        let of = |v: Value| partition(&Key::of([&v])).0;
        let keys = [Value::Int(0), Value::Int(1), Value::str("cash"), Value::Bool(true)];
        assert_eq!(keys.map(of), [3768, 3300, 4083, 1523]);
    }

    #[test]
    fn words_and_values_agree() {
        let mut word = 7u64;
        for i in 0..1000u64 {
            word = if i < 4 { i.wrapping_sub(1) } else { word.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
            for (ty, value) in [
                (DataType::Int, Value::Int(word as i64)),
                (DataType::Timestamp, Value::Timestamp(word as i64)),
                (DataType::Decimal(2), Value::Decimal(word as i64, 2)),
                (DataType::Float, Value::Float(f64::from_bits(word))),
                (DataType::Bool, Value::Bool(word & 1 == 1)),
            ] {
                let word = value.word().unwrap();
                let key = Key::of([&value]);
                assert_eq!(hash_of_word(&ty, word), hash_of_bytes(&key.0), "{value}");
                assert_eq!(partition_of_word(&ty, word), partition(&key));
            }
        }
    }

    #[test]
    fn partitions_and_workers_get_even_shares() {
        let mut counts = vec![0; usize::from(PARTITIONS)];
        for i in 0..409_600 {
            counts[usize::from(partition(&Key::of([&Value::Int(i)])).0)] += 1;
        }
        // 100 are expected. The bounds are 5 standard deviations of a fair throw.
        assert!(counts.iter().all(|c| (50..=150).contains(c)));
        for workers in [1, 2, 3, 8, 100] {
            let mut shares = vec![0usize; workers];
            (0..PARTITIONS).for_each(|p| shares[worker(Partition(p), workers)] += 1);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 1, "{workers} workers: {least} to {most}");
        }
    }
}
