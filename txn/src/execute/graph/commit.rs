//! The commit: the last version of each row moves to its table. A table with a history gets all
//! versions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use tidemill_core::{Key, TableId, Value};
use tidemill_table::{Seq, Table};

use super::hint::{is_words, Hints};
use super::shape::{FLAGS_WORDS, PRESENT, WRITTEN};
use super::state::States;
use super::unit::Ran;
use super::view::Extra;
use crate::plan::graph::{Graph, List, Lists, RowPlace};
use crate::pool::Pool;

/// The versions of a graph, of which the first `until` transactions are final.
pub(crate) struct Commit<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) states: &'a States,
    pub(crate) words: &'a [AtomicU64],
    pub(crate) units: &'a [Mutex<Option<Ran>>],
    pub(crate) hints: &'a Hints,
    pub(crate) extra: &'a Extra,
    pub(crate) until: u32,
    /// The number and the time of each transaction.
    pub(crate) stamps: &'a (dyn Fn(u32) -> (Seq, i64) + Sync),
}

impl Commit<'_> {
    /// Writes the tables, each by one thread.
    pub(crate) fn run(&self, pool: &dyn Pool, lists: &[Lists], tables: &mut [Table]) {
        let tables: Vec<Mutex<&mut Table>> = tables.iter_mut().map(Mutex::new).collect();
        pool.run(&|thread| {
            for (number, table) in tables.iter().enumerate().skip(thread).step_by(pool.threads()) {
                let mut table = table.lock().expect("no thread has panicked here");
                self.table(lists, number, &mut table);
            }
        });
    }

    fn table(&self, lists: &[Lists], number: usize, table: &mut Table) {
        let is_its = |list: &List| usize::from(list.table) == number;
        let spec = table.spec().clone();
        let is_plain = is_words(table) && spec.history.is_none() && !spec.ordered;
        let id = TableId(number as u16);
        // Rows that are in no list are searched once for all.
        let mut extra: Vec<&(TableId, Key)> = self.extra.keys().filter(|row| row.0 == id).collect();
        // Prefetching a slot reads the table, and writing it changes the table.
        let table = std::cell::RefCell::new(table);
        for lists in lists {
            let ahead = |list: &List| {
                if is_its(list) {
                    let table = table.borrow();
                    table.prefetch(table.hash(list.key));
                }
            };
            let write = |list: &List| {
                if !is_its(list) {
                    return;
                }
                let mut table = table.borrow_mut();
                if is_plain && extra.is_empty() {
                    return self.row(list, &mut table);
                }
                let row = match is_words(&table) {
                    true => (
                        id,
                        Key::of([&Value::of_word(&spec.schema.columns[spec.key[0]].ty, list.key)]),
                    ),
                    false => self.hints.rows[list.key as usize].clone(),
                };
                self.versions(&row, Some(list), &mut table);
                if let Ok(at) = extra.binary_search(&&row) {
                    extra.remove(at);
                }
            };
            lists.each(ahead, write);
        }
        for row in extra {
            self.versions(row, None, &mut table.borrow_mut());
        }
    }

    /// Whether a write counts: its transaction is final, commits, and has written the row.
    fn counts(&self, access: u32) -> bool {
        let found = self.graph.access(access);
        let txn = self.graph.vertex(found.vertex()).txn;
        let flags = || self.words[found.at as usize].load(Ordering::Relaxed);
        txn < self.until && !self.states.is_aborted(txn) && flags() & WRITTEN != 0
    }

    /// Returns the writes of a row that count, the last one first.
    fn writes(&self, list: &List) -> impl Iterator<Item = u32> + '_ {
        let last = list.last_write().map_or(RowPlace::Missing, RowPlace::Access);
        self.graph.writes(last).filter(|access| self.counts(*access))
    }

    /// Writes the last version of a row of words.
    fn row(&self, list: &List, table: &mut Table) {
        let Some(access) = self.writes(list).next() else { return };
        let access = self.graph.access(access);
        let (seq, _) = (self.stamps)(self.graph.vertex(access.vertex()).txn);
        let version = &self.words[access.at as usize..];
        if version[0].load(Ordering::Relaxed) & PRESENT == 0 {
            let spec = table.spec();
            let key = Value::of_word(&spec.schema.columns[spec.key[0]].ty, list.key);
            table.put(&[key], None, seq);
            return;
        }
        let hash = table.hash(list.key);
        let base = match table.find(list.key, hash) {
            Some(base) => base,
            None => table.take(list.key, hash),
        };
        for (to, from) in table.write(base, seq).iter_mut().zip(&version[FLAGS_WORDS..]) {
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Writes the versions of a row that its table retains.
    fn versions(&self, row: &(TableId, Key), list: Option<&List>, table: &mut Table) {
        let txn = |access: u32| self.graph.vertex(self.graph.access(access).vertex()).txn;
        let listed = list.into_iter().flat_map(|list| self.writes(list));
        let mut all: Vec<(u32, Option<u32>)> = listed.map(|w| (txn(w), Some(w))).collect();
        let extra = self.extra.get(row).into_iter().flatten();
        all.extend(extra.map(|txn| (*txn, None)));
        all.sort_unstable();
        if table.spec().history.is_none() {
            all.drain(..all.len().saturating_sub(1));
        }
        for (txn, access) in all {
            let (seq, time_us) = (self.stamps)(txn);
            let ran = self.units.get(txn as usize).map(|cell| cell.lock().expect("no panic here"));
            if let Some(Some(ran)) = ran.as_deref() {
                for (step, key, written) in ran.unit.versions(row) {
                    table.put_at(key, written, seq + step as Seq, time_us);
                }
                continue;
            }
            let (list, access) =
                (list.expect("it is in the list"), access.expect("only units are not"));
            self.word_version(list, access, (seq, time_us), table);
        }
    }

    /// Writes a version of words.
    fn word_version(&self, list: &List, access: u32, at: (Seq, i64), table: &mut Table) {
        let version = &self.words[self.graph.access(access).at as usize..];
        let words = &version[FLAGS_WORDS..FLAGS_WORDS + table.layout().body_words()];
        let words: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let spec = table.spec();
        let key: [Value; 1] = [Value::of_word(&spec.schema.columns[spec.key[0]].ty, list.key)];
        let is_present = version[0].load(Ordering::Relaxed) & PRESENT != 0;
        let row = is_present.then(|| table.row_of(list.key, &words));
        table.put_at(&key, row.as_deref(), at.0, at.1);
    }
}
