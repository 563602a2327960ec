//! Changed rows on their way into a snapshot.
//!
//! Collecting is cheap, because the engine does it at a cut while everything waits: a row is copied
//! after those of its shard. The writer of the snapshot sorts the rows, in the background.

use tidemill_core::TableId;
use tidemill_place::Partition;

use crate::bytes::take_short;
use crate::data::put_row;
use crate::shard::{shard_of, Spot, SHARDS};

/// The rows that have changed since the snapshot before, or all rows of all tables.
#[derive(Clone, Debug)]
pub struct Delta {
    /// By shard: each row after its spot (u32), encoded as in a data object.
    shards: Vec<Vec<u8>>,
    rows: u64,
    whole: bool,
}

impl Default for Delta {
    fn default() -> Delta {
        Delta::new()
    }
}

/// The number of bits of an offset in a shard, in a sorting word.
const OFFSET_BITS: u32 = 42;
const OFFSET_MASK: u128 = (1 << OFFSET_BITS) - 1;

impl Delta {
    /// Creates a delta without changes.
    pub fn new() -> Delta {
        Delta { shards: vec![Vec::new(); SHARDS], rows: 0, whole: false }
    }

    /// Creates a delta for the whole state, without rows yet. Rows of earlier snapshots that are
    /// not pushed are gone. It is for the state of another program, and for callers that have lost
    /// track of changes.
    pub fn whole() -> Delta {
        Delta { whole: true, ..Delta::new() }
    }

    /// Adds a row, or a deletion. Of several with the same key, the last one counts. Any order is
    /// allowed. Rows that arrive by partition are copied faster, and those that arrive by key are
    /// sorted faster.
    ///
    /// # Panics
    /// If the partition does not exist.
    #[inline]
    pub fn push(&mut self, table: TableId, partition: Partition, key: &[u8], row: Option<&[u8]>) {
        let shard = &mut self.shards[shard_of(partition)];
        shard.extend_from_slice(&Spot::new(table, partition).0.to_le_bytes());
        put_row(key, row, shard);
        self.rows += 1;
    }

    /// Returns the number of rows and deletions pushed.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the memory that they take, in bytes.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(Vec::capacity).sum()
    }

    /// Whether it is the whole state.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Returns the rows of a shard, sorted, each key once.
    pub(crate) fn sorted<'a>(&'a self, shard: usize, sorter: &'a mut Sorter) -> Sorted<'a> {
        let bytes = &self.shards[shard];
        sorter.sort(bytes);
        Sorted { bytes, words: &sorter.words }
    }
}

/// A pushed row: its spot, its key, and all of it in the encoding of blocks.
struct Pushed<'a> {
    spot: Spot,
    key: &'a [u8],
    deleted: bool,
    encoded: &'a [u8],
}

#[inline(always)]
fn pushed_at(bytes: &[u8], from: usize) -> Pushed<'_> {
    let (spot, _) = bytes[from..].split_first_chunk().expect("a row was pushed here");
    let mut at = from + 4;
    let lengths = take_short(bytes, &mut at).zip(take_short(bytes, &mut at));
    let (key, row) = lengths.expect("a row was pushed here");
    let key_end = at + key as usize;
    Pushed {
        spot: Spot(u32::from_le_bytes(*spot)),
        key: &bytes[at..key_end],
        deleted: row == 0,
        encoded: &bytes[from + 4..key_end + row.saturating_sub(1) as usize],
    }
}

/// Sorts shard after shard, with reused memory.
///
/// It sorts words of 128 bits: table and partition (22 bits), the first 8 bytes of the key after
/// the common beginning of all keys of the table (64 bits), and the offset (42 bits). Words that
/// differ only in the offset are compared again by the whole key. Later pushes have larger offsets,
/// so the last of equal keys is the newest.
#[derive(Default)]
pub(crate) struct Sorter {
    words: Vec<u128>,
    /// By table: the place of its first key, and the length of the beginning that all keys share.
    shared: Vec<Option<(usize, usize)>>,
}

