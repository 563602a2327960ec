//! The effects of a transaction on the general path.

use tidemill_core::{encode, Key, StreamId, TableId, Value};
use tidemill_table::{Seq, Table};

use super::plain::{self, PlainRows};

/// A row that the transaction has touched.
#[derive(Debug, PartialEq)]
pub(super) struct Touched {
    pub(super) table: TableId,
    pub(super) key: Vec<Value>,
    pub(super) row: Option<Vec<Value>>,
    pub(super) written: bool,
}

/// The effects of a transaction if it commits.
#[derive(Debug)]
pub(crate) struct Effects {
    pub(super) rows: Vec<Touched>,
    /// The rows of plain tables that functions have touched. It is empty for a graph.
    pub(super) plain: PlainRows,
    pub(crate) emitted: Vec<(StreamId, Vec<Value>)>,
}

/// A row that a transaction writes, by its number among the touched rows.
pub(crate) struct Written<'a> {
    pub(crate) number: usize,
    pub(crate) table: TableId,
    pub(crate) key: &'a [Value],
}

impl Effects {
    /// Writes the new versions.
    pub(crate) fn apply(&self, tables: &mut [Table], seq: Seq, time_us: i64) {
        for touched in self.rows.iter().filter(|t| t.written) {
            let (key, row) = (&touched.key, touched.row.as_deref());
            tables[touched.table.index()].put_at(key, row, seq, time_us);
        }
        self.plain.apply(tables, seq);
    }

    /// Returns the written rows with their new values. For a graph.
    pub(crate) fn written(&self) -> impl Iterator<Item = Written<'_>> + '_ {
        let written = self.rows.iter().enumerate().filter(|(_, t)| t.written);
        written.map(|(number, t)| Written { number, table: t.table, key: &t.key })
    }

    /// Returns the written rows with their keys and new values. For a transaction that uses no rows
    /// as words.
    pub(crate) fn into_written(
        self,
    ) -> impl Iterator<Item = (TableId, Vec<Value>, Option<Vec<Value>>)> {
        let written = self.rows.into_iter().filter(|touched| touched.written);
        written.map(|touched| (touched.table, touched.key, touched.row))
    }

    /// Returns the key and the new value of a touched row.
    pub(crate) fn row(&self, number: usize) -> (&[Value], Option<&[Value]>) {
        (&self.rows[number].key, self.rows[number].row.as_deref())
    }

    /// Returns the hash of the writes of transaction number `seq`. It is a sum over rows and keys,
    /// because the order in which rows were touched does not matter.
    pub(crate) fn written_hash(&self, tables: &[Table], seq: Seq) -> u64 {
        let (mut sum, mut bytes) = (0u64, Vec::new());
        let begin = |table: TableId, bytes: &mut Vec<u8>| {
            bytes.clear();
            bytes.extend_from_slice(&seq.to_le_bytes());
            bytes.extend_from_slice(&table.0.to_le_bytes());
        };
        for touched in self.rows.iter().filter(|t| t.written) {
            begin(touched.table, &mut bytes);
            touched.key.iter().for_each(|value| encode::value(value, &mut bytes));
            bytes.push(u8::from(touched.row.is_some()));
            touched.row.iter().flatten().for_each(|value| encode::value(value, &mut bytes));
            sum = sum.wrapping_add(encode::hash128(&bytes) as u64);
        }
        for (at, id, key) in self.plain.all_written() {
            let table = &tables[id.index()];
            begin(id, &mut bytes);
            encode::value(&plain::key_of(table.spec(), key), &mut bytes);
            let body = self.plain.body(at, table);
            bytes.push(u8::from(body.is_some()));
            body.into_iter().for_each(|body| table.encode_row(key, body, &mut bytes));
            sum = sum.wrapping_add(encode::hash128(&bytes) as u64);
        }
        sum
    }

    /// Whether both write and emit the same. Rows that were only read do not matter.
    pub(crate) fn same_outcome(&self, other: &Effects) -> bool {
        let written = |e: &Effects| {
            let mut written: Vec<(TableId, Key, Option<Vec<Value>>)> = e
                .rows
                .iter()
                .filter(|t| t.written)
                .map(|t| (t.table, Key::of(&t.key), t.row.clone()))
                .collect();
            written.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
            written
        };
        self.emitted == other.emitted
            && written(self) == written(other)
            && self.plain.written() == other.plain.written()
    }
}
