//! The given rows that a pass installs, by table and in the order of their places.

use tidemill_core::{Batch, Key, SourceId, TableId};
use tidemill_txn::execute::ColumnTable;
use tidemill_txn::order::Run;
use tidemill_txn::program::KeyValues;

use super::given::Given;
use super::uses::encoded;

/// The rows of a table that a pass installs.
#[derive(Debug, Default)]
pub(super) struct Installs {
    /// The run of these rows in the pass, and its lanes: of rows that exist, and of others.
    pub(super) run: Option<u32>,
    pub(super) lanes: [Option<u32>; 2],
    /// The rows, by the message among [`Installs::messages`] and the row there.
    rows: Vec<(u32, u32)>,
    messages: Vec<u32>,
    /// The transaction of each row.
    tids: Vec<u64>,
    /// The keys that are words, and whether each row exists.
    pub(super) words: Vec<(u64, bool)>,
    /// Other keys.
    pub(super) keys: Vec<(Key, bool)>,
    /// The place of each row in the order of the pass.
    pub(super) places: Vec<u32>,
}

impl Installs {
    /// Removes all.
    pub(super) fn clear(&mut self) {
        (self.run, self.lanes) = (None, [None; 2]);
        self.rows.clear();
        self.messages.clear();
        self.tids.clear();
        self.words.clear();
        self.keys.clear();
        self.places.clear();
    }

    /// Adds a row of a message that is installed at this place, and returns its number.
    #[inline]
    pub(super) fn add(
        &mut self,
        (number, given): (u32, &mut Given),
        row: usize,
        place: usize,
    ) -> u32 {
        let message = *given.number.get_or_insert_with(|| {
            self.messages.push(number);
            self.messages.len() as u32 - 1
        });
        given.left -= 1;
        let exists = given.exists[row];
        match &given.keys {
            KeyValues::Words(words) => self.words.push((words[row], exists)),
            KeyValues::Columns(batch) => {
                self.keys.push((Key(encoded(batch, row).into()), exists));
            }
        }
        self.places.push(place as u32);
        self.tids.push(given.tids[row]);
        self.rows.push((message, row as u32));
        self.rows.len() as u32 - 1
    }

    /// Whether these are all rows of a message from the first one on.
    fn are_in_order(&self) -> bool {
        (0..).zip(&self.rows).all(|(nth, (_, row))| nth == *row)
    }

    /// Returns the messages that have these rows.
    pub(super) fn messages(&self) -> &[u32] {
        &self.messages
    }

    /// Returns the run of these rows.
    pub(super) fn run(&self, id: TableId, table: &ColumnTable, all: &[Given]) -> Run {
        let batches = self.messages.iter().map(|message| &all[*message as usize].batch);
        let batches: Vec<&Batch> = batches.collect();
        let batch = match &batches[..] {
            [one] if one.len() == self.rows.len() && self.are_in_order() => (*one).clone(),
            _ => Batch::interleave(&batches, &self.rows),
        };
        Run {
            stream: table.rows,
            source: SourceId(id.0.into()),
            batch,
            times: self.tids.iter().map(|tid| *tid as i64).collect(),
            offsets: self.tids.clone(),
            admitted: None,
        }
    }
}
