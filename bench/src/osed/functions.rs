//! The functions on complete windows. They find the rows that they read and write at run time.

use tidemill_core::Value;
use tidemill_txn::program::{Abort, Opaque, Tx};

use super::list::{pack, unpack};
use super::program::{word, Frame};
use super::{event, similarity, SIMILAR};
use crate::events::int;

/// The places of columns in a row of `tweets`.
const COUNT: usize = 2;
const FIRST: usize = 3;
/// The place of the list in a row of `terms` and of `windows`.
const CLUSTERS: usize = 1;

/// Turns a complete window into an event for each of its tweets, and one after them.
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

/// Merges a tweet with a bursting word into the most similar cluster, or opens one.
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
        let terms = self.terms(words, tx)?;
        let (mut touched, earlier) = (self.touched(now, tx)?, self.touched(now - 1, tx)?);
        let norm2 = |cluster| touched.norm2(cluster).or_else(|| earlier.norm2(cluster));
        let live = |[cluster, dot]: [i64; 2]| Some([cluster, dot, norm2(cluster)?]);
        let live: Vec<[i64; 3]> = products(&terms).into_iter().filter_map(live).collect();
        let nearest = nearest(&live, words.len());
        let [cluster, tweets, norm2, last, count, before] = match nearest {
            Some((cluster, _)) => state(self.frame, cluster, tx)?,
            None => [tweet, 0, 0, now - 1, 0, 0],
        };
        let norm2 = norm2 + self.add(words, &terms, cluster, &live, tx)?;
        let (count, before) = if last == now { (count, before) } else { (0, count) };
        let state = [cluster, tweets + 1, norm2, now, count + 1, before];
        tx.put(self.frame.clusters, &state.map(Value::Int))?;
        touched.put(cluster, norm2);
        tx.put(self.frame.windows, &[Value::Int(now), pack(&touched.0)])?;
        let found = nearest.map_or(1.0, |(_, found)| found);
        let merge = [Value::Int(tweet), Value::Int(cluster), Value::Float(found)];
        tx.emit(self.frame.merges, &merge)
    }
}

/// Returns the product of a tweet with each cluster that shares a word with it, in the order of the
/// clusters. `terms` has the clusters of each of its words.
fn products(terms: &[Vec<i64>]) -> Vec<[i64; 2]> {
    let mut products: Vec<[i64; 2]> = Vec::new();
    terms.iter().for_each(|term| products.extend(term.as_chunks::<2>().0));
    products.sort_unstable();
    products.dedup_by(|next, sum| {
        let is_same = next[0] == sum[0];
        sum[1] += if is_same { next[1] } else { 0 };
        is_same
    });
    products
}

/// Returns the most similar cluster to a tweet with this many words, the first of equals, if one is
/// similar enough. Each cluster has its product with the tweet and the square of its norm.
fn nearest(live: &[[i64; 3]], words: usize) -> Option<(i64, f64)> {
    let mut nearest = None;
    for [cluster, dot, norm2] in live {
        let found = similarity(*dot, words, *norm2);
        if found >= SIMILAR && nearest.is_none_or(|(_, most)| found > most) {
            nearest = Some((*cluster, found));
        }
    }
    nearest
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

    /// Returns the clusters of each of these words, each followed by the number of tweets.
    fn terms(&self, words: &[Value], tx: &mut dyn Tx) -> Result<Vec<Vec<i64>>, Abort> {
        let term = |key: &Value| -> Result<Vec<i64>, Abort> {
            let row = tx.get(self.frame.terms, std::slice::from_ref(key))?;
            Ok(row.map_or_else(Vec::new, |row| unpack(&row[CLUSTERS])))
        };
        words.iter().map(term).collect()
    }

    /// Adds words to a cluster; returns the change of the square of its norm. Drops clusters that
    /// no tweet can be merged into any more.
    fn add(
        &self,
        words: &[Value],
        terms: &[Vec<i64>],
        cluster: i64,
        live: &[[i64; 3]],
        tx: &mut dyn Tx,
    ) -> Result<i64, Abort> {
        let mut added = 0;
        for (key, term) in words.iter().zip(terms) {
            let (mut kept, mut had) = (Vec::with_capacity(term.len() + 2), 0);
            for [of, count] in term.as_chunks::<2>().0 {
                if *of == cluster {
                    had = *count;
                    kept.extend([*of, count + 1]);
                } else if live.binary_search_by_key(of, |[live, ..]| *live).is_ok() {
                    kept.extend([*of, *count]);
                }
            }
            if had == 0 {
                kept.extend([cluster, 1]);
            }
            added += 2 * had + 1;
            tx.put(self.frame.terms, &[key.clone(), pack(&kept)])?;
        }
        Ok(added)
    }

    /// Returns the clusters that a window has touched so far.
    fn touched(&self, window: i64, tx: &mut dyn Tx) -> Result<Touched, Abort> {
        let row = tx.get(self.frame.windows, &[Value::Int(window)])?;
        Ok(Touched(row.map_or_else(Vec::new, |row| unpack(&row[CLUSTERS]))))
    }
}

/// The clusters that a window has touched, by name, each followed by the square of its norm.
struct Touched(Vec<i64>);

impl Touched {
    fn place(&self, cluster: i64) -> Result<usize, usize> {
        self.0.as_chunks::<2>().0.binary_search_by_key(&cluster, |[of, _]| *of)
    }

    /// Returns the square of a cluster's norm, if the cluster is among them.
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

/// Returns a cluster's row, which must exist.
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
