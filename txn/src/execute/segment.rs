//! A segment of transactions on the fast path: consecutive events of one lane. Their rows are
//! words, in slots that were prefetched.
//!
//! All other cases (a missing row, an overflow) are left to the general path. The loop is compiled
//! together with each closure. So between two transactions, nothing is called, looked up or stored
//! that the next one could have kept in registers.

use std::panic::{catch_unwind, AssertUnwindSafe};

use tidemill_table::{RowAt, Seq};

use super::closure::{undo, NativeTx, RowBits};
use super::lane::{Lane, NARROW};
use super::lists::InList;
use super::native::NativeCode;
use super::output::Origin;
use super::words::{Frame, Stop, WordCode, ROWS_MAX};
use crate::order::Ranked;

/// The reason why a segment ended.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// The next transaction belongs to another lane, or there is none.
    Lane,
    /// The last transaction committed, and other handlers may take its events. Their turn is next.
    Emitted,
    /// The next transaction aborts, and has done nothing.
    Aborts(Reason),
    /// The general path must decide the next transaction, which has done nothing.
    General,
}

/// The reason why a transaction aborted.
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    /// A numbered reason of compiled code.
    Number(u16),
    /// A text from a closure.
    Text(&'static str),
}

/// The reason of an abort by a panic in a closure. The panic's message is reported like that of all
/// panics. It may differ from run to run, so it can't be the reason.
const PANICKED: &str = "the handler's function panicked";

/// A transaction whose turn it is.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    /// The row of the event in its lane.
    pub(crate) event: usize,
    /// The place of the transaction in the epoch's order.
    pub(crate) rank: usize,
    /// The number of the transaction.
    pub(crate) seq: Seq,
}

/// The walk from transaction to transaction. It is copied, so that it stays in registers while
/// transactions of one lane follow one another.
///
/// Both kinds of walk are one type with a choice at every turn, although a walk only ever has one
/// kind. A function for each kind would call the closure in two places. A closure with two callers
/// is not inlined into either. That costs 10 ns a transaction, and the choice a tenth of it.
#[derive(Clone, Copy)]
pub(crate) enum Turns<'s> {
    InOrder(InOrder<'s>),
    InList(InList<'s>),
}

impl<'s> Turns<'s> {
    /// Returns the next transaction, if it belongs to this lane, once its rows may be used.
    #[inline(always)]
    fn next(&mut self, lane: &mut Lane<'_>) -> Option<Turn> {
        match self {
            Turns::InOrder(turns) => turns.next(lane),
            Turns::InList(turns) => turns.next(lane),
        }
    }

    /// Returns row number `of` of a transaction whose turn it is, as [`Lane::row`] does.
    ///
    /// # Safety
    /// The lane has as many rows and is [attached](Lane::attach) to tables that are still open. No
    /// other thread uses the row while it is used.
    #[inline(always)]
    unsafe fn row<const N: usize>(
        &self,
        lane: &Lane<'_>,
        of: usize,
        turn: Turn,
    ) -> Option<(RowAt, bool)> {
        // SAFETY: as the caller guarantees. If turns are in order, the event was staged when its
        // turn came.
        unsafe {
            match self {
                Turns::InOrder(_) => lane.row::<N>(of, turn.event),
                Turns::InList(turns) => turns.row(lane, of, turn),
            }
        }
    }

    /// Records that the transaction whose turn it was is done.
    #[inline(always)]
    fn pass(&mut self) {
        match self {
            Turns::InOrder(turns) => turns.pass(),
            Turns::InList(turns) => turns.pass(),
        }
    }

    /// Returns the lane of the next transaction.
    pub(crate) fn lane(&self) -> Option<usize> {
        match self {
            Turns::InOrder(turns) => turns.order.get(turns.at).map(|next| next.lane as usize),
            Turns::InList(turns) => turns.lane(),
        }
    }

    /// Returns the next transaction, as the epoch's order has it, and its rank.
    pub(crate) fn ranked(&self) -> (Ranked, usize) {
        match self {
            Turns::InOrder(turns) => (turns.order[turns.at], turns.at),
            Turns::InList(turns) => turns.ranked(),
        }
    }

    /// Returns the turn of the next transaction again, after it has begun.
    fn again(&self) -> Turn {
        let (Ranked { row, .. }, rank) = self.ranked();
        let seq = match self {
            Turns::InOrder(turns) => turns.seq + 1,
            Turns::InList(turns) => turns.seq(rank),
        };
        Turn { event: row as usize, rank, seq }
    }

    /// Returns how many transactions have been passed, from an arbitrary start.
    pub(crate) fn at(&self) -> usize {
        match self {
            Turns::InOrder(turns) => turns.at,
            Turns::InList(turns) => turns.at as usize,
        }
    }

    /// Passes the next transaction, which aborts, without executing it. Waits for its dependencies
    /// first.
    pub(crate) fn skip(&mut self) {
        match self {
            Turns::InOrder(turns) => turns.pass(),
            Turns::InList(turns) => turns.skip(),
        }
    }

    /// Whether other threads have stopped, so that this one must stop, too.
    pub(crate) fn have_stopped(&self) -> bool {
        match self {
            Turns::InOrder(_) => false,
            Turns::InList(turns) => turns.stopped,
        }
    }
}

/// A walk through an epoch's order, one transaction after the other.
#[derive(Clone, Copy)]
pub(crate) struct InOrder<'s> {
    /// The transactions of the epoch, as far as the open tables have room.
    pub(crate) order: &'s [Ranked],
    /// The next transaction.
    pub(crate) at: usize,
    /// The number of the transaction before.
    pub(crate) seq: Seq,
    pub(crate) prefetch: bool,
}

