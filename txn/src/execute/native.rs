//! Native handlers: rows of words handed to a Rust closure.

use std::collections::HashMap;

use tidemill_core::{DataType, StreamId, TableId, Value};
use tidemill_table::{Layout, Place};

use super::general::General;
use super::words::KeyFrom;
use crate::program::{evaluate, key_value, reasons, Abort, Expr, Native, NativeTx, Program, Tx};
use crate::reference::word_value;

/// Where a row of a native handler comes from, when its key is one word.
#[derive(Debug)]
pub(crate) struct NativeRow {
    pub(crate) table: usize,
    pub(crate) key: KeyFrom,
    /// Per column of the table: its word in the slot's body, or `None` for the key.
    pub(crate) columns: Vec<Option<u16>>,
    /// Per column: whether it is a float, which is stored with one NaN.
    pub(crate) floats: Vec<bool>,
    /// Where its columns begin in the frame, unless its key equals an earlier row's.
    pub(crate) base: u32,
    /// An earlier row of the same table, if there is one.
    pub(crate) earlier: Vec<u8>,
}

/// A native handler, prepared for the fast path.
#[derive(Debug)]
pub(crate) struct NativeCode {
    pub(crate) rows: Vec<NativeRow>,
    pub(crate) words: usize,
    /// Per emitted stream: its number of columns.
    pub(crate) widths: Vec<usize>,
    pub(crate) emits: Vec<StreamId>,
}

/// Prepares a handler, or says what it has that needs the general path.
pub(crate) fn prepare(
    program: &Program,
    layouts: &[Layout],
    native: &Native,
) -> Result<NativeCode, String> {
    let mut rows: Vec<NativeRow> = Vec::new();
    let mut words = 0;
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
        let columns = layout
            .places
            .iter()
            .map(|place| match place {
                Place::Key => Ok(None),
                Place::Word { word, null_bit: None } => Ok(Some((layout.null_words + word) as u16)),
                _ => Err("a column is not a plain word".to_string()),
            })
            .collect::<Result<Vec<_>, String>>()?;
        let base = words as u32;
        words += columns.len();
        let earlier = (0..rows.len()).filter(|r| rows[*r].table == table).map(|r| r as u8);
        let earlier = earlier.collect();
        let floats = spec.schema.columns.iter().map(|c| c.ty == DataType::Float).collect();
        rows.push(NativeRow { table, key, columns, floats, base, earlier });
    }
    let width = |s: &StreamId| program.streams[s.index()].spec.schema.len();
    let widths = native.emits.iter().map(width).collect();
    Ok(NativeCode { rows, words, widths, emits: native.emits.clone() })
}

/// Runs a native handler over values: keys of any shape, rows that are missing.
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
    let mut present = 0u64;
    for (index, row) in native.rows.iter().enumerate() {
        let spec = &program.tables[row.table.index()];
        let key: Result<Vec<Value>, Abort> = row
            .key
            .iter()
            .map(|id| key_value(evaluate(&native.exprs, *id, event)?, spec))
            .collect();
        let key = key?;
        let held = tx.get(row.table, &key)?;
        present |= u64::from(held.is_some()) << index;
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
    let mut emitted = Vec::new();
    let mut closure = NativeTx {
        event: &event_words,
        words: &mut words,
        bases: &bases,
        dirty: 0,
        present,
        emitted: &mut emitted,
    };
    (native.body)(&mut closure).map_err(Abort::refused)?;
    let dirty = closure.dirty;
    for (index, (table, key)) in keys.iter().enumerate() {
        if dirty >> index & 1 == 1 {
            let spec = &program.tables[table.index()];
            let mut row: Vec<Value> = spec
                .schema
                .columns
                .iter()
                .zip(&words[bases[index] as usize..])
                .map(|(column, word)| word_value(&column.ty, *word))
                .collect();
            for (value, column) in key.iter().zip(&spec.key) {
                row[*column] = value.clone();
            }
            tx.put(*table, &row)?;
        }
    }
    let mut rest = &emitted[..];
    while let Some((stream, tail)) = rest.split_first() {
        let stream = native.emits[*stream as usize];
        let columns = &program.streams[stream.index()].spec.schema.columns;
        let (row, tail) = tail.split_at(columns.len());
        let row: Vec<Value> = columns.iter().zip(row).map(|(c, w)| word_value(&c.ty, *w)).collect();
        tx.emit_checked(stream, row);
        rest = tail;
    }
    Ok(())
}
