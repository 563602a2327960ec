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
//! Snapshots have what is here, and the newest version beside it. Each history knows which numbers the
//! last snapshot has, so that a version is stored once, whatever else becomes of its row.

mod levels;
mod row;
mod stored;
#[cfg(test)]
mod tests;
mod versions;

use tidemill_core::value::canonical_f64;
use tidemill_core::{DataType, History, TableSpec};

use crate::layout::{Layout, Place};
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
    /// Words whose smallest and largest are kept for blocks of versions: of every type.
    orders: Vec<(usize, Order)>,
    /// Words of a record: time, stamp, body, sums of two words each.
    width: usize,
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

/// Where a record has its time.
const TIME: usize = 0;
/// Where a record has its stamp word.
const STAMP_AT: usize = 1;
/// Words of a record before its columns.
const HEADER: usize = 2;

impl Shape {
    /// The shape of a table's versions, if it keeps any.
    pub(crate) fn of(spec: &TableSpec, layout: &Layout) -> Option<Shape> {
        let history = spec.history?;
        let (mut sums, mut orders) = (Vec::new(), Vec::new());
        for (column, place) in spec.schema.columns.iter().zip(&layout.places) {
            // Columns that may be null are walked.
            let Place::Word { word, null_bit: None } = place else { continue };
            let word = layout.null_words + word;
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
        let width = HEADER + body + 2 * sums.len();
        Some(Shape { history, body, beside, sums, orders, width })
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
