//! A stretch of transactions on the fast path: events of one lane that follow one another in the
//! order, their rows as words, in slots that were asked for before.
//!
//! Whatever is not so (a row that is missing, an overflow) is left to the general path. The loop is
//! compiled together with each closure, so that between two transactions nothing is called, looked
//! up or stored that the next one could have kept.

use tidemill_table::{RowAt, Seq};

use super::closure::{undo, NativeTx};
use super::lane::Lane;
use super::native::{NativeCode, ROWS_MAX};
use super::output::Origin;
use super::words::{Frame, Stop, WordCode};
use crate::order::Ranked;

/// Why a segment ended.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// The next transaction is another lane's, or there is none.
    Lane,
    /// The last one committed, and other handlers may take what it emits: their turn comes first.
    Emitted,
    /// The next one aborts; it did nothing.
    Aborts(Reason),
    /// The general path must decide the next one; it did nothing.
    General,
}

/// Why a transaction aborted.
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    /// Of compiled code, which numbers them.
    Number(u16),
    /// Of a closure.
    Text(&'static str),
}

/// How far the walk has come.
pub(crate) struct Course<'s> {
    /// The transactions of the epoch up to where the open tables reach.
    pub(crate) order: &'s [Ranked],
    /// The next one.
    pub(crate) at: usize,
    /// The number of the one before.
    pub(crate) seq: Seq,
    pub(crate) prefetch: bool,
}

impl Course<'_> {
    /// The event of the next transaction, staged, if it is of this lane.
    #[inline(always)]
    fn event(&self, at: usize, lane: &mut Lane<'_>) -> Option<usize> {
        let next = self.order.get(at)?;
        if next.lane != lane.index {
            return None;
        }
        let event = next.row as usize;
        if event >= lane.stage_at {
            lane.stage(event, self.prefetch);
        }
        Some(event)
    }

    /// Runs a closure on `N` rows.
    ///
    /// # Safety
    /// The lane is [attached](Lane::attach) to open tables and to outputs that nobody else uses;
    /// the tables have room for a version of each row of all transactions of `order`; `code` is of
    /// its handler. Or the lane is of [copies](Lane::copies), and `code` of frames.
    #[inline(always)]
    pub(crate) unsafe fn run_native<const N: usize>(
        &mut self,
        lane: &mut Lane<'_>,
        code: &NativeCode,
        body: &impl Fn(&mut NativeTx<'_>) -> Result<(), &'static str>,
    ) -> End {
        assert_eq!(lane.rows(), N, "the closure's rows");
        let (mut at, mut seq) = (self.at, self.seq);
        let end = loop {
            let Some(event) = self.event(at, lane) else { break End::Lane };
            let mut rows = [RowAt::frame(std::ptr::null_mut()); N];
            let mut present = u64::MAX;
            let mut number = seq + 1;
            if let Some(copies) = &lane.copies {
                rows.copy_from_slice(&copies.rows);
                (present, number) = (copies.present, 0);
            } else {
                if lane.ages {
                    // SAFETY: as the caller says.
                    unsafe { lane.tell_time(event) };
                }
                let mut all = true;
                for (of, row) in rows.iter_mut().enumerate() {
                    // SAFETY: as the caller says; the event has been staged.
                    match unsafe { lane.row(of, event) } {
                        Some((found, is_there)) => {
                            *row = found;
                            present &= !(u64::from(!is_there) << of);
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
            let origin = Origin::new(at as u32, 0, lane.handler);
            // SAFETY: as the caller says, and the rows have been found.
            let mut tx = unsafe {
                let (columns, outs) = (&lane.columns, &mut lane.outs);
                NativeTx::new(columns, event, &rows, &code.places, number, present, outs, origin)
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
            (at, seq) = (at + 1, number);
            if lane.outs.are_kept() {
                break End::Emitted;
            }
        };
        (self.at, self.seq) = (at, seq);
        end
    }

    /// Runs a declared transaction's code; what a transaction emits is in the frame afterwards.
    ///
    /// # Safety
    /// As of [`Course::run_native`].
    pub(crate) unsafe fn run_words(
        &mut self,
        lane: &mut Lane<'_>,
        code: &WordCode,
        frame: &mut Frame,
    ) -> End {
        // SAFETY: as the caller says.
        unsafe {
            match code.rows.len() {
                rows if rows <= 8 => self.run_words_on::<8>(lane, code, frame),
                _ => self.run_words_on::<ROWS_MAX>(lane, code, frame),
            }
        }
    }

    /// [`Course::run_words`] on at most `N` rows.
    unsafe fn run_words_on<const N: usize>(
        &mut self,
        lane: &mut Lane<'_>,
        code: &WordCode,
        frame: &mut Frame,
    ) -> End {
        let mut rows = [RowAt::frame(std::ptr::null_mut()); N];
        let rows = &mut rows[..code.rows.len()];
        assert_eq!(lane.rows(), rows.len(), "the handler's rows");
        while let Some(event) = self.event(self.at, lane) {
            if lane.ages {
                // SAFETY: as the caller says.
                unsafe { lane.tell_time(event) };
            }
            for (of, row) in rows.iter_mut().enumerate() {
                // SAFETY: as the caller says; the event has been staged.
                match unsafe { lane.row(of, event) } {
                    Some((found, _)) => *row = found,
                    None => return End::General,
                }
            }
            // Values are read before any is written, so two rows must not be one.
            let same = |(a, b): &(u8, u8)| rows[usize::from(*a)].is_same(rows[usize::from(*b)]);
            if code.pairs.iter().any(same) {
                return End::General;
            }
            for (column, (_, register)) in code.columns.iter().enumerate() {
                // SAFETY: every column has the event.
                frame[usize::from(*register)] = unsafe { lane.columns.word(column, event) };
            }
            for load in &code.loads {
                // SAFETY: the row is in an open table; the word is one of its columns, by the
                // table's layout.
                let word = unsafe { rows[usize::from(load.row)].word(usize::from(load.word)) };
                frame[usize::from(load.register)] = word;
            }
            match code.run(frame) {
                Ok(()) => {}
                Err(Stop::Abort(reason)) => return End::Aborts(Reason::Number(reason)),
                Err(Stop::Trap) => return End::General,
            }
            let seq = self.seq + 1;
            for row in &code.written {
                // SAFETY: as above; numbers of transactions are more than 0.
                unsafe { rows[usize::from(*row)].begin(seq) };
            }
            for store in &code.stores {
                let word = frame[usize::from(store.register)];
                // SAFETY: as above, and the version has begun.
                unsafe { rows[usize::from(store.row)].set(usize::from(store.word), word) };
            }
            let origin = Origin::new(self.at as u32, 0, lane.handler);
            (self.at, self.seq) = (self.at + 1, seq);
            if lane.outs.are_kept() {
                return End::Emitted;
            }
            for (ordinal, emit) in code.emits.iter().enumerate() {
                let registers = &emit.registers[..];
                let word = |c: usize| frame[usize::from(registers[c])];
                let origin = origin.output(ordinal as u32);
                // SAFETY: as the caller says.
                unsafe { lane.outs.push(ordinal, origin, registers.len(), word) };
            }
        }
        End::Lane
    }
}
