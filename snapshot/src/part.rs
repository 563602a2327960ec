//! The numbers of tables in a snapshot. Rows have the numbers of the program's tables. The versions
//! of tables with a history have further numbers after these, in the same order.

use tidemill_core::TableId;

/// The kind of an entry of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A row of a table.
    Row(usize),
    /// A version of a row of a table.
    Version(usize),
}

impl Part {
    /// Returns the kind behind a number, in a program with so many tables.
    pub fn of(number: TableId, tables: usize) -> Part {
        match number.index().checked_sub(tables) {
            None => Part::Row(number.index()),
            Some(table) => Part::Version(table),
        }
    }

    /// Returns its number.
    pub fn number(self, tables: usize) -> TableId {
        match self {
            Part::Row(table) => TableId(table as u16),
            Part::Version(table) => TableId((tables + table) as u16),
        }
    }
}
