//! Native handlers: Rust closures over rows of words.

use std::collections::HashMap;

use tidemill_core::{DataType, Schema, StreamId, TableId, Value};
use tidemill_table::Layout;

use super::closure::{on_frames, Did, Places, RowBits, STREAMS_MAX};
use super::general::General;
use super::words::KeyFrom;
use crate::program::inside::Transaction;
use crate::program::{evaluate, key_value, reasons, Abort, Expr, Native, Program, Tx, WindowRead};

/// A row of a native handler, if its key is one word.
#[derive(Debug)]
pub(crate) struct NativeRow {
    pub(crate) table: usize,
    pub(crate) key: KeyFrom,
}

/// A native handler, prepared for the fast path.
#[derive(Debug)]
pub(crate) struct NativeCode {
    /// The rows, at most [`ROWS_MAX`].
    pub(crate) rows: Vec<NativeRow>,
    pub(crate) places: Places,
    /// The streams that it emits to, by the closure's numbers.
    pub(crate) streams: Vec<usize>,
    /// Whether a handler takes events of one of them.
    pub(crate) consumed: bool,
    /// A bit for each row that it may write.
    pub(crate) written: RowBits,
}

/// The most rows of a native handler: there is a bit for each.
pub(crate) const ROWS_MAX: usize = RowBits::BITS as usize;

/// Prepares a handler, or returns the reason why it needs the general path.
pub(crate) fn prepare(
    program: &Program,
    layouts: &[Layout],
    native: &Native,
) -> Result<NativeCode, String> {
    let mut rows: Vec<NativeRow> = Vec::new();
    for row in &native.rows {
        let (table, layout) = (row.table.index(), &layouts[row.table.index()]);
        let spec = &program.tables[table];
        if !layout.word_key || spec.schema.columns[spec.key[0]].ty == DataType::Float {
            return Err(format!("the key of table {} is not an integer word", spec.name));
        }
        let key = match native.exprs.expr(row.key[0]) {
            Expr::Column(column) => KeyFrom::Column(*column),
            Expr::Const(value) => KeyFrom::Const(value.word().ok_or("a key is null")?),
            _ => return Err("a key is computed".into()),
        };
        rows.push(NativeRow { table, key });
    }
    if rows.len() > ROWS_MAX {
        return Err(format!("it has more than {ROWS_MAX} rows"));
    }
    if native.emits.len() > STREAMS_MAX {
        return Err(format!("it emits to more than {STREAMS_MAX} streams"));
    }
    let consumed = |stream: &StreamId| program.handlers_on(*stream).next().is_some();
    let consumed = native.emits.iter().any(consumed);
    let places = Places::in_slots(program, layouts, native)?;
    let streams = native.emits.iter().map(|s| s.index()).collect();
    let written = (0..rows.len()).filter(|row| native.writes(*row));
    let written = written.fold(0, |bits, row| bits | 1 << row);
    Ok(NativeCode { rows, places, streams, consumed, written })
}

/// Returns the pairs of rows of one table, earlier and later, by the later one.
pub(crate) fn same_table_pairs(tables: impl Iterator<Item = usize>) -> Vec<(u8, u8)> {
    let tables: Vec<usize> = tables.collect();
    let mut pairs = Vec::new();
    for later in 0..tables.len() {
        for earlier in 0..later {
            if tables[earlier] == tables[later] {
                pairs.push((earlier as u8, later as u8));
            }
        }
    }
    pairs
}

/// Runs a native handler over values. It handles keys of any shape and missing rows.
pub(crate) fn general(
    tx: &mut General<'_>,
    program: &Program,
    native: &Native,
    event: &[Value],
) -> Result<(), Abort> {
    let event_words: Vec<u64> = event.iter().map(|v| v.word().expect("checked")).collect();
    let (mut words, mut bases) = (Vec::new(), Vec::new());
    let mut keys: Vec<(TableId, Vec<Value>)> = Vec::new();
    let mut first: HashMap<(TableId, Vec<Value>), u32> = HashMap::new();
    let mut present: RowBits = 0;
    for (index, row) in native.rows.iter().enumerate() {
        let spec = &program.tables[row.table.index()];
        let key: Result<Vec<Value>, Abort> = row
            .key
            .iter()
            .map(|id| key_value(evaluate(&native.exprs, *id, event)?, spec))
            .collect();
        let key = key?;
        let held = tx.get(row.table, &key)?;
        present |= RowBits::from(held.is_some()) << index;
        match first.get(&(row.table, key.clone())) {
            Some(base) => bases.push(*base),
            None => {
                bases.push(words.len() as u32);
                first.insert((row.table, key.clone()), words.len() as u32);
                for value in held.map_or_else(|| spec.missing_row(&key), Vec::from) {
                    words.push(value.word().ok_or_else(|| reasons::missing(spec, &key))?);
                }
            }
        }
        keys.push((row.table, key));
    }
    let windows = |row: usize, own: Option<Vec<Value>>, read: &WindowRead| {
        tx.over_copy(keys[row].0, &keys[row].1, own.as_deref(), read)
    };
    let done = on_frames(program, native, &event_words, &mut words, &bases, present, &windows);
    let values = |schema: &Schema, words: &[u64]| -> Vec<Value> {
        schema.columns.iter().zip(words).map(|(column, w)| Value::of_word(&column.ty, *w)).collect()
    };
    for did in done.map_err(Abort::refused)? {
        match did {
            Did::Wrote { row, words } => {
                let (table, key) = &keys[row];
                let spec = &program.tables[table.index()];
                let mut row = values(&spec.schema, &words);
                for (value, column) in key.iter().zip(&spec.key) {
                    row[*column] = value.clone();
                }
                tx.put(*table, &row)?;
            }
            Did::Emitted { stream, words } => {
                let stream = native.emits[stream];
                let row = values(&program.streams[stream.index()].spec.schema, &words);
                tx.emit_stored(stream, row)?;
            }
        }
    }
    Ok(())
}
