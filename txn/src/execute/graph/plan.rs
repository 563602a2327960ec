//! The input of planning from an epoch's transactions.

use tidemill_core::{Key, TableId, Value};
use tidemill_table::Table;

use super::hint::{words_of, Hints};
use super::shape::{Kind, Shape};
use super::work::LaneColumns;
use crate::execute::words::KeyFrom;
use crate::order::Epoch;
use crate::plan::graph::{Operations, Put, Size};

/// Consecutive transactions of an epoch.
#[derive(Clone, Copy)]
pub(crate) struct Stretch<'a> {
    pub(crate) epoch: &'a Epoch,
    /// The range in the epoch's order.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) shapes: &'a [Option<Shape>],
    pub(crate) columns: &'a LaneColumns<'a>,
    pub(crate) tables: &'a [Table],
    pub(crate) hints: &'a Hints,
}

/// The part of a unit's operation, instead of a part of its handler's shape.
pub(crate) const UNIT: u16 = u16::MAX;

/// Returns whether the events of each lane are as their handler's shape requires.
pub(crate) fn plain_lanes(
    epoch: &Epoch,
    shapes: &[Option<Shape>],
    columns: &LaneColumns<'_>,
) -> Vec<bool> {
    let lanes = epoch.lanes.iter().zip(columns);
    let is_plain = |(lane, columns): (&crate::order::Lane, &Vec<&[u64]>)| {
        let len = epoch.runs[lane.run as usize].batch.len();
        shapes[lane.handler as usize]
            .as_ref()
            .is_some_and(|shape| shape.columns.iter().all(|column| columns[*column].len() == len))
    };
    lanes.map(is_plain).collect()
}

/// Returns the key of a row of an event's transaction.
#[inline(always)]
pub(crate) fn key(from: KeyFrom, columns: &[&[u64]], event: usize) -> u64 {
    match from {
        KeyFrom::Const(word) => word,
        KeyFrom::Column(column) => columns[usize::from(column)][event],
    }
}

/// Whether a transaction differs from its handler's shape.
///
/// It does if there is no shape, if its event is not of words, or if two of its rows are the same.
/// Compiled code does not notice the last case.
pub(crate) fn is_odd(
    epoch: &Epoch,
    shapes: &[Option<Shape>],
    columns: &LaneColumns<'_>,
    plain: &[bool],
    at: usize,
) -> bool {
    let ranked = epoch.order[at];
    if !plain[ranked.lane as usize] {
        return true;
    }
    let lane = epoch.lanes[ranked.lane as usize];
    let Some(Shape { kind: Kind::Words(code), .. }) = &shapes[lane.handler as usize] else {
        return false;
    };
    let columns = &columns[ranked.lane as usize];
    let row = |row: u8| key(code.rows[usize::from(row)].key, columns, ranked.row as usize);
    code.pairs.iter().any(|(a, b)| row(*a) == row(*b))
}

impl Stretch<'_> {
    /// Returns the time of a transaction, in microseconds.
    pub(crate) fn time_us(&self, txn: u32) -> i64 {
        self.epoch.time_us(self.epoch.order[self.from + txn as usize])
    }

    /// Returns the row whose key is a word.
    pub(crate) fn row(&self, table: usize, key: u64) -> (TableId, Key) {
        let spec = self.tables[table].spec();
        let value = Value::of_word(&spec.schema.columns[spec.key[0]].ty, key);
        (TableId(table as u16), Key::of([&value]))
    }

    /// Returns the keys of the rows that are expected to be written in each ordered table, in
    /// order.
    pub(crate) fn written(&self) -> &[Vec<Key>] {
        self.hints.written.get_or_init(|| {
            let mut written: Vec<Vec<Key>> = vec![Vec::new(); self.tables.len()];
            let is_ordered = |table: usize| self.tables[table].spec().ordered;
            for txn in 0..self.txns() {
                if let Some(hint) = self.hints.get(txn) {
                    for (table, key) in hint.uses[..hint.writes].iter().map(|used| &used.row) {
                        if is_ordered(table.index()) {
                            written[table.index()].push(key.clone());
                        }
                    }
                    continue;
                }
                let (shape, _, lane, event) = self.shape(txn);
                let touches = shape.parts.iter().flat_map(|part| &part.touches);
                for touch in touches.filter(|touch| touch.words > 0) {
                    let (table, from) = shape.rows[usize::from(touch.row)];
                    if is_ordered(table) {
                        let key = key(from, &self.columns[lane], event);
                        written[table].push(self.row(table, key).1);
                    }
                }
            }
            for keys in &mut written {
                keys.sort_unstable();
                keys.dedup();
            }
            written
        })
    }

    fn shape(&self, txn: usize) -> (&Shape, u32, usize, usize) {
        let ranked = self.epoch.order[self.from + txn];
        let handler = self.epoch.lanes[ranked.lane as usize].handler;
        let shape = self.shapes[handler as usize].as_ref().expect("it is no unit");
        (shape, handler, ranked.lane as usize, ranked.row as usize)
    }

    /// Returns the handler of a transaction.
    pub(crate) fn handler(&self, txn: usize) -> usize {
        let ranked = self.epoch.order[self.from + txn];
        self.epoch.lanes[ranked.lane as usize].handler as usize
    }
}

impl Operations for Stretch<'_> {
    fn txns(&self) -> usize {
        self.to - self.from
    }

    fn size(&self, txn: usize) -> Size {
        match self.hints.get(txn) {
            Some(hint) => hint.size(self.tables),
            None => self.shape(txn).0.size,
        }
    }

    fn decompose(&self, txn: usize, put: &mut Put<'_>) {
        if let Some(hint) = self.hints.get(txn) {
            put.vertex(self.handler(txn) as u16, UNIT);
            for (nth, used) in hint.uses.iter().enumerate() {
                let table = &self.tables[used.row.0.index()];
                let access = put.access(if nth < hint.writes { words_of(table) } else { 0 });
                put.entry(access, used.row.0 .0, used.id, table.hash(used.id));
            }
            return;
        }
        let (shape, handler, lane, event) = self.shape(txn);
        let mut first = None;
        for (number, part) in shape.parts.iter().enumerate() {
            put.vertex(handler as u16, number as u16);
            for touch in &part.touches {
                let access = put.access(touch.words);
                first.get_or_insert(access);
            }
        }
        let Some(first) = first else { return };
        for writes in [false, true] {
            let touches = shape.parts.iter().flat_map(|part| &part.touches);
            for (access, touch) in (first..).zip(touches) {
                if (touch.words > 0) == writes {
                    let (table, from) = shape.rows[usize::from(touch.row)];
                    let key = key(from, &self.columns[lane], event);
                    put.entry(access, table as u16, key, self.tables[table].hash(key));
                }
            }
        }
    }
}
