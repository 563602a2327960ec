//! One transaction on the fast path: rows as words, in slots that were found before and are there.
//! Whatever is not so is left to the general path.

use std::mem::MaybeUninit;

use tidemill_table::{RowAt, Seq, Table};

use super::closure::{Emit, NativeTx};
use super::lane::{Lane, MISSING};
use super::native::{NativeCode, ROWS_MAX};
use super::output::OutputBuilder;
use super::words::{Frame, Stop, WordCode};

/// What the fast path made of a transaction.
#[derive(Clone, Copy)]
pub enum Fast {
    /// It did what it does.
    Committed,
    /// It did nothing.
    Aborted(Reason),
    /// It did nothing, and the general path must decide.
    General,
}

/// Why a transaction aborted.
#[derive(Clone, Copy)]
pub enum Reason {
    /// Of compiled code, which numbers them.
    Number(u16),
    /// Of a closure.
    Text(&'static str),
}

/// Room for the rows of a transaction.
struct Rows([MaybeUninit<RowAt>; ROWS_MAX]);

impl Rows {
    #[inline(always)]
    fn new() -> Rows {
        Rows([const { MaybeUninit::uninit() }; ROWS_MAX])
    }

    /// The rows of an event that the lane has reached, by number with their tables; `None` when one
    /// is missing.
    #[inline(always)]
    fn find(
        &mut self,
        lane: &Lane<'_>,
        event: usize,
        of: impl ExactSizeIterator<Item = usize>,
        tables: &mut [Table],
    ) -> Option<&[RowAt]> {
        let (len, first) = (of.len(), tables.as_mut_ptr());
        for ((row, table), to) in of.enumerate().zip(&mut self.0) {
            let base = lane.base(row, event);
            if base == MISSING {
                return None;
            }
            assert!(table < tables.len(), "the tables are the program's");
            // SAFETY: there is such a table, and whoever gets the rows has `tables` borrowed
            // mutably. The lane has found the place there since slots last moved, and writing rows
            // in place moves none.
            to.write(unsafe { RowAt::find(first.add(table), base)? });
        }
        let found = self.0[..len].as_ptr().cast::<RowAt>();
        // SAFETY: `len` of them were written just now; more than there is room for would have
        // been refused when the handler was prepared, and have panicked in the line before.
        Some(unsafe { std::slice::from_raw_parts(found, len) })
    }
}

/// Runs a declared transaction; what it emits is in the frame afterwards.
#[inline(always)]
pub(crate) fn declared(
    code: &WordCode,
    frame: &mut Frame,
    lane: &Lane<'_>,
    event: usize,
    tables: &mut [Table],
    seq: Seq,
) -> Fast {
    let mut rows = Rows::new();
    let of = code.rows.iter().map(|row| row.table);
    if lane.has_equal_keys(event) {
        return Fast::General;
    }
    let Some(rows) = rows.find(lane, event, of, tables) else { return Fast::General };
    for ((_, register), words) in code.columns.iter().zip(&lane.columns) {
        frame[usize::from(*register)] = words[event];
    }
    for load in &code.loads {
        // SAFETY: `Rows::find` says that the rows may be used while `tables` is borrowed; the word
        // is one of the table's columns, by its layout.
        let word = unsafe { rows[usize::from(load.row)].word(usize::from(load.word)) };
        frame[usize::from(load.register)] = word;
    }
    match code.run(frame) {
        Ok(()) => {}
        Err(Stop::Abort(reason)) => return Fast::Aborted(Reason::Number(reason)),
        Err(Stop::Trap) => return Fast::General,
    }
    for row in &code.written {
        // SAFETY: as above; numbers of transactions begin at 1, and the tables' rows are plain
        // words.
        unsafe { rows[usize::from(*row)].begin(seq) };
    }
    for store in &code.stores {
        let word = frame[usize::from(store.register)];
        // SAFETY: as above, and the version has begun.
        unsafe { rows[usize::from(store.row)].set(usize::from(store.word), word) };
    }
    Fast::Committed
}

/// A closure's transaction: what the executor has for it. What the closure emits is among the
/// outputs afterwards, or kept.
pub struct InSlots<'c, 'l> {
    pub(crate) code: &'c NativeCode,
    pub(crate) lane: &'c Lane<'l>,
    pub(crate) event: usize,
    pub(crate) tables: &'c mut [Table],
    pub(crate) seq: Seq,
    pub(crate) builders: &'c mut [OutputBuilder],
    /// See [`Origin::pack`].
    pub(crate) from: u64,
    /// For what is emitted when other handlers take it: it must wait for the commit.
    pub(crate) kept: &'c mut Vec<u64>,
}

impl InSlots<'_, '_> {
    #[inline(always)]
    pub(crate) fn run(self, body: &impl Fn(&mut NativeTx<'_>) -> Result<(), &'static str>) -> Fast {
        let InSlots { code, lane, event, tables, seq, builders, from, kept } = self;
        let mut rows = Rows::new();
        let of = code.rows.iter().map(|row| row.table);
        let Some(rows) = rows.find(lane, event, of, tables) else { return Fast::General };
        let (columns, places) = (&lane.columns[..], &code.places);
        let emit = if code.consumed {
            kept.clear();
            Emit::Kept(kept)
        } else {
            Emit::Out { builders, streams: &code.streams, from, emitted: 0 }
        };
        debug_assert!(seq > 0);
        // SAFETY: `Rows::find` says that the rows may be used while `tables` is borrowed, they are
        // the handler's in its order, and numbers of transactions begin at 1.
        let mut tx = unsafe { NativeTx::in_slots(columns, event, rows, places, seq, emit) };
        match body(&mut tx) {
            Ok(()) => Fast::Committed,
            Err(reason) => {
                tx.undo();
                Fast::Aborted(Reason::Text(reason))
            }
        }
    }
}
