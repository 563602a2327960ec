//! The walk through a list.

use std::collections::VecDeque;

use tidemill_table::{RowAt, Seq};

use super::done::Done;
use super::feed::{Appender, Feed};
use super::Shared;
use crate::execute::lane::Lane;
use crate::execute::segment::Turn;
use crate::order::Ranked;
use crate::plan::lists::{Use, Wait};
use crate::pool;

/// A transaction of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Its place among the planned transactions.
    rank: u32,
    lane: u32,
    /// The event's row in its lane.
    row: u32,
    /// The number of rows that it uses, and of transactions that it waits for.
    rows: u16,
    waits: u16,
}

/// The address of a slot. Its user makes sure that the access is allowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotAt(pub(super) *mut u64);

// SAFETY: an address is no access.
unsafe impl Send for SlotAt {}
// SAFETY: as above.
unsafe impl Sync for SlotAt {}

/// The transactions of one thread, and their progress.
#[derive(Debug)]
pub(super) struct List {
    entries: Feed<Entry>,
    /// The slot where the search for each row of each transaction begins.
    slots: Feed<SlotAt>,
    waits: Feed<Wait>,
    done: Done,
}

impl Default for List {
    fn default() -> List {
        let (entries, slots, waits) = (Feed::new(0), Feed::new(0), Feed::new(0));
        List { entries, slots, waits, done: Done::default() }
    }
}

impl List {
    /// Makes room for `transactions` transactions at a time that use `uses` rows in all, in whole
    /// groups.
    pub(super) fn make_room(&mut self, transactions: usize, uses: usize) {
        if self.entries.room() < transactions || self.slots.room() < uses {
            self.entries = Feed::new(transactions);
            self.slots = Feed::new(uses);
            // No thread waits for the same transaction twice. It waits only for transactions that
            // there is room for. There were as many others when the first of these was placed.
            self.waits = Feed::new(2 * transactions);
        }
    }

    /// Empties the list.
    pub(super) fn begin(&mut self) {
        self.done = Done::default();
        self.entries.reset();
        self.slots.reset();
        self.waits.reset();
    }

    /// Returns how many transactions are done.
    pub(super) fn done(&self) -> usize {
        self.done.count()
    }

    /// Whether the transaction with this rank, in this list, is done.
    #[inline(always)]
    fn has_done(&self, rank: u32) -> bool {
        self.done.has(rank)
    }

    /// Returns how many transactions may be executed.
    pub(super) fn published(&self) -> usize {
        self.entries.published()
    }

    /// Whether there will be no more transactions. Ask before [`List::published`].
    pub(super) fn is_closed(&self) -> bool {
        self.entries.is_closed()
    }
}

/// The length of a list.
#[derive(Clone, Copy, Debug)]
struct Len {
    entries: usize,
    slots: usize,
    waits: usize,
}

/// The builder of a list.
pub(super) struct Appenders<'l> {
    list: &'l List,
    entries: Appender<'l, Entry>,
    slots: Appender<'l, SlotAt>,
    waits: Appender<'l, Wait>,
    /// The lengths at each publication, as far as the items may still be read.
    published: VecDeque<Len>,
}

