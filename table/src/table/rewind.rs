//! Going back to a snapshot.
//!
//! If another process dies, a process retains its rows and undoes what it has changed since the last
//! snapshot. The version log has each superseded version, word for word. So the first version of a
//! row that was superseded after a snapshot still says that the snapshot has it (see [`SNAPPED`]),
//! or that there has never been such a row. When an epoch ends, these versions are copied to a
//! [`Before`]. This costs a test for each version, and a copy for each row that has changed since
//! the snapshot.

use std::borrow::Cow;

use tidemill_core::{Key, Value};

use super::{Table, HEADER_WORDS, KEY, LINK, SNAPPED, STAMP, TAKEN};
use crate::dirty::DirtyBlocks;
use crate::version::{stamp_word, Seq, NO_LINK};

/// The rows of a table that have changed since a snapshot, as they were then.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Before {
    rows: usize,
    /// Of each row: the word key (0 if keys are not words), whether it existed, and the column words.
    words: Vec<u64>,
    /// Of each row, its key, in a table whose keys are not words.
    keys: Vec<Key>,
    /// The values beside each row's slot.
    values: Vec<Value>,
}

impl Before {
    /// Returns the number of rows. A row may be there more than once. Its first place counts.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds the rows of a later snapshot that does not count. They changed after those that are here.
    pub fn append(&mut self, later: Before) {
        self.rows += later.rows;
        self.words.extend(later.words);
        self.keys.extend(later.keys);
        self.values.extend(later.values);
    }

    /// Returns the key of a row, in a table whose keys are not words.
    pub(super) fn key(&self, nth: usize) -> Option<&Key> {
        self.keys.get(nth)
    }

    /// Returns the word key of a row.
    pub(super) fn word(&self, nth: usize, of: &Table) -> u64 {
        self.words[nth * (2 + of.layout.body_words())]
    }

    /// Returns the slots of the rows, if they have one.
    pub(super) fn slots<'a>(&'a self, of: &'a Table) -> impl Iterator<Item = Option<usize>> + 'a {
        (0..self.rows).map(|nth| match (&of.keys, self.key(nth)) {
            (Some(index), Some(key)) => index.find(key).map(|slot| slot as usize),
            _ => {
                let word = self.word(nth, of);
                of.find(word, of.hash(word)).map(|base| base / of.stride)
            }
        })
    }
}

impl Table {
    /// Ends an epoch as [`Table::commit`] does, and notes that a snapshot has all rows as they are
    /// now.
    pub fn settle(&mut self, seq: Seq) {
        self.commit(seq);
        for words in self.slots.words_mut().chunks_exact_mut(self.stride) {
            words[LINK] |= if words[LINK] & TAKEN == 0 { 0 } else { SNAPPED };
        }
    }

    /// Ends an epoch as [`Table::commit`] does. Adds the rows that are changed for the first time
    /// since a snapshot [took them](Table::take_changes_since) to `before`.
    ///
    /// # Panics
    /// If changes are not [tracked](Table::track), or if the table has a history.
    pub fn commit_keeping(&mut self, seq: Seq, before: &mut Before) {
        assert!(self.tracked && self.shape.is_none(), "table {}: not tracked", self.spec.name);
        assert_eq!(self.logged, self.stride, "versions are logged as a whole");
        for (words, values) in self.log.entries(self.logged, self.layout.values) {
            let (stamp, link) = (words[STAMP], words[LINK]);
            let is_first = stamp == 0 && link >> 32 == u64::from(NO_LINK);
            if link & SNAPPED == 0 && !is_first {
                continue;
            }
            before.rows += 1;
            match &self.keys {
                Some(index) => {
                    before.keys.push(index.key(words[KEY] as u32).clone());
                    before.words.push(0);
                }
                None => before.words.push(words[KEY]),
            }
            before.words.push(stamp & 1);
            before.words.extend_from_slice(&words[HEADER_WORDS..]);
            before.values.extend_from_slice(values);
        }
        // A snapshot finds the rows here, and needs no marks of blocks.
        self.dirty = DirtyBlocks::all();
        self.commit(seq);
    }

