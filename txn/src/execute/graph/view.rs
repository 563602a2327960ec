//! The tables as a unit sees them at its stamp: the graph's versions of its rows, and before them
//! those of the tables.
//!
//! While the graph is walked, a unit sees a state that some of the earlier transactions, run in
//! order, would leave. The rows that it is expected to touch are executed by then. Of other rows it
//! sees what has been executed. A row that is not known yet ends the run.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tidemill_core::{Key, Row, TableId, Value};

use super::branch::Branch;
use super::hint::{in_range, is_words, key_word, keys_between, words_of, KeyRange, Seen, Use};
use super::plan::key;
use super::shape::{FLAGS_WORDS, PASSES, POISON, PRESENT, WRITTEN};
use super::unit::{merged, Unit};
use super::work::Work;
use crate::execute::general::{ordered, Holder, Keys, Rows, Unsettled};
use crate::execute::work;
use crate::plan::graph::{Lists, RowPlace, Vertex};

/// The transactions that have unexpectedly written a row, by row, in order.
pub(crate) type Extra = BTreeMap<(TableId, Key), Vec<u32>>;

/// The reason why a run failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// It has touched a row that it was not expected to touch.
    Itself,
    /// A transaction that it depends on has.
    Other,
}

/// A view of the tables: see the [module](self).
pub(crate) struct View<'w, 'a> {
    pub(crate) work: &'w Work<'a>,
    pub(crate) at: Vertex,
    /// The unexpected writes, once all earlier transactions are settled.
    pub(crate) extra: Option<&'w Extra>,
    /// The reads beyond the expected ones.
    pub(crate) seen: Seen,
    pub(crate) missed: Cell<Option<Missed>>,
    /// The number of rows that were read, and of versions that were passed.
    pub(crate) steps: Cell<u64>,
    /// Whether the run ends when the budget is spent.
    pub(crate) is_bounded: bool,
}

/// A version of a row: its transaction, and its place in the graph, if it is there.
type Version = (u32, Option<u32>);

fn read(branch: &RwLock<Branch>) -> RwLockReadGuard<'_, Branch> {
    branch.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(branch: &RwLock<Branch>) -> RwLockWriteGuard<'_, Branch> {
    branch.write().unwrap_or_else(PoisonError::into_inner)
}

impl<'w, 'a> View<'w, 'a> {
    pub(crate) fn new(work: &'w Work<'a>, at: Vertex, extra: Option<&'w Extra>) -> View<'w, 'a> {
        let (seen, missed, steps) = (Seen::default(), Cell::new(None), Cell::new(0));
        View { work, at, extra, seen, missed, steps, is_bounded: true }
    }

    fn miss(&self, why: Missed) -> Unsettled {
        self.missed.set(Some(self.missed.get().unwrap_or(why)));
        Unsettled
    }

    /// Returns the access by which the unit uses a row, if that was expected.
    fn access(&self, table: TableId, key: &Key) -> Option<u32> {
        if let Some(hint) = self.work.stretch.hints.get(self.at.txn as usize) {
            return hint.find(table, key).map(|nth| self.at.access + nth as u32);
        }
        // This is a compiled transaction or a closure that has to be run here. Of equal rows, the
        // first one is in the row's list.
        let shape = self.work.shape(self.at);
        let word = key_word(&self.work.tables[table.index()], key)?;
        let (columns, event) = self.work.event(self.at.txn);
        let is_row = |(of, from): &(usize, _)| {
            *of == table.index() && self::key(*from, columns, event) == word
        };
        let row = shape.rows.iter().position(is_row)?;
        let touches = &shape.parts[0].touches;
        let nth = touches.iter().position(|touch| usize::from(touch.row) == row)?;
        Some(self.at.access + nth as u32)
    }

    /// Returns where the search for the last version of a row before this transaction begins.
    fn start(&self, row: &(TableId, Key)) -> RowPlace {
        if let Some(access) = self.access(row.0, &row.1) {
            return self.work.graph.access(access).from();
        }
        let Some(last) = self.work.list(row).and_then(|list| list.last_write()) else {
            return RowPlace::Missing;
        };
        let graph = self.work.graph;
        let is_before = |write: &u32| {
            self.steps.set(self.steps.get() + work::STEP);
            graph.vertex(graph.access(*write).vertex()).txn < self.at.txn
        };
        graph
            .writes(RowPlace::Access(last))
            .find(is_before)
            .map_or(RowPlace::Missing, RowPlace::Access)
    }

    /// Calls `each` with the valid versions in the row's list, newest first, until it returns
    /// `false`.
    fn listed(
        &self,
        row: &(TableId, Key),
        each: impl FnMut(Version) -> bool,
    ) -> Result<(), Unsettled> {
        self.walk(self.start(row), each)
    }