impl InOrder<'_> {
    #[inline(always)]
    fn next(&mut self, lane: &mut Lane<'_>) -> Option<Turn> {
        let next = self.order.get(self.at)?;
        if next.lane != lane.index {
            return None;
        }
        let event = next.row as usize;
        if event >= lane.stage_at {
            lane.stage(event, self.prefetch);
        }
        Some(Turn { event, rank: self.at, seq: self.seq + 1 })
    }

    #[inline(always)]
    fn pass(&mut self) {
        (self.at, self.seq) = (self.at + 1, self.seq + 1);
    }
}

/// Runs a closure on `N` rows, for as long as it is the lane's turn. A transaction whose closure
/// panics aborts.
///
/// # Safety
/// The lane is [attached](Lane::attach) to open tables and to outputs that no other thread uses.
/// The tables have room for a version of each row of all transactions of the walk. `code` belongs
/// to the lane's handler. Or the lane is one of [copies](Lane::copies), and `code` is for frames.
pub(crate) unsafe fn run_native<const N: usize>(
    turns: &mut Turns<'_>,
    lane: &mut Lane<'_>,
    code: &NativeCode,
    body: &impl Fn(&mut NativeTx<'_>) -> Result<(), &'static str>,
) -> End {
    // SAFETY: as the caller guarantees. The effects of a panic are undone below.
    let run = || unsafe { run_closure::<N>(turns, lane, code, body) };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(end) => end,
        // SAFETY: as the caller guarantees; the walk is at the transaction that has panicked.
        Err(_) => unsafe { panicked::<N>(turns, lane) },
    }
}

/// Undoes the next transaction, which has begun.
///
/// # Safety
/// As for [`run_native`].
#[cold]
unsafe fn panicked<const N: usize>(turns: &Turns<'_>, lane: &mut Lane<'_>) -> End {
    if let Some(copies) = &mut lane.copies {
        copies.done = Some(Err(PANICKED));
        return End::Lane;
    }
    let turn = turns.again();
    let mut rows = [RowAt::frame(std::ptr::null_mut()); N];
    for (of, row) in rows.iter_mut().enumerate() {
        // SAFETY: as the caller guarantees; the row was found before.
        let found = unsafe { turns.row::<N>(lane, of, turn) };
        (*row, _) = found.expect("a row that was found before is there");
    }
    // SAFETY: these are the transaction's rows and its number. Only rows that it has written are
    // undone.
    unsafe {
        undo(rows, RowBits::MAX, turn.seq);
        lane.outs.take_back(Origin::new(turn.rank as u32, 0, lane.handler));
    }
    End::Aborts(Reason::Text(PANICKED))
}

/// A copied walk, which stays in registers. It is copied back when it ends, even by a panic.
struct Copied<'t, 's> {
    now: Turns<'s>,
    to: &'t mut Turns<'s>,
}

impl Drop for Copied<'_, '_> {
    fn drop(&mut self) {
        *self.to = self.now;
    }
}

