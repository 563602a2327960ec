//! Guests: rows of other owners, which are here only while an epoch runs.
//!
//! A node executes transactions on rows of several owners in its own tables. So it [admits] the
//! rows that others have sent, and [evicts] them when the epoch has ended. Afterwards the table is
//! as if they had never been there: a guest has no place in change sets, snapshots, the order of
//! keys or counts, and leaves no slot.
//!
//! A guest is known by the link of its first version ([`GUEST`]), which no other row has. By that
//! link [`Table::commit_keeping`] leaves it out, at no cost for other rows.
//!
//! [admits]: Table::admit
//! [evicts]: Table::evict

use tidemill_core::Key;

use super::{Table, HEADER_WORDS, KEY, LINK, SNAPPED, STAMP, TAKEN};
use crate::cells::prefetch;
use crate::version::{stamp_word, GUEST};

/// The distance at which slots are prefetched, in guests.
const AHEAD: usize = 12;

impl Table {
    /// Takes slots for rows of another owner, unless they have one. `admitted` is called with the
    /// index of each row that has got a slot.
    ///
    /// If a row is said to exist, it is there with all words 0 until somebody writes it, so that
    /// its first write finds a row. In a table with other rows than words, it is missing until
    /// then. The owner of the table never has a row with such a key.
    ///
    /// # Panics
    /// If keys are not words.
    pub fn admit(&mut self, guests: &[(u64, bool)], mut admitted: impl FnMut(usize)) {
        assert!(self.keys.is_none(), "table {}: keys are words", self.spec.name);
        for (nth, (key, exists)) in guests.iter().enumerate() {
            if let Some((ahead, _)) = guests.get(nth + AHEAD) {
                self.prefetch(self.hash(*ahead));
            }
            if let Some(base) = self.take_new(*key) {
                self.welcome(base, *exists);
                admitted(nth);
            }
        }
    }

    /// Takes a slot for a row of another owner, as [`Table::admit`] does, by its encoded key.
    /// Returns whether it has got one.
    pub fn admit_by_key(&mut self, key: &Key, exists: bool) -> bool {
        if self.slot_for_key(key, false).is_some() {
            return false;
        }
        let slot = self.slot_for_key(key, true).expect("a slot is taken");
        self.welcome(slot as usize * self.stride, exists);
        true
    }

