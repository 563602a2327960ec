//! Online Social Event Detection: what people suddenly write about.
//!
//! Tweets come in windows of 400 (or `--window`). Five operators work on shared tables, each of their
//! steps a transaction:
//!
//! | operator | handler, by | what it does |
//! | --- | --- | --- |
//! | tweet registrant | `register`, each tweet | inserts the tweet, split into words, into `tweets` |
//! | word updater | `count`, each tweet | counts each of its words in `words`: in the window, and in all |
//! | trend calculator | `trend`, each tweet | writes each word's TF-IDF in the window, and whether it has risen by 0.001 or more over the window before: a burst. The last tweet of a window emits the window |
//! | similarity calculator | `cluster`, each tweet of a window that is complete | of a tweet with a word that bursts, merges the words into the most similar of the clusters that the last two windows have touched, or, when no cosine similarity is 0.05 or more, opens a cluster |
//! | event selector | `select`, each window, once its tweets are merged | reports the clusters that have grown by more than 0.001 of the window's tweets over the window before, and that have 5 % of them |
//!
//! `close`, between the two halves, makes of a complete window an event for each of its tweets. Which
//! cluster is written is known only when all similarities are: it is a computed key. A cluster is named
//! by the tweet that has opened it. The words of clusters are kept by word, in `terms`: so a tweet meets
//! those clusters only that share a word with it, and the similarity to all others is 0.
//!
//! TF is the share of the window's tweets that have the word, IDF the logarithm of all tweets so far to
//! those with the word, as of the last tweet in the window that has it. The similarity is the cosine of
//! the angle between a tweet's words and a cluster's, which count how many of its tweets have them.
//!
//! The tweets are those of CrisisLexT6 (`bench/data/crisislex`): labelled ones of six crises, each in
//! the order of their ids. Nothing that detects sees a label; only the report compares.
//!
//! What must hold: tables and outputs are those of the baseline, bit for bit.
//!
//! | file | what it is |
//! | --- | --- |
//! | `tweets` | the tweets: read, put in order, played as often as wanted |
//! | `words` | a text as words |
//! | `program` | tables, streams, and the closures on each tweet |
//! | `functions` | the opaque functions on windows that are complete |
//! | `list` | lists in rows |
//! | `tight` | the baseline |
//! | `found` | what was detected, beside the labels |
//! | `run` | all of it as the harness takes it |

mod found;
mod functions;
mod list;
mod program;
mod run;
mod tight;
mod tweets;
mod words;

#[cfg(test)]
mod tests;

use tidemill_core::{Error, Result};

use crate::args::Args;

pub(crate) use run::run;

/// Tweets of a window when the options do not say.
const WINDOW: i64 = 400;
/// The longest windows: sums over one are exact floats.
const WINDOW_MAX: i64 = 1_000_000;
/// Words of a tweet, at most; the others do not count.
const WORDS: usize = 16;
/// A word whose TF-IDF rises by so much from window to window bursts.
const RISE: f64 = 0.001;
/// A tweet is merged into a cluster that is at least so similar.
const SIMILAR: f64 = 0.05;
/// A cluster that grows by a larger share of the window's tweets may be an event.
const GROWTH: f64 = 0.001;
/// It is one if it has at least this share of the window's tweets. Two tweets with a word in common
/// make a cluster; without a least size nearly every tweet would be an event.
const SHARE: f64 = 0.05;
/// Of a word or cluster in no window.
const NEVER: i64 = -2;

/// How many tweets the options want a window to have.
fn window(args: &Args) -> Result<i64> {
    let window = args.window.unwrap_or(WINDOW);
    match (1..=WINDOW_MAX).contains(&window) {
        true => Ok(window),
        false => Err(Error::setting(format!("--window {window}: it must be 1 to {WINDOW_MAX}"))),
    }
}

/// TF-IDF of a word that `count` of the window's tweets have, and `tweets` of all `seen` ones.
#[inline(always)]
fn score(count: i64, window: i64, seen: i64, tweets: i64) -> f64 {
    count as f64 / window as f64 * (seen as f64 / tweets as f64).ln()
}

/// The cosine similarity of a tweet of so many words and a cluster with the square of this norm.
#[inline(always)]
fn similarity(dot: i64, words: usize, norm2: i64) -> f64 {
    dot as f64 / (words as f64 * norm2 as f64).sqrt()
}

/// By what share of a window's tweets a cluster has grown over the window before, if that makes it an
/// event.
fn event(now: i64, before: i64, window: i64) -> Option<f64> {
    let growth = (now - before) as f64 / window as f64;
    (growth > GROWTH && now as f64 >= SHARE * window as f64).then_some(growth)
}