impl<'l> Appenders<'l> {
    /// Creates the builder of a list that has just [begun](List::begin).
    pub(super) fn of(list: &'l List) -> Appenders<'l> {
        Appenders {
            list,
            entries: list.entries.appender(),
            slots: list.slots.appender(),
            waits: list.waits.appender(),
            published: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Frees the room of the publication `ago` publications ago. Returns `false` if that one is not
    /// done yet.
    pub(super) fn make_room(&mut self, ago: usize) -> bool {
        while self.published.len() >= ago {
            let Len { entries, slots, waits } = self.published[0];
            if self.list.done() < entries {
                return false;
            }
            // SAFETY: transactions that are done are not read any more, nor are their slots and
            // waits.
            unsafe {
                self.entries.free(entries);
                self.slots.free(slots);
                self.waits.free(waits);
            }
            self.published.pop_front();
        }
        true
    }

    #[inline(always)]
    pub(super) fn push(
        &mut self,
        rank: u32,
        ranked: Ranked,
        (rows, slots): (usize, &[SlotAt]),
        waits: &[Wait],
    ) {
        let Ranked { lane, row } = ranked;
        self.entries.push(Entry { rank, lane, row, rows: rows as u16, waits: waits.len() as u16 });
        let (groups, _) = slots.as_chunks::<{ Use::GROUP }>();
        let mut left = rows;
        for group in groups {
            let len = left.min(Use::GROUP);
            self.slots.push_first(group, len);
            left -= len;
        }
        waits.iter().for_each(|wait| self.waits.push(*wait));
    }

    /// Publishes the appended transactions for execution. The entries are last, because they say
    /// how much of the others there is.
    pub(super) fn publish(&mut self) {
        self.slots.publish();
        self.waits.publish();
        self.entries.publish();
        let (entries, slots, waits) = (self.entries.len(), self.slots.len(), self.waits.len());
        self.published.push_back(Len { entries, slots, waits });
    }

    pub(super) fn close(&self) {
        self.slots.publish();
        self.waits.publish();
        self.entries.close();
    }
}

/// The distance at which slots are prefetched, in rows.
const AHEAD: usize = 32;

/// The position of the walk through a list.
#[derive(Clone, Copy)]
pub(crate) struct InList<'w> {
    shared: &'w Shared<'w>,
    list: &'w List,
    /// The next transaction, and the one up to which the walk may go.
    pub(crate) at: u32,
    end: u32,
    /// The next transaction's first slot, and the number of published slots.
    slot: u32,
    slots_end: u32,
    /// The next wait.
    wait: u32,
    /// Whether the other threads have stopped.
    pub(crate) stopped: bool,
    /// The time that was spent waiting, in nanoseconds.
    pub(super) waited_ns: u64,
}

impl<'w> InList<'w> {
    /// Creates a walk from the beginning of a list.
    pub(super) fn new(shared: &'w Shared<'w>, list: usize) -> InList<'w> {
        let list = &shared.lists[list];
        let (at, slot, wait) = (0, 0, 0);
        InList { shared, list, at, end: 0, slot, slots_end: 0, wait, stopped: false, waited_ns: 0 }
    }

    /// Lets the walk go up to `end`, which is published.
    pub(super) fn go_to(&mut self, end: usize) {
        // There is room for fewer than 2^32 of either.
        (self.end, self.slots_end) = (end as u32, self.list.slots.published() as u32);
    }

    /// Returns the lane of the next transaction.
    pub(crate) fn lane(&self) -> Option<usize> {
        // SAFETY: all transactions before `end` are published, and this one is not done.
        (self.at < self.end)
            .then(|| unsafe { self.list.entries.get(self.at as usize) }.lane as usize)
    }

    /// Returns the next transaction, as the epoch's order has it, and its rank.
    pub(crate) fn ranked(&self) -> (Ranked, usize) {
        assert!(self.at < self.end, "there is a next one");
        // SAFETY: all transactions before `end` are published, and this one is not done.
        let entry = unsafe { self.list.entries.get(self.at as usize) };
        let rank = self.shared.first + entry.rank as usize;
        (Ranked { lane: entry.lane, row: entry.row }, rank)
    }

    /// Skips the next transaction, which was handled in another way.
    pub(crate) fn skip(&mut self) {
        assert!(self.at < self.end, "there is a next one");
        self.pass();
    }

    #[cold]
    #[inline(never)]
    fn wait_for(&mut self, waits: usize) {
        let Shared { lists, pool, .. } = self.shared;
        for _ in 0..waits {
            // SAFETY: waits are published before the transactions that have them.
            let Wait { list, rank } = unsafe { self.list.waits.get(self.wait as usize) };
            self.wait += 1;
            let other = &lists[list as usize];
            if other.has_done(rank) {
                continue;
            }
            let begun = pool.now_ns();
            let mut stopped = false;
            pool::wait(*pool, || {
                stopped = self.shared.halt.is_set();
                stopped || other.has_done(rank)
            });
            self.stopped |= stopped;
            self.waited_ns += pool.now_ns() - begun;
        }
    }
}

impl InList<'_> {
    /// Returns the next transaction, if it belongs to this lane, once the earlier users of its rows
    /// are done.
    #[inline(always)]
    pub(crate) fn next(&mut self, lane: &mut Lane<'_>) -> Option<Turn> {
        if self.at >= self.end {
            return None;
        }
        // SAFETY: all transactions before `end` are published, and this one is not done.
        let entry = unsafe { self.list.entries.get(self.at as usize) };
        if entry.lane != lane.index {
            return None;
        }
        for of in 0..usize::from(entry.rows) {
            let ahead = self.slot as usize + AHEAD + of;
            if ahead < self.slots_end as usize {
                // SAFETY: as many slots are published.
                tidemill_table::prefetch_to_write(unsafe { self.list.slots.get(ahead) }.0);
            }
        }
        if entry.waits > 0 {
            self.wait_for(usize::from(entry.waits));
            if self.stopped {
                return None;
            }
        }
        let rank = self.shared.first + entry.rank as usize;
        Some(Turn { event: entry.row as usize, rank, seq: self.seq(rank) })
    }

    /// Returns the number of the transaction with this rank.
    #[inline(always)]
    pub(crate) fn seq(&self, rank: usize) -> Seq {
        self.shared.before + 1 + (rank - self.shared.first) as Seq
    }

    /// Returns a row of the transaction whose turn it is.
    ///
    /// # Safety
    /// As for [`Turns::row`](crate::execute::segment::Turns::row).
    #[inline(always)]
    pub(crate) unsafe fn row(
        &self,
        lane: &Lane<'_>,
        of: usize,
        turn: Turn,
    ) -> Option<(RowAt, bool)> {
        // SAFETY: the transaction is published, and has a slot for each of its rows. The slot
        // belongs to the table.
        unsafe {
            let slot = self.list.slots.get(self.slot as usize + of).0;
            lane.row_from(of, turn.event, slot)
        }
    }

    /// Records that the transaction is done.
    #[inline(always)]
    pub(crate) fn pass(&mut self) {
        // SAFETY: it is published, because it has just been executed.
        let entry = unsafe { self.list.entries.get(self.at as usize) };
        self.slot += u32::from(entry.rows);
        self.at += 1;
        self.list.done.set(entry.rank, self.at as usize);
    }
}
