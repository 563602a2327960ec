//! The dead letters of events that a `map` or `filter` can't compute. They follow from an event alone.
//! So the worker that has read an event emits its letters, with the cut that has it, whoever executes
//! the event, and when.

use tidemill_core::{Row, StreamId};
use tidemill_function::{Counts, EventPlace, Functions, Sequencing, Tid};

use super::read::{Item, ManyEvents};
use super::run::{EmittedRows, LAST};

/// The name of the source of events that clients have sent.
const PUSHED: &str = "push";

/// The letters of a cut.
pub(super) struct Letters<'l> {
    functions: &'l dyn Functions,
    order: Sequencing,
    /// Each has a place of its source in the epoch, whichever transaction gets that in event time.
    found: Vec<(Tid, StreamId, Row)>,
}

impl<'l> Letters<'l> {
    pub fn new(functions: &'l dyn Functions, order: Sequencing) -> Letters<'l> {
        Letters { functions, order, found: Vec::new() }
    }

    /// Finds those of what a cut takes of a source.
    pub fn add(&mut self, source: u32, items: &[Item]) {
        let Letters { functions, order, found } = self;
        let mut nth = 0;
        for item in items {
            let tid = |more: u64| order.tid(source, nth + more);
            let pushed = |tid: Tid| EventPlace { name: PUSHED.into(), row: tid.0 };
            match item {
                // The first of an event's transactions stands for all of them.
                Item::Task(read) if read.task.is_first => {
                    let place = read.task.place.clone().unwrap_or_else(|| pushed(tid(0)));
                    let letters = functions.stage_letters_of(&read.task.call, &place);
                    found.extend(letters.into_iter().map(|(stream, row)| (tid(0), stream, row)));
                }
                Item::Task(_) => {}
                Item::Events(ManyEvents { stream, from, each, batch, .. }) => {
                    let tid = |row: usize| tid(row as u64 * each);
                    let place = |row: usize| match from {
                        Some(from) => from.after(row as u64),
                        None => pushed(tid(row)),
                    };
                    let letters = functions.stage_letters(*stream, batch, &place);
                    let letters = letters.into_iter();
                    found.extend(letters.map(|(row, stream, letter)| (tid(row), stream, letter)));
                }
            }
            nth += item.tasks();
        }
    }

    /// Emits them, and counts them.
    pub fn emit(self, emitted: &mut EmittedRows, counts: &mut Counts) {
        for (tid, stream, letter) in self.found {
            self.functions.count_emitted(stream, &letter, counts);
            // As a dead letter that is a call of its own.
            counts.ended += 1;
            // No transaction has so many outputs, and an event has one letter for each stream.
            let ordinal = LAST - 1 - u32::from(stream.0);
            emitted.entry(stream).or_default().push((tid.0, ordinal, letter));
        }
    }
}
