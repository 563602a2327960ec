//! Online Social Event Detection: the topics that people suddenly write about.
//!
//! Tweets arrive in windows of 400 (or `--window`). Five operators work on shared tables. Each step
//! is a transaction:
//!
//! | operator | handler, by | what it does |
//! | --- | --- | --- |
//! | tweet registrant | `register`, each tweet | inserts the tweet, split into words, into `tweets` |
//! | word updater | `count`, each tweet | counts each of its words in `words`: in the window, and in total |
//! | trend calculator | `trend`, each tweet | writes each word's TF-IDF in the window, and whether it has risen by 0.001 or more over the window before: a burst. The last tweet of a window emits the window |
//! | similarity calculator | `cluster`, each tweet of a complete window | for a tweet with a bursting word, merges its words into the most similar of the clusters that the last two windows have touched. If no cosine similarity is 0.05 or more, opens a cluster |
//! | event selector | `select`, each window, after its tweets are merged | reports the clusters that have grown by more than 0.001 of the window's tweets over the window before, and that have 5 % of them |
//!
//! `close`, between the two halves, turns a complete window into an event for each of its tweets.
//! The written cluster is known only after all similarities: it is a computed key. A cluster is
//! named by the tweet that has opened it. The table `terms` has the words of clusters by word. So a
//! tweet meets only clusters that share a word with it; the similarity to all others is 0.
//!
//! TF is the share of the window's tweets that have the word. IDF is the logarithm of the quotient
//! of all tweets so far and those with the word, as of the last tweet in the window that has it.
//! The similarity is the cosine of the angle between a tweet's words and a cluster's, which count
//! how many of its tweets have them.
//!
//! The tweets are those of CrisisLexT6 (`bench/data/crisislex`): labelled ones of six crises, each
//! in the order of their ids. The detection never sees a label; only the report compares with
//! labels.
//!
//! The invariant: tables and outputs are bit for bit those of the baseline.
//!
//! | file | contents |
//! | --- | --- |
//! | `tweets` | the tweets: read, sorted, and repeated as often as necessary |
//! | `words` | the words of a text |
//! | `program` | tables, streams, and the closures on each tweet |
//! | `functions` | the opaque functions on complete windows |
//! | `list` | lists in rows |
//! | `tight` | the baseline |
//! | `found` | the detected events, compared with the labels |
//! | `run` | the workload for the harness |

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

/// The default number of tweets in a window.
const WINDOW: i64 = 400;
/// The longest window: sums over one are exact floats.
const WINDOW_MAX: i64 = 1_000_000;
/// The largest number of words of a tweet; further words do not count.
const WORDS: usize = 16;
/// A word bursts if its TF-IDF rises by this much from window to window.
const RISE: f64 = 0.001;
/// A tweet is merged into a cluster that is at least this similar.
const SIMILAR: f64 = 0.05;
/// A cluster that grows by a larger share of the window's tweets may be an event.
const GROWTH: f64 = 0.001;
/// Such a cluster is an event if it has at least this share of the window's tweets. Two tweets with
/// a word in common make a cluster, so without a minimum nearly every tweet would be an event.
const SHARE: f64 = 0.05;
/// The window of a word or cluster that is in no window.
const NEVER: i64 = -2;

/// Returns the number of tweets in a window, according to the options.
fn window(args: &Args) -> Result<i64> {
    let window = args.window.unwrap_or(WINDOW);
    match (1..=WINDOW_MAX).contains(&window) {
        true => Ok(window),
        false => Err(Error::setting(format!("--window {window}: it must be 1 to {WINDOW_MAX}"))),
    }
}

/// Returns the TF-IDF of a word that `count` of the window's tweets have, and `tweets` of all
/// `seen` ones.
#[inline(always)]
fn score(count: i64, window: i64, seen: i64, tweets: i64) -> f64 {
    count as f64 / window as f64 * (seen as f64 / tweets as f64).ln()
}

/// Returns the cosine similarity of a tweet with this many words and a cluster with the square of
/// this norm.
#[inline(always)]
fn similarity(dot: i64, words: usize, norm2: i64) -> f64 {
    dot as f64 / (words as f64 * norm2 as f64).sqrt()
}

/// Returns the growth of a cluster as a share of the window's tweets, if that makes it an event.
fn event(now: i64, before: i64, window: i64) -> Option<f64> {
    let growth = (now - before) as f64 / window as f64;
    (growth > GROWTH && now as f64 >= SHARE * window as f64).then_some(growth)
}