    /// Walks the valid versions from a place in a list, as [`View::listed`] does.
    fn walk(
        &self,
        start: RowPlace,
        mut each: impl FnMut(Version) -> bool,
    ) -> Result<(), Unsettled> {
        let (graph, states) = (self.work.graph, self.work.states);
        for write in graph.writes(start) {
            self.count(work::STEP)?;
            let access = graph.access(write);
            // Its result is visible once it has been executed.
            if !states.is_executed(access.vertex()) {
                return Err(self.miss(Missed::Itself));
            }
            let txn = graph.vertex(access.vertex()).txn;
            if states.is_aborted(txn) {
                continue;
            }
            let flags = self.work.flags(write);
            if flags & POISON != 0 {
                return Err(self.miss(Missed::Other));
            }
            if flags & PASSES == 0 && !each((txn, Some(write))) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the earlier transactions that have unexpectedly written a row.
    fn extra(&self, row: &(TableId, Key)) -> &[u32] {
        let all = self.extra.and_then(|extra| extra.get(row)).map_or(&[][..], |txns| txns);
        &all[..all.partition_point(|txn| *txn < self.at.txn)]
    }

    fn last(&self, row: &(TableId, Key)) -> Result<Option<Version>, Unsettled> {
        let mut last = None;
        self.listed(row, |version| {
            last = Some(version);
            false
        })?;
        let extra = self.extra(row).last().map(|txn| (*txn, None));
        Ok(last.max(extra))
    }

    /// Returns the outcome of the unit's discovery, if no earlier transaction has written what it
    /// read.
    ///
    /// Unexpected writes are found later, as everywhere.
    pub(crate) fn found(&self) -> Option<(&'w Arc<Unit>, &'w [KeyRange])> {
        let hint = self.work.stretch.hints.get(self.at.txn as usize)?;
        let found = hint.found()?;
        let is_committed = |(nth, used): (usize, &Use)| {
            debug_assert_eq!(hint.find(used.row.0, &used.row.1), Some(nth));
            let mut is_there = false;
            let seen =
                self.walk(self.work.graph.access(self.at.access + nth as u32).from(), |_| {
                    is_there = true;
                    false
                });
            seen.is_ok() && !is_there
        };
        let is_it = hint.uses.iter().enumerate().all(is_committed);
        // A miss here does not make this unit miss: it runs, and sees the rows itself.
        self.missed.set(None);
        is_it.then_some(found)
    }

    /// Appends versions of a row to its branch, except those that another thread has appended
    /// already.
    fn append(
        &self,
        branch: &mut Branch,
        row: &(TableId, Key),
        key: &[Value],
        versions: &[Version],
    ) {
        let last = branch.last();
        for (txn, access) in versions.iter().copied().filter(|(txn, _)| Some(*txn) > last) {
            let time_us = self.work.stretch.time_us(txn);
            let mut put = |version: Option<&[Value]>| branch.put(txn, key, version, time_us);
            match self.work.unit(txn) {
                Some(unit) => unit.versions(row).for_each(|(_, _, version)| put(version)),
                None => {
                    let access = access.expect("only units write unexpectedly");
                    if self.work.flags(access) & WRITTEN != 0 {
                        put(self.work.row(access, row).as_deref());
                    }
                }
            }
        }
    }

    /// Counts the steps beyond those of other strategies. Ends the run when there are too many.
    fn count(&self, more: u64) -> Result<(), Unsettled> {
        self.steps.set(self.steps.get() + more);
        match self.is_bounded && self.work.budget.is_over(self.steps.get()) {
            true => Err(self.miss(Missed::Other)),
            false => Ok(()),
        }
    }

    fn find(&self, row: &(TableId, Key)) -> Result<Option<Row>, Unsettled> {
        self.count(work::STEP)?;
        match self.last(row)? {
            None => Ok(self.work.tables[row.0.index()].get_by_key(&row.1)),
            Some(version) => Ok(self.of(version, row)),
        }
    }

    fn of(&self, (txn, access): Version, row: &(TableId, Key)) -> Option<Row> {
        match self.work.unit(txn) {
            Some(unit) => unit.last(row).expect("it writes the row").map(Row::from),
            None => self.work.row(access.expect("only units write unexpectedly"), row),
        }
    }
}

impl Rows for View<'_, '_> {
    fn row(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        let row = (table, key.clone());
        let found = self.find(&row);
        if self.access(table, key).is_none() {
            self.seen.rows.borrow_mut().push(row);
        }
        found
    }

    fn row_in_range(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        self.find(&(table, key.clone()))
    }

    fn holder(&self, table: TableId, key: &Key, values: &[Value]) -> Result<Holder<'_>, Unsettled> {
        self.count(1)?;
        let (row, held) = ((table, key.clone()), &self.work.tables[table.index()]);
        let mut branch = self.work.branches.of(&row);
        let last = branch.as_ref().and_then(|branch| read(branch).last());
        // The versions that are not there yet, the newest first.
        let mut new: Vec<Version> = Vec::new();
        self.listed(&row, |version| {
            let is_new = Some(version.0) > last;
            new.extend(is_new.then_some(version));
            is_new
        })?;
        let extra = self.extra(&row).iter().filter(|txn| Some(**txn) > last);
        new.extend(extra.map(|txn| (*txn, None)));
        if !new.is_empty() {
            new.sort_unstable();
            let branch = branch.get_or_insert_with(|| self.work.branches.make(&row, held));
            self.append(&mut write(branch), &row, values, &new);
        }
        let graph = branch.map(|branch| {
            let count = read(&branch).before(self.at.txn);
            (branch, count)
        });
        Ok(Holder { table: Some(held), graph, before: Vec::new() })
    }

    fn keys<'k>(&'k self, table: TableId, from: &'k Key, to: &'k Key, reverse: bool) -> Keys<'k> {
        let held = ordered(self.work.tables[table.index()].keys(from, to), reverse);
        let written = in_range(&self.work.stretch.written()[table.index()], from, to);
        let keys = merged(held, ordered(written.iter(), reverse), reverse);
        let keys = match self.extra {
            None => keys,
            Some(extra) => {
                let more = keys_between(extra, table, from, to);
                merged(keys, ordered(more, reverse), reverse)
            }
        };
        self.seen.keys(keys, table, (from, to), reverse)
    }

    fn is_unsettled(&self) -> bool {
        self.missed.get().is_some()
    }
}

