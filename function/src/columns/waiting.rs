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

use tidemill_table::prefetch_address;

use super::free::Free;
use super::lists::{List, Lists, NONE};

/// The distance between the steps in which transactions are prefetched.
const AHEAD: usize = 8;

/// The most places in the order for each transaction, if transactions are looked up directly.
const SPREAD_MAX: u64 = 8;

/// A transaction that is put off.
#[derive(Debug)]
pub(super) struct PutOff {
    /// The part with its event, and the event there.
    pub(super) part: u32,
    pub(super) row: u32,
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
#[derive(Clone, Copy, Debug)]
struct Place {
    put_off: u32,
    /// The list, by its slot.
    list: u32,
    /// The next place in the list, and its transaction.
    next: u32,
    next_put_off: u32,
    writes: bool,
    next_writes: bool,
}

/// A row of another owner: the message that has it, and the row there. There is none before it
/// arrives.
type Slot = Option<(u32, u32)>;

/// The transactions that are put off.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The transactions, in order.
    pub(super) put_offs: Vec<PutOff>,
    /// The place of each in the order, and the number of its rows here that earlier ones block.
    /// These are by themselves because they are looked up in no order.
    tids: Vec<u64>,
    waits: Vec<u32>,
    /// The number of each transaction by its place in the order after the first one, if the places
    /// are close to each other. Others have [`NONE`].
    by_tid: Vec<u32>,
    places: Vec<Place>,
    lists: Lists,
    /// The rows of other owners, of each transaction one after the other.
    slots: Vec<Slot>,
    /// Those that may be exported or run now, and that were not in the last pass.
    free: Free,
    /// The number of those that have run.
    ended: usize,
}

impl Waiting {
    /// Whether all have run.
    pub(super) fn is_over(&self) -> bool {
        self.ended == self.put_offs.len()
    }

    /// Removes all. At most so many rows will block transactions.
    pub(super) fn clear(&mut self, rows: usize) {
        self.put_offs.clear();
        self.tids.clear();
        self.waits.clear();
        self.places.clear();
        self.lists.clear(rows);
        self.slots.clear();
        self.free.clear(0);
        self.by_tid.clear();
        self.ended = 0;
    }

    /// Prefetches the list of a row.
    #[inline]
    pub(super) fn prefetch(&self, id: u64) {
        self.lists.prefetch(id);
    }

    /// Prefetches transactions ahead of the one at a place among these. Each is prefetched in
    /// steps, because the addresses of its lists are in memory that has to be prefetched, too.
    #[inline]
    pub(super) fn prefetch_ahead(&self, numbers: &[u32], at: usize) {
        let of = |steps: usize| numbers.get(at + steps * AHEAD).map(|number| *number as usize);
        if let Some(number) = of(3) {
            prefetch_address(&self.put_offs[number]);
        }
        if let Some(number) = of(2) {
            let PutOff { uses, slots, .. } = self.put_offs[number];
            prefetch_address(self.places.as_ptr().wrapping_add(uses as usize));
            prefetch_address(self.slots.as_ptr().wrapping_add(slots as usize));
        }
        if let Some(number) = of(1) {
            if let Some(place) = self.places.get(self.put_offs[number].uses as usize) {
                self.lists.prefetch_slot(place.list);
            }
        }
    }

    /// Whether a transaction that is put off blocks a later one on a row. This is only for the
    /// first pass.
    #[inline]
    pub(super) fn blocks(&self, id: u64, writes: bool) -> bool {
        self.lists.find(id).is_some_and(|list| writes || list.writer != NONE)
    }

