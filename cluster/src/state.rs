//! The rows of a worker, with what is needed to undo changes back to its snapshots.

use std::sync::Arc;

use tidemill_core::{Key, TableId, Value};
use tidemill_function::{Rows, Store, Stored, Tid};
use tidemill_table::{Before, Changed};

/// The identity of a snapshot: the generation that took it, and its epoch. The epoch is not enough:
/// an epoch that was executed before its cut was durable may differ in the next generation.
pub type SnapshotId = (u64, u64);

/// The changes since a snapshot, until the next one.
#[derive(Clone, Debug, Default, PartialEq)]
struct UndoLayer {
    since: SnapshotId,
    /// The changed rows as they were then, by table.
    before: Vec<Before>,
}

/// Rows that can go back to snapshots: the one that they began with or that counts, and later ones
/// that may count in the future.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The rows.
    pub rows: Rows,
    /// The changes by snapshot, the oldest first. There is always one, except for the default state
    /// without an owner.
    layers: Vec<UndoLayer>,
}

impl State {
    /// Creates a state with the rows of a snapshot.
    pub fn new(mut rows: Rows, since: SnapshotId) -> State {
        rows.settle();
        State { rows, layers: vec![UndoLayer { since, ..UndoLayer::default() }] }
    }

    /// Takes the rows that have changed since the last snapshot, for the next one. The last epoch
    /// has ended.
    pub fn take(&mut self, of: SnapshotId) -> Vec<Changed> {
        let taken = match self.layers.last() {
            Some(UndoLayer { before, .. }) => self.rows.take_changes_since(before),
            None => Vec::new(),
        };
        self.layers.push(UndoLayer { since: of, ..UndoLayer::default() });
        taken
    }

    /// Notes that a snapshot counts: nothing goes back beyond it any more.
    pub fn counts(&mut self, of: SnapshotId) {
        if let Some(at) = self.layers.iter().position(|layer| layer.since == of) {
            self.layers.drain(..at);
        }
    }

    /// Notes that a snapshot does not count: its changes belong to the next one.
    pub fn give_up(&mut self, of: SnapshotId) {
        let at = self.layers.iter().position(|layer| layer.since == of);
        if let Some(at) = at.filter(|at| *at > 0) {
            let later = self.layers.remove(at).before;
            let earlier = &mut self.layers[at - 1].before;
            earlier.resize_with(earlier.len().max(later.len()), Before::default);
            earlier.iter_mut().zip(later).for_each(|(earlier, later)| earlier.append(later));
        }
    }

    /// Whether the rows can go back to a snapshot.
    pub fn leads_to(&self, of: SnapshotId) -> bool {
        self.layers.iter().any(|layer| layer.since == of)
    }

    /// Returns the rows as they were at a snapshot. These rows must be able to go back to it.
    pub fn back_to(mut self, of: SnapshotId) -> Rows {
        let at = self.layers.iter().position(|layer| layer.since == of);
        for layer in self.layers.drain(at.unwrap_or(0)..).rev() {
            self.rows.rewind(&layer.before);
        }
        self.rows
    }

    /// Injects a defect: only changes since the last part was taken are undone.
    pub(crate) fn spoil_layers(&mut self) {
        if let [earlier @ .., _] = &mut self.layers[..] {
            earlier.iter_mut().for_each(|layer| layer.before.clear());
        }
    }
}

impl Store for State {
    fn get(&self, table: TableId, key: &Key) -> Stored {
        self.rows.get(table, key)
    }

    fn range(
        &self,
        table: TableId,
        from: &Key,
        to: &Key,
        reverse: bool,
        each: &mut dyn FnMut(&Key, &Arc<[Value]>) -> bool,
    ) {
        self.rows.range(table, from, to, reverse, each);
    }

    fn apply(&mut self, tid: Tid, table: TableId, key: &Key, row: Stored) {
        self.rows.apply(tid, table, key, row);
    }

