//! Shards: groups of neighbouring partitions, the unit in which snapshots are read and merged.

use tidemill_core::TableId;
use tidemill_place::{Partition, PartitionSet, PARTITIONS};

/// The number of shards; part of the format.
pub const SHARDS: usize = 64;

const PARTITIONS_PER_SHARD: u16 = PARTITIONS / SHARDS as u16;

/// A set of shards: bit `n` for shard `n`.
pub(crate) type ShardSet = u64;

/// Returns the shard of a partition.
pub fn shard_of(partition: Partition) -> usize {
    usize::from(partition.0 / PARTITIONS_PER_SHARD)
}

/// Returns the shards that have partitions of a set, in order.
pub fn shards(partitions: &PartitionSet) -> impl Iterator<Item = usize> + '_ {
    let of = |shard| {
        let first = shard as u16 * PARTITIONS_PER_SHARD;
        (first..first + PARTITIONS_PER_SHARD).map(Partition)
    };
    (0..SHARDS).filter(move |shard| of(*shard).any(|partition| partitions.contains(partition)))
}

/// A table and a partition as one number, ordered by table and then partition. Rows within a shard
/// are in this order, and then in that of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot(pub(crate) u32);

impl Spot {
    #[inline]
    pub(crate) fn new(table: TableId, partition: Partition) -> Spot {
        Spot(u32::from(table.0) << 16 | u32::from(partition.0))
    }

    #[inline]
    pub(crate) fn table(self) -> TableId {
        TableId((self.0 >> 16) as u16)
    }

    #[inline]
    pub(crate) fn partition(self) -> Partition {
        Partition(self.0 as u16)
    }

    #[inline]
    pub(crate) fn shard(self) -> usize {
        shard_of(self.partition())
    }

    /// Returns the table and the partition's place in its shard: 22 bits, in the same order.
    #[inline]
    pub(crate) fn in_shard(self) -> u32 {
        (self.0 >> 16) * u32::from(PARTITIONS_PER_SHARD)
            + u32::from(self.partition().0 % PARTITIONS_PER_SHARD)
    }
}

/// Returns the shards in a set, in order.
pub(crate) fn shards_in(set: ShardSet) -> impl Iterator<Item = usize> {
    (0..SHARDS).filter(move |shard| set >> shard & 1 == 1)
}
