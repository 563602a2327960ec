//! What happens when a window is complete: which rows are read and written is found by reading.

use tidemill_core::Value;
use tidemill_txn::program::{Abort, Opaque, Tx};

use super::program::{word, Frame};
use super::{event, similarity, SIMILAR};

/// Where columns are in a row of `tweets`.
const COUNT: usize = 2;
const FIRST: usize = 3;
/// Where the list is in a row of `terms` and of `windows`.
const CLUSTERS: usize = 1;

/// Makes of a complete window an event for each of its tweets, and one behind them.
pub(super) struct Close {
    pub(super) frame: Frame,
    pub(super) window: i64,
}

impl Opaque for Close {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let now = int(&event[0]);
        for tweet in now * self.window..(now + 1) * self.window {
            tx.emit(self.frame.candidates, &[Value::Int(tweet), Value::Int(now)])?;
        }
        tx.emit(self.frame.merged, &[Value::Int(now)])
    }
}

/// Merges a tweet that has a word which bursts into the most similar cluster, or opens one.
pub(super) struct Cluster {
    pub(super) frame: Frame,
}

impl Opaque for Cluster {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let (tweet, now) = (int(&event[0]), int(&event[1]));
        let Some(row) = tx.get(self.frame.tweets, &event[..1])? else {
            return Err(Abort::refused("there is no such tweet"));
        };
        let words = &row[FIRST..][..int(&row[COUNT]) as usize];
        if !self.bursts(words, now, tx)? {
            return Ok(());
        }
        let mut terms = Vec::with_capacity(words.len());
        for key in words {
            let row = tx.get(self.frame.terms, std::slice::from_ref(key))?;
            terms.push(row.map_or_else(Vec::new, |row| list(&row[CLUSTERS])));
        }
        // Per cluster that shares a word: the product of the two.
        let mut shared: Vec<(i64, i64)> = Vec::new();
        for [cluster, count] in terms.iter().flat_map(|term| term.as_chunks::<2>().0) {
            match shared.iter_mut().find(|(other, _)| other == cluster) {
                Some((_, dot)) => *dot += count,
                None => shared.push((*cluster, *count)),
            }
        }
        shared.sort_unstable();
        let mut live: Vec<i64> = Vec::with_capacity(shared.len());
        let mut best: Option<(f64, [i64; 6])> = None;
        for (cluster, dot) in shared {
            let Some(state) = self.state(cluster, tx)? else { continue };
            let [_, _, norm2, touched, ..] = state;
            if touched < now - 1 {
                continue;
            }
            live.push(cluster);
            let found = similarity(dot, words.len(), norm2);
            if found >= SIMILAR && best.is_none_or(|(most, _)| found > most) {
                best = Some((found, state));
            }
        }
        let (found, state) = best.unwrap_or((1.0, [tweet, 0, 0, now - 1, 0, 0]));
        let [cluster, tweets, mut norm2, touched, count, before] = state;
        for (key, term) in words.iter().zip(terms) {
            let (mut kept, mut had) = (Vec::with_capacity(term.len() + 2), 0);
            for [of, count] in term.as_chunks::<2>().0 {
                // What no tweet can be merged into any more goes.
                if *of == cluster {
                    had = *count;
                    kept.extend([*of, count + 1]);
                } else if live.binary_search(of).is_ok() {
                    kept.extend([*of, *count]);
                }
            }
            if had == 0 {
                kept.extend([cluster, 1]);
            }
            norm2 += 2 * had + 1;
            tx.put(self.frame.terms, &[key.clone(), bytes(&kept)])?;
        }
        let (count, before) = if touched == now { (count, before) } else { (0, count) };
        if count == 0 {
            self.touch(cluster, now, tx)?;
        }
        let state = [cluster, tweets + 1, norm2, now, count + 1, before];
        tx.put(self.frame.clusters, &state.map(Value::Int))?;
        let merge = [Value::Int(tweet), Value::Int(cluster), Value::Float(found)];
        tx.emit(self.frame.merges, &merge)
    }
}

impl Cluster {
    /// Whether one of these words bursts in a window.
    fn bursts(&self, words: &[Value], now: i64, tx: &mut dyn Tx) -> Result<bool, Abort> {
        for key in words {
            let row = tx.get(self.frame.words, std::slice::from_ref(key))?;
            if row.is_some_and(|row| int(&row[word::BURST]) == now) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A cluster's row.
    fn state(&self, cluster: i64, tx: &mut dyn Tx) -> Result<Option<[i64; 6]>, Abort> {
        let row = tx.get(self.frame.clusters, &[Value::Int(cluster)])?;
        Ok(row.map(|row| std::array::from_fn(|column| int(&row[column]))))
    }

    /// A window has touched a cluster for the first time.
    fn touch(&self, cluster: i64, now: i64, tx: &mut dyn Tx) -> Result<(), Abort> {
        let row = tx.get(self.frame.windows, &[Value::Int(now)])?;
        let mut touched = row.map_or_else(Vec::new, |row| list(&row[CLUSTERS]));
        touched.push(cluster);
        tx.put(self.frame.windows, &[Value::Int(now), bytes(&touched)])
    }
}

/// Reports the clusters that are events in a window.
pub(super) struct Select {
    pub(super) frame: Frame,
    pub(super) window: i64,
}

impl Opaque for Select {
    fn call(&self, merged: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let Some(row) = tx.get(self.frame.windows, merged)? else { return Ok(()) };
        let functions = Cluster { frame: self.frame };
        for cluster in list(&row[CLUSTERS]) {
            let Some(state) = functions.state(cluster, tx)? else { continue };
            let [_, tweets, _, _, now, before] = state;
            if let Some(growth) = event(now, before, self.window) {
                let row = [merged[0].clone(), Value::Int(cluster), Value::Int(tweets)];
                let [window, cluster, tweets] = row;
                tx.emit(self.frame.events, &[window, cluster, tweets, Value::Float(growth)])?;
            }
        }
        Ok(())
    }
}

/// An integer of a row.
fn int(value: &Value) -> i64 {
    match value {
        Value::Int(int) => *int,
        other => unreachable!("{other} is in a column of integers"),
    }
}

/// The integers of a list, as rows have it.
fn list(value: &Value) -> Vec<i64> {
    match value {
        Value::Bytes(bytes) => {
            bytes.as_chunks::<8>().0.iter().map(|eight| i64::from_le_bytes(*eight)).collect()
        }
        other => unreachable!("{other} is in a column of bytes"),
    }
}

/// Integers as a list for a row.
pub(super) fn bytes(list: &[i64]) -> Value {
    Value::Bytes(list.iter().flat_map(|int| int.to_le_bytes()).collect())
}
