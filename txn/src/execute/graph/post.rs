//! Post-processing: the emitted events and the reasons of aborts, after everything is final.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::natives::{Log, Note};
use super::shape::{Kind, Shape};
use super::work::{Hand, Work};
use crate::execute::words::{Frame, Stop, WordCode};

/// The outcomes of some consecutive transactions, in stamp order.
#[derive(Default)]
pub(crate) struct Posted {
    pub(crate) items: Vec<Item>,
    pub(crate) words: Vec<u64>,
}

/// An outcome of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    /// It commits.
    Commits(u32),
    /// It emits an event to a stream, with `width` of the words that follow.
    Emits { txn: u32, stream: u16, ordinal: u32, width: u32 },
    /// It aborts, with a reason of its code.
    Aborts(u32, u16),
    /// It aborts, with a reason in a closure's log.
    Refuses { txn: u32, thread: u16, at: u32 },
    /// It was run on the general path, as a unit.
    Unit(u32),
    /// The general path must decide.
    Trap(u32),
}

impl Work<'_> {
    /// Post-processes some transactions, up to the first one that the general path must decide.
    pub(crate) fn post(&self, txns: Range<usize>, hand: &mut Hand<'_>, logs: &[Log]) -> Posted {
        let mut posted = Posted::default();
        for txn in txns.start as u32..txns.end as u32 {
            if self.unit(txn).is_some() {
                posted.items.push(Item::Unit(txn));
                continue;
            }
            let at = self.graph.vertex(self.graph.operations(txn).start);
            let shape = self.shape(at);
            match &shape.kind {
                Kind::Words(code) => {
                    let frame = &mut hand.frames[usize::from(at.handler)];
                    let aborts = self.states.is_aborted(txn);
                    if !aborts && code.emits.is_empty() {
                        posted.items.push(Item::Commits(txn));
                        continue;
                    }
                    match self.whole(txn, shape, code, frame) {
                        Ok(()) => {
                            assert!(!aborts, "slices stop where the whole does");
                            posted.items.push(Item::Commits(txn));
                            posted.emits(txn, code, frame);
                        }
                        Err(Stop::Abort(reason)) => posted.items.push(Item::Aborts(txn, reason)),
                        Err(Stop::Trap) => {
                            posted.items.push(Item::Trap(txn));
                            return posted;
                        }
                    }
                }
                Kind::Native(code, _, widths) => {
                    match Note::of(self.notes[txn as usize].load(Ordering::Relaxed)) {
                        Note::Aborts { thread, at } => {
                            let (thread, at) = (thread as u16, at as u32);
                            posted.items.push(Item::Refuses { txn, thread, at });
                        }
                        Note::Nothing => posted.items.push(Item::Commits(txn)),
                        Note::Emits { thread, at } => {
                            posted.items.push(Item::Commits(txn));
                            posted.emits_retained(
                                txn,
                                &code.streams,
                                widths,
                                logs[thread].emitted(at),
                            );
                        }
                    }
                }
            }
        }
        posted
    }

    /// Runs the whole code of a transaction on the rows as they were before it.
    fn whole(
        &self,
        txn: u32,
        shape: &Shape,
        code: &WordCode,
        frame: &mut Frame,
    ) -> Result<(), Stop> {
        self.load_event(code, txn, frame);
        let first = self.graph.operations(txn).start;
        let found = |row: u8| {
            let (part, access) = shape.seen[usize::from(row)]?;
            let vertex = self.graph.vertex(first + u32::from(part));
            let (table, _) = shape.rows[usize::from(row)];
            let found = self.find(vertex.access + u32::from(access), table)?;
            (found.is_present || !code.asks).then_some(found)
        };
        let mut last = None;
        for load in &code.loads {
            let row = match last {
                Some((row, found)) if row == load.row => found,
                _ => found(load.row).ok_or(Stop::Trap)?,
            };
            last = Some((load.row, row));
            let word = usize::from(load.word) - tidemill_table::HEADER_WORDS;
            frame[usize::from(load.register)] = row.columns.word(word);
        }
        // Rows that are only written, or tested for existence, must also be valid input of the
        // code.
        for row in
            (0..code.rows.len() as u8).filter(|row| !code.loads.iter().any(|l| l.row == *row))
        {
            if shape.seen[usize::from(row)].is_some() {
                found(row).ok_or(Stop::Trap)?;
            }
        }
        code.run(frame)
    }
}

impl Posted {
    fn emits(&mut self, txn: u32, code: &WordCode, frame: &Frame) {
        for (ordinal, emit) in code.emits.iter().enumerate() {
            let (stream, width) = (emit.stream.0, emit.registers.len() as u32);
            self.items.push(Item::Emits { txn, stream, ordinal: ordinal as u32, width });
            self.words.extend(emit.registers.iter().map(|r| frame[usize::from(*r)]));
        }
    }

    fn emits_retained(
        &mut self,
        txn: u32,
        streams: &[usize],
        widths: &[usize],
        mut retained: &[u64],
    ) {
        let mut ordinal = 0;
        while let Some((number, rest)) = retained.split_first() {
            let (stream, width) = (streams[*number as usize], widths[*number as usize]);
            let (words, rest) = rest.split_at(width);
            let (stream, width) = (stream as u16, width as u32);
            self.items.push(Item::Emits { txn, stream, ordinal, width });
            self.words.extend_from_slice(words);
            (retained, ordinal) = (rest, ordinal + 1);
        }
    }
}
