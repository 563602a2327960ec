//! Going back to snapshots: a node retains what has changed since them.

use std::sync::Arc;

use tidemill_core::TableId;
use tidemill_table::{Before, Changed};

use super::Rows;

/// The identity of a snapshot: the generation that took it, and its epoch. The epoch is not enough:
/// an epoch that was executed before its cut was durable may differ in the next generation.
pub type SnapshotId = (u64, u64);

/// The changes since a snapshot, until the next one.
#[derive(Clone, Debug, Default)]
pub(super) struct UndoLayer {
    since: SnapshotId,
    /// The changed rows as they were then, by table.
    pub before: Vec<Before>,
}

/// The changes by snapshot, the oldest first: the one that the rows began with or that counts, and
/// later ones that may count in the future. There are none if the rows have no snapshots.
#[derive(Clone, Debug, Default)]
pub(super) struct Undo {
    pub layers: Vec<UndoLayer>,
}

/// Changes of tables.
type Changes = Vec<(TableId, Arc<Changed>)>;

/// The rows that a snapshot takes, and the versions of those with a history.
#[derive(Clone, Debug, Default)]
pub struct TakenRows {
    /// The number of tables.
    pub tables: usize,
    /// The changes of tables. Of several of a table, later ones count.
    pub changes: Changes,
}

/// The changes of tables with a history, which are taken only once.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// Those that belong to the next snapshot, because an earlier one did not count.
    left: Changes,
    /// Those that a snapshot took of which it is unknown whether it counts.
    taken: Vec<(SnapshotId, Changes)>,
}

impl Undo {
    fn position(&self, of: SnapshotId) -> Option<usize> {
        self.layers.iter().position(|layer| layer.since == of)
    }
}

impl Rows {
    /// Notes that the rows are those of a snapshot, and retains what changes from now on.
    pub fn begin(&mut self, since: SnapshotId) {
        self.tables.iter_mut().for_each(|table| table.settle(self.last));
        self.undo.layers = vec![UndoLayer { since, ..UndoLayer::default() }];
    }

    /// Takes the rows that have changed since the last snapshot, for the next one. The last epoch
    /// has ended.
    pub fn take(&mut self, of: SnapshotId) -> TakenRows {
        let before = self.undo.layers.last().map_or(&[][..], |layer| &layer.before);
        let nothing = Before::default();
        let before = before.iter().chain(std::iter::repeat(&nothing));
        let (mut changes, mut kept) = (Vec::new(), std::mem::take(&mut self.kept.left));
        for (number, (table, before)) in (0..).map(TableId).zip(self.tables.iter_mut().zip(before))
        {
            match table.spec().history {
                None => changes.push((number, Arc::new(table.take_changes_since(before)))),
                Some(_) => kept.push((number, Arc::new(table.take_changes()))),
            }
        }
        self.undo.layers.push(UndoLayer { since: of, ..UndoLayer::default() });
        changes.extend(kept.iter().cloned());
        self.kept.taken.push((of, kept));
        TakenRows { tables: self.tables.len(), changes }
    }

    /// Notes that a snapshot counts: nothing goes back beyond it any more.
    pub fn counts(&mut self, of: SnapshotId) {
        if let Some(at) = self.undo.position(of) {
            self.undo.layers.drain(..at);
        }
        if let Some(at) = self.kept.taken.iter().position(|(taken, _)| *taken == of) {
            self.kept.taken.drain(..=at);
        }
    }

    /// Notes that a snapshot does not count: its changes belong to the next one.
    pub fn give_up(&mut self, of: SnapshotId) {
        if let Some(at) = self.undo.position(of).filter(|at| *at > 0) {
            let later = self.undo.layers.remove(at).before;
            let earlier = &mut self.undo.layers[at - 1].before;
            earlier.resize_with(earlier.len().max(later.len()), Before::default);
            earlier.iter_mut().zip(later).for_each(|(earlier, later)| earlier.append(later));
        }
        if let Some(at) = self.kept.taken.iter().position(|(taken, _)| *taken == of) {
            let (_, taken) = self.kept.taken.remove(at);
            self.kept.left.extend(taken);
        }
    }

    /// Whether the rows can go back to a snapshot. Rows with versions can't.
    pub fn leads_to(&self, of: SnapshotId) -> bool {
        self.undo.position(of).is_some() && !self.have_versions()
    }

    /// Whether a table has a history.
    pub fn have_versions(&self) -> bool {
        self.tables.iter().any(|table| table.spec().history.is_some())
    }