/// Runs a closure: see [`run_native`].
#[inline(always)]
unsafe fn run_closure<const N: usize>(
    turns: &mut Turns<'_>,
    lane: &mut Lane<'_>,
    code: &NativeCode,
    body: &impl Fn(&mut NativeTx<'_>) -> Result<(), &'static str>,
) -> End {
    assert_eq!(lane.rows(), N, "the lane has the closure's rows");
    let mut walk = Copied { now: *turns, to: turns };
    loop {
        let at = &mut walk.now;
        let Some(turn) = at.next(lane) else { break End::Lane };
        let mut rows = [RowAt::frame(std::ptr::null_mut()); N];
        let mut present = RowBits::MAX;
        let mut number = turn.seq;
        if let Some(copies) = &lane.copies {
            rows.copy_from_slice(&copies.rows);
            (present, number) = (copies.present, 0);
        } else {
            if lane.ages {
                // SAFETY: as the caller guarantees.
                unsafe { lane.set_time(turn.event) };
            }
            let mut all = true;
            for (of, row) in rows.iter_mut().enumerate() {
                // SAFETY: as the caller guarantees; the event has been staged.
                match unsafe { at.row::<N>(lane, of, turn) } {
                    Some((found, is_there)) => {
                        *row = found;
                        if !is_there {
                            present &= !(1 << of);
                        }
                    }
                    None => {
                        all = false;
                        break;
                    }
                }
            }
            if !all {
                break End::General;
            }
        }
        let origin = Origin::new(turn.rank as u32, 0, lane.handler);
        // SAFETY: as the caller guarantees, and the rows have been found.
        let mut tx = unsafe {
            let (columns, outs) = (&lane.columns, &mut lane.outs);
            NativeTx::new(columns, turn.event, &rows, &code.places, number, present, outs, origin)
        };
        let result = body(&mut tx);
        let dirty = tx.dirty();
        if let Some(copies) = &mut lane.copies {
            copies.done = Some(result.map(|()| dirty));
            break End::Lane;
        }
        if let Err(reason) = result {
            // SAFETY: these are the transaction's rows and its number.
            unsafe {
                undo(rows, dirty, number);
                lane.outs.take_back(origin);
            }
            break End::Aborts(Reason::Text(reason));
        }
        at.pass();
        if lane.outs.are_retained() {
            break End::Emitted;
        }
    }
}

/// Runs a declared transaction's code. The emitted events of a transaction are in the frame
/// afterwards.
///
/// # Safety
/// As for [`run_native`].
pub(crate) unsafe fn run_words(
    turns: &mut Turns<'_>,
    lane: &mut Lane<'_>,
    code: &WordCode,
    frame: &mut Frame,
) -> End {
    // SAFETY: as the caller guarantees.
    unsafe {
        match code.rows.len() {
            0 => run_words_on::<0>(turns, lane, code, frame),
            1 => run_words_on::<1>(turns, lane, code, frame),
            2 => run_words_on::<2>(turns, lane, code, frame),
            3 => run_words_on::<3>(turns, lane, code, frame),
            4 => run_words_on::<4>(turns, lane, code, frame),
            5..=8 => run_words_on::<8>(turns, lane, code, frame),
            9..=NARROW => run_words_on::<NARROW>(turns, lane, code, frame),
            _ => run_words_on::<ROWS_MAX>(turns, lane, code, frame),
        }
    }
}

/// Runs as [`run_words`] does, on at most `N` rows. If they are few, it is exactly `N`, so that the
/// walk over them is unrolled.
unsafe fn run_words_on<const N: usize>(
    turns: &mut Turns<'_>,
    lane: &mut Lane<'_>,
    code: &WordCode,
    frame: &mut Frame,
) -> End {
    let mut rows = [RowAt::frame(std::ptr::null_mut()); N];
    let rows = &mut rows[..if N <= 4 { N } else { code.rows.len() }];
    assert_eq!(lane.rows(), rows.len(), "the lane has the handler's rows");
    assert_eq!(lane.columns.len(), code.columns.len(), "the lane has the handler's columns");
    let machine = code.machine();
    while let Some(turn) = turns.next(lane) {
        if lane.ages {
            // SAFETY: as the caller guarantees.
            unsafe { lane.set_time(turn.event) };
        }
        for (of, row) in rows.iter_mut().enumerate() {
            // SAFETY: as the caller guarantees; the event has been staged.
            match unsafe { turns.row::<N>(lane, of, turn) } {
                Some((found, _)) => *row = found,
                None => return End::General,
            }
        }
        // SAFETY: the caller guarantees that the rows belong to open tables, and that the lane has
        // the columns that the code uses.
        let decided = unsafe { code.decide(machine, rows, &lane.columns, turn.event, frame) };
        match decided {
            Ok(()) => {}
            Err(Stop::Abort(reason)) => return End::Aborts(Reason::Number(reason)),
            Err(Stop::Trap) => return End::General,
        }
        let seq = turn.seq;
        for (of, row) in rows.iter().enumerate() {
            if code.written >> of & 1 == 1 {
                // SAFETY: as above; numbers of transactions are more than 0.
                unsafe { row.begin(seq) };
            }
        }
        for store in &code.stores {
            let word = frame[usize::from(store.register)];
            // SAFETY: as above, and the version has begun.
            unsafe { rows[usize::from(store.row)].set(usize::from(store.word), word) };
        }
        let origin = Origin::new(turn.rank as u32, 0, lane.handler);
        turns.pass();
        if lane.outs.are_retained() {
            return End::Emitted;
        }
        for (ordinal, emit) in code.emits.iter().enumerate() {
            let registers = &emit.registers[..];
            let word = |c: usize| frame[usize::from(registers[c])];
            let origin = origin.output(ordinal as u32);
            // SAFETY: as the caller guarantees.
            unsafe { lane.outs.push(ordinal, origin, turn.event, registers.len(), word) };
        }
    }
    End::Lane
}
