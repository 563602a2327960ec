//! The readable versions of one row: those of its history, and the newest in its slot.

use std::ops::Range;

use tidemill_core::{Row, TableSpec, Value};

use super::row::{signed, RowHistory};
use super::Shape;
use crate::table::Table;

/// The versions of a row, by number; see the [module](crate::history).
#[derive(Clone, Copy, Debug)]
pub struct Versions<'t> {
    pub(crate) table: &'t Table,
    pub(crate) shape: &'t Shape,
    pub(crate) history: &'t RowHistory,
    /// The slot's first word.
    pub(crate) key: u64,
    /// The columns of the newest version, if the row is there: words, and values beside them.
    pub(crate) newest: Option<(&'t [u64], &'t [Value])>,
}

impl<'t> Versions<'t> {
    /// Returns the table's declaration.
    pub fn spec(&self) -> &'t TableSpec {
        self.table.spec()
    }

    /// Returns the number of the oldest stored version.
    pub fn first(&self) -> u64 {
        self.history.first()
    }

    /// Returns the number after the newest version.
    pub fn end(&self) -> u64 {
        self.history.end() + u64::from(self.newest.is_some())
    }

    /// Returns the columns of the version in the slot, if `number` is that version.
    fn newest(&self, number: u64) -> Option<(&[u64], &[Value])> {
        self.newest.filter(|_| number == self.history.end())
    }

    /// Returns the time of a version, in microseconds.
    pub fn time_us(&self, number: u64) -> i64 {
        match self.newest(number) {
            Some(_) => self.history.newest_us,
            None => self.history.time(number, self.shape),
        }
    }

    /// Returns the number of the first version that is not older than `time_us`, or
    /// [`Versions::end`] if all are older.
    pub fn since(&self, time_us: i64) -> u64 {
        let since = self.history.since(time_us, self.shape);
        let is_newest = since == self.history.end() && self.newest.is_some();
        since + u64::from(is_newest && self.history.newest_us < time_us)
    }

    /// Returns a version's row.
    pub fn row(&self, number: u64) -> Row {
        let (body, values) = self.body(number);
        self.table.make_row(self.key, body, values)
    }

    /// Returns a version's columns: words, and values beside them.
    pub(crate) fn body(&self, number: u64) -> (&[u64], &[Value]) {
        let history = || {
            let values = self.history.values(number, self.shape);
            (self.history.body(number, self.shape), values)
        };
        self.newest(number).unwrap_or_else(history)
    }

    /// Returns a column of a version.
    pub fn value(&self, number: u64, column: usize) -> Value {
        let (body, values) = self.body(number);
        self.table.make_value(column, self.key, body, values)
    }

    /// Returns the exact sum of a column of integers or decimals that are never null.
    ///
    /// Returns `None` for other columns, and for those whose sums are not [wanted](Wanted).
    pub fn sum(&self, column: usize, numbers: Range<u64>) -> Option<i128> {
        let nth = self.shape.nth_sum(column)?;
        if numbers.is_empty() {
            return Some(0);
        }
        let (end, mut sum) = (self.history.end(), 0);
        if let Some((body, _)) = self.newest(numbers.end - 1) {
            sum += signed(body[self.shape.sums[nth]]);
        }
        let to = numbers.end.min(end);
        if numbers.start < to {
            sum += self.history.sum_with(self.shape, to - 1, nth);
            sum -= self.history.sum_before(self.shape, numbers.start, nth);
        }
        Some(sum)
    }

    /// Returns the sum as [`Versions::sum`] does, over all versions that are not older than
    /// `time_us`.
    #[inline(always)]
    pub fn sum_since(&self, column: usize, time_us: i64) -> Option<i128> {
        let nth = self.shape.nth_sum(column)?;
        let mut sum = 0;
        if let Some((body, _)) = self.newest {
            if self.history.newest_us < time_us {
                return Some(0);
            }
            sum = signed(body[self.shape.sums[nth]]);
        }
        Some(sum + self.history.sum_since(self.shape, time_us, nth))
    }

    /// Returns the smallest or the largest value of a one-word column that is never null.
    ///
    /// Returns `None` for other columns, for those whose extremes are not [wanted](Wanted), and for
    /// no versions.
    pub fn extreme(&self, column: usize, numbers: Range<u64>, largest: bool) -> Option<Value> {
        let word = self.table.layout().plain_word(column)?;
        let nth = self.shape.orders.iter().position(|(ordered, _)| *ordered == word)?;
        let order = self.shape.orders[nth].1;
        let to = numbers.end.min(self.history.end());
        let superseded = (numbers.start < to)
            .then(|| self.history.extremes(self.shape, numbers.start..to, nth))
            .map(|pair| pair[usize::from(largest)]);
        let newest = (!numbers.is_empty())
            .then(|| self.newest(numbers.end - 1))
            .flatten()
            .map(|(body, _)| order.rank(body[word]));
        let both = superseded.into_iter().chain(newest);
        let rank = if largest { both.max() } else { both.min() }?;
        Some(Value::of_word(&self.table.spec().schema.columns[column].ty, order.word(rank)))
    }
}