    /// Puts off a transaction, which is after all others that are put off. `uses` are its rows
    /// here, and whether it may write each.
    pub(super) fn put_off(
        &mut self,
        tid: u64,
        mut of: PutOff,
        uses: impl Iterator<Item = (u64, bool)>,
    ) {
        // A transaction must not be in a list twice, or it would wait for itself.
        let mut lists = smallvec::SmallVec::<[(u32, bool); 8]>::new();
        for (id, writes) in uses {
            let (slot, _) = self.lists.find_or_add(id);
            match lists.iter_mut().find(|(known, _)| *known == slot) {
                Some((_, known)) => *known |= writes,
                None => lists.push((slot, writes)),
            }
        }
        let number = self.put_offs.len() as u32;
        (of.uses, of.slots) = (self.places.len() as u32, self.slots.len() as u32);
        self.slots.resize(self.slots.len() + of.missing as usize, None);
        let mut waits = 0;
        for (slot, writes) in lists {
            let at = self.places.len() as u32;
            let (next, next_put_off, next_writes) = (NONE, NONE, false);
            let place =
                Place { put_off: number, list: slot, next, next_put_off, writes, next_writes };
            self.places.push(place);
            let list = self.lists.at(slot);
            let is_first = list.last == NONE;
            waits += u32::from(if writes { !is_first } else { list.writer != NONE });
            match (list.writer, writes) {
                (NONE, true) => list.writer = at,
                (NONE, false) => list.readers += 1,
                _ => {}
            }
            let last = std::mem::replace(&mut list.last, at);
            if !is_first {
                let last = &mut self.places[last as usize];
                (last.next, last.next_put_off, last.next_writes) = (at, number, writes);
            }
        }
        self.put_offs.push(of);
        self.tids.push(tid);
        self.waits.push(waits);
    }

    /// Returns the place of a transaction in the order.
    pub(super) fn tid(&self, number: u32) -> u64 {
        self.tids[number as usize]
    }

    /// Returns the part and the event of a transaction.
    #[inline]
    pub(super) fn event(&self, number: usize) -> (usize, usize) {
        let of = &self.put_offs[number];
        (of.part as usize, of.row as usize)
    }

    /// Notes the arrival of a transaction's row. Returns whether it may run now, or `None` if the
    /// row was here already.
    #[inline]
    pub(super) fn give(&mut self, number: u32, nth: usize, row: (u32, u32)) -> Option<bool> {
        let of = &mut self.put_offs[number as usize];
        let slot = &mut self.slots[of.slots as usize + nth];
        if slot.replace(row).is_some() {
            return None;
        }
        of.missing -= 1;
        Some(of.missing == 0 && self.waits[number as usize] == 0)
    }

    /// Returns a row of a transaction, which has arrived.
    #[inline]
    pub(super) fn given(&self, slot: usize) -> (u32, u32) {
        self.slots[slot].expect("no row is missing")
    }

    /// Returns the first transaction that may be exported or run and was not returned before.
    #[inline]
    pub(super) fn next_free(&mut self, before: u32) -> Option<u32> {
        self.free.next(before)
    }

    /// Notes that the first pass has put off all that are.
    pub(super) fn are_all(&mut self) {
        self.free.clear(self.put_offs.len());
        let (Some(first), Some(last)) = (self.tids.first(), self.tids.last()) else { return };
        if last - first < SPREAD_MAX * self.tids.len() as u64 {
            self.by_tid.resize((last - first) as usize + 1, NONE);
            for (number, tid) in (0..).zip(&self.tids) {
                self.by_tid[(tid - first) as usize] = number;
            }
        }
    }

    /// Notes that a transaction runs now. Later ones may become free.
    pub(super) fn ends(&mut self, number: u32) {
        self.ended += 1;
        let from = self.put_offs[number as usize].uses as usize;
        for at in from..self.places.len() {
            let mut place = self.places[at];
            if place.put_off != number {
                break;
            }
            if !place.writes {
                let list = self.lists.at(place.list);
                list.readers -= 1;
                let List { writer, readers, .. } = *list;
                if readers == 0 && writer != NONE {
                    self.frees(self.places[writer as usize].put_off);
                }
                continue;
            }
            let mut readers = 0;
            while place.next != NONE && !place.next_writes {
                self.frees(place.next_put_off);
                readers += 1;
                place = self.places[place.next as usize];
            }
            if readers == 0 && place.next != NONE {
                self.frees(place.next_put_off);
            }
            let list = self.lists.at(place.list);
            (list.writer, list.readers) = (place.next, readers);
        }
    }

