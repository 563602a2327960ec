//! Transactions that are put off, and the rows on which they block later ones.
//!
//! A node knows all transactions of an epoch that use its rows before it runs one of them. In its
//! first pass it goes through them in order, and puts off those that it can't run. Each of these
//! joins the list of each of its rows here. Nothing joins later, so lists only shrink:
//!
//! ```text
//!  row 7   W 3 ─ R 5 ─ R 9 ─ W 12       5 and 9 wait for 3, and 12 waits for both
//!  row 9   R 3 ─ R 4 ─ W 5              3 and 4 may run, and 5 waits for both
//! ```
//!
//! A transaction that may write a row waits until it is the first in the list. One that only reads
//! it waits until all writers before it have run. A transaction knows on how many rows it waits. So
//! each place in a list is visited once, when it becomes free.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

const NONE: u32 = u32::MAX;

/// A transaction that is put off.
#[derive(Debug)]
pub(super) struct PutOff {
    /// Its place in the order.
    pub(super) tid: u64,
    /// The part with its event, and the event there.
    pub(super) part: u32,
    pub(super) row: u32,
    /// The number of its rows here that earlier ones block.
    waits: u32,
    /// The number of rows of other owners that have not arrived.
    pub(super) missing: u32,
    /// Whether it has rows of other owners.
    pub(super) crosses: bool,
    /// Whether its rows here have been exported.
    pub(super) is_exported: bool,
    /// The first of its places in lists, and of the rows of other owners.
    uses: u32,
    pub(super) slots: u32,
}

/// A place in the list of a row.
#[derive(Debug)]
struct Place {
    put_off: u32,
    list: u32,
    next: u32,
    writes: bool,
}

/// The list of a row.
#[derive(Clone, Copy, Debug)]
struct List {
    /// The first writer that has not run, and the number of readers before it that have not.
    writer: u32,
    readers: u32,
    /// The last place.
    last: u32,
}

/// The transactions that are put off.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The transactions, in order.
    pub(super) put_offs: Vec<PutOff>,
    places: Vec<Place>,
    lists: Vec<List>,
    /// The list of each row, by the row's identity.
    by_row: HashMap<u64, u32, BuildHasherDefault<AsIs>>,
    /// Those that may be exported or run now, and that were not in the last pass.
    free: BinaryHeap<Reverse<u32>>,
    /// The number of those that have run.
    ended: usize,
}

/// Rows of a transaction by identity, and whether it may write each.
pub(super) type Uses = smallvec::SmallVec<[(u64, bool); 8]>;

impl Waiting {
    /// Whether all have run.
    pub(super) fn is_over(&self) -> bool {
        self.ended == self.put_offs.len()
    }

    /// Whether a transaction that is put off blocks a later one on a row. This is only for the first
    /// pass.
    #[inline]
    pub(super) fn blocks(&self, id: u64, writes: bool) -> bool {
        let Some(list) = self.by_row.get(&id) else { return false };
        writes || self.lists[*list as usize].writer != NONE
    }

    /// Puts off a transaction, which is after all others that are put off. Each row is in `uses`
    /// once.
    pub(super) fn put_off(&mut self, mut of: PutOff, uses: &[(u64, bool)]) {
        let number = self.put_offs.len() as u32;
        of.uses = self.places.len() as u32;
        for (id, writes) in uses {
            let at = self.places.len() as u32;
            let list = *self.by_row.entry(*id).or_insert_with(|| {
                self.lists.push(List { writer: NONE, readers: 0, last: NONE });
                self.lists.len() as u32 - 1
            });
            self.places.push(Place { put_off: number, list, next: NONE, writes: *writes });
            let list = &mut self.lists[list as usize];
            let is_first = list.last == NONE;
            of.waits += u32::from(if *writes { !is_first } else { list.writer != NONE });
            match (list.writer, *writes) {
                (NONE, true) => list.writer = at,
                (NONE, false) => list.readers += 1,
                _ => {}
            }
            let last = std::mem::replace(&mut list.last, at);
            if !is_first {
                self.places[last as usize].next = at;
            }
        }
        self.put_offs.push(of);
    }

    /// Whether earlier transactions block this one.
    pub(super) fn is_blocked(&self, number: u32) -> bool {
        self.put_offs[number as usize].waits > 0
    }

    /// Returns the first transaction that may be exported or run and was not returned before.
    pub(super) fn next_free(&mut self, before: u32) -> Option<u32> {
        let is_before = self.free.peek().is_some_and(|first| first.0 < before);
        is_before.then(|| self.free.pop().expect("there is a first one").0)
    }

    /// Notes that a transaction runs now. Later ones may become free.
    pub(super) fn ends(&mut self, number: u32) {
        self.ended += 1;
        let from = self.put_offs[number as usize].uses as usize;
        for at in from..self.places.len() {
            let Place { put_off, list, next, writes } = self.places[at];
            if put_off != number {
                break;
            }
            if !writes {
                let list = &mut self.lists[list as usize];
                list.readers -= 1;
                let List { writer, readers, .. } = *list;
                if readers == 0 && writer != NONE {
                    self.frees(writer);
                }
                continue;
            }
            let (mut readers, mut next) = (0, next);
            while next != NONE && !self.places[next as usize].writes {
                self.frees(next);
                readers += 1;
                next = self.places[next as usize].next;
            }
            if readers == 0 && next != NONE {
                self.frees(next);
            }
            let list = &mut self.lists[list as usize];
            (list.writer, list.readers) = (next, readers);
        }
    }

    /// Notes that nothing blocks the transaction of a place on its row any more.
    fn frees(&mut self, place: u32) {
        let number = self.places[place as usize].put_off;
        let of = &mut self.put_offs[number as usize];
        of.waits -= 1;
        if of.waits == 0 {
            self.free.push(Reverse(number));
        }
    }

    /// Returns the transaction with this place in the order, which is not before `from`.
    pub(super) fn find(&self, tid: u64, from: usize) -> Option<usize> {
        // Most messages have rows of most transactions. Others are searched in growing steps.
        let (mut low, mut step) = (from, 1);
        while self.put_offs.get(low + step).is_some_and(|of| of.tid <= tid) {
            low += step;
            step *= 2;
        }
        let high = (low + step).min(self.put_offs.len());
        let at = low + self.put_offs.get(low..high)?.partition_point(|of| of.tid < tid);
        self.put_offs.get(at).filter(|of| of.tid == tid).map(|_| at)
    }
}

impl PutOff {
    /// Creates a transaction that is put off.
    pub(super) fn new(tid: u64, (part, row): (u32, u32), missing: u32, slots: u32) -> PutOff {
        let crosses = missing > 0;
        PutOff { tid, part, row, waits: 0, missing, crosses, is_exported: false, uses: 0, slots }
    }
}

/// A hasher of identities, which are hashes already.
#[derive(Default)]
pub(super) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("identities are words")
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}
