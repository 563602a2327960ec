//! The life of versions that are retained for windows: stored, read and dropped. See
//! [`crate::history`].

use std::collections::VecDeque;

use tidemill_core::{Key, Row, Value};

use super::{AsOf, Table, HEADER_WORDS, KEY, STAMP, TAKEN};
use crate::history::{Floor, RowHistory, Shape, Versions};
use crate::table::{LINK, SNAPPED};
use crate::version::Seq;

/// The number of slots whose versions are swept at each cut. All slots get their turn, and no cut
/// takes long.
const SWEEP: usize = 256;

/// The ages of a table's versions.
#[derive(Clone, Debug)]
pub(super) struct Aging {
    /// The time before which nothing arrives after the last cut, in microseconds.
    frontier_us: i64,
    /// The frontiers of earlier cuts that readers may still ask for, each with the last transaction
    /// of its cut.
    sealed: VecDeque<(Seq, i64)>,
    /// The point up to which versions may be dropped.
    floor: Floor,
    /// The slot to be swept next.
    next: usize,
    /// The memory of all versions, in bytes.
    bytes: usize,
}

impl Default for Aging {
    fn default() -> Aging {
        let (sealed, floor) = (VecDeque::new(), Floor::NONE);
        Aging { frontier_us: i64::MIN, sealed, floor, next: 0, bytes: 0 }
    }
}

impl Aging {
    pub(super) fn commit(&mut self, seq: Seq) {
        self.floor = Floor { seq, frontier_us: self.frontier_us };
        self.sealed.clear();
    }

    pub(super) fn seal(&mut self, seq: Seq) {
        self.sealed.push_back((seq, self.frontier_us));
    }

    pub(super) fn release(&mut self, until: Seq) {
        while let Some((seq, frontier_us)) = self.sealed.front().filter(|(s, _)| *s <= until) {
            self.floor = Floor { seq: *seq, frontier_us: *frontier_us };
            self.sealed.pop_front();
        }
    }

    /// Returns the frontier of the cut with this last transaction.
    fn frontier_us(&self, seq: Seq) -> i64 {
        match self.sealed.partition_point(|(until, _)| *until <= seq) {
            0 if self.sealed.is_empty() => self.frontier_us,
            0 => self.floor.frontier_us,
            _ if seq == Seq::MAX => self.frontier_us,
            behind => self.sealed[behind - 1].1,
        }
    }
}

impl Table {
    /// Sets the frontier of the next cut: nothing older arrives after that cut. Retention by time
    /// counts back from here.
    ///
    /// Call it before [`Table::seal`] or [`Table::commit`].
    pub fn frontier(&mut self, frontier_us: i64) {
        self.aging.frontier_us = self.aging.frontier_us.max(frontier_us);
    }

    /// Returns the frontier: see [`Table::frontier`].
    pub fn frontier_us(&self) -> i64 {
        self.aging.frontier_us
    }