impl Sorter {
    fn sort(&mut self, bytes: &[u8]) {
        self.words.clear();
        self.shared.clear();
        let mut at = 0;
        while at < bytes.len() {
            let row = pushed_at(bytes, at);
            let table = row.spot.table().index();
            if self.shared.len() <= table {
                self.shared.resize(table + 1, None);
            }
            match &mut self.shared[table] {
                none @ None => *none = Some((at, row.key.len())),
                Some((first, shared)) => {
                    let first = pushed_at(bytes, *first).key;
                    let same = first[..*shared].iter().zip(row.key).take_while(|(a, b)| a == b);
                    *shared = same.count();
                }
            }
            at += 4 + row.encoded.len();
        }
        at = 0;
        while at < bytes.len() {
            let row = pushed_at(bytes, at);
            let (_, shared) = self.shared[row.spot.table().index()].expect("seen before");
            let head = u128::from(head(&row.key[shared..]));
            let word = u128::from(row.spot.in_shard()) << 64 | head;
            self.words.push(word << OFFSET_BITS | at as u128);
            at += 4 + row.encoded.len();
        }
        self.words.sort_unstable();
    }
}

/// Returns the first 8 bytes, with zeros for missing ones.
#[inline(always)]
fn head(key: &[u8]) -> u64 {
    if let Some((head, _)) = key.split_first_chunk() {
        return u64::from_be_bytes(*head);
    }
    let mut head = [0; 8];
    head[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(head)
}

/// The sorted rows of a shard.
pub(crate) struct Sorted<'a> {
    bytes: &'a [u8],
    words: &'a [u128],
}

impl Sorted<'_> {
    /// Calls `visit` with the spot, whether it is a deletion, and the row in the encoding of
    /// blocks.
    pub(crate) fn each<E>(
        &self,
        mut visit: impl FnMut(Spot, bool, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let row = |word: u128| pushed_at(self.bytes, (word & OFFSET_MASK) as usize);
        let mut equal: Vec<u128> = Vec::new();
        let mut rest = self.words;
        while let Some((first, behind)) = rest.split_first() {
            let more = behind.iter().take_while(|w| *w >> OFFSET_BITS == first >> OFFSET_BITS);
            let count = 1 + more.count();
            if count == 1 {
                let row = row(*first);
                visit(row.spot, row.deleted, row.encoded)?;
            } else {
                equal.clear();
                equal.extend_from_slice(&rest[..count]);
                // The sort is stable: equal keys stay in the order in which they were pushed.
                equal.sort_by(|a, b| row(*a).key.cmp(row(*b).key));
                for (i, word) in equal.iter().enumerate() {
                    let row = row(*word);
                    let next = equal.get(i + 1).map(|next| {
                        self::pushed_at(self.bytes, (*next & OFFSET_MASK) as usize).key
                    });
                    if next != Some(row.key) {
                        visit(row.spot, row.deleted, row.encoded)?;
                    }
                }
            }
            rest = &rest[count..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Rows are sorted by shard, table, partition and key, with the last of equal keys, for
        /// keys of any form.
        #[test]
        fn sorts_as_a_map_does(
            rows in proptest::collection::vec(
                (0u16..3, 0u16..200, "[a-b\0]{0,3}(prefix|[a-c\0]{8,11})?", any::<Option<u8>>()),
                0..200,
            ),
        ) {
            let mut delta = Delta::new();
            let mut map = BTreeMap::new();
            for (table, partition, key, row) in &rows {
                let (table, partition) = (TableId(*table), Partition(*partition * 20));
                let row = row.map(|byte| vec![byte; usize::from(byte)]);
                delta.push(table, partition, key.as_bytes(), row.as_deref());
                let place = (shard_of(partition), table, partition, key.as_bytes().to_vec());
                map.insert(place, row);
            }
            prop_assert_eq!(delta.rows(), rows.len() as u64);
            let mut sorter = Sorter::default();
            let mut found = Vec::new();
            for shard in 0..SHARDS {
                let sorted = delta.sorted(shard, &mut sorter);
                sorted.each(|spot, deleted, encoded| {
                    found.push((shard, spot, deleted, encoded.to_vec()));
                    Ok::<(), ()>(())
                }).unwrap();
            }
            let expected: Vec<_> = map.into_iter().map(|((shard, table, partition, key), row)| {
                let mut encoded = Vec::new();
                put_row(&key, row.as_deref(), &mut encoded);
                (shard, Spot::new(table, partition), row.is_none(), encoded)
            }).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
