//! What happens when a window is complete: which rows are read and written is found by reading.

use tidemill_core::Value;
use tidemill_txn::program::{Abort, Opaque, Tx};

use super::list::{pack, unpack};
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
            terms.push(row.map_or_else(Vec::new, |row| unpack(&row[CLUSTERS])));
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
        let mut touched = self.touched(now, tx)?;
        let touched_before = self.touched(now - 1, tx)?;
        let mut live: Vec<i64> = Vec::with_capacity(shared.len());
        let (mut most, mut best) = (SIMILAR, None);
        for (cluster, dot) in shared {
            let found = touched.norm2(cluster).or_else(|| touched_before.norm2(cluster));
            let Some(norm2) = found else { continue };
            live.push(cluster);
            let found = similarity(dot, words.len(), norm2);
            if found > most || best.is_none() && found == most {
                (most, best) = (found, Some(cluster));
            }
        }
        let [cluster, tweets, mut norm2, last, count, before] = match best {
            Some(cluster) => state(self.frame, cluster, tx)?,
            None => [tweet, 0, 0, now - 1, 0, 0],
        };
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
            tx.put(self.frame.terms, &[key.clone(), pack(&kept)])?;
        }
        let (count, before) = if last == now { (count, before) } else { (0, count) };
        let state = [cluster, tweets + 1, norm2, now, count + 1, before];
        tx.put(self.frame.clusters, &state.map(Value::Int))?;
        touched.put(cluster, norm2);
        tx.put(self.frame.windows, &[Value::Int(now), pack(&touched.0)])?;
        let found = if best.is_some() { most } else { 1.0 };
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

    /// The clusters that a window has touched so far.
    fn touched(&self, window: i64, tx: &mut dyn Tx) -> Result<Touched, Abort> {
        let row = tx.get(self.frame.windows, &[Value::Int(window)])?;
        Ok(Touched(row.map_or_else(Vec::new, |row| unpack(&row[CLUSTERS]))))
    }
}

/// The clusters that a window has touched, by name: each with the square of its norm behind it.
struct Touched(Vec<i64>);

impl Touched {
    fn place(&self, cluster: i64) -> Result<usize, usize> {
        self.0.as_chunks::<2>().0.binary_search_by_key(&cluster, |[of, _]| *of)
    }

    /// The square of a cluster's norm, if it is there.
    fn norm2(&self, cluster: i64) -> Option<i64> {
        self.place(cluster).ok().map(|place| self.0[2 * place + 1])
    }

    fn put(&mut self, cluster: i64, norm2: i64) {
        match self.place(cluster) {
            Ok(place) => self.0[2 * place + 1] = norm2,
            Err(place) => drop(self.0.splice(2 * place..2 * place, [cluster, norm2])),
        }
    }
}

/// A cluster's row, which is there.
fn state(frame: Frame, cluster: i64, tx: &mut dyn Tx) -> Result<[i64; 6], Abort> {
    match tx.get(frame.clusters, &[Value::Int(cluster)])? {
        Some(row) => Ok(std::array::from_fn(|column| int(&row[column]))),
        None => Err(Abort::refused("there is no such cluster")),
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
        for [cluster, _] in unpack(&row[CLUSTERS]).as_chunks::<2>().0 {
            let [cluster, tweets, _, _, now, before] = state(self.frame, *cluster, tx)?;
            if let Some(growth) = event(now, before, self.window) {
                let [cluster, tweets] = [cluster, tweets].map(Value::Int);
                let row = [merged[0].clone(), cluster, tweets, Value::Float(growth)];
                tx.emit(self.frame.events, &row)?;
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
