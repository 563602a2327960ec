//! The tables and streams of Online Social Event Detection, and the closures on each tweet.

use std::sync::Arc;

use tidemill_core::{Column, DataType, Late, Result, SourceSpec, StreamId, TableId, Value};
use tidemill_txn::program::{Builder, NativeTx};
use tidemill_txn::Program;

use super::functions::{Close, Cluster, Select};
use super::{score, NEVER, RISE, WORDS};
use crate::events::Input;

/// The places of columns in the event of a tweet.
const TWEET: usize = 1;
const ID: usize = 2;
const COUNT: usize = 3;
const FIRST: usize = 4;

/// The places of columns in a row of `words`.
pub(super) mod word {
    pub(in super::super) const WINDOW: usize = 1;
    pub(in super::super) const COUNT: usize = 2;
    pub(in super::super) const TWEETS: usize = 3;
    pub(in super::super) const SCORE: usize = 4;
    pub(in super::super) const BEFORE: usize = 5;
    pub(in super::super) const BURST: usize = 6;
}

/// The tables, and the streams between handlers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// The tweets by number: id and words.
    pub(super) tweets: TableId,
    /// The words: the last window of each, the number of its tweets there and in total, its TF-IDF
    /// there and in the window before, and the window in which it has burst.
    pub(super) words: TableId,
    /// The clusters of each word, and the number of their tweets that have it.
    pub(super) terms: TableId,
    /// The clusters by their first tweet: the number of tweets, the square of the norm, the last
    /// window that touched it, and its tweets in that window and the one before.
    pub(super) clusters: TableId,
    /// The clusters that each window has touched, with their norms: the candidates for merging.
    pub(super) windows: TableId,
    /// The tweets of complete windows.
    pub(super) candidates: StreamId,
    /// The windows with all tweets merged.
    pub(super) merged: StreamId,
    /// The cluster that each tweet was merged into.
    pub(super) merges: StreamId,
    /// The clusters that are events.
    pub(super) events: StreamId,
}

/// Returns the program for windows with this many tweets, and its input stream.
pub(super) fn program(window: i64) -> Result<(Program, Input)> {
    let mut b = Builder::new("osed");
    let int = |name: &str| Column::new(name, DataType::Int);
    let float = |name: &str| Column::new(name, DataType::Float);
    let from = |column: Column, value: i64| column.default(Value::Int(value));
    let numbered: Vec<String> = (0..WORDS).map(|nth| format!("word{nth}")).collect();
    let ints = |names: &[&str]| names.iter().map(|name| int(name)).collect::<Vec<_>>();
    let of_words = || numbered.iter().map(|name| from(int(name), 0));

    let mut columns = vec![int("tweet"), from(int("id"), 0), from(int("count"), 0)];
    columns.extend(of_words());
    let tweets = b.table("tweets", &["tweet"], columns);
    let zero = |name: &str| float(name).default(Value::Float(0.0));
    let columns = vec![
        int("word"),
        from(int("window"), NEVER),
        from(int("count"), 0),
        from(int("tweets"), 0),
        zero("score"),
        zero("before"),
        from(int("burst"), NEVER),
    ];
    let words = b.table("words", &["word"], columns);
    let lists = |key: &str| vec![int(key), Column::new("clusters", DataType::Bytes)];
    let terms = b.table("terms", &["word"], lists("word"));
    let columns = ints(&["cluster", "tweets", "norm2", "window", "now", "before"]);
    let clusters = b.table("clusters", &["cluster"], columns);
    let windows = b.table("windows", &["window"], lists("window"));

    let mut columns = vec![Column::new("at", DataType::Timestamp)];
    columns.extend(ints(&["tweet", "id", "count"]));
    columns.extend(numbered.iter().map(|name| int(name)));
    let input = b.stream("tweeted", columns);
    b.event_time(input, "at", Late::Side);
    let complete = b.emitted("complete", ints(&["window"]));
    let candidates = b.emitted("candidates", ints(&["tweet", "window"]));
    let merged = b.emitted("merged", ints(&["window"]));
    let mut columns = ints(&["tweet", "cluster"]);
    columns.push(float("similarity"));
    let merges = b.emitted("merges", columns);
    let mut columns = ints(&["window", "cluster", "tweets"]);
    columns.push(float("growth"));
    let events = b.emitted("events", columns);
    let frame =
        Frame { tweets, words, terms, clusters, windows, candidates, merged, merges, events };

    b.native("register", input, &[(tweets, &["tweet"])], &[], |tx: &mut NativeTx<'_>| {
        // The tweet's columns have the same order as the event's.
        (ID..FIRST + WORDS).for_each(|column| tx.set(0, column - TWEET, tx.event(column)));
        Ok(())
    });
    let keys: Vec<[&str; 1]> = numbered.iter().map(|name| [&**name]).collect();
    let rows: [(TableId, &[&str]); WORDS] = std::array::from_fn(|nth| (words, &keys[nth][..]));
    b.native("count", input, &rows, &[], move |tx: &mut NativeTx<'_>| {
        let now = tx.event(TWEET) / window;
        for row in 0..tx.event(COUNT) as usize {
            let last = tx.get(row, word::WINDOW);
            if last != now {
                let score = if last == now - 1 { tx.get(row, word::SCORE) } else { 0 };
                tx.set(row, word::BEFORE, score);
                tx.set(row, word::WINDOW, now);
                tx.set(row, word::COUNT, 0);
            }
            tx.set(row, word::COUNT, tx.get(row, word::COUNT) + 1);
            tx.set(row, word::TWEETS, tx.get(row, word::TWEETS) + 1);
        }
        Ok(())
    });
    b.native("trend", input, &rows, &[complete], move |tx: &mut NativeTx<'_>| {
        let seen = tx.event(TWEET) + 1;
        let now = tx.event(TWEET) / window;
        for row in 0..tx.event(COUNT) as usize {
            let (count, tweets) = (tx.get(row, word::COUNT), tx.get(row, word::TWEETS));
            let score = score(count, window, seen, tweets);
            let before = f64::from_bits(tx.get(row, word::BEFORE) as u64);
            tx.set(row, word::SCORE, score.to_bits() as i64);
            tx.set(row, word::BURST, if score - before >= RISE { now } else { NEVER });
        }
        if seen % window == 0 {
            tx.emit(0, &[now]);
        }
        Ok(())
    });
    b.opaque("close", complete, Arc::new(Close { frame, window }));
    b.opaque("cluster", candidates, Arc::new(Cluster { frame }));
    b.opaque("select", merged, Arc::new(Select { frame, window }));
    let mut program = b.finish()?;
    let name = "recorded tweets".into();
    program.sources =
        vec![SourceSpec { name, stream: input, out_of_orderness_us: 0, idle_us: None }];
    program.check()?;
    let schema = program.streams[input.index()].spec.schema.clone();
    Ok((program, (input, schema)))
}
