//! The keys of rows that transactions mention, as a batch.

use tidemill_core::Batch;
use tidemill_txn::execute::ColumnTable;
use tidemill_txn::program::KeyValues;

use super::parts::Part;

/// A row that the transaction of an event mentions: the part and its number, the event in it, and
/// the number of the row.
#[derive(Clone, Copy)]
pub(super) struct UseOf<'p> {
    pub(super) number: u32,
    pub(super) part: &'p Part,
    pub(super) event: usize,
    pub(super) nth: usize,
}

/// Keys of rows of a table.
#[derive(Debug, Default)]
pub(super) struct KeyList {
    /// The keys, if they are words.
    words: Vec<u64>,
    /// Other keys: by the number of a batch of keys, and the row there.
    rows: Vec<(u32, u32)>,
    /// The parts and the numbers of their rows that have these batches.
    batches: Vec<(u32, usize)>,
}

impl KeyList {
    /// Removes all.
    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.rows.clear();
        self.batches.clear();
    }

    /// Adds the key of a row.
    #[inline]
    pub(super) fn add(&mut self, of: UseOf<'_>) {
        let UseOf { number, part, event, nth } = of;
        match &part.uses.rows[nth].keys {
            KeyValues::Words(words) => self.words.push(words[event]),
            KeyValues::Columns(_) => {
                let batch = (number, nth);
                let known = self.batches.iter().position(|of| *of == batch);
                let known = known.unwrap_or_else(|| {
                    self.batches.push(batch);
                    self.batches.len() - 1
                });
                self.rows.push((known as u32, event as u32));
            }
        }
    }

    /// Returns the keys, in the order in which they were added.
    pub(super) fn batch(&self, table: &ColumnTable, parts: &[Part]) -> Batch {
        if table.has_word_keys {
            let (schema, len) = (table.keys_schema.clone(), self.words.len());
            return Batch::of_words(schema, vec![self.words.clone()], len);
        }
        let keys = |(part, nth): &(u32, usize)| match &parts[*part as usize].uses.rows[*nth].keys {
            KeyValues::Columns(batch) => batch,
            KeyValues::Words(_) => unreachable!("keys of a table are of one kind"),
        };
        let batches: Vec<&Batch> = self.batches.iter().map(keys).collect();
        Batch::interleave(&batches, &self.rows)
    }
}
