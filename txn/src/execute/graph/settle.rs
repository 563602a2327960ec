//! What was executed on hints is settled, in stamp order.
//!
//! A transaction is final when it and all before it are, and every version that it read is the one
//! that serial order gives; rows that are not there, ranges and windows included. Otherwise it runs
//! again at its stamp, and so does whoever has read a version that has gone. The lowest transaction
//! that is not settled becomes final when it runs, so each runs again once at most.
//!
//! Those that missed are known, and a row that is written by surprise has readers in three places:
//! in its list, among those who read it by surprise, and among those who read a range that it is in.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use tidemill_core::{Key, TableId};

use super::hint::KeyRange;
use super::shape::{PASSES, POISON};
use super::unit::{Ran, Unit};
use super::view::{Extra, View};
use super::work::Work;

/// Who has read, by surprise, which rows and ranges.
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

/// Transactions that are not settled. Each is one operation, of the same number.
struct Settling<'w, 'a> {
    work: &'w Work<'a>,
    open: BTreeSet<u32>,
    extra: Extra,
    readers: Option<Readers>,
}

/// Settles everything, beginning with those who missed. Gives what was written unexpectedly, and how
/// many transactions have run again.
pub(crate) fn settle(work: &Work<'_>, missed: impl Iterator<Item = u32>) -> (Extra, usize) {
    let (open, extra) = (missed.collect(), Extra::new());
    let mut settling = Settling { work, open, extra, readers: None };
    let mut count = 0;
    while let Some(txn) = settling.open.pop_first() {
        settling.again(txn);
        count += 1;
    }
    (settling.extra, count)
}

impl Settling<'_, '_> {
    /// Runs a transaction before which all is final.
    fn again(&mut self, txn: u32) {
        let work = self.work;
        let at = work.graph.vertex(txn);
        let view = View::new(work, at, Some(&self.extra));
        let unit = work.run_unit(at, &view);
        assert!(view.missed.get().is_none(), "all before it is settled");
        let before = work.unit(txn);
        // Of compiled code nothing is kept to compare with.
        let is_same = |row: &(TableId, Key)| {
            let versions = |unit: &Unit| {
                let versions =
                    unit.versions(row).map(|(step, _, row)| (step, row.map(<[_]>::to_vec)));
                versions.collect::<Vec<_>>()
            };
            before.as_ref().is_some_and(|before| versions(before) == versions(&unit))
        };
        let writes = work.writes(at);
        let mut changed: Vec<(TableId, Key)> =
            writes.iter().map(|(_, row)| row.clone()).filter(|row| !is_same(row)).collect();
        let mut expected: Vec<&(TableId, Key)> = writes.iter().map(|(_, row)| row).collect();
        expected.sort_unstable();
        for row in unit.written().filter(|row| expected.binary_search(row).is_err()) {
            changed.push(row.clone());
            // They come in stamp order.
            self.extra.entry(row.clone()).or_default().push(txn);
        }
        work.states.stop(txn, txn, false);
        work.publish(at, Some(&unit));
        let ran = Ran { unit: Arc::new(unit), rows: Vec::new(), ranges: Vec::new() };
        *work.units[txn as usize].lock().expect("no thread has panicked here") = Some(ran);
        for row in changed {
            self.overturn(txn, &row);
        }
    }

    /// Whoever may have read a row behind a transaction is not settled.
    fn overturn(&mut self, txn: u32, row: &(TableId, Key)) {
        let (work, open) = (self.work, &mut self.open);
        let readers = self.readers.get_or_insert_with(|| Readers::of(work));
        readers.each(row, |reader| {
            if reader > txn {
                open.insert(reader);
            }
        });
        let Some(list) = work.list(row) else { return };
        // Windows look beyond the last version.
        let has_windows = work.tables[row.0.index()].spec().history.is_some();
        let stands = |write: &crate::plan::graph::Access| {
            let flags = work.words[write.at as usize].load(Ordering::Relaxed);
            let is_off = work.states.is_aborted(write.vertex()) || flags & (PASSES | POISON) != 0;
            !is_off && !has_windows
        };
        work.graph.behind(list, txn, stands, |access| {
            open.insert(work.graph.access(access).vertex());
        });
    }
}
