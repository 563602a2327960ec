//! Settling, in stamp order, of transactions that were executed on hints.
//!
//! A transaction is final if all earlier ones are, and every version that it read is the one of the
//! serial order. This includes missing rows, ranges and windows. Otherwise it runs again at its
//! stamp, and so does every reader of a version that no longer exists. The lowest transaction that
//! is not settled becomes final when it runs. So each runs again at most once.
//!
//! The transactions that missed are known. Readers of an unexpectedly written row are in three
//! places: in its list, among the unexpected readers of the row, and among the readers of a range
//! that it is in.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use tidemill_core::{Key, TableId};

use super::hint::KeyRange;
use super::shape::{PASSES, POISON};
use super::unit::{Ran, Unit};
use super::view::{Extra, View};
use super::work::Work;
use crate::execute::work;

/// The transactions that have unexpectedly read rows and ranges.
#[derive(Default)]
struct Readers {
    rows: HashMap<(TableId, Key), Vec<u32>, foldhash::fast::FixedState>,
    ranges: Vec<(KeyRange, u32)>,
}

impl Readers {
    fn of(work: &Work<'_>) -> Readers {
        let mut readers = Readers::default();
        for (txn, cell) in (0..).zip(work.units) {
            let ran = cell.lock().expect("no thread has panicked here");
            for row in ran.iter().flat_map(|ran| &ran.rows) {
                readers.rows.entry(row.clone()).or_default().push(txn);
            }
            let ranges = ran.iter().flat_map(|ran| &ran.ranges);
            readers.ranges.extend(ranges.map(|range| (range.clone(), txn)));
        }
        readers
    }

    fn each(&self, row: &(TableId, Key), mut each: impl FnMut(u32)) {
        self.rows.get(row).into_iter().flatten().for_each(|txn| each(*txn));
        let has = |(range, _): &&(KeyRange, u32)| range.has(row.0, &row.1);
        self.ranges.iter().filter(has).for_each(|(_, txn)| each(*txn));
    }
}

/// The transactions that are not settled. Each is one operation with the same number.
struct Settling<'w, 'a> {
    work: &'w Work<'a>,
    open: BTreeSet<u32>,
    extra: Extra,
    readers: Option<Readers>,
    /// The rows of which all later readers are open, because readers of windows read beyond the
    /// last version.
    are_open: HashSet<(TableId, Key), foldhash::fast::FixedState>,
}

/// Settles everything, beginning with the transactions that missed.
///
/// Returns the unexpected writes, and how many transactions have run again. Returns `None` if the
/// budget is spent before all is settled.
pub(crate) fn settle(work: &Work<'_>, missed: impl Iterator<Item = u32>) -> Option<(Extra, usize)> {
    let (open, extra, are_open) = (missed.collect(), Extra::new(), HashSet::default());
    let mut settling = Settling { work, open, extra, readers: None, are_open };
    let mut count = 0;
    while let Some(txn) = settling.open.pop_first() {
        if !settling.again(txn) {
            return None;
        }
        count += 1;
    }
    Some((settling.extra, count))
}

impl Settling<'_, '_> {
    /// Runs a transaction before which all is final. Returns `false` if the budget is spent.
    fn again(&mut self, txn: u32) -> bool {
        let work = self.work;
        let at = work.graph.vertex(txn);
        let view = View::new(work, at, Some(&self.extra));
        let unit = work.run_unit(at, &view);
        work.budget.spend(unit.work + view.steps.get());
        if work.budget.is_over(0) {
            return false;
        }
        assert!(view.missed.get().is_none(), "all before it is settled");
        let before = work.unit(txn);
        // No results of compiled code are retained for comparison.
        let is_same = |row: &(TableId, Key)| {
            let versions = |unit: &Unit| {
                let versions =
                    unit.versions(row).map(|(step, _, row)| (step, row.map(<[_]>::to_vec)));
                versions.collect::<Vec<_>>()
            };
            before.as_ref().is_some_and(|before| versions(before) == versions(&unit))
        };
        let mut expected: Vec<(u32, (TableId, Key))> = work.writes(at);
        expected.sort_unstable_by(|a, b| a.1.cmp(&b.1));
        let mut changed: Vec<(Option<u32>, (TableId, Key))> = (expected.iter())
            .filter(|(_, row)| !is_same(row))
            .map(|(access, row)| (Some(*access), row.clone()))
            .collect();
        for row in unit.written() {
            if expected.binary_search_by(|(_, expected)| expected.cmp(row)).is_err() {
                changed.push((None, row.clone()));
                // These transactions are in stamp order.
                self.extra.entry(row.clone()).or_default().push(txn);
            }
        }
        work.states.stop(txn, txn, false);
        work.publish(at, Some(&unit));
        let ran = Ran { unit: Arc::new(unit), rows: Vec::new(), ranges: Vec::new() };
        *work.units[txn as usize].lock().expect("no thread has panicked here") = Some(ran);
        for (access, row) in changed {
            work.branches.changes(&row, txn);
            self.overturn(txn, access, &row);
        }
        true
    }

    /// Marks the later transactions that may have read a row of this transaction as not settled.
    /// `access` is the transaction's write of the row, if it was expected.
    fn overturn(&mut self, txn: u32, access: Option<u32>, row: &(TableId, Key)) {
        let (work, open) = (self.work, &mut self.open);
        let readers = self.readers.get_or_insert_with(|| Readers::of(work));
        work.budget.spend(work::STEP * readers.ranges.len() as u64);
        readers.each(row, |reader| {
            if reader > txn {
                open.insert(reader);
            }
        });
        // Windows read beyond the last version.
        let has_windows = work.tables[row.0.index()].spec().history.is_some();
        // Transactions are settled in their order, so later ones are still open.
        if has_windows && !self.are_open.insert(row.clone()) {
            return;
        }
        let stands = |write: &crate::plan::graph::Access| {
            let flags = work.words[write.at as usize].load(Ordering::Relaxed);
            let is_off = work.states.is_aborted(write.vertex()) || flags & (PASSES | POISON) != 0;
            !is_off && !has_windows
        };
        let mut steps = 0;
        let each = |access| {
            steps += work::STEP;
            open.insert(work.graph.access(access).vertex());
        };
        match (access, work.list(row)) {
            (Some(access), _) => work.graph.after(access, stands, each),
            (None, Some(list)) => work.graph.after_in_list(list, txn, stands, each),
            (None, None) => {}
        }
        work.budget.spend(steps);
    }
}
