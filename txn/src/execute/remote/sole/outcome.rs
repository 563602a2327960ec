//! The outcome of an epoch at a sole owner.

use std::collections::BTreeMap;

use tidemill_core::{Batch, Row, StreamId, Value};
use tidemill_table::Seq;

use super::segment::has_words;
use super::SoleProgram;
use crate::execute::{AbortedSlide, ColumnOutput, Overdue};
use crate::program::reasons::{shortened, REASON_BYTES_MAX};
use crate::program::{Abort, EventLimit, Handler, Program};

/// The outcome.
#[derive(Debug, Default)]
pub struct SoleOutcome {
    /// The outputs, by stream.
    pub outputs: Vec<ColumnOutput>,
    /// The results of work, by place: the return value of a call, null for any other work, or the
    /// reason of the abort.
    pub results: BTreeMap<u64, Result<Value, Abort>>,
    /// The events by column that are refused as a whole, because an event would be too long: the input
    /// stream, and why.
    pub refused: Vec<(StreamId, Abort)>,
    /// Transactions whose functions failed: the place of the event, or 0 for a slide of a window, the
    /// handler, and the abort. Those that are results are left out.
    pub faults: Vec<(u64, usize, Abort)>,
    /// The handlers whose functions gave another result when they ran again, once for each time.
    pub unstable: Vec<usize>,
    /// Functions that a clock has ended.
    pub overdue: Vec<Overdue>,
    /// The number of transactions.
    pub transactions: u64,
    /// The number of those that committed.
    pub committed: u64,
    /// The number of those that aborted, without results and without failed functions.
    pub aborted: u64,
    /// The number of those whose functions failed, without results.
    pub failed: u64,
    /// The number of the last version.
    pub seq: Seq,
}

impl SoleOutcome {
    /// Adds an output. Reasons of aborts may have data that a client has sent, so long ones are cut
    /// off. If the event is too long even then, it does not leave, and is refused.
    pub(super) fn add_within(
        &mut self,
        program: &Program,
        output: ColumnOutput,
        limit: &EventLimit,
    ) {
        let mut inputs = program.handlers.iter().flat_map(Handler::inputs);
        let Some(input) = inputs.find(|input| input.aborted == output.stream) else {
            return self.outputs.push(output);
        };
        let reason = output.batch.schema().len() - 1;
        let is_long = |row: usize| match output.batch.value(reason, row) {
            Value::Str(why) => why.len() > REASON_BYTES_MAX,
            _ => false,
        };
        if has_words(program, input.stream) && !(0..output.batch.len()).any(is_long) {
            return self.outputs.push(output);
        }
        let ColumnOutput { stream, tids, ordinals, batch } = output;
        let mut kept = ColumnOutput { stream, tids: Vec::new(), ordinals: Vec::new(), batch };
        let mut rows: Vec<Row> = Vec::new();
        for ((tid, ordinal), mut row) in tids.into_iter().zip(ordinals).zip(kept.batch.rows()) {
            if let Some(Value::Str(why)) = row.last_mut() {
                *why = shortened(why.to_string()).as_str().into();
            }
            match limit.refuses(&row) {
                Some(why) => self.refuse(tid, input.stream, why),
                None => {
                    kept.tids.push(tid);
                    kept.ordinals.push(ordinal);
                    rows.push(row);
                }
            }
        }
        if !rows.is_empty() {
            let schema = kept.batch.schema().clone();
            kept.batch = Batch::from_rows(schema, rows.iter().map(|row| &row[..]));
            self.outputs.push(kept);
        }
    }

    /// Refuses an event as a whole. The sender of a call gets the reason.
    pub(super) fn refuse(&mut self, tid: u64, input: StreamId, why: Abort) {
        match self.results.get_mut(&tid) {
            Some(result) => *result = Err(why),
            None => self.refused.push((input, why)),
        }
    }

    /// Returns the numbers of results that are aborts, with all that was refused as a whole, and of
    /// results whose functions failed.
    pub(super) fn refusals(&self) -> (u64, u64) {
        let aborts = || self.results.values().filter_map(|result| result.as_ref().err());
        let failed = aborts().filter(|abort| abort.is_fault()).count();
        ((aborts().count() - failed + self.refused.len()) as u64, failed as u64)
    }

    /// Adds the outcome of a later segment.
    pub(super) fn add(&mut self, later: SoleOutcome) {
        self.outputs.extend(later.outputs);
        self.results.extend(later.results);
        self.refused.extend(later.refused);
        self.faults.extend(later.faults);
        self.unstable.extend(later.unstable);
        self.overdue.extend(later.overdue);
        self.transactions += later.transactions;
        self.committed += later.committed;
        self.aborted += later.aborted;
        self.failed += later.failed;
        self.seq = self.seq.max(later.seq);
    }

    /// Adds the windows that have slid without their triggers, with the place of the next event.
    pub(super) fn add_slides(
        &mut self,
        of: &SoleProgram,
        slides: Vec<AbortedSlide>,
        tid_from: impl Fn(usize) -> u64,
    ) {
        let Some(stream) = of.aborted_slides.filter(|_| !slides.is_empty()) else {
            return;
        };
        let mut rows: Vec<[Value; 3]> = Vec::new();
        let (mut tids, mut ordinals) = (Vec::new(), Vec::new());
        for AbortedSlide { window, ends_us, abort, before } in slides {
            let name = Value::str(&of.program.windows[window.index()].name);
            rows.push([name, Value::Int(ends_us), Value::str(&abort.public_reason())]);
            let tid = tid_from(before);
            let nth = tids.iter().rev().take_while(|of| **of == tid).count();
            tids.push(tid);
            ordinals.push((nth * of.program.streams.len()) as u32 + u32::from(stream.0));
        }
        let schema = of.program.streams[stream.index()].spec.schema.clone();
        let batch = Batch::from_rows(schema, rows.iter().map(|row| &row[..]));
        self.outputs.push(ColumnOutput { stream, tids, ordinals, batch });
    }
}