    /// Notes that nothing blocks a transaction on one of its rows any more.
    #[inline]
    fn frees(&mut self, number: u32) {
        let waits = &mut self.waits[number as usize];
        *waits -= 1;
        if *waits == 0 {
            prefetch_address(&self.put_offs[number as usize]);
            self.free.add(number);
        }
    }

    /// Returns the transaction with this place in the order.
    #[inline]
    pub(super) fn find(&self, tid: u64) -> Option<usize> {
        if self.by_tid.is_empty() {
            return self.tids.binary_search(&tid).ok();
        }
        let at = tid.checked_sub(*self.tids.first()?)?;
        let number = *self.by_tid.get(usize::try_from(at).ok()?)?;
        (number != NONE).then_some(number as usize)
    }
}

impl PutOff {
    /// Creates a transaction that is put off, with so many rows of other owners.
    pub(super) fn new((part, row): (u32, u32), missing: u32) -> PutOff {
        let crosses = missing > 0;
        PutOff { part, row, missing, crosses, is_exported: false, uses: 0, slots: 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ends transactions one after the other, in any order that blocks none. Checks that a free one
    /// is one that no earlier one conflicts with.
    fn run(uses: &[Vec<(u64, bool)>], mut pick: impl FnMut(usize) -> usize) {
        let mut waiting = Waiting::default();
        waiting.clear(uses.iter().map(Vec::len).sum());
        let conflicts = |one: &[(u64, bool)], other: &[(u64, bool)]| {
            let same = |a: &(u64, bool), b: &(u64, bool)| a.0 == b.0 && (a.1 || b.1);
            one.iter().any(|a| other.iter().any(|b| same(a, b)))
        };
        let mut free = Vec::new();
        for (number, of) in uses.iter().enumerate() {
            let is_blocked = of.iter().any(|(id, writes)| waiting.blocks(*id, *writes));
            assert_eq!(is_blocked, uses[..number].iter().any(|before| conflicts(before, of)));
            waiting.put_off(number as u64, PutOff::new((0, number as u32), 0), of.iter().copied());
            free.extend((!is_blocked).then_some(number as u32));
        }
        waiting.are_all();
        let mut ended = vec![false; uses.len()];
        while !free.is_empty() {
            let number = free.swap_remove(pick(free.len()));
            ended[number as usize] = true;
            waiting.ends(number);
            free.extend(std::iter::from_fn(|| waiting.next_free(u32::MAX)));
            for (number, of) in uses.iter().enumerate().filter(|(number, _)| !ended[*number]) {
                let open = (0..number).filter(|before| !ended[*before]);
                let is_blocked = open.into_iter().any(|before| conflicts(&uses[before], of));
                assert_eq!(free.contains(&(number as u32)), !is_blocked, "{number}");
            }
        }
        assert!(waiting.is_over() && ended.iter().all(|ended| *ended));
    }

    proptest! {
        #[test]
        fn only_earlier_conflicts_block(
            uses in prop::collection::vec(
                prop::collection::vec((0..6u64, any::<bool>()), 0..4),
                0..20,
            ),
            picks in prop::collection::vec(0..100usize, 20),
        ) {
            // Identities are hashes.
            let hash = |id: u64| id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let uses: Vec<Vec<(u64, bool)>> = uses
                .into_iter()
                .map(|of| of.into_iter().map(|(id, writes)| (hash(id), writes)).collect())
                .collect();
            let mut picks = picks.into_iter();
            run(&uses, |len| picks.next().unwrap() % len);
        }
    }

    /// Rows whose identities differ in no bit that lists have are one row, also for a transaction
    /// that uses both.
    #[test]
    fn rows_that_can_not_be_told_apart_are_one() {
        let mut waiting = Waiting::default();
        waiting.clear(4);
        let uses = [(1u64 << 40, false), (1 << 40 | 1, true)];
        for tid in 0..2 {
            waiting.put_off(tid, PutOff::new((0, 0), 0), uses.iter().copied());
        }
        waiting.are_all();
        waiting.ends(0);
        assert_eq!(waiting.next_free(u32::MAX), Some(1));
        waiting.ends(1);
        assert!(waiting.is_over());
    }
}