    /// Takes a slot for a word key, unless it has one.
    #[inline]
    fn take_new(&mut self, key: u64) -> Option<usize> {
        if self.room() == 0 {
            self.grow();
        }
        let (mask, stride) = (self.capacity - 1, self.stride);
        let mut slot = self.home(self.hash(key));
        let words = self.slots.words_mut();
        loop {
            let words = &mut words[slot * stride..][..HEADER_WORDS];
            if words[LINK] & TAKEN == 0 {
                words[KEY] = key;
                self.taken += 1;
                return Some(slot * stride);
            }
            if words[KEY] == key {
                return None;
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Makes the row of the slot at `base`, which was just taken, a guest.
    fn welcome(&mut self, base: usize, exists: bool) {
        let is_there = exists && self.layout.values == 0;
        let words = &mut self.slots.words_mut()[base..][..self.stride];
        words[STAMP] = stamp_word(0, is_there);
        words[LINK] = u64::from(GUEST) << 32 | TAKEN;
        words[HEADER_WORDS..].fill(0);
        self.present += usize::from(is_there);
        if is_there && self.order.is_some() {
            self.order_changes(self.key((base / self.stride) as u32), true);
        }
    }

    /// Removes guests and their slots. Their epoch has been committed, and others may follow.
    ///
    /// # Panics
    /// If keys are not words.
    pub fn evict(&mut self, guests: &[u64]) {
        assert!(self.keys.is_none(), "table {}: keys are words", self.spec.name);
        for (nth, key) in guests.iter().enumerate() {
            if let Some(ahead) = guests.get(nth + AHEAD) {
                prefetch(self.slots.words(), self.home(self.hash(*ahead)) * self.stride);
            }
            if let Some(base) = self.find(*key, self.hash(*key)) {
                self.leave(base);
                self.close_gap(base / self.stride);
            }
        }
        self.moves += 1;
    }

    /// Removes a guest and its slot, as [`Table::evict`] does, by its encoded key.
    pub fn evict_by_key(&mut self, key: &Key) {
        let Some(slot) = self.slot_for_key(key, false).map(|slot| slot as usize) else { return };
        self.leave(slot * self.stride);
        match &mut self.keys {
            None => self.close_gap(slot),
            Some(index) => {
                index.swap_remove(slot as u32);
                let last = self.taken - 1;
                if last != slot {
                    self.move_slot(last, slot);
                    self.slots.words_mut()[slot * self.stride + KEY] = slot as u64;
                }
                self.free(last);
            }
        }
        self.moves += 1;
    }

    /// Removes the row of the slot at `base`, but not the slot.
    fn leave(&mut self, base: usize) {
        debug_assert!(self.log.len(self.logged) == 0 && self.shape.is_none());
        let words = &mut self.slots.words_mut()[base..][..self.stride];
        if words[STAMP] & 1 == 0 {
            return;
        }
        words[STAMP] = 0;
        self.present -= 1;
        let slot = base / self.stride;
        if self.order.is_some() {
            self.order_changes(self.key(slot as u32), false);
        }
        let beside = self.layout.values;
        for value in &mut self.values[slot * beside..][..beside] {
            self.values_bytes -= value.heap_bytes();
            *value = tidemill_core::Value::Null;
        }
    }

    /// Frees a slot of a word key. Rows whose search passes it move up.
    fn close_gap(&mut self, slot: usize) {
        let (mask, stride) = (self.capacity - 1, self.stride);
        let (mut gap, mut next) = (slot, (slot + 1) & mask);
        loop {
            let words = &self.slots.words()[next * stride..][..stride];
            if words[LINK] & TAKEN == 0 {
                break;
            }
            let home = self.home(self.hash(words[KEY]));
            // Whether the gap is between the row's home and its slot.
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(gap) & mask {
                self.move_slot(next, gap);
                gap = next;
            }
            next = (next + 1) & mask;
        }
        self.free(gap);
    }

    /// Moves a row to a slot that has none.
    fn move_slot(&mut self, from: usize, to: usize) {
        let (stride, beside) = (self.stride, self.layout.values);
        let words = self.slots.words_mut();
        words.copy_within(from * stride..(from + 1) * stride, to * stride);
        if words[to * stride + LINK] & SNAPPED == 0 {
            self.dirty.mark(to * stride);
        }
        for value in 0..beside {
            self.values.swap(from * beside + value, to * beside + value);
        }
    }

    /// Makes a slot free, as one that was never taken.
    fn free(&mut self, slot: usize) {
        self.slots.words_mut()[slot * self.stride..][..self.stride].fill(0);
        self.taken -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use tidemill_core::{encode, Row};

    use super::*;
    use crate::table::tests::{key_of, row, shapes};
    use crate::table::Before;

    #[derive(Clone, Debug)]
    enum Step {
        Put(i64, i64),
        Delete(i64),
        /// A guest, whether it exists, and the number of its writes. The last one may delete it.
        Guest(i64, bool, u64, bool),
        /// The end of an epoch.
        End,
        /// A snapshot, of which changes are undone later.
        Snapshot,
        /// The end of so many snapshots: the rows are as they were at the one before.
        Back(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let guest = (1000..1200i64, any::<bool>(), 0..3u64, any::<bool>());
        let guest = guest.prop_map(|(key, is, writes, goes)| Step::Guest(key, is, writes, goes));
        let step = prop_oneof![
            6 => (0..40i64, 0..9i64).prop_map(|(key, v)| Step::Put(key, v)),
            3 => (0..40i64).prop_map(Step::Delete),
            8 => guest,
            2 => Just(Step::End),
            1 => Just(Step::Snapshot),
            1 => (0..3usize).prop_map(Step::Back),
        ];
        prop::collection::vec(step, 0..200)
    }

    /// A table with guests, or the same without them.
    struct Case {
        table: Table,
        has_guests: bool,
        guests: BTreeSet<Key>,
        /// The changes since each snapshot.
        taken: Vec<Before>,
    }

    impl Case {
        fn end(&mut self, seq: u64) {
            let before = self.taken.last_mut().expect("there is a first one");
            self.table.commit_keeping(seq, before);
            let guests = std::mem::take(&mut self.guests);
            if self.table.keys.is_none() {
                let ty = self.table.spec.schema.columns[self.table.spec.key[0]].ty.clone();
                let word = |key: &Key| encode::decode_word(&ty, &mut &key.0[..]).flatten();
                let words: Vec<u64> = guests.iter().filter_map(word).collect();
                self.table.evict(&words);
            } else {
                guests.iter().for_each(|key| self.table.evict_by_key(key));
            }
        }

        /// Takes a step. Returns the changes that a snapshot has taken.
        fn step(&mut self, step: &Step, seq: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
            let spec = self.table.spec.clone();
            let key = |n: i64| Key::of(&key_of(&spec, &row(&spec, n, 0)));
            let mut changes = Vec::new();
            match *step {
                Step::Put(n, v) => self.table.put_by_key(&key(n), Some(&row(&spec, n, v)), seq),
                Step::Delete(n) => self.table.put_by_key(&key(n), None, seq),
                Step::Guest(..) if !self.has_guests => {}
                Step::Guest(n, exists, writes, goes) => {
                    let key = key(n);
                    if self.table.admit_by_key(&key, exists) {
                        assert!(self.guests.insert(key.clone()), "it had a slot");
                    }
                    for nth in 0..writes {
                        let row = row(&spec, n, nth as i64);
                        let is_last = goes && nth + 1 == writes;
                        self.table.put_by_key(&key, (!is_last).then_some(&row[..]), seq);
                    }
                }
                Step::End => self.end(seq),
                Step::Snapshot => {
                    self.end(seq);
                    let before = self.taken.last().expect("there is a first one");
                    self.table.take_changes_since(before).for_each(|_, key, row| {
                        changes.push((key.to_vec(), row.map(<[u8]>::to_vec)));
                    });
                    self.taken.push(Before::default());
                }
                Step::Back(snapshots) => {
                    self.end(seq);
                    for _ in 0..=snapshots {
                        let Some(before) = self.taken.pop() else { break };
                        self.table.rewind(&before, 0);
                    }
                    self.taken.push(Before::default());
                }
            }
            changes
        }
    }

    proptest! {
        #[test]
        fn guests_leave_no_trace(
            shape in 0..shapes().len(),
            ordered: bool,
            steps in steps(),
        ) {
            let mut spec = (*shapes()[shape]).clone();
            spec.ordered = ordered;
            let mut cases = [false, true].map(|has_guests| {
                let mut table = Table::new(spec.clone().into(), 7);
                table.track();
                let (guests, taken) = (BTreeSet::new(), vec![Before::default()]);
                Case { table, has_guests, guests, taken }
            });
            for (seq, step) in (1..).zip(steps.iter().chain([&Step::End])) {
                let [alone, beside] = &mut cases;
                prop_assert_eq!(alone.step(step, seq), beside.step(step, seq));
                if matches!(step, Step::Put(..) | Step::Delete(_) | Step::Guest(..)) {
                    continue;
                }
                let lens = |case: &Case| case.taken.iter().map(Before::len).collect::<Vec<_>>();
                prop_assert_eq!(lens(alone), lens(beside));
                let (alone, beside) = (&alone.table, &beside.table);
                prop_assert_eq!(alone.rows(), beside.rows());
                prop_assert_eq!(alone.state_hash(), beside.state_hash());
                prop_assert_eq!(alone.len(), beside.len());
                prop_assert_eq!(&alone.order, &beside.order);
                // Each row is found by its key.
                for (key, row) in beside.entries() {
                    prop_assert_eq!(beside.get_by_key::<Row>(&key), Some(row));
                }
            }
        }

        #[test]
        fn guests_of_words_leave_no_trace(
            own in prop::collection::btree_set(0..400u64, 0..120),
            guests in prop::collection::vec((1000..1400u64, any::<bool>()), 0..300),
        ) {
            let mut table = Table::new(shapes()[0].clone(), 7);
            table.track();
            own.iter().for_each(|key| table.put_words(*key, Some(&[key + 1]), 1));
            table.settle(1);
            let hash = table.state_hash();
            let mut found = BTreeSet::new();
            table.admit(&guests, |nth| assert!(found.insert(guests[nth].0)));
            prop_assert_eq!(&found, &guests.iter().map(|guest| guest.0).collect());
            for (key, _) in guests.iter().filter(|guest| guest.1) {
                table.put_words(*key, Some(&[7]), 2);
            }
            let mut before = Before::default();
            table.commit_keeping(2, &mut before);
            prop_assert!(before.is_empty());
            table.evict(&found.into_iter().collect::<Vec<_>>());
            let lens = (table.len(), table.taken);
            prop_assert_eq!((table.state_hash(), lens), (hash, (own.len(), own.len())));
            prop_assert!(own.iter().all(|key| table.find(*key, table.hash(*key)).is_some()));
        }
    }
}
