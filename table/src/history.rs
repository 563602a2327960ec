//! The versions of rows that a table keeps for windows (see [`tidemill_core::History`]).
//!
//! Each row has its own, beside its slot: nothing that a write touches is shared with another row.
//! The newest version is the slot itself, and a version comes here when it is superseded, which is
//! when a write begins; so whoever takes a write back takes the last version from here again.
//!
//! Versions of a row are numbered in their order, and numbers stay when older ones go. What is gone
//! can't be seen: a window that reaches beyond what is kept is refused when the program is built. So
//! versions go when that is cheap: when a row's memory is full, and some rows' at each cut.
//!
//! A window finds its first version where the last one found it, or close behind: time goes on. What it
//! needs of a version stands in one place (see [`Shape`]), and so does all else that it needs of a row.
//!
//! Snapshots have what is here, and the newest version beside it. Each history knows which numbers the
//! last snapshot has, so that a version is stored once, whatever else becomes of its row.

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

/// What is kept of each version.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    history: History,
    /// Words of a version: null bits and columns.
    body: usize,
    /// Values beside the slot.
    beside: usize,
    /// Words of versions (after null bits) that have running sums: integers and decimals.
    sums: Vec<usize>,
    /// By column: which of the sums is its.
    nth_sums: Vec<Option<u16>>,
    /// Words whose smallest and largest are kept for blocks of versions: of every type.
    orders: Vec<(usize, Order)>,
    /// Where a record has its columns.
    body_at: usize,
    /// Words of a record.
    width: usize,
}

/// What is wanted of the versions of a table's rows, beside the versions themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Columns of which sums are asked for.
    pub sums: BTreeSet<usize>,
    /// Columns of which the smallest or the largest is asked for.
    pub extremes: BTreeSet<usize>,
}

/// How words of a type compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Signed,
    Float,
}

/// Up to where the past is final: what nobody wants of it may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    /// Versions of later transactions are kept.
    pub(crate) seq: Seq,
    /// Nothing before this time comes any more.
    pub(crate) frontier_us: i64,
}

impl Floor {
    pub(crate) const NONE: Floor = Floor { seq: 0, frontier_us: i64::MIN };
}

// A record has, one after another: the time of the version before, so that one look tells whether this
// is the first one since some time; its own time; its stamp word; of each summed column the sum of the
// versions before it, in two words, since the first version ever; its columns. What a window needs of
// it stands together in front.

/// Where a record has the time of the version before.
const BEFORE: usize = 0;
/// Where a record has its time.
const TIME: usize = 1;
/// Where a record has its stamp word.
const STAMP_AT: usize = 2;
/// Words of a record before its sums.
const HEADER: usize = 3;

impl Shape {
    /// The shape of a table's versions, if it keeps any.
    pub(crate) fn of(spec: &TableSpec, layout: &Layout) -> Option<Shape> {
        let history = spec.history?;
        let (mut sums, mut orders) = (Vec::new(), Vec::new());
        for (number, column) in spec.schema.columns.iter().enumerate() {
            // Columns that may be null are walked.
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

    /// Without the sums and extremes that nobody wants.
    pub(crate) fn only(mut self, wanted: &Wanted, layout: &Layout) -> Shape {
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

    /// Which of the sums is that of a column.
    #[inline(always)]
    fn nth_sum(&self, column: usize) -> Option<usize> {
        self.nth_sums[column].map(usize::from)
    }
}

impl Order {
    /// A number that compares as the word does.
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

    /// The word of a rank.
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
