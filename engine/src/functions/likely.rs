//! Prediction of the rows that an event's transaction uses. It learns from which columns of earlier
//! events the keys were.
//!
//! Only time depends on it: a node requests predicted rows together instead of one after the other.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tidemill_core::{StreamId, TableId, Value};

/// The uses that are observed before their common columns count as the rule, and the most that are
/// observed at all.
const ENOUGH: u32 = 8;
const MOST: u32 = 256;
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

    /// Observes that a row is used while this event of a stream is executed.
    pub fn used(&self, stream: StreamId, event: &[Value], table: TableId, key: &[Value]) {
        if !self.learns(stream) {
            return;
        }
        // For each column of the key, the columns of the event that are equal to it.
        let bits = |value: &Value| {
            let same = |(_, of): &(usize, &Value)| *of == value;
            let columns = event.iter().enumerate().take(COLUMNS).filter(same);
            columns.fold(0, |bits, (at, _)| bits | 1 << at)
        };
        let found: Vec<u64> = key.iter().map(bits).collect();
        let found = Some(found).filter(|found| found.iter().all(|bits| *bits != 0));
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

    /// Returns the keys that this event will probably use, each with its table.
    pub fn expected(&self, stream: StreamId, event: &[Value]) -> Vec<(TableId, Vec<Value>)> {
        let known = self.0.lock();
        let Some(uses) = known.get(&stream) else { return Vec::new() };
        let kinds = uses.tables.iter().flat_map(|(table, of)| of.iter().map(move |k| (*table, k)));
        let key = |(table, kind): (TableId, &Kind)| {
            let value = |bits: &u64| event.get(bits.trailing_zeros() as usize).cloned();
            Some((table, kind.columns.iter().map(value).collect::<Option<_>>()?))
        };
        kinds.filter(|(_, kind)| kind.seen >= ENOUGH).filter_map(key).collect()
    }
}

#[cfg(test)]
mod tests {
    use tidemill_core::Row;

    use super::*;

    const STREAM: StreamId = StreamId(3);

    fn row(values: &[i64]) -> Row {
        values.iter().map(|value| Value::Int(*value)).collect()
    }

    fn expected(likely: &Likely, event: &[i64]) -> Vec<(u16, Row)> {
        let found = likely.expected(STREAM, &row(event)).into_iter();
        found.map(|(table, key)| (table.0, key.into())).collect()
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
                    likely.used(STREAM, event, TableId(table), &key);
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
