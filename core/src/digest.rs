//! The hash of rows in order, by column.
//!
//! Each row is hashed together with its number, and the hashes are added up. So the sum depends on
//! the rows and their order, and not on where batches begin and end. It can be continued from the
//! sum and the number of rows alone. No row waits for the one before, as in a chain.
//!
//! A value is one or two words. Numbers and booleans are themselves, and a float is its canonical
//! bits. Texts, bytes and encoded lists are their xxh3-128. Null is a word of its own. The hash is
//! stable for ever, because cut logs and snapshots store it.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::Array;

use crate::batch::Batch;
use crate::encode;
use crate::types::DataType;
use crate::value::{canonical_f64, Value};

/// The number of rows that are hashed at once, column by column. Their hashes stay in the nearest
/// cache.
const BLOCK: usize = 256;

/// Odd numbers without a pattern: digits of π.
const SEED: [u64; 4] =
    [0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7345, 0xA409_3822_299F_31D1, 0x082E_FA98_EC4E_6C89];

/// The hash of the rows so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowsHash {
    /// The sum of the rows' hashes.
    pub sum: u128,
    /// The number of rows.
    pub rows: u64,
}

/// The two halves of a row's hash while it is computed.
#[derive(Clone, Copy, Default)]
struct Half(u64, u64);

impl Half {
    fn of(row: u64) -> Half {
        Half(row ^ SEED[0], SEED[1]).mixed(0, SEED[2])
    }

    /// Mixes in a word with one multiplication. Both halves of the result depend on both halves
    /// before, and on the whole word.
    #[inline(always)]
    fn mixed(self, word: u64, key: u64) -> Half {
        let product = u128::from(self.0 ^ word) * u128::from(self.1 ^ key | 1);
        Half(product as u64 ^ self.1, (product >> 64) as u64 ^ self.0.rotate_left(32) ^ word)
    }

    #[inline(always)]
    fn finish(self) -> u128 {
        let Half(a, b) = self.mixed(SEED[3], SEED[0]).mixed(SEED[1], SEED[3]);
        u128::from(a) << 64 | u128::from(b)
    }
}

/// Returns the tag that separates a column's values from those of another type, and from null.
fn tag(ty: &DataType) -> u64 {
    let tag: u64 = match ty {
        DataType::Bool => 1,
        DataType::Int => 2,
        DataType::Timestamp => 3,
        DataType::Decimal(_) => 4,
        DataType::Float => 5,
        DataType::Str => 6,
        DataType::Bytes => 7,
        DataType::Any => 8,
        DataType::List(_) => 9,
    };
    SEED[2].rotate_left(tag as u32 * 5).wrapping_mul(2 * tag + 1)
}

/// The tag of nulls.
const NULL: u64 = SEED[3];

impl RowsHash {
    /// Adds the rows of a batch after the rows so far.
    pub fn take(&mut self, batch: &Batch) {
        let mut halves = [Half::default(); BLOCK];
        for from in (0..batch.len()).step_by(BLOCK) {
            let halves = &mut halves[..BLOCK.min(batch.len() - from)];
            for (row, half) in (self.rows..).zip(&mut *halves) {
                *half = Half::of(row);
            }
            for (array, column) in batch.columns().iter().zip(&batch.schema().columns) {
                mix(array, &column.ty, from, halves);
            }
            let sum = halves.iter().fold(0u128, |sum, half| sum.wrapping_add(half.finish()));
            self.sum = self.sum.wrapping_add(sum);
            self.rows += halves.len() as u64;
        }
    }
}

/// Mixes the values of a column, from row `from`, into the halves: one row for each half.
fn mix(array: &dyn Array, ty: &DataType, from: usize, halves: &mut [Half]) {
    let tag = tag(ty);
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    match (ty, nulls) {
        // The usual case.
        (DataType::Int | DataType::Timestamp | DataType::Decimal(_), None) => {
            let words = &array.as_primitive::<Int64Type>().values()[from..];
            for (half, word) in halves.iter_mut().zip(words) {
                *half = half.mixed(*word as u64, tag);
            }
        }
        _ => {
            for (row, half) in (from..).zip(halves) {
                if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                    *half = half.mixed(0, NULL);
                    continue;
                }
                let long = |half: Half, bytes: &[u8]| {
                    let hash = encode::hash128(bytes);
                    half.mixed(hash as u64, tag).mixed((hash >> 64) as u64, tag)
                };
                *half = match ty {
                    DataType::Int | DataType::Timestamp | DataType::Decimal(_) => {
                        half.mixed(array.as_primitive::<Int64Type>().value(row) as u64, tag)
                    }
                    DataType::Float => {
                        let float = canonical_f64(array.as_primitive::<Float64Type>().value(row));
                        half.mixed(float.to_bits(), tag)
                    }
                    DataType::Bool => half.mixed(array.as_boolean().value(row).into(), tag),
                    DataType::Str => long(*half, array.as_string::<i32>().value(row).as_bytes()),
                    DataType::Bytes | DataType::Any | DataType::List(_) => {
                        long(*half, array.as_binary::<i32>().value(row))
                    }
                };
            }
        }
    }
}

