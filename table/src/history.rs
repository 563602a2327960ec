//! The versions of rows that a table retains for windows (see [`tidemill_core::History`]).
//!
//! Each row has its own versions, beside its slot, so that no write touches memory of another row.
//! The newest version is the slot itself. A version enters the history when it is superseded, at
//! the beginning of a write. So undoing a write takes the last version out of the history again.
//!
//! Versions of a row are numbered in their order, and the numbers stay when older versions are
//! dropped. Dropped versions can't be seen: a window that is larger than the retention is refused
//! when the program is built. So versions are dropped when that is cheap: when a row's memory is
//! full, and for some rows at each cut.
//!
//! A window finds its first version where it found the last one, or shortly after, because time
//! goes on. All data of a version that it needs is in one place (see [`Shape`]), and so is all
//! other data of a row.
//!
//! Snapshots have the histories, and the newest version beside them. Each history knows the numbers
//! that the last snapshot has. So a version is stored once, whatever happens to its row.

mod levels;
mod row;
mod stored;
#[cfg(test)]
mod tests;
mod versions;

use std::collections::BTreeSet;

use tidemill_core::value::canonical_f64;
use tidemill_core::{DataType, History, TableSpec};

use crate::layout::Layout;
use crate::version::Seq;

pub(crate) use row::RowHistory;
pub use stored::StoredVersion;
pub use versions::Versions;

/// The layout of the stored versions.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    history: History,
    /// The number of words of a version: null bits and columns.
    body: usize,
    /// The number of values beside the slot.
    beside: usize,
    /// The words of versions (after null bits) that have running sums: integers and decimals.
    sums: Vec<usize>,
    /// The number of each column's sum, by column.
    nth_sums: Vec<Option<u16>>,
    /// The words whose extremes are stored for blocks of versions. They may have any type.
    orders: Vec<(usize, Order)>,
    /// The offset of the columns in a record.
    body_at: usize,
    /// The number of words of a record.
    width: usize,
}

/// The aggregates of versions that a program's windows use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aggregates {
    /// The columns whose sums are used.
    pub sums: BTreeSet<usize>,
    /// The columns whose smallest or largest value is used.
    pub extremes: BTreeSet<usize>,
}

/// The comparison of the words of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Signed,
    Float,
}

/// The point up to which the past is final. Versions before it may be dropped if the history does
/// not retain them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    /// The last final transaction. Versions of later transactions are retained.
    pub(crate) seq: Seq,
    /// The time before which nothing arrives any more, in microseconds.
    pub(crate) frontier_us: i64,
}

impl Floor {
    pub(crate) const NONE: Floor = Floor { seq: 0, frontier_us: i64::MIN };
}

// A record has these words, in this order:
// - the time of the version before, so that one look tells whether this is the first version since
//   some time
// - its own time
// - its stamp word
// - for each summed column the sum of all versions before it, in two words
// - its columns
// The words that a window needs are together at the front.

/// The offset of the time of the version before in a record.
const BEFORE: usize = 0;
/// The offset of the time in a record.
const TIME: usize = 1;
/// The offset of the stamp word in a record.
const STAMP_AT: usize = 2;
/// The number of words of a record before its sums.
const HEADER: usize = 3;

impl Shape {
    /// Returns the shape of a table's versions, if it retains any.
    pub(crate) fn of(spec: &TableSpec, layout: &Layout) -> Option<Shape> {
        let history = spec.history?;
        let (mut sums, mut orders) = (Vec::new(), Vec::new());
        for (number, column) in spec.schema.columns.iter().enumerate() {
            // Aggregates of columns that may be null are computed by a scan.
            let Some(word) = layout.plain_word(number) else { continue };
            let order = match column.ty {
                DataType::Float => Order::Float,
                _ => Order::Signed,
            };
            orders.push((word, order));
            if matches!(column.ty, DataType::Int | DataType::Decimal(_)) {
                sums.push(word);
            }
        }
        let (body, beside) = (layout.body_words(), layout.values);
        let (nth_sums, body_at, width) = (Vec::new(), 0, 0);
        let shape = Shape { history, body, beside, sums, nth_sums, orders, body_at, width };
        Some(shape.measured(layout))
    }

    /// Removes the sums and extremes that are not wanted.
    pub(crate) fn only(mut self, wanted: &Aggregates, layout: &Layout) -> Shape {
        let is_of = |columns: &BTreeSet<usize>, word: usize| {
            columns.iter().any(|column| layout.plain_word(*column) == Some(word))
        };
        self.sums.retain(|word| is_of(&wanted.sums, *word));
        self.orders.retain(|(word, _)| is_of(&wanted.extremes, *word));
        self.measured(layout)
    }

    fn measured(mut self, layout: &Layout) -> Shape {
        let nth = |column| {
            let word = layout.plain_word(column)?;
            self.sums.iter().position(|summed| *summed == word).map(|nth| nth as u16)
        };
        self.nth_sums = (0..layout.places.len()).map(nth).collect();
        self.body_at = HEADER + 2 * self.sums.len();
        self.width = self.body_at + self.body;
        self
    }

    /// Returns the number of a column's sum.
    #[inline(always)]
    fn nth_sum(&self, column: usize) -> Option<usize> {
        self.nth_sums[column].map(usize::from)
    }
}

impl Order {
    /// Returns a number that compares as the word does.
    #[inline(always)]
    pub(crate) fn rank(self, word: u64) -> u64 {
        const SIGN: u64 = 1 << 63;
        match self {
            Order::Signed => word ^ SIGN,
            Order::Float => {
                let word = canonical_f64(f64::from_bits(word)).to_bits();
                if word & SIGN == 0 {
                    word ^ SIGN
                } else {
                    !word
                }
            }
        }
    }

    /// Returns the word of a rank.
    #[inline(always)]
    pub(crate) fn word(self, rank: u64) -> u64 {
        const SIGN: u64 = 1 << 63;
        match self {
            Order::Signed => rank ^ SIGN,
            Order::Float if rank & SIGN == 0 => !rank,
            Order::Float => rank ^ SIGN,
        }
    }
}
