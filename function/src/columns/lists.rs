//! The lists of rows, in a hash table by the rows' identities.
//!
//! Identities are hashes already. Two rows with one identity have one list, which only makes
//! transactions wait without need. So a list needs no key but some bits of the identity, and fits
//! into a quarter of a cache line. Looking up a list in a general hash table took half of the time
//! of a pass, because it is in two places, and neither is prefetched.

use tidemill_table::prefetch_address;

pub(super) const NONE: u32 = u32::MAX;

/// The list of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    /// Bits of the row's identity, or 0 if there is no list.
    tag: u32,
    /// The first writer that has not run, and the number of readers before it that have not.
    pub(super) writer: u32,
    pub(super) readers: u32,
    /// The last place.
    pub(super) last: u32,
}

const FREE: List = List { tag: 0, writer: NONE, readers: 0, last: NONE };

/// The lists, in slots.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// The slots, of which at most two thirds are taken.
    slots: Vec<List>,
}

impl Lists {
    /// Removes all lists. At most so many will be added.
    pub(super) fn clear(&mut self, lists: usize) {
        self.slots.clear();
        self.slots.resize(lists + lists / 2 + 1, FREE);
    }

    /// Returns the slot where the search for a row begins. The tag has other bits of the identity.
    #[inline]
    fn home(&self, id: u64) -> usize {
        (((id >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    fn tag(id: u64) -> u32 {
        id as u32 | 1
    }

    #[inline]
    pub(super) fn prefetch(&self, id: u64) {
        prefetch_address(&self.slots[self.home(id)]);
    }

    #[inline]
    pub(super) fn prefetch_slot(&self, slot: u32) {
        prefetch_address(&self.slots[slot as usize]);
    }

    /// Returns the slot of a row, or the free one where its search ends.
    #[inline]
    fn search(&self, id: u64) -> usize {
        let (mut at, tag) = (self.home(id), Lists::tag(id));
        while self.slots[at].tag != tag && self.slots[at].tag != 0 {
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
        at
    }

    /// Returns the list of a row, if there is one.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<&List> {
        let list = &self.slots[self.search(id)];
        (list.tag != 0).then_some(list)
    }

    /// Returns the list of a row and its slot. It may be new.
    #[inline]
    pub(super) fn find_or_add(&mut self, id: u64) -> (u32, &mut List) {
        let slot = self.search(id);
        let list = &mut self.slots[slot];
        list.tag = Lists::tag(id);
        (slot as u32, list)
    }

    /// Returns the list in a slot.
    #[inline]
    pub(super) fn at(&mut self, slot: u32) -> &mut List {
        &mut self.slots[slot as usize]
    }
}
