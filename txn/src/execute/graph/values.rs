//! Transactions over values in the graph: whatever compiled code leaves to the general path, as long
//! as its rows are known.

use std::sync::atomic::Ordering;

use tidemill_core::{Row, StreamId, TableId, Value};
use tidemill_table::Table;

use super::natives::Note;
use super::plan::key;
use super::shape::{Shape, FLAGS_WORDS, PRESENT, WRITTEN};
use super::work::{Hand, Work};
use crate::execute::general::Rows;
use crate::execute::serial::call;
use crate::execute::words::Stop;
use crate::plan::graph::{From, Vertex};

/// What a transaction over values came to.
pub(crate) enum Done {
    Commits(Vec<(StreamId, Vec<Value>)>),
    Aborts(String),
}

/// The tables as one transaction finds them, as far as it may look.
struct View<'w, 'a> {
    work: &'w Work<'a>,
    at: Vertex,
    shape: &'w Shape,
    keys: Vec<u64>,
}

impl View<'_, '_> {
    /// The access of the row with a key; of equal ones the first, which is the one in the row's list.
    fn access(&self, table: TableId, key: &[Value]) -> u32 {
        let is_row = |row: usize| {
            self.shape.rows[row].0 == table.index() && Some(self.keys[row]) == key[0].word()
        };
        let row = (0..self.keys.len()).find(|row| is_row(*row)).expect("its rows are known");
        let touches = &self.shape.parts[0].touches;
        let access = touches.iter().position(|touch| usize::from(touch.row) == row);
        self.at.access + access.expect("rows that are used are touched") as u32
    }

    /// The words of a row's columns, if it is there.
    fn words(&self, access: u32, table: usize) -> Option<Vec<u64>> {
        let found = self.work.find(access, table).filter(|found| found.is_present)?;
        let words = self.work.tables[table].layout().body_words();
        Some((0..words).map(|word| found.columns.word(word)).collect())
    }
}

impl Rows for View<'_, '_> {
    fn row(&self, table: TableId, key: &[Value]) -> Option<Row> {
        let words = self.words(self.access(table, key), table.index())?;
        let word = key[0].word().expect("keys are words");
        Some(self.work.tables[table.index()].row_of(word, &words))
    }

    fn table(&self, table: TableId) -> &Table {
        &self.work.tables[table.index()]
    }
}

impl<'a> Work<'a> {
    /// Runs a transaction on the general path; what it writes becomes the versions of its rows.
    pub(crate) fn values(
        &self,
        at: Vertex,
        shape: &Shape,
        hand: &mut Hand<'a>,
    ) -> Result<(), Stop> {
        let ranked = self.epoch.order[self.from + at.txn as usize];
        let run = self.epoch.lanes[ranked.lane as usize].run;
        let event = self.epoch.runs[run as usize].batch.row(ranked.row as usize);
        let (columns, row) = self.event(at.txn);
        let keys = shape.rows.iter().map(|(_, from)| key(*from, columns, row)).collect();
        let view = View { work: self, at, shape, keys };
        let time_us = self.epoch.time_us(ranked);
        let outcome = call(self.program, &view, usize::from(at.handler), &event, time_us);
        let (thread, number) = (hand.thread, hand.natives.log.values.len());
        let note = Note::Values { thread, at: number };
        self.notes[at.txn as usize].store(note.word(), Ordering::Relaxed);
        let effects = match outcome {
            Ok(effects) => effects,
            Err(abort) => {
                hand.natives.log.values.push(Done::Aborts(abort.reason));
                return Err(Stop::Abort(0));
            }
        };
        // What it does not write is passed on.
        for (nth, touch) in shape.parts[0].touches.iter().enumerate() {
            let access = at.access + nth as u32;
            let is_same = matches!(self.graph.access(access).from(), From::Same(_));
            if touch.words > 0 && !is_same {
                let (table, _) = shape.rows[usize::from(touch.row)];
                let words = view.words(access, table);
                let flags = if words.is_some() { PRESENT } else { 0 };
                self.set_version(access, flags, words.as_deref().unwrap_or(&[]));
            }
        }
        for (table, key, row) in effects.written() {
            let access = view.access(table, key);
            match row {
                Some(row) => {
                    let words = self.tables[table.index()].words_of(row);
                    self.set_version(access, PRESENT | WRITTEN, &words);
                }
                None => self.set_version(access, WRITTEN, &[]),
            }
        }
        hand.natives.log.values.push(Done::Commits(effects.emitted));
        Ok(())
    }

    fn set_version(&self, access: u32, flags: u64, words: &[u64]) {
        let version = &self.words[self.graph.access(access).at as usize..];
        version[0].store(flags, Ordering::Relaxed);
        for (to, word) in version[FLAGS_WORDS..].iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
    }
}
