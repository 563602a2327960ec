//! What planning is told of an epoch's transactions.

use std::ops::Range;

use tidemill_table::Table;

use super::shape::{Kind, Shape};
use super::work::LaneColumns;
use crate::execute::words::KeyFrom;
use crate::order::Epoch;
use crate::plan::graph::{Operations, Put, Size};

/// Consecutive transactions of an epoch.
pub(crate) struct Stretch<'a> {
    pub(crate) epoch: &'a Epoch,
    pub(crate) order: Range<usize>,
    pub(crate) shapes: &'a [Option<Shape>],
    pub(crate) columns: &'a LaneColumns<'a>,
    pub(crate) tables: &'a [Table],
}

/// Which lanes have events as their handler's shape wants them.
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

/// The key of a row of an event's transaction.
#[inline(always)]
pub(crate) fn key(from: KeyFrom, columns: &[&[u64]], event: usize) -> u64 {
    match from {
        KeyFrom::Const(word) => word,
        KeyFrom::Column(column) => columns[usize::from(column)][event],
    }
}

/// Whether a transaction can't be in a graph: nobody knows what it does before it runs, or two of
/// its rows are one, which compiled code does not see.
pub(crate) fn is_unknown(
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
    fn shape(&self, txn: usize) -> (&Shape, u32, usize, usize) {
        let ranked = self.epoch.order[self.order.start + txn];
        let handler = self.epoch.lanes[ranked.lane as usize].handler;
        let shape = self.shapes[handler as usize].as_ref().expect("it has been looked at before");
        (shape, handler, ranked.lane as usize, ranked.row as usize)
    }
}

impl Operations for Stretch<'_> {
    fn txns(&self) -> usize {
        self.order.len()
    }

    fn size(&self, txn: usize) -> Size {
        self.shape(txn).0.size
    }

    fn decompose(&self, txn: usize, put: &mut Put<'_>) {
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