    /// Restores the rows as they were at a snapshot. They must be able to go back to it.
    pub fn go_back_to(&mut self, of: SnapshotId) {
        let at = self.undo.position(of).unwrap_or(0);
        for layer in self.undo.layers.drain(at..).rev() {
            for (table, before) in self.tables.iter_mut().zip(&layer.before) {
                table.rewind(before, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Column, DataType, Key, Schema, TableSpec, Value};

    use super::*;
    use crate::order::Tid;

    fn tables() -> Rows {
        let columns = vec![Column::new("id", DataType::Int), Column::new("n", DataType::Int)];
        let words = TableSpec::new("words", vec![0], Schema::new(columns).into());
        let columns = vec![Column::new("id", DataType::Str), Column::new("n", DataType::Int)];
        let texts = TableSpec::new("texts", vec![0], Schema::new(columns).into());
        Rows::new(&[words, texts], 7)
    }

    /// Empty rows of a snapshot.
    fn begun(since: SnapshotId) -> Rows {
        let mut rows = tables();
        rows.begin(since);
        rows
    }

    /// The rows at a snapshot.
    fn at(state: &Rows, of: SnapshotId) -> Rows {
        let mut rows = state.clone();
        rows.go_back_to(of);
        rows
    }

    fn id(table: u16, n: i64) -> Value {
        match table {
            0 => Value::Int(n),
            _ => Value::str(&n.to_string()),
        }
    }

    /// Writes one row in an epoch of its own, in both tables.
    fn put(state: &mut Rows, tid: u64, n: i64, value: Option<i64>) {
        for table in [0, 1] {
            let row = value.map(|value| Arc::from([id(table, n), Value::Int(value)]));
            state.apply(Tid(tid), TableId(table), &Key::of([&id(table, n)]), row);
        }
        state.end_epoch();
    }

    /// Returns the numbers of the rows, which must be the same in both tables.
    fn numbers(taken: &TakenRows) -> Vec<i64> {
        let of = |table: u16| {
            let mut found = Vec::new();
            taken.changes[usize::from(table)].1.for_each(|_, key, _| {
                found.extend((0..10).find(|n| *Key::of([&id(table, *n)]).0 == *key));
            });
            found.sort_unstable();
            found
        };
        assert_eq!(of(0), of(1));
        of(0)
    }

    #[test]
    fn rows_lead_back_to_the_snapshot_that_counts() {
        let mut state = begun((1, 0));
        put(&mut state, 1, 1, Some(10));
        put(&mut state, 2, 2, Some(20));
        assert_eq!(numbers(&state.take((1, 3))), [1, 2]);
        let third = state.clone();
        put(&mut state, 3, 1, Some(11));
        put(&mut state, 4, 1, Some(12));
        put(&mut state, 5, 2, None);
        assert_eq!(numbers(&state.take((1, 5))), [1, 2], "removed ones, too");
        let fifth = state.clone();
        put(&mut state, 6, 3, Some(30));
        put(&mut state, 7, 2, Some(21));
        for (of, rows) in [((1, 0), tables()), ((1, 3), third), ((1, 5), fifth)] {
            assert!(state.leads_to(of));
            assert_eq!(at(&state, of), rows);
        }
        assert!(!state.leads_to((2, 5)), "another generation's epoch may be another");
        state.counts((1, 3));
        assert!(!state.leads_to((1, 0)));
        assert!(state.leads_to((1, 3)));
    }

    #[test]
    fn what_a_snapshot_took_that_does_not_count_is_in_the_next() {
        let mut state = begun((1, 0));
        put(&mut state, 1, 1, Some(10));
        put(&mut state, 2, 3, Some(30));
        state.take((1, 3));
        put(&mut state, 3, 1, Some(11));
        put(&mut state, 4, 2, Some(20));
        put(&mut state, 5, 3, None);
        state.give_up((1, 3));
        assert!(!state.leads_to((1, 3)));
        assert_eq!(numbers(&state.take((1, 4))), [1, 2, 3]);
        assert_eq!(at(&state, (1, 0)), tables());
    }

    #[test]
    fn versions_after_those_of_an_executor_are_new() {
        let mut state = begun((1, 0));
        // An executor has more versions than there are transactions.
        for (seq, value) in (1..).zip(10..15) {
            let row = [id(0, 1), Value::Int(value)];
            state.tables_mut().0[0].put_by_key(&Key::of([&id(0, 1)]), Some(&row), seq);
        }
        state.has_executed(5, Tid(4));
        state.end_epoch();
        state.take((1, 1));
        let first = state.clone();
        put(&mut state, 5, 1, Some(20));
        state.go_back_to((1, 1));
        assert_eq!(state, first);
    }

    #[test]
    fn rows_that_went_back_change_again() {
        let mut state = begun((1, 0));
        (1..9).for_each(|n| put(&mut state, n as u64, n, Some(n)));
        state.take((1, 1));
        state.counts((1, 1));
        let first = state.clone();
        for tid in 20..40 {
            put(&mut state, tid, tid as i64 % 9, (tid % 3 > 0).then_some(tid as i64));
        }
        state.go_back_to((1, 1));
        state.begin((1, 1));
        assert_eq!(state, first);
        put(&mut state, 11, 5, None);
        put(&mut state, 12, 6, Some(60));
        assert_eq!(numbers(&state.take((2, 2))), [5, 6]);
        assert_eq!(at(&state, (1, 1)), first);
    }
}
