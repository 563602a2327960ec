//! Online Social Event Detection, ready to run.

use std::sync::Arc;

use serde_json::{Map, Value as Json};
use tidemill_core::digest::{streams_hash, RowsHash};
use tidemill_core::{Batch, Error, Result, Value};
use tidemill_env::Env;
use tidemill_table::{row_hash, Table};
use tidemill_txn::Program;

use super::list::pack;
use super::tight::Tight;
use super::tweets::{Played, Tweets, FOLDER};
use super::{found, program, window, WORDS};
use crate::args::{Args, ProgramKind};
use crate::events::{Events, Input};
use crate::execute::{empty_tables, Verdicts};
use crate::report::Report;
use crate::run::{self, Case};
use crate::Given;

/// Above this many nanoseconds a tweet the baseline is not tight.
const TIGHT_NS: f64 = 4000.0;
/// Rows that are no tweets and are shown, at most.
const DEAD_SHOWN: usize = 5;
/// Rows of each table for which there is room from the beginning, at most.
const ROWS: usize = 1 << 16;

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let env = Env::real();
    if args.program != ProgramKind::Rust || given.program.is_some() {
        return Err(Error::setting(format!(
            "--program {}: osed is written in Rust only",
            args.program.name()
        )));
    }
    if args.udf_ns > 0 {
        return Err(Error::setting("--udf-ns: osed has work enough of its own"));
    }
    let begun = env.clock.monotonic_ns();
    let tweets = Tweets::read(&env, args.tweets.as_deref().unwrap_or(FOLDER))?;
    let seconds = (env.clock.monotonic_ns() - begun) as f64 / 1e9;
    for bad in tweets.dead.iter().take(DEAD_SHOWN) {
        progress(&format!("not a tweet: {}, row {}: {}", bad.origin, bad.offset, bad.reason));
    }
    let (read, dead) = (tweets.tweets.len(), tweets.dead.len());
    let rate = read as f64 / seconds;
    let case = Detection::new(args, tweets)?;
    progress(&format!(
        "osed: {} tweets in windows of {}; {read} were read and split into words, {rate:.0} a second, \
         {dead} rows were none",
        case.played.count, case.window,
    ));
    let mut report = run::run(args, &env, &case, progress)?;
    report.details.insert("tweets_read_per_s".into(), rate.into());
    found::table(&report.details).iter().for_each(|line| progress(line));
    Ok(report)
}

/// The workload as the options want it.
pub(super) struct Detection {
    pub(super) program: Arc<Program>,
    input: [Input; 1],
    pub(super) played: Played,
    pub(super) window: i64,
    seed: u64,
}

impl Detection {
    pub(super) fn new(args: &Args, read: Tweets) -> Result<Detection> {
        let window = window(args)?;
        let (program, input) = program::program(window)?;
        let count = args.events.unwrap_or(read.tweets.len());
        let played = Played { read, count };
        Ok(Detection { program: program.into(), input: [input], played, window, seed: args.seed })
    }

    /// The windows that are complete.
    fn windows(&self) -> i64 {
        self.played.count as i64 / self.window
    }

    /// The baseline's rows, table by table.
    fn rows(&self, tight: &Tight) -> [Vec<Vec<Value>>; 5] {
        let ints = |ints: &[i64]| ints.iter().copied().map(Value::Int).collect::<Vec<_>>();
        // A tweet's row is its event but for the time.
        let tweet = |at: usize| ints(&self.played.words(at).skip(1).collect::<Vec<_>>());
        let tweets = (0..self.played.count).map(tweet).collect();
        let words = tight.words.iter().map(|word| {
            let mut row = ints(&[word.number, word.window, word.count, word.tweets]);
            row.extend([word.score, word.before].map(Value::Float));
            row.push(Value::Int(word.burst));
            row
        });
        let terms = tight.words.iter().filter(|word| !word.terms.is_empty()).map(|word| {
            let first = |cluster: u32| tight.clusters[cluster as usize].first;
            let list: Vec<i64> =
                word.terms.iter().flat_map(|(of, count)| [first(*of), *count]).collect();
            vec![Value::Int(word.number), pack(&list)]
        });
        let clusters = tight
            .clusters
            .iter()
            .map(|c| ints(&[c.first, c.tweets, c.norm2, c.window, c.now, c.before]));
        let touched = tight.touched.iter().enumerate().filter(|(_, touched)| !touched.is_empty());
        let windows =
            touched.map(|(at, touched)| vec![Value::Int(at as i64), pack(touched.as_flattened())]);
        [tweets, words.collect(), terms.collect(), clusters.collect(), windows.collect()]
    }
}

impl Case for Detection {
    type Baseline = Tight;

    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn inputs(&self) -> &[Input] {
        &self.input
    }

    fn events(&self) -> &(impl Events + ?Sized) {
        &self.played
    }

    /// Each tweet is registered, counted and weighed; each window is closed, its tweets are merged, and
    /// its events are selected.
    fn transactions(&self) -> usize {
        3 * self.played.count + (self.windows() * (self.window + 2)) as usize
    }

    fn tables(&self) -> Vec<Table> {
        empty_tables(&self.program, self.played.count.min(ROWS), self.seed)
    }

    fn baseline(&self) -> Tight {
        Tight::default()
    }

    fn run_baseline(&self, tight: &mut Tight) -> Verdicts {
        tight.run(&self.played, self.window);
        Verdicts::default()
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS
    }

    /// Every row is the baseline's.
    fn holds(&self, tight: &Tight, tables: &[Table]) -> bool {
        let mut scratch = Vec::new();
        tables.iter().zip(self.rows(tight)).all(|(table, rows)| {
            let name = &table.spec().name;
            let hashes = rows.iter().map(|row| row_hash(name, row, &mut scratch));
            table.len() == rows.len()
                && table.state_hash() == hashes.fold(0, |sum: u128, hash| sum.wrapping_add(hash))
        })
    }

    fn output_hash(&self, tight: &Tight) -> Option<String> {
        let int = Value::Int;
        let windows = || (0..self.windows()).map(|window| vec![int(window)]);
        let candidates = (0..self.windows() * self.window)
            .map(|tweet| vec![int(tweet), int(tweet / self.window)]);
        let merges = tight
            .merges
            .iter()
            .map(|(tweet, cluster, found)| vec![int(*tweet), int(*cluster), Value::Float(*found)]);
        let events = tight.events.iter().map(|event| {
            let [window, cluster, tweets] = [event.window, event.cluster, event.tweets].map(int);
            vec![window, cluster, tweets, Value::Float(event.growth)]
        });
        let streams: [(&str, Vec<Vec<Value>>); 5] = [
            ("complete", windows().collect()),
            ("candidates", candidates.collect()),
            ("merged", windows().collect()),
            ("merges", merges.collect()),
            ("events", events.collect()),
        ];
        let hashes = streams.iter().filter(|(_, rows)| !rows.is_empty()).map(|(name, rows)| {
            let stream = self.program.streams.iter().find(|stream| *stream.spec.name == **name);
            let schema = stream.expect("the program has it").spec.schema.clone();
            let mut hash = RowsHash::default();
            hash.take(&Batch::from_rows(schema, rows.iter().map(Vec::as_slice)));
            (*name, hash)
        });
        Some(format!("{:032x}", streams_hash(hashes)))
    }

    fn details(&self, tight: &Tight) -> Map<String, Json> {
        let mut details = found::details(&self.played.read, tight, self.window);
        details.insert("words_max".into(), WORDS.into());
        details
    }
}
