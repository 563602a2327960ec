//! Prediction of the rows that an event's transaction uses. It learns from which columns of earlier
//! events the keys were.
//!
//! Only time depends on it: a node requests predicted rows together instead of one after the other.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tidemill_core::{Row, StreamId, TableId, Value};

/// The uses that are observed before their common columns count as the rule, and the most that are
/// observed at all.
const ENOUGH: u32 = 8;
const MOST: u32 = 256;
/// The most events that are compared for a use.
pub(super) const EVENTS: usize = 256;
/// The most kinds of uses of one table by a stream's events.
const KINDS: usize = 4;
/// The most columns of events that are compared, because each is a bit.
const COLUMNS: usize = 64;

/// The observed uses, by stream.
#[derive(Default)]
pub(super) struct Likely(Mutex<BTreeMap<StreamId, Uses>>);

/// The uses of tables by a stream's events.
#[derive(Default)]
struct Uses {
    seen: u32,
    tables: BTreeMap<TableId, Vec<Kind>>,
}

/// A kind of use: for each column of the key, the event's columns that have always been equal to
/// it, as bits.
struct Kind {
    seen: u32,
    columns: Vec<u64>,
}

impl Likely {
    /// Whether uses by events of this stream are still worth observing.
    pub fn learns(&self, stream: StreamId) -> bool {
        self.0.lock().get(&stream).is_none_or(|uses| uses.seen < MOST)
    }

    /// Observes that a row is used while these events of a stream are executed.
    pub fn used(&self, stream: StreamId, events: &[Row], table: TableId, key: &[Value]) {
        // For each column of the key, the equal columns of all events that match the whole key.
        if !self.learns(stream) {
            return;
        }
        let columns = |event: &Row| -> Vec<u64> {
            let bits = |value: &Value| {
                let same = |(_, of): &(usize, &Value)| *of == value;
                event
                    .iter()
                    .enumerate()
                    .take(COLUMNS)
                    .filter(same)
                    .fold(0, |b, (at, _)| b | 1 << at)
            };
            key.iter().map(bits).collect()
        };
        let found = events.iter().map(columns).filter(|found| found.iter().all(|bits| *bits != 0));
        let found = found.reduce(|all, one| all.iter().zip(&one).map(|(a, b)| a | b).collect());
        let mut known = self.0.lock();
        let uses = known.entry(stream).or_default();
        uses.seen += 1;
        let kinds = uses.tables.entry(table).or_default();
        let Some(found) = found else { return };
        let common = |kind: &Kind| -> Vec<u64> {
            kind.columns.iter().zip(&found).map(|(a, b)| a & b).collect()
        };
        let fits = |kind: &&mut Kind| common(kind).iter().all(|bits| *bits != 0);
        let is_new = kinds.len() < KINDS;
        match kinds.iter_mut().find(fits) {
            Some(kind) => (kind.columns, kind.seen) = (common(kind), kind.seen + 1),
            None if is_new => kinds.push(Kind { seen: 1, columns: found }),
            None => {}
        }
    }

    /// Calls `each` with the keys that these events will probably use.
    pub fn expected(
        &self,
        events: &[(StreamId, &[Value])],
        mut each: impl FnMut(TableId, Vec<Value>),
    ) {
        let known = self.0.lock();
        for (stream, event) in events {
            let Some(uses) = known.get(stream) else { continue };
            let kinds =
                uses.tables.iter().flat_map(|(table, of)| of.iter().map(move |k| (table, k)));
            for (table, kind) in kinds.filter(|(_, kind)| kind.seen >= ENOUGH) {
                let value = |bits: &u64| event.get(bits.trailing_zeros() as usize).cloned();
                if let Some(key) = kind.columns.iter().map(value).collect() {
                    each(*table, key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(3);

    fn row(values: &[i64]) -> Row {
        values.iter().map(|value| Value::Int(*value)).collect()
    }

    fn expected(likely: &Likely, event: &[i64]) -> Vec<(u16, Row)> {
        let (mut found, event) = (Vec::new(), row(event));
        likely.expected(&[(STREAM, &event)], |table, key| found.push((table.0, key.into())));
        found
    }

    #[test]
    fn what_keys_have_always_been_they_will_be() {
        let likely = Likely::default();
        for n in 0..80 {
            // Two rows of one table, one of another, and one that no column determines.
            let events = [row(&[n, n * 7 % 5, n + 100]), row(&[n + 1, n * 3 % 5, n + 200])];
            for event in &events {
                let key = |columns: &[usize]| -> Row {
                    columns.iter().map(|at| event[*at].clone()).collect()
                };
                for (table, key) in
                    [(0, key(&[0])), (0, key(&[2])), (1, key(&[1, 0])), (2, row(&[-n]))]
                {
                    likely.used(STREAM, &events, TableId(table), &key);
                }
            }
        }
        assert!(!likely.learns(STREAM) && likely.learns(StreamId(4)));
        let found = expected(&likely, &[70, 2, 999]);
        assert_eq!(found, [(0, row(&[70])), (0, row(&[999])), (1, row(&[2, 70]))]);
        // An event of another version, which has fewer columns.
        assert_eq!(expected(&likely, &[70]), [(0, row(&[70]))]);
        assert!(expected(&Likely::default(), &[70, 2, 999]).is_empty());
    }
}