    /// Restores rows as they were at a snapshot. It has all of them, and the next one need not take
    /// them. `seq` is the number of the snapshot's last transaction; later writes have higher ones.
    pub fn rewind(&mut self, before: &Before, seq: Seq) {
        // Uncommitted versions were not counted, so nothing else may be in the log.
        debug_assert_eq!(self.log.len(self.logged), 0, "the last epoch has ended");
        let (width, beside) = (2 + self.layout.body_words(), self.layout.values);
        for nth in (0..before.rows).rev() {
            let words = &before.words[nth * width..][..width];
            let is_there = words[1] == 1;
            // A row that existed takes a slot if it has none any more.
            let slot = match before.key(nth) {
                Some(key) => self.slot_keyed(Cow::Borrowed(key), is_there),
                None => self.slot_of_word(words[0], is_there),
            };
            let Some(slot) = slot.map(|slot| slot as usize) else { continue };
            let base = slot * self.stride;
            let to = &mut self.slots.words_mut()[base..][..self.stride];
            let was_there = to[STAMP] & 1 == 1;
            to[STAMP] = stamp_word(0, is_there);
            to[LINK] = u64::from(NO_LINK) << 32 | TAKEN | SNAPPED;
            to[HEADER_WORDS..].copy_from_slice(&words[2..]);
            let held = &mut self.values[slot * beside..][..beside];
            for (held, value) in held.iter_mut().zip(&before.values[nth * beside..]) {
                self.values_bytes = self.values_bytes + value.heap_bytes() - held.heap_bytes();
                *held = value.clone();
            }
            self.present = self.present + usize::from(is_there) - usize::from(was_there);
            if was_there != is_there && self.order.is_some() {
                self.order_changes(self.key(slot as u32), is_there);
            }
        }
        self.commit(seq);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use tidemill_core::{encode, Row};

    use super::*;
    use crate::table::tests::{key_of, row, shapes};

    #[derive(Clone, Debug)]
    enum Step {
        Put(i64, i64),
        Delete(i64),
        End,
        /// A snapshot, of which changes are undone later.
        Snapshot,
        /// The end of so many snapshots: the rows are as they were at the one before.
        Back(usize),
        /// The last snapshot does not count: the next one has its changes.
        GiveUp,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0..40i64, 0..9i64).prop_map(|(key, v)| Step::Put(key, v)),
            3 => (0..40i64).prop_map(Step::Delete),
            2 => Just(Step::End),
            1 => Just(Step::Snapshot),
            1 => (0..3usize).prop_map(Step::Back),
            1 => Just(Step::GiveUp),
        ];
        prop::collection::vec(step, 0..120)
    }

    proptest! {
        #[test]
        fn rows_go_back_to_any_snapshot(shape in 0..shapes().len(), steps in steps()) {
            let spec = shapes()[shape].clone();
            let mut table = Table::new(spec.clone(), 7);
            table.track();
            let mut model: BTreeMap<Key, Row> = BTreeMap::new();
            // Each snapshot, and what has changed until the next one.
            let mut taken = vec![(model.clone(), Before::default())];
            let mut seq = 0;
            for step in steps.into_iter().chain([Step::End]) {
                seq += 1;
                let at = taken.len() - 1;
                match step {
                    Step::Put(key, v) => {
                        let row = row(&spec, key, v);
                        let key = Key::of(&key_of(&spec, &row));
                        table.put_by_key(&key, Some(&row), seq);
                        model.insert(key, row.into());
                    }
                    Step::Delete(key) => {
                        let key = Key::of(&key_of(&spec, &row(&spec, key, 0)));
                        table.put_by_key(&key, None, seq);
                        model.remove(&key);
                    }
                    Step::End => table.commit_keeping(seq, &mut taken[at].1),
                    Step::Snapshot => {
                        table.commit_keeping(seq, &mut taken[at].1);
                        let (before, _) = &taken[at];
                        let keys = before.keys().chain(model.keys());
                        let differs = |key: &&Key| before.get(key) != model.get(key);
                        let differing: Vec<&Key> = keys.filter(differs).collect();
                        let mut found = BTreeMap::new();
                        let changed = table.take_changes_since(&taken[at].1);
                        changed.for_each(|_, key, row| {
                            let again = found.insert(Key(key.into()), row.map(<[u8]>::to_vec));
                            assert_eq!(again, None, "a row twice");
                        });
                        prop_assert!(differing.iter().all(|key| found.contains_key(key)));
                        for (key, row) in found {
                            let expected = model.get(&key).map(|row| {
                                let mut bytes = Vec::new();
                                row.iter().for_each(|value| encode::value(value, &mut bytes));
                                bytes
                            });
                            prop_assert_eq!(row, expected);
                        }
                        taken.push((model.clone(), Before::default()));
                    }
                    Step::GiveUp if at > 0 => {
                        let (_, later) = taken.pop().expect("there is more than one");
                        taken[at - 1].1.append(later);
                    }
                    Step::GiveUp => {}
                    Step::Back(snapshots) => {
                        table.commit_keeping(seq, &mut taken[at].1);
                        for _ in 0..=snapshots {
                            let Some((then, before)) = taken.pop() else { break };
                            table.rewind(&before, 0);
                            model = then;
                            let rows: BTreeMap<Key, Row> = table.entries().collect();
                            prop_assert_eq!(&rows, &model);
                        }
                        taken.push((model.clone(), Before::default()));
                    }
                }
                prop_assert_eq!(table.len(), model.len());
            }
            let rows: BTreeMap<Key, Row> = table.entries().collect();
            prop_assert_eq!(rows, model);
        }
    }
}
