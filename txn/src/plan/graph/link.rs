//! The second phase of planning: finding dependencies list by list (MorphStream, section IV-A).

use std::sync::Mutex;

use super::collect::{share_of, Collected, Entry};
use super::{Graph, RowPlace, NONE};
use crate::pool::Pool;

/// The list of a row that operations of the graph access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) key: u64,
    pub(crate) table: u16,
    /// The planning that made the list. Lists of earlier plannings remain in the table.
    round: u16,
    /// The number of lists before it.
    number: u32,
    /// Its first entry; then its last entry, and the last one that writes.
    pub(super) first: u32,
    last: u32,
    last_write: u32,
}

impl List {
    /// Returns the last write.
    pub(crate) fn last_write(&self) -> Option<u32> {
        (self.last_write != NONE).then_some(self.last_write)
    }
}

const FREE: List =
    List { key: 0, table: 0, round: 0, number: 0, first: NONE, last: NONE, last_write: NONE };

/// The lists of one thread's share of the rows: a hash table whose places belong to one planning
/// each and are never emptied.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    places: Vec<List>,
    taken: Vec<u32>,
    round: u16,
}

impl Lists {
    /// Begins a planning, with room for `rows` rows.
    fn clear(&mut self, rows: usize) {
        let places = (rows * 2).next_power_of_two().max(16);
        self.taken.clear();
        if self.places.len() < places || self.round == u16::MAX {
            (self.places, self.round) = (vec![FREE; places.max(self.places.len())], 0);
        }
        self.round += 1;
    }

    fn home(&self, hash: u64) -> usize {
        // Higher bits of the hash choose the thread.
        (hash ^ hash >> 36) as usize & (self.places.len() - 1)
    }

    /// Returns the place of a row's list, and whether it is new.
    fn find(&mut self, entry: &Entry) -> (usize, bool) {
        let mut at = self.home(entry.hash);
        loop {
            let place = &mut self.places[at];
            if place.round != self.round {
                let Entry { key, table, .. } = *entry;
                let number = self.taken.len() as u32;
                let first = entry.access;
                *place = List { key, table, round: self.round, number, first, ..FREE };
                self.taken.push(at as u32);
                return (at, true);
            }
            if place.key == entry.key && place.table == entry.table {
                return (at, false);
            }
            at = (at + 1) & (self.places.len() - 1);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.taken.len()
    }

    /// Returns the list of a row, if any thread has one.
    pub(crate) fn of(lists: &[Lists], table: u16, key: u64, hash: u64) -> Option<&List> {
        let lists = &lists[share_of(hash, lists.len())];
        let mut at = lists.home(hash);
        loop {
            let place = &lists.places[at];
            if place.round != lists.round {
                return None;
            }
            if place.key == key && place.table == table {
                return Some(place);
            }
            at = (at + 1) & (lists.places.len() - 1);
        }
    }

    /// Visits all lists, in the order in which their rows first occurred. Shows each list to
    /// `ahead` some time before its turn.
    pub(crate) fn each<'a>(&'a self, ahead: impl Fn(&'a List), mut each: impl FnMut(&'a List)) {
        let place = |nth: usize| self.taken.get(nth).map(|at| &self.places[*at as usize]);
        for nth in 0..self.taken.len() {
            if let Some(list) = place(nth + 2 * AHEAD) {
                tidemill_table::prefetch_address(list);
            }
            place(nth + AHEAD).into_iter().for_each(&ahead);
            place(nth).into_iter().for_each(&mut each);
        }
    }
}

/// How many entries ahead memory is prefetched.
const AHEAD: usize = 12;

impl Graph {
    /// Links the entries of every list. `find` returns a row's slot in its table; `prefetch`
    /// requests that memory. For every operation, `chains` gets a number that identifies the row of
    /// its first access. The numbers are below `lists[thread].len() * threads`, with gaps.
    pub(crate) fn link(
        &self,
        collected: &Collected,
        pool: &dyn Pool,
        lists: &mut Vec<Lists>,
        chains: &[std::sync::atomic::AtomicU32],
        prefetch: impl Fn(u16, u64) + Sync,
        find: impl Fn(u16, u64, u64) -> Option<u32> + Sync,
    ) {
        let threads = pool.threads();
        lists.resize_with(threads, Lists::default);
        let shares: Vec<Mutex<&mut Lists>> = lists.iter_mut().map(Mutex::new).collect();
        pool.run(&|thread| {
            let mut lists = shares[thread].lock().expect("no thread has panicked here");
            let baskets = || collected.baskets.iter().map(|by| &by[thread]);
            lists.clear(baskets().map(Vec::len).sum());
            for basket in baskets() {
                for (nth, entry) in basket.iter().enumerate() {
                    if let Some(ahead) = basket.get(nth + AHEAD) {
                        let home = lists.home(ahead.hash);
                        tidemill_table::prefetch_address(&raw const lists.places[home]);
                        prefetch(ahead.table, ahead.hash);
                    }
                    self.enter(&mut lists, entry, (thread, threads), chains, &find);
                }
            }
        });
    }

    /// Appends an entry to its row's list.
    #[inline(always)]
    fn enter(
        &self,
        lists: &mut Lists,
        entry: &Entry,
        (thread, threads): (usize, usize),
        chains: &[std::sync::atomic::AtomicU32],
        find: &impl Fn(u16, u64, u64) -> Option<u32>,
    ) {
        use std::sync::atomic::Ordering::Relaxed;
        let (at, is_new) = lists.find(entry);
        let list = &mut lists.places[at];
        let access = self.access(entry.access);
        let vertex = access.vertex();
        if !chains.is_empty() && self.vertex(vertex).access == entry.access {
            chains[vertex as usize].store(list.number * threads as u32 + thread as u32, Relaxed);
        }
        if list.last != NONE && self.access(list.last).vertex() == vertex {
            // An operation that names a row twice has one entry; it writes in both places or in
            // none.
            debug_assert_eq!(access.writes(), self.access(list.last).writes());
            access.set_from(RowPlace::Same(list.last));
            return;
        }
        access.set_from(match list.last_write {
            // Until the first write, all accesses use the place that the first one found.
            NONE if is_new => {
                find(entry.table, entry.key, entry.hash).map_or(RowPlace::Missing, RowPlace::Slot)
            }
            NONE => self.access(list.last).from(),
            write => RowPlace::Access(write),
        });
        if list.last != NONE {
            self.access(list.last).next.store(entry.access, Relaxed);
        }
        list.last = entry.access;
        if access.writes() {
            list.last_write = entry.access;
        }
    }
}