impl<'a> Work<'a> {
    /// Returns the outcome of a unit, or `None` if the transaction is no unit or has missed.
    pub(crate) fn unit(&self, txn: u32) -> Option<Arc<Unit>> {
        let cell = self.units.get(txn as usize)?;
        cell.lock().expect("no thread has panicked here").as_ref().map(|ran| ran.unit.clone())
    }

    /// Returns the list of a row, if it has one.
    pub(crate) fn list(&self, row: &(TableId, Key)) -> Option<&'a crate::plan::graph::List> {
        let id = self.stretch.hints.id(self.tables, row)?;
        Lists::of(self.lists, row.0 .0, id, self.tables[row.0.index()].hash(id))
    }

    pub(crate) fn flags(&self, access: u32) -> u64 {
        self.words[self.graph.access(access).at as usize].load(Ordering::Relaxed)
    }

    /// Returns the row in a version of words.
    fn row(&self, access: u32, row: &(TableId, Key)) -> Option<Row> {
        let table = &self.tables[row.0.index()];
        let version = &self.words[self.graph.access(access).at as usize..];
        let word = key_word(table, &row.1).expect("the encoding of a key");
        let body = &version[FLAGS_WORDS..words_of(table) as usize];
        let body: Vec<u64> = body.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let is_present = version[0].load(Ordering::Relaxed) & PRESENT != 0;
        is_present.then(|| table.row_of(word, &body))
    }

    /// Returns the rows that a transaction is expected to write, with their accesses.
    pub(crate) fn writes(&self, at: Vertex) -> Vec<(u32, (TableId, Key))> {
        if let Some(hint) = self.stretch.hints.get(at.txn as usize) {
            let written = hint.uses[..hint.writes].iter().map(|used| used.row.clone());
            return (at.access..).zip(written).collect();
        }
        let shape = self.shape(at);
        let (columns, event) = self.event(at.txn);
        let row = |touch: &super::shape::Touch| {
            let (table, from) = shape.rows[usize::from(touch.row)];
            self.stretch.row(table, key(from, columns, event))
        };
        let touches = (at.access..).zip(&shape.parts[0].touches);
        let is_own = |access: u32| !matches!(self.graph.access(access).from(), RowPlace::Same(_));
        let written = touches.filter(|(access, touch)| touch.words > 0 && is_own(*access));
        written.map(|(access, touch)| (access, row(touch))).collect()
    }

    /// Publishes the writes of a unit as the versions of its rows. If the unit has missed, these
    /// versions are unknown.
    pub(crate) fn publish(&self, at: Vertex, unit: Option<&Unit>) {
        for (access, row) in self.writes(at) {
            let version = &self.words[self.graph.access(access).at as usize..];
            let flags = match unit.map(|unit| unit.last(&row)) {
                None => POISON,
                Some(None) => PASSES,
                Some(Some(None)) => WRITTEN,
                Some(Some(Some(written))) => {
                    let table = &self.tables[row.0.index()];
                    if is_words(table) {
                        let words = table.words_of(written);
                        for (to, word) in version[FLAGS_WORDS..].iter().zip(words) {
                            to.store(word, Ordering::Relaxed);
                        }
                    }
                    PRESENT | WRITTEN
                }
            };
            version[0].store(flags, Ordering::Relaxed);
        }
    }
}
