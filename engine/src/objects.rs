//! What a snapshot has under which number of a table: rows under those of the program's tables, and
//! behind them, in the same order, the versions that tables with a history keep.

use tidemill_core::TableId;

/// What an object of a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A row of a table.
    Row(usize),
    /// A version of a row of a table.
    Version(usize),
}

impl Part {
    /// What stands under a number, of a program with so many tables.
    pub(crate) fn of(number: TableId, tables: usize) -> Part {
        match number.index().checked_sub(tables) {
            None => Part::Row(number.index()),
            Some(table) => Part::Version(table),
        }
    }

    /// The number under which it stands.
    pub(crate) fn number(self, tables: usize) -> TableId {
        match self {
            Part::Row(table) => TableId(table as u16),
            Part::Version(table) => TableId((tables + table) as u16),
        }
    }
}
