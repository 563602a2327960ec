//! The growth of a table: more slots, and none for deleted rows that no reader can reach.

use tidemill_core::Value;

use super::{Table, KEY, LINK, LOAD_MAX, SNAPPED, STAMP, TAKEN};
use crate::cells::Cells;
use crate::history::RowHistory;
use crate::index::KeyIndex;
use crate::pages;
use crate::version::NO_LINK;

impl Table {
    /// Makes room for `rows` more rows, so that slots do not move while they are added.
    ///
    /// Call it before rows of another table are added in the order of their slots. A smaller table with
    /// the same seed would be filled from its beginning, and each search would pass over all of them.
    pub fn reserve(&mut self, rows: usize) {
        if self.room_for(self.taken + rows) > self.capacity {
            self.resize(self.room_for(self.taken - self.removed() + rows));
            if let Some(keys) = &mut self.keys {
                keys.reserve(rows);
            }
        }
    }

    /// Returns the number of slots needed for `taken` taken ones.
    fn room_for(&self, taken: usize) -> usize {
        let slots = match self.keys {
            Some(_) => taken,
            None => taken * LOAD_MAX.1 / LOAD_MAX.0 + 1,
        };
        slots.next_power_of_two().max(16)
    }

    /// Whether no reader can reach a version in this slot: its row is deleted, its history is
    /// empty, and no snapshot has yet to record the deletion.
    fn is_removed(&self, words: &[u64], history: Option<&RowHistory>) -> bool {
        let known = if self.tracked { TAKEN | SNAPPED } else { TAKEN };
        words[STAMP] & 1 == 0
            && words[STAMP] >> 1 <= self.floor
            && words[LINK] & known == known
            // A version may have the last commit's number, although it was written after it.
            && !self.log.has((words[LINK] >> 32) as u32, words[KEY])
            && history.is_none_or(RowHistory::is_empty)
    }

    pub(super) fn removed(&self) -> usize {
        let slots = self.slots.words().chunks_exact(self.stride).enumerate();
        slots.filter(|(slot, words)| self.is_removed(words, self.histories.get(*slot))).count()
    }

    /// Makes room for at least one more row. Drops slots of deleted rows, so that keys that are
    /// added and deleted do not fill the table.
    pub(super) fn grow(&mut self) {
        let kept = self.taken - self.removed();
        // If it grew only by the dropped slots, it would soon have to grow again.
        self.resize(self.room_for(kept + kept / 2 + 1));
    }

    pub(super) fn resize(&mut self, capacity: usize) {
        let (stride, beside) = (self.stride, self.layout.values);
        // The log stores the place of a slot in 32 bits.
        assert!(capacity * stride <= 1 << 32, "table {} is full: 32 GiB of slots", self.spec.name);
        let old = std::mem::replace(&mut self.slots, Cells::zeroed(capacity * stride));
        let mut old_values = std::mem::take(&mut self.values);
        self.values = vec![Value::Null; capacity * beside];
        if self.tracked {
            self.dirty = std::mem::take(&mut self.dirty).clean(capacity, stride);
        }
        let mut old_histories = std::mem::take(&mut self.histories);
        if self.shape.is_some() {
            self.histories = pages::with_capacity(capacity);
            self.histories.resize_with(capacity, RowHistory::default);
        }
        let mut old_keys = self.keys.replace(KeyIndex::new(self.seed)).map(KeyIndex::into_keys);
        if old_keys.is_none() {
            self.keys = None;
        }
        self.capacity = capacity;
        self.shift = u64::BITS - capacity.trailing_zeros();
        self.moves += 1;
        self.taken = 0;
        let mut moved = vec![NO_LINK; old.words().len() / stride];
        for (from, words) in old.words().chunks_exact(stride).enumerate() {
            if words[LINK] & TAKEN == 0 || self.is_removed(words, old_histories.get(from)) {
                continue;
            }
            let slot = match (&mut self.keys, &mut old_keys) {
                (Some(index), Some(keys)) => index.insert(std::mem::take(&mut keys[from])) as usize,
                _ => {
                    let mut slot = self.home(self.hash(words[KEY]));
                    while self.slots.words()[slot * stride + LINK] & TAKEN != 0 {
                        slot = (slot + 1) & (capacity - 1);
                    }
                    slot
                }
            };
            let to = &mut self.slots.words_mut()[slot * stride..][..stride];
            to.copy_from_slice(words);
            if words[LINK] & SNAPPED == 0 {
                self.dirty.mark(slot * stride);
            }
            if self.keys.is_some() {
                to[KEY] = slot as u64;
            }
            self.values[slot * beside..][..beside]
                .swap_with_slice(&mut old_values[from * beside..][..beside]);
            if self.shape.is_some() {
                self.histories[slot] = std::mem::take(&mut old_histories[from]);
            }
            moved[from] = slot as u32;
            self.taken += 1;
        }
        if self.keys.is_some() {
            let logs = self.sealed.logs_mut().chain([&mut self.log]);
            logs.for_each(|log| log.remap(&moved, self.logged));
        }
    }
}
