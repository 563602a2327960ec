//! Closures in the graph. They work on copies of their rows, and their emitted events are noted.

use std::sync::atomic::Ordering;

use tidemill_table::{RowAt, HEADER_WORDS, KEY_WORD};

use super::shape::{Shape, FLAGS_WORDS, PRESENT, WRITTEN};
use super::work::{Hand, Work};
use crate::execute::lane::{Copies, Lane};
use crate::execute::native::NativeCode;
use crate::execute::segment::{InOrder, Turns};
use crate::execute::words::{KeyFrom, Stop};
use crate::order::Ranked;
use crate::plan::graph::{RowPlace, Vertex};
use crate::program::NativeBody;

/// A thread's data for calling closures, and their results.
#[derive(Default)]
pub(crate) struct Frames<'a> {
    /// The lanes of the epoch.
    lanes: Vec<Option<Lane<'a>>>,
    /// The slots of one transaction's rows.
    words: Vec<u64>,
    pub(crate) log: Log,
}

/// The results of closures. A transaction's note has the place in it.
#[derive(Default)]
pub(crate) struct Log {
    /// The emitted events. They begin with the number of words that follow. Each event is the
    /// closure's number of the stream, and its words.
    emitted: Vec<u64>,
    reasons: Vec<&'static str>,
}

/// The note of a closure's outcome in this thread's log.
pub(crate) enum Note {
    /// It emits nothing.
    Nothing,
    Emits {
        thread: usize,
        at: usize,
    },
    Aborts {
        thread: usize,
        at: usize,
    },
}

const ABORTS: u64 = 1 << 55;
const AT: u64 = ABORTS - 1;

impl Note {
    pub(crate) fn word(&self) -> u64 {
        match *self {
            Note::Nothing => 0,
            Note::Emits { thread, at } => (thread as u64) << 56 | (at as u64 + 1),
            Note::Aborts { thread, at } => (thread as u64) << 56 | ABORTS | at as u64,
        }
    }

    pub(crate) fn of(word: u64) -> Note {
        let (thread, at) = ((word >> 56) as usize, (word & AT) as usize);
        match (word, word & ABORTS) {
            (0, _) => Note::Nothing,
            (_, 0) => Note::Emits { thread, at: at - 1 },
            _ => Note::Aborts { thread, at },
        }
    }
}

/// The most threads whose notes can be distinguished.
pub(crate) const THREADS_MAX: usize = 256;

impl Log {
    pub(crate) fn emitted(&self, at: usize) -> &[u64] {
        &self.emitted[at + 1..][..self.emitted[at] as usize]
    }

    pub(crate) fn reason(&self, at: usize) -> &'static str {
        self.reasons[at]
    }
}

impl<'a> Work<'a> {
    /// Runs the closure of a transaction. The columns that it sets become the versions of its rows.
    pub(crate) fn native(
        &self,
        at: Vertex,
        shape: &Shape,
        code: &NativeCode,
        body: &dyn NativeBody,
        hand: &mut Hand<'a>,
    ) -> Result<(), Stop> {
        let thread = hand.thread;
        let Frames { lanes, words, log } = &mut hand.natives;
        let epoch = self.stretch.epoch;
        let ranked = epoch.order[self.stretch.from + at.txn as usize];
        let (columns, event) = self.event(at.txn);
        words.clear();
        let (mut bases, mut present) = (Vec::with_capacity(shape.rows.len()), 0u128);
        for (row, (table, key)) in shape.rows.iter().enumerate() {
            let access = at.access + row as u32;
            if let RowPlace::Same(other) = self.graph.access(access).from() {
                let other = (other - at.access) as usize;
                present |= (present >> other & 1) << row;
                bases.push(bases[other]);
                continue;
            }
            let found = self.find(access, *table).ok_or(Stop::Trap)?;
            present |= u128::from(found.is_present) << row;
            bases.push(words.len());
            let key = match key {
                KeyFrom::Const(word) => *word,
                KeyFrom::Column(column) => columns[usize::from(*column)][event],
            };
            words.extend([0; HEADER_WORDS]);
            let from = words.len() - HEADER_WORDS;
            words[from + KEY_WORD] = key;
            let layout = self.tables[*table].layout();
            words.extend((0..layout.body_words()).map(|word| found.columns.word(word)));
        }
        if lanes.len() <= ranked.lane as usize {
            lanes.resize_with(epoch.lanes.len(), || None);
        }
        let lane = lanes[ranked.lane as usize].get_or_insert_with(|| {
            let run = epoch.lanes[ranked.lane as usize].run;
            let batch = &epoch.runs[run as usize].batch;
            Lane::on_frames(batch, ranked.lane, columns, shape.rows.len())
        });
        let first = words.as_mut_ptr();
        // SAFETY: every base is less than the length of `words`, or 0 if there are no rows.
        let frame = |base: &usize| RowAt::frame(unsafe { first.add(*base) });
        let copies =
            lane.copies.get_or_insert_with(|| Copies { rows: Vec::new(), present: 0, done: None });
        copies.rows.clear();
        copies.rows.extend(bases.iter().map(frame));
        (copies.present, copies.done) = (present, None);
        lane.outs.retained.clear();
        let order = [Ranked { lane: ranked.lane, row: ranked.row }];
        let mut turns = Turns::InOrder(InOrder { order: &order, at: 0, seq: 0, prefetch: false });
        // SAFETY: the frames are slots of the tables that the code was compiled for, with a stamp
        // of 0. They stay where they are until they are read below.
        unsafe { body.run(&mut turns, lane, code) };
        let done = lane.copies.as_mut().and_then(|copies| copies.done.take());
        let note = |note: Note| self.notes[at.txn as usize].store(note.word(), Ordering::Relaxed);
        let dirty = match done.expect("the closure has run") {
            Ok(dirty) => dirty,
            Err(reason) => {
                log.reasons.push(reason);
                note(Note::Aborts { thread, at: log.reasons.len() - 1 });
                return Err(Stop::Abort(0));
            }
        };
        let retained = &lane.outs.retained;
        if retained.is_empty() {
            note(Note::Nothing);
        } else {
            note(Note::Emits { thread, at: log.emitted.len() });
            log.emitted.push(retained.len() as u64);
            log.emitted.extend_from_slice(retained);
        }
        for (row, (table, _)) in shape.rows.iter().enumerate() {
            let access = self.graph.access(at.access + row as u32);
            if matches!(access.from(), RowPlace::Same(_)) {
                continue;
            }
            let is_of_row = |other: &usize| bases[*other] == bases[row];
            let is_dirty = (0..bases.len()).filter(is_of_row).any(|other| dirty >> other & 1 == 1);
            let flags = match (is_dirty, present >> row & 1 == 1) {
                (true, _) => PRESENT | WRITTEN,
                (false, true) => PRESENT,
                (false, false) => 0,
            };
            let version = &self.words[access.at as usize..];
            version[0].store(flags, Ordering::Relaxed);
            let body = &words[bases[row] + HEADER_WORDS..];
            let layout = self.tables[*table].layout();
            for (version, word) in version[FLAGS_WORDS..].iter().zip(&body[..layout.body_words()]) {
                version.store(*word, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
