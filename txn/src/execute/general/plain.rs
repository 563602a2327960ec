//! The touched rows of tables whose rows are words in slots, as functions use them.
//!
//! A row that is read is created from the slot's words. A row that is written is words beside the
//! slot. Neither needs heap memory of its own.

use std::collections::HashMap;

use tidemill_core::{Column, DataType, Key, Row, TableId, TableSpec, Value};
use tidemill_table::{Seq, Table};

/// The number of words for which room is made when the first row is written.
const WORDS_FEW: usize = 32;

/// A touched row.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainRow {
    pub(super) table: TableId,
    /// The key's word.
    pub(super) key: u64,
    /// The state of the row: as the table has it if it is there, or else as it was written.
    is: Is,
}

#[derive(Clone, Copy, Debug)]
enum Is {
    /// It is in the slot that begins here.
    Held(usize),
    /// It does not exist, and was never written.
    Missing,
    /// It was written with these words.
    Written { from: usize, len: usize },
    /// It was deleted.
    Deleted,
}

/// All touched rows of a transaction.
#[derive(Debug, Default)]
pub(super) struct PlainRows {
    rows: Vec<PlainRow>,
    /// The words of all written rows.
    words: Vec<u64>,
    /// The places of the rows, once there are more than [`super::ROWS_FEW`].
    by_key: HashMap<(TableId, u64), usize, foldhash::fast::FixedState>,
}

/// Whether functions use a table's rows in this way.
pub(super) fn is_plain(table: &Table) -> bool {
    let spec = table.spec();
    let key = &spec.schema.columns[spec.key[0]].ty;
    table.has_plain_rows() && *key != DataType::Float && spec.history.is_none()
}

/// Returns the word of a value, if a column stores it without conversion.
#[inline]
fn word_as_is(value: &Value, column: &Column) -> Option<u64> {
    match (value, &column.ty) {
        (Value::Int(word), DataType::Int) | (Value::Timestamp(word), DataType::Timestamp) => {
            Some(*word as u64)
        }
        (Value::Float(float), DataType::Float) if !float.is_nan() => Some(float.to_bits()),
        (Value::Bool(bit), DataType::Bool) => Some(u64::from(*bit)),
        (Value::Decimal(units, scale), DataType::Decimal(its)) if scale == its => {
            Some(*units as u64)
        }
        _ => None,
    }
}

/// Returns the word of a key that needs no conversion.
#[inline]
pub(super) fn key_as_is(spec: &TableSpec, key: &[Value]) -> Option<u64> {
    match key {
        [key] => word_as_is(key, &spec.schema.columns[spec.key[0]]),
        _ => None,
    }
}

/// Returns the word of the key of a row that needs no conversion.
pub(super) fn row_as_is(spec: &TableSpec, row: &[Value]) -> Option<u64> {
    let columns = &spec.schema.columns;
    if row.len() != columns.len() {
        return None;
    }
    let are = row.iter().zip(columns).all(|(value, column)| word_as_is(value, column).is_some());
    are.then(|| key_as_is(spec, std::slice::from_ref(&row[spec.key[0]])))?
}

/// Returns a key's word. The values are as they are stored.
pub(super) fn word(key: &[Value]) -> u64 {
    key[0].word().expect("a key of such a table is a word, and never null")
}

impl PlainRows {
    /// Returns the number of the row with this key.
    pub(super) fn touch(&mut self, id: TableId, table: &Table, key: u64) -> usize {
        self.find(id, key).unwrap_or_else(|| {
            let base = table.find(key, table.hash(key)).filter(|base| table.is_present(*base));
            self.push(PlainRow { table: id, key, is: base.map_or(Is::Missing, Is::Held) })
        })
    }

    /// Returns the number of a row that is in the table only if this transaction has put it there.
    pub(super) fn touch_absent(&mut self, id: TableId, key: u64) -> usize {
        let row = PlainRow { table: id, key, is: Is::Missing };
        self.find(id, key).unwrap_or_else(|| self.push(row))
    }

    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    fn find(&mut self, table: TableId, key: u64) -> Option<usize> {
        let rows = &self.rows;
        if rows.len() < super::ROWS_FEW {
            return rows.iter().position(|row| row.key == key && row.table == table);
        }
        if self.by_key.is_empty() {
            let places = rows.iter().enumerate();
            self.by_key.extend(places.map(|(at, row)| ((row.table, row.key), at)));
        }
        self.by_key.get(&(table, key)).copied()
    }