    /// Returns the current versions of the row with this key, if there ever was such a row.
    pub fn versions(&self, key: &[Value]) -> Option<Versions<'_>> {
        self.versions_in(self.slot_of(key)? as usize)
    }

    /// Creates an empty table of the same kind that drops no version. Versions that would follow
    /// those of a row can be written there, beside this table.
    pub fn beside(&self) -> Table {
        let mut beside = Table::new(self.spec.clone(), self.seed);
        beside.shape.clone_from(&self.shape);
        beside
    }

    pub(super) fn versions_in(&self, slot: usize) -> Option<Versions<'_>> {
        let (shape, history) = (self.shape.as_ref()?, self.histories.get(slot)?);
        let words = &self.slots.words()[slot * self.stride..][..self.stride];
        let values = &self.values[slot * self.layout.values..][..self.layout.values];
        let newest = (words[STAMP] & 1 == 1).then_some((&words[HEADER_WORDS..], values));
        Some(Versions { table: self, shape, history, key: words[KEY], newest })
    }

    /// Appends the version in the slot at `base`, which is about to be superseded, to the history.
    #[cold]
    #[inline(never)]
    pub(super) fn append_version(&mut self, base: usize) {
        let Some(shape) = &self.shape else { return };
        let slot = base / self.stride;
        let words = &self.slots.words()[base..base + self.stride];
        let values = &self.values[slot * self.layout.values..][..self.layout.values];
        let version = (words[STAMP], &words[HEADER_WORDS..]);
        let grown = self.histories[slot].push(shape, self.aging.floor, version, values);
        self.aging.bytes = self.aging.bytes.saturating_add_signed(grown);
    }

    /// Returns the history of the first slot's row, or null if no versions are retained.
    pub(crate) fn histories_ptr(&mut self) -> *mut RowHistory {
        match self.shape {
            Some(_) => self.histories.as_mut_ptr(),
            None => std::ptr::null_mut(),
        }
    }

    pub(crate) fn shape(&self) -> Option<&Shape> {
        self.shape.as_ref()
    }

    pub(crate) fn floor(&self) -> Floor {
        self.aging.floor
    }

    pub(crate) fn histories_have_grown(&mut self, bytes: isize) {
        self.aging.bytes = self.aging.bytes.saturating_add_signed(bytes);
    }

    pub(super) fn histories_bytes(&self) -> usize {
        self.histories.capacity() * std::mem::size_of::<RowHistory>() + self.aging.bytes
    }

    /// Drops the versions of some rows that are not retained.
    pub(super) fn sweep(&mut self) {
        let Some(shape) = &self.shape else { return };
        for _ in 0..SWEEP.min(self.capacity) {
            self.aging.next = (self.aging.next + 1) % self.capacity;
            let history = &mut self.histories[self.aging.next];
            if !history.is_empty() {
                let went = history.expire(shape, self.aging.floor);
                self.aging.bytes = self.aging.bytes.saturating_sub(went);
            }
            if self.tracked && history.has_dropped_stored() {
                // The next snapshot takes the row, and so learns of the dropped versions.
                let base = self.aging.next * self.stride;
                self.slots.words_mut()[base + LINK] &= !SNAPPED;
                self.dirty.mark(base);
            }
        }
    }

    /// Updates the order of keys after a row was added or deleted.
    pub(super) fn order_changes(&mut self, key: Key, is_there: bool) {
        match &mut self.order {
            Some(order) if is_there => drop(order.insert(key)),
            Some(order) => drop(order.remove(&key)),
            None => {}
        }
    }

    /// Sorts all keys, after many rows were added.
    pub(super) fn order_all(&mut self) {
        if self.order.is_some() {
            let keys = self.newest().unordered().map(|(slot, _)| self.key(slot)).collect();
            self.order = Some(keys);
        }
    }

    /// Returns the keys of existing rows from `from` on and before `to`, in order. An empty `to` is
    /// no bound. Returns none if the table is not ordered.
    pub fn keys<'a>(
        &'a self,
        from: &'a Key,
        to: &'a Key,
    ) -> impl DoubleEndedIterator<Item = &'a Key> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let is_empty = !to.0.is_empty() && to <= from;
        let to = if to.0.is_empty() { Unbounded } else { Excluded(to) };
        let order = self.order.as_ref().filter(|_| !is_empty);
        order.into_iter().flat_map(move |order| order.range::<Key, _>((Included(from), to)))
    }

    /// Returns the row with this encoded key.
    pub fn get_by_key<R: FromIterator<Value>>(&self, key: &Key) -> Option<R> {
        let slot = match &self.keys {
            Some(index) => index.find(key)?,
            None => {
                let ty = &self.spec.schema.columns[self.spec.key[0]].ty;
                let word = tidemill_core::encode::decode_word(ty, &mut &key.0[..])??;
                (self.find(word, self.hash(word))? / self.stride) as u32
            }
        };
        self.row(slot)
    }
}

impl<'t> AsOf<'t> {
    /// Returns the versions that the history retains of each row, in no order of keys. They are the
    /// key, and each version's number among the row's versions, its time and the row, oldest first.
    ///
    /// The result is a function of the cut, whatever has been dropped already. It has the versions
    /// that are young enough at the cut's frontier, and as many of each row as the history asks
    /// for. Numbers are counted from the first retained version, unless versions are retained by
    /// count. In that case one always is, and knows how many there have been.
    pub fn histories(self) -> impl Iterator<Item = (Key, Vec<(u64, i64, Row)>)> + 't {
        let (table, seq) = (self.table, self.seq);
        let history = table.spec.history.unwrap_or_default();
        let from_us = history.retained_from(table.aging.frontier_us(seq));
        let slots = (0..table.histories.len())
            .filter(move |slot| table.slots.words()[slot * table.stride + LINK] & TAKEN != 0);
        slots.filter_map(move |slot| {
            let versions = table.versions_in(slot)?;
            let words = &table.slots.words()[slot * table.stride..][..table.stride];
            let is_known = versions.newest.is_none() || words[STAMP] >> 1 <= seq;
            let (first, end) = (versions.first(), versions.history.end());
            let superseded = versions
                .history
                .partition(first..end, |n| versions.history.seq(n, versions.shape) <= seq);
            let end = if is_known && superseded == end { versions.end() } else { superseded };
            let by_count = history.versions.map_or(end, |kept| end.saturating_sub(kept));
            let by_time = from_us.map_or(end, |from| versions.since(from).min(end));
            let from = by_count.min(by_time).max(first);
            let base = if history.versions.is_some() { 0 } else { from };
            let kept: Vec<(u64, i64, Row)> =
                (from..end).map(|n| (n - base, versions.time_us(n), versions.row(n))).collect();
            (!kept.is_empty()).then(|| (table.key(slot as u32), kept))
        })
    }
}