/// Returns the hash of several streams, in the order of their names. It covers the name, the number
/// of rows and the sum of each stream that has rows.
pub fn streams_hash<'a>(streams: impl IntoIterator<Item = (&'a str, RowsHash)>) -> u128 {
    let mut streams: Vec<_> = streams.into_iter().filter(|(_, hash)| hash.rows > 0).collect();
    streams.sort_by_key(|(name, _)| *name);
    let mut bytes = Vec::new();
    for (name, RowsHash { sum, rows }) in streams {
        encode::value(&Value::str(name), &mut bytes);
        bytes.extend_from_slice(&rows.to_be_bytes());
        bytes.extend_from_slice(&sum.to_be_bytes());
    }
    encode::hash128(&bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::schema::{Column, Schema};

    fn batch(rows: &[Vec<Value>]) -> Batch {
        let list = DataType::List(Box::new(DataType::Int));
        let columns = [
            ("i", DataType::Int),
            ("f", DataType::Float),
            ("b", DataType::Bool),
            ("s", DataType::Str),
            ("l", list),
            ("y", DataType::Bytes),
        ];
        let columns = columns.map(|(name, ty)| Column::new(name, ty).nullable());
        Batch::from_rows(Arc::new(Schema::new(columns.to_vec())), rows.iter().map(|r| &r[..]))
    }

    fn row(i: i64) -> Vec<Value> {
        let nth = |at: i64, value: Value| if (i + at) % 5 == 0 { Value::Null } else { value };
        vec![
            nth(0, Value::Int(i)),
            nth(1, Value::Float(i as f64 / 3.0)),
            nth(2, Value::Bool(i % 3 == 0)),
            nth(3, Value::str(&format!("é{i}"))),
            nth(4, Value::List(vec![Value::Int(i), Value::Null].into())),
            nth(5, Value::Bytes(vec![i as u8; 3].into())),
        ]
    }

    fn hash(batches: &[Batch]) -> RowsHash {
        let mut hash = RowsHash::default();
        batches.iter().for_each(|batch| hash.take(batch));
        hash
    }

    #[test]
    fn where_batches_end_does_not_show() {
        let rows: Vec<_> = (0..1000).map(row).collect();
        let whole = batch(&rows);
        let want = hash(std::slice::from_ref(&whole));
        assert_eq!(want.rows, 1000);
        for parts in [vec![1, 999], vec![255, 2, 743], vec![256, 256, 488], vec![0, 1000, 0]] {
            let mut from = 0;
            let parts = parts.iter().map(|len| {
                from += len;
                whole.slice(from - len, *len)
            });
            assert_eq!(hash(&parts.collect::<Vec<_>>()), want);
        }
    }

    #[test]
    fn values_and_their_order_show() {
        let rows: Vec<_> = (0..40).map(row).collect();
        let want = hash(&[batch(&rows)]);
        let mut others = std::collections::BTreeSet::from([want.sum]);
        for at in 1..40 {
            let mut swapped = rows.clone();
            swapped.swap(at - 1, at);
            assert!(others.insert(hash(&[batch(&swapped)]).sum), "rows {at} and before");
        }
        for at in 0..40 {
            for column in 0..6 {
                let mut changed = rows.clone();
                let other = row(1000 + at as i64)[column].clone();
                if changed[at][column] != other {
                    changed[at][column] = other;
                    assert!(others.insert(hash(&[batch(&changed)]).sum), "{at} {column}");
                }
            }
        }
        // Swapping equal values between two columns changes the hash.
        let pair = |a, b| {
            let columns = ["a", "b"].map(|c| Column::new(c, DataType::Int)).to_vec();
            let row = [Value::Int(a), Value::Int(b)];
            hash(&[Batch::from_rows(Arc::new(Schema::new(columns)), [&row[..]])]).sum
        };
        assert_ne!(pair(1, 2), pair(2, 1));
    }

    #[test]
    fn it_is_stable() {
        let hash = hash(&[batch(&(0..300).map(row).collect::<Vec<_>>())]);
        assert_eq!(format!("{:032x}", hash.sum), STABLE);
        let streams =
            [("b", hash), ("a", RowsHash::default()), ("c", RowsHash { sum: 1, rows: 1 })];
        let swapped = [streams[2], streams[0]];
        assert_eq!(streams_hash(streams), streams_hash(swapped));
    }

    /// The hash of 300 rows. If it changes, stored sums can't be continued.
    const STABLE: &str = "9027e8d737ae7ca9529e023cdd5febcd";
}
