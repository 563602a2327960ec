//! Loading versions of rows.
//!
//! The newest version of a row is in the snapshot twice: among the versions, and as the row. All
//! versions go to the row's history, in their order. In the end the newest is taken out of it
//! again, if the row exists.

use tidemill_core::{Key, Result, Value};

use super::{Fault, Loading};
use crate::history::StoredVersion;
use crate::table::{Table, HEADER_WORDS, LINK, SNAPPED, STAMP};

impl Loading<'_> {
    /// Loads a version from [`Changed::for_each_version`](crate::Changed::for_each_version). It
    /// must follow its row, if that exists, and earlier versions of the row.
    ///
    /// # Errors
    /// `Io` if the bytes are damaged or belong to another table, or if a version before this one is
    /// missing.
    pub fn version(&mut self, key: &[u8], version: &[u8]) -> Result<()> {
        while self.placed < self.given {
            self.place()?;
        }
        let Some(stored) = StoredVersion::of(key, version) else {
            return Err(self.error(&Fault::Version, key));
        };
        if let Err(fault) = self.decode(stored.key, stored.row) {
            return Err(self.error(&fault, stored.key));
        }
        let at = self.given % super::RING;
        let words = &self.words[at * self.width..][..self.width];
        let beside = self.table.layout.values;
        let values = &self.values[at * beside..][..beside];
        let table = &mut *self.table;
        let slot = table.slot_to_load(stored.key, words[0]);
        let Some(shape) = &table.shape else {
            return Err(self.error(&Fault::NoHistory, stored.key));
        };
        let numbered = (stored.number, stored.time_us);
        match table.histories[slot].restore(shape, numbered, &words[1..], values) {
            Some(bytes) => table.histories_have_grown(bytes),
            None => return Err(self.error(&Fault::Gap(stored.number), stored.key)),
        }
        Ok(())
    }

    /// Checks that all versions are there, and settles each row.
    pub(super) fn finish_versions(&mut self) -> Result<()> {
        for slot in 0..self.table.histories.len() {
            if let Err(fault) = self.table.settle_versions(slot) {
                let key = self.table.key(slot as u32);
                return Err(self.error(&fault, &key.0));
            }
        }
        Ok(())
    }
}

impl Table {
    /// Returns the slot of a key. Takes a new slot if the row is deleted and only versions of it
    /// are left.
    fn slot_to_load(&mut self, key: &[u8], word: u64) -> usize {
        let slot = match &self.keys {
            Some(keys) => {
                let key = Key(key.into());
                let hash = keys.hash(&key);
                match keys.find_hashed(&key, hash) {
                    Some(slot) => return slot as usize,
                    None => self.take_keyed(key, hash) as usize,
                }
            }
            None => {
                let hash = self.hash(word);
                match self.find(word, hash) {
                    Some(base) => return base / self.stride,
                    None => self.take(word, hash) / self.stride,
                }
            }
        };
        self.slots.words_mut()[slot * self.stride + LINK] |= SNAPPED;
        slot
    }

    /// Checks that the last version that was loaded of an existing row equals the row.
    fn settle_versions(&mut self, slot: usize) -> Result<(), Fault> {
        let Some(shape) = &self.shape else { return Ok(()) };
        let history = &mut self.histories[slot];
        if history.is_empty() {
            return Ok(());
        }
        history.store(history.first()..history.end());
        let words = &self.slots.words()[slot * self.stride..][..self.stride];
        if words[STAMP] & 1 == 0 {
            return Ok(());
        }
        let newest = history.end() - 1;
        let held = &self.values[slot * self.layout.values..][..self.layout.values];
        let values = history.values(newest, shape);
        let is_row = history.body(newest, shape) == &words[HEADER_WORDS..]
            && Key::of(values) == Key::of(held);
        if !is_row {
            return Err(Fault::NotTheRow);
        }
        let bytes: usize = values.iter().map(Value::heap_bytes).sum();
        history.pop(shape);
        self.histories_have_grown(-(bytes as isize));
        Ok(())
    }
}
