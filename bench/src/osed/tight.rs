//! The baseline of Online Social Event Detection: the loop that one would write for this workload
//! only.
//!
//! It uses one thread. A word is looked up once for each tweet that has it, and is then a place in
//! an array. Clusters are places from the beginning. Similarities are added up in an array. There
//! are no versions, and outputs are plain tuples.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::tweets::Played;
use super::{event, score, similarity, NEVER, RISE, SIMILAR};

/// The state of a word.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) number: i64,
    /// The last window that has it.
    pub(super) window: i64,
    pub(super) count: i64,
    pub(super) tweets: i64,
    pub(super) score: f64,
    pub(super) before: f64,
    pub(super) burst: i64,
    /// The clusters that have it, and in how many tweets.
    pub(super) terms: Vec<(u32, i64)>,
}

/// The state of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) first: i64,
    pub(super) tweets: i64,
    pub(super) norm2: i64,
    pub(super) window: i64,
    pub(super) now: i64,
    pub(super) before: i64,
}

/// A cluster that is an event in a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) window: i64,
    pub(super) cluster: i64,
    pub(super) tweets: i64,
    pub(super) growth: f64,
}

/// The baseline's tables and outputs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tight {
    places: HashMap<i64, u32, FixedState>,
    pub(super) words: Vec<Word>,
    pub(super) clusters: Vec<Cluster>,
    /// The clusters that each window has touched, with the squares of their norms.
    pub(super) touched: Vec<Vec<[i64; 2]>>,
    /// The cluster that each tweet was merged into, and their similarity.
    pub(super) merges: Vec<(i64, i64, f64)>,
    pub(super) events: Vec<Found>,
    /// The product of each cluster with the present tweet, and the clusters with a nonzero product.
    dots: Vec<i64>,
    shared: Vec<u32>,
    /// The clusters that the window has touched so far.
    found: Vec<u32>,
}

impl Tight {
    /// Executes all tweets in order.
    #[inline(never)]
    pub(super) fn run(&mut self, tweets: &Played, window: i64) {
        // The words of the window's tweets, concatenated, and the end of each tweet.
        let (mut words, mut ends) = (Vec::new(), Vec::new());
        for at in 0..tweets.count as i64 {
            let now = at / window;
            for number in &tweets.at(at as usize).words {
                words.push(self.count(*number, now, window, at + 1));
            }
            ends.push(words.len());
            if (at + 1) % window == 0 {
                let mut begun = 0;
                for (nth, end) in ends.drain(..).enumerate() {
                    self.cluster(now * window + nth as i64, &words[begun..end], now);
                    begun = end;
                }
                self.select(now, window);
                words.clear();
            }
        }
    }

    /// Counts a word; returns its place.
    fn count(&mut self, number: i64, now: i64, window: i64, seen: i64) -> u32 {
        let place = *self.places.entry(number).or_insert(self.words.len() as u32);
        if place as usize == self.words.len() {
            self.words.push(Word {
                number,
                window: NEVER,
                count: 0,
                tweets: 0,
                score: 0.0,
                before: 0.0,
                burst: NEVER,
                terms: Vec::new(),
            });
        }
        let word = &mut self.words[place as usize];
        if word.window != now {
            word.before = if word.window == now - 1 { word.score } else { 0.0 };
            (word.window, word.count) = (now, 0);
        }
        word.count += 1;
        word.tweets += 1;
        word.score = score(word.count, window, seen, word.tweets);
        word.burst = if word.score - word.before >= RISE { now } else { NEVER };
        place
    }

    /// Merges a tweet into a cluster, if one of its words bursts.
    fn cluster(&mut self, tweet: i64, words: &[u32], now: i64) {
        if !words.iter().any(|place| self.words[*place as usize].burst == now) {
            return;
        }
        for place in words {
            for (cluster, count) in &self.words[*place as usize].terms {
                let dot = &mut self.dots[*cluster as usize];
                if *dot == 0 {
                    self.shared.push(*cluster);
                }
                *dot += count;
            }
        }
        // Of equals, the first is the one that was opened first.
        let mut best: Option<(f64, u32)> = None;
        for cluster in self.shared.drain(..) {
            let dot = std::mem::take(&mut self.dots[cluster as usize]);
            let state = &self.clusters[cluster as usize];
            let found = similarity(dot, words.len(), state.norm2);
            let is_better =
                |(most, first): (f64, u32)| found > most || found == most && cluster < first;
            if state.window >= now - 1 && found >= SIMILAR && best.is_none_or(is_better) {
                best = Some((found, cluster));
            }
        }
        let (found, cluster) = best.unwrap_or_else(|| {
            let (tweets, norm2, window) = (0, 0, now - 1);
            self.clusters.push(Cluster { first: tweet, tweets, norm2, window, now: 0, before: 0 });
            self.dots.push(0);
            (1.0, self.clusters.len() as u32 - 1)
        });
        let mut added = 0;
        for place in words {
            let terms = &mut self.words[*place as usize].terms;
            let clusters = &self.clusters;
            terms.retain(|(other, _)| clusters[*other as usize].window >= now - 1);
            match terms.iter_mut().find(|(other, _)| *other == cluster) {
                Some((_, count)) => {
                    added += 2 * *count + 1;
                    *count += 1;
                }
                None => {
                    added += 1;
                    terms.push((cluster, 1));
                }
            }
        }
        let state = &mut self.clusters[cluster as usize];
        if state.window != now {
            (state.before, state.now, state.window) = (state.now, 0, now);
        }
        if state.now == 0 {
            self.found.push(cluster);
        }
        state.now += 1;
        state.tweets += 1;
        state.norm2 += added;
        self.merges.push((tweet, state.first, found));
    }

    /// Finds the events of a window.
    fn select(&mut self, now: i64, window: i64) {
        self.found.sort_unstable();
        let mut touched = Vec::with_capacity(self.found.len());
        for cluster in self.found.drain(..) {
            let Cluster { first, tweets, norm2, now: count, before, .. } =
                self.clusters[cluster as usize];
            touched.push([first, norm2]);
            if let Some(growth) = event(count, before, window) {
                self.events.push(Found { window: now, cluster: first, tweets, growth });
            }
        }
        self.touched.push(touched);
    }
}