    fn push(&mut self, row: PlainRow) -> usize {
        if self.rows.is_empty() {
            self.rows.reserve(super::ROWS_FEW);
        }
        if self.rows.len() >= super::ROWS_FEW {
            self.by_key.insert((row.table, row.key), self.rows.len());
        }
        self.rows.push(row);
        self.rows.len() - 1
    }

    /// Returns a row as it is now.
    pub(super) fn row(&self, at: usize, table: &Table) -> Option<Row> {
        self.body(at, table).map(|body| table.row_of(self.rows[at].key, body))
    }

    /// Whether a row exists now.
    pub(super) fn is_there(&self, at: usize) -> bool {
        matches!(self.rows[at].is, Is::Held(_) | Is::Written { .. })
    }

    pub(super) fn body<'a>(&'a self, at: usize, table: &'a Table) -> Option<&'a [u64]> {
        match self.rows[at].is {
            Is::Held(base) => Some(table.body(base)),
            Is::Written { from, len } => Some(&self.words[from..][..len]),
            Is::Missing | Is::Deleted => None,
        }
    }

    /// Sets a row, or deletes it.
    pub(super) fn write(&mut self, at: usize, table: &Table, row: Option<&[Value]>) {
        match row {
            Some(row) => table.write_words(row, self.fresh(at, table)),
            None => self.rows[at].is = Is::Deleted,
        }
    }

    /// Sets a row of integers, in a table that has only integers.
    pub(super) fn write_ints(&mut self, at: usize, table: &Table, row: &[i64]) {
        table.write_ints(row, self.fresh(at, table));
    }

    /// Returns words for the new state of a row, all 0.
    fn fresh(&mut self, at: usize, table: &Table) -> &mut [u64] {
        let (from, len) = match self.rows[at].is {
            Is::Written { from, len } => {
                self.words[from..][..len].fill(0);
                (from, len)
            }
            _ => {
                if self.words.is_empty() {
                    self.words.reserve(WORDS_FEW);
                }
                let (from, len) = (self.words.len(), table.layout().body_words());
                self.words.resize(from + len, 0);
                self.rows[at].is = Is::Written { from, len };
                (from, len)
            }
        };
        &mut self.words[from..][..len]
    }

    /// Returns the keys and the current values of the rows of a table that the transaction has
    /// written.
    pub(super) fn own<'a>(
        &'a self,
        id: TableId,
        table: &'a Table,
    ) -> impl Iterator<Item = (Key, Option<Row>)> + 'a {
        let rows = self.rows.iter().enumerate();
        let own = rows.filter(move |(_, row)| row.table == id && row.is_written());
        own.map(|(at, row)| (Key::of([&key_of(table.spec(), row.key)]), self.row(at, table)))
    }

    /// Writes the new versions.
    pub(super) fn apply(&self, tables: &mut [Table], seq: Seq) {
        for (at, row) in self.rows.iter().enumerate().filter(|(_, row)| row.is_written()) {
            let table = &mut tables[row.table.index()];
            let body = match row.is {
                Is::Written { from, len } => Some(&self.words[from..][..len]),
                _ => None,
            };
            debug_assert_eq!(body.is_some(), self.is_there(at));
            table.put_words(row.key, body, seq);
        }
    }

    /// Returns the written rows: number, table and key's word.
    pub(super) fn all_written(&self) -> impl Iterator<Item = (usize, TableId, u64)> + '_ {
        let rows = self.rows.iter().enumerate().filter(|(_, row)| row.is_written());
        rows.map(|(at, row)| (at, row.table, row.key))
    }

    /// Returns the writes, in an order that does not depend on when rows were touched.
    pub(super) fn written(&self) -> Vec<(TableId, u64, Option<&[u64]>)> {
        let written = self.rows.iter().filter(|row| row.is_written());
        let words = |row: &PlainRow| match row.is {
            Is::Written { from, len } => Some(&self.words[from..][..len]),
            _ => None,
        };
        let mut written: Vec<_> = written.map(|row| (row.table, row.key, words(row))).collect();
        written.sort_unstable();
        written
    }
}

impl PlainRow {
    fn is_written(&self) -> bool {
        matches!(self.is, Is::Written { .. } | Is::Deleted)
    }
}

/// Returns the value of a key's word.
pub(super) fn key_of(spec: &TableSpec, key: u64) -> Value {
    Value::of_word(&spec.schema.columns[spec.key[0]].ty, key)
}
