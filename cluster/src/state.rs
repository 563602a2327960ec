//! The rows of a worker, with what is needed to undo changes back to its snapshots.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use tidemill_core::{Key, TableId, Value};
use tidemill_function::{Rows, Store, Stored, Tid};

/// The identity of a snapshot: the generation that took it, and its epoch. The epoch is not enough:
/// an epoch that was executed before its cut was durable may differ in the next generation.
pub type SnapshotId = (u64, u64);

/// The changes since a snapshot, until the next one.
#[derive(Clone, Debug, Default, PartialEq)]
struct UndoLayer {
    since: SnapshotId,
    /// The changed rows as they were then.
    before: HashMap<(TableId, Key), Stored, FixedState>,
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
    pub fn new(rows: Rows, since: SnapshotId) -> State {
        State { rows, layers: vec![UndoLayer { since, ..UndoLayer::default() }] }
    }

    /// Takes the rows that have changed since the last snapshot, or all rows, for the next one.
    /// Removed rows are included in both cases.
    pub fn take(&mut self, all: bool, of: SnapshotId) -> Vec<(TableId, Key, Stored)> {
        let changed = self.layers.last().map(|layer| &layer.before);
        let changed = changed.into_iter().flat_map(HashMap::keys).map(|(table, key)| {
            let row = self.rows.get(*table, key);
            (*table, key.clone(), row)
        });
        let mut taken: Vec<_> = match all {
            false => changed.collect(),
            true => changed.filter(|(.., row)| row.is_none()).collect(),
        };
        if all {
            let row = |(table, key, row): (TableId, &Key, &Arc<[Value]>)| {
                (table, key.clone(), Some(row.clone()))
            };
            taken.extend(self.rows.iter().map(row));
        }
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
            for (key, row) in later {
                earlier.entry(key).or_insert(row);
            }
        }
    }

    /// Whether the rows can go back to a snapshot.
    pub fn leads_to(&self, of: SnapshotId) -> bool {
        self.layers.iter().any(|layer| layer.since == of)
    }

    /// Returns the rows as they were at a snapshot. These rows must be able to go back to it.
    pub fn back_to(mut self, of: SnapshotId) -> State {
        let at = self.layers.iter().position(|layer| layer.since == of);
        for layer in self.layers.drain(at.unwrap_or(0)..).rev() {
            for ((table, key), row) in layer.before {
                self.rows.apply(Tid(0), table, &key, row);
            }
        }
        State::new(self.rows, of)
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
        each: &mut dyn FnMut(&Key, &Arc<[Value]>) -> bool,
    ) {
        self.rows.range(table, from, to, each);
    }

    fn apply(&mut self, tid: Tid, table: TableId, key: &Key, row: Stored) {
        if let Some(layer) = self.layers.last_mut() {
            let rows = &self.rows;
            let before = layer.before.entry((table, key.clone()));
            before.or_insert_with(|| rows.get(table, key));
        }
        self.rows.apply(tid, table, key, row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> Key {
        Key([n][..].into())
    }

    fn put(state: &mut State, n: u8, value: Option<i64>) {
        let row = value.map(|value| Arc::from([Value::Int(value)]));
        state.apply(Tid(1), TableId(0), &key(n), row);
    }

    fn keys(taken: &[(TableId, Key, Stored)]) -> Vec<Key> {
        let mut keys: Vec<Key> = taken.iter().map(|(_, key, _)| key.clone()).collect();
        keys.sort();
        keys
    }

    #[test]
    fn rows_lead_back_to_the_snapshot_that_counts() {
        let mut state = State::new(Rows::new(1), (1, 0));
        put(&mut state, 1, Some(10));
        put(&mut state, 2, Some(20));
        assert_eq!(keys(&state.take(false, (1, 3))), [key(1), key(2)]);
        let third = state.rows.clone();
        put(&mut state, 1, Some(11));
        put(&mut state, 2, None);
        assert_eq!(keys(&state.take(true, (1, 5))), [key(1), key(2)], "removed ones, too");
        let fifth = state.rows.clone();
        put(&mut state, 3, Some(30));
        for (of, rows) in [((1, 0), Rows::new(1)), ((1, 3), third), ((1, 5), fifth)] {
            assert!(state.leads_to(of));
            assert_eq!(state.clone().back_to(of), State::new(rows, of));
        }
        assert!(!state.leads_to((2, 5)), "another generation's epoch may be another");
        state.counts((1, 3));
        assert!(!state.leads_to((1, 0)));
        assert!(state.leads_to((1, 3)));
    }

    #[test]
    fn what_a_snapshot_took_that_does_not_count_is_in_the_next() {
        let mut state = State::new(Rows::new(1), (1, 0));
        put(&mut state, 1, Some(10));
        state.take(false, (1, 3));
        put(&mut state, 1, Some(11));
        put(&mut state, 2, Some(20));
        state.give_up((1, 3));
        assert!(!state.leads_to((1, 3)));
        assert_eq!(keys(&state.take(false, (1, 4))), [key(1), key(2)]);
        assert_eq!(state.back_to((1, 0)).rows, Rows::new(1));
    }
}