    fn end_epoch(&mut self) {
        match self.layers.last_mut() {
            Some(layer) => self.rows.end_epoch_keeping(&mut layer.before),
            None => self.rows.end_epoch(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Column, DataType, Schema, TableSpec};

    use super::*;

    fn tables() -> Rows {
        let columns = vec![Column::new("id", DataType::Int), Column::new("n", DataType::Int)];
        let words = TableSpec::new("words", vec![0], Schema::new(columns).into());
        let columns = vec![Column::new("id", DataType::Str), Column::new("n", DataType::Int)];
        let texts = TableSpec::new("texts", vec![0], Schema::new(columns).into());
        Rows::new(&[words, texts])
    }

    fn id(table: u16, n: i64) -> Value {
        match table {
            0 => Value::Int(n),
            _ => Value::str(&n.to_string()),
        }
    }

    /// Writes one row in an epoch of its own, in both tables.
    fn put(state: &mut State, tid: u64, n: i64, value: Option<i64>) {
        for table in [0, 1] {
            let row = value.map(|value| Arc::from([id(table, n), Value::Int(value)]));
            state.apply(Tid(tid), TableId(table), &Key::of([&id(table, n)]), row);
        }
        state.end_epoch();
    }

    /// Returns the numbers of the rows, which must be the same in both tables.
    fn numbers(taken: &[Changed]) -> Vec<i64> {
        let of = |table: u16| {
            let mut found = Vec::new();
            taken[usize::from(table)].for_each(|_, key, _| {
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
        let mut state = State::new(tables(), (1, 0));
        put(&mut state, 1, 1, Some(10));
        put(&mut state, 2, 2, Some(20));
        assert_eq!(numbers(&state.take((1, 3))), [1, 2]);
        let third = state.rows.clone();
        put(&mut state, 3, 1, Some(11));
        put(&mut state, 4, 1, Some(12));
        put(&mut state, 5, 2, None);
        assert_eq!(numbers(&state.take((1, 5))), [1, 2], "removed ones, too");
        let fifth = state.rows.clone();
        put(&mut state, 6, 3, Some(30));
        put(&mut state, 7, 2, Some(21));
        for (of, rows) in [((1, 0), tables()), ((1, 3), third), ((1, 5), fifth)] {
            assert!(state.leads_to(of));
            assert_eq!(state.clone().back_to(of), rows);
        }
        assert!(!state.leads_to((2, 5)), "another generation's epoch may be another");
        state.counts((1, 3));
        assert!(!state.leads_to((1, 0)));
        assert!(state.leads_to((1, 3)));
    }

    #[test]
    fn what_a_snapshot_took_that_does_not_count_is_in_the_next() {
        let mut state = State::new(tables(), (1, 0));
        put(&mut state, 1, 1, Some(10));
        put(&mut state, 2, 3, Some(30));
        state.take((1, 3));
        put(&mut state, 3, 1, Some(11));
        put(&mut state, 4, 2, Some(20));
        put(&mut state, 5, 3, None);
        state.give_up((1, 3));
        assert!(!state.leads_to((1, 3)));
        assert_eq!(numbers(&state.take((1, 4))), [1, 2, 3]);
        assert_eq!(state.back_to((1, 0)), tables());
    }

    #[test]
    fn rows_that_went_back_change_again() {
        let mut state = State::new(tables(), (1, 0));
        (1..9).for_each(|n| put(&mut state, n as u64, n, Some(n)));
        state.take((1, 1));
        state.counts((1, 1));
        let first = state.rows.clone();
        for tid in 20..40 {
            put(&mut state, tid, tid as i64 % 9, (tid % 3 > 0).then_some(tid as i64));
        }
        let mut state = State::new(state.back_to((1, 1)), (1, 1));
        assert_eq!(state.rows, first);
        put(&mut state, 11, 5, None);
        put(&mut state, 12, 6, Some(60));
        assert_eq!(numbers(&state.take((2, 2))), [5, 6]);
        assert_eq!(state.back_to((1, 1)), first);
    }
}
