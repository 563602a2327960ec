//! Rows that a function touches of tables whose rows are words in slots: what is read is made of the slot's
//! words, what is written is words beside it, and neither needs memory of its own.

use std::collections::HashMap;

use tidemill_core::{Column, DataType, Key, Row, TableId, TableSpec, Value};
use tidemill_table::{Seq, Table};

/// Room for so many words is made when the first row is written.
const WORDS_FEW: usize = 32;

/// A row that was touched.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainRow {
    pub(super) table: TableId,
    /// Its word.
    pub(super) key: u64,
    /// What it is: as the table has it, where that is, or else as it was written.
    is: Is,
}

#[derive(Clone, Copy, Debug)]
enum Is {
    /// In the slot that begins here.
    Held(usize),
    /// Not there, and never written.
    Missing,
    /// Written: these words.
    Written { from: usize, len: usize },
    /// Deleted.
    Deleted,
}

/// All of a transaction.
#[derive(Debug, Default)]
pub(super) struct PlainRows {
    rows: Vec<PlainRow>,
    /// Of all rows that are written.
    words: Vec<u64>,
    /// Where each row is, once there are more than [`super::ROWS_FEW`].
    by_key: HashMap<(TableId, u64), usize, foldhash::fast::FixedState>,
}

/// Whether functions use a table's rows in this way.
pub(super) fn is_plain(table: &Table) -> bool {
    let spec = table.spec();
    let key = &spec.schema.columns[spec.key[0]].ty;
    table.has_plain_rows() && *key != DataType::Float && spec.history.is_none()
}

/// The word of a value, where a column stores it as it is.
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

/// The word of a key that is given as it is stored.
#[inline]
pub(super) fn key_as_is(spec: &TableSpec, key: &[Value]) -> Option<u64> {
    match key {
        [key] => word_as_is(key, &spec.schema.columns[spec.key[0]]),
        _ => None,
    }
}

/// The same of a whole row's.
pub(super) fn row_as_is(spec: &TableSpec, row: &[Value]) -> Option<u64> {
    let columns = &spec.schema.columns;
    if row.len() != columns.len() {
        return None;
    }
    let are = row.iter().zip(columns).all(|(value, column)| word_as_is(value, column).is_some());
    are.then(|| key_as_is(spec, std::slice::from_ref(&row[spec.key[0]])))?
}

/// A key's word, of values as they are stored.
pub(super) fn word(key: &[Value]) -> u64 {
    key[0].word().expect("a key of such a table is a word, and never null")
}

impl PlainRows {
    /// The number of the row with this key.
    pub(super) fn touch(&mut self, id: TableId, table: &Table, key: u64) -> usize {
        self.find(id, key).unwrap_or_else(|| {
            let base = table.find(key, table.hash(key)).filter(|base| table.is_present(*base));
            self.push(PlainRow { table: id, key, is: base.map_or(Is::Missing, Is::Held) })
        })
    }

    /// The same of a row that is in the table only if this transaction has put it there.
    pub(super) fn touch_absent(&mut self, id: TableId, key: u64) -> usize {
        let row = PlainRow { table: id, key, is: Is::Missing };
        self.find(id, key).unwrap_or_else(|| self.push(row))
    }

    /// How many there are.
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

    /// What a row is now.
    pub(super) fn row(&self, at: usize, table: &Table) -> Option<Row> {
        self.body(at, table).map(|body| table.row_of(self.rows[at].key, body))
    }

    /// Whether a row is there now.
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

    /// A row becomes this.
    pub(super) fn write(&mut self, at: usize, table: &Table, row: Option<&[Value]>) {
        match row {
            Some(row) => table.write_words(row, self.fresh(at, table)),
            None => self.rows[at].is = Is::Deleted,
        }
    }

    /// The same of integers, of a table that has nothing else.
    pub(super) fn write_ints(&mut self, at: usize, table: &Table, row: &[i64]) {
        table.write_ints(row, self.fresh(at, table));
    }

    /// Words for what a row becomes, all 0.
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

    /// What the transaction has made of rows of a table: their keys, and what they are now.
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

    /// The rows that are written: by number, table and key's word.
    pub(super) fn all_written(&self) -> impl Iterator<Item = (usize, TableId, u64)> + '_ {
        let rows = self.rows.iter().enumerate().filter(|(_, row)| row.is_written());
        rows.map(|(at, row)| (at, row.table, row.key))
    }

    /// What is written, in an order that does not depend on when it was touched.
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

/// The value of a key's word.
pub(super) fn key_of(spec: &TableSpec, key: u64) -> Value {
    crate::reference::word_value(&spec.schema.columns[spec.key[0]].ty, key)
}
