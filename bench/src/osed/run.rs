//! Online Social Event Detection as a case for the harness.

use serde_json::{Map, Value as Json};
use tidemill_core::digest::{streams_hash, RowsHash};
use tidemill_core::{Batch, Error, Result, Value};
use tidemill_env::Env;
use tidemill_table::{row_hash, Table};

use super::list::pack;
use super::tight::Tight;
use super::tweets::{Played, Tweets, FOLDER};
use super::{found, program, window, WORDS};
use crate::args::{Args, ProgramKind};
use crate::events::Events;
use crate::execute::Verdicts;
use crate::report::Report;
use crate::run::{self, Case, Made};
use crate::shape::Parts;
use crate::work::Work;
use crate::Given;

/// The nanoseconds per tweet above which the baseline is not tight.
const TIGHT_NS: f64 = 4000.0;
/// The largest number of reported rows that are not tweets.
const DEAD_SHOWN: usize = 5;
/// The largest number of rows of each table for which room is allocated at the start.
const ROWS: usize = 1 << 16;

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let env = Env::real();
    let case: Detection = run::made(args, &env, given, progress)?;
    let Tweets { tweets, dead, .. } = &case.made.events.read;
    for bad in dead.iter().take(DEAD_SHOWN) {
        progress(&format!("not a tweet: {}, row {}: {}", bad.origin, bad.offset, bad.reason));
    }
    let rate = tweets.len() as f64 / case.read_s;
    progress(&format!(
        "osed: windows of {} tweets; {} were read and split into words, {rate:.0} a second, {} rows \
         were none",
        case.window,
        tweets.len(),
        dead.len(),
    ));
    let mut report = run::run(args, &env, &case, progress)?;
    report.details.insert("tweets_read_per_s".into(), rate.into());
    found::table(&report.details).iter().for_each(|line| progress(line));
    Ok(report)
}

/// The workload according to the options.
pub(crate) struct Detection {
    pub(super) made: Made<Played>,
    pub(super) window: i64,
    /// The seconds that it took to read the tweets and to split them into words.
    read_s: f64,
}

impl Detection {
    /// Returns the number of complete windows.
    fn windows(&self) -> i64 {
        self.made.events.count as i64 / self.window
    }

    /// Returns the baseline's rows, table by table.
    fn rows(&self, tight: &Tight) -> [Vec<Vec<Value>>; 5] {
        let ints = |ints: &[i64]| ints.iter().copied().map(Value::Int).collect::<Vec<_>>();
        // A tweet's row is its event without the time.
        let tweet = |at: usize| ints(&self.made.events.words(at).skip(1).collect::<Vec<_>>());
        let tweets = (0..self.made.events.count).map(tweet).collect();
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
    type Events = Played;
    type Baseline = Tight;

    fn new(args: &Args, given: Given<'_>, work: Work) -> Result<Detection> {
        if args.program != ProgramKind::Rust || given.program.is_some() {
            return Err(Error::setting(format!(
                "--program {}: osed is written in Rust only",
                args.program.name()
            )));
        }
        if args.udf_ns > 0 {
            return Err(Error::setting("--udf-ns: osed has no extra work"));
        }
        let env = Env::real();
        let begun = env.clock.monotonic_ns();
        let read = Tweets::read(&env, args.tweets.as_deref().unwrap_or(FOLDER))?;
        let read_s = (env.clock.monotonic_ns() - begun) as f64 / 1e9;
        let window = window(args)?;
        let (program, input) = program::program(window)?;
        let parts = Parts { program: program.into(), tables: Vec::new(), inputs: vec![input] };
        let count = args.events.unwrap_or(read.tweets.len());
        // Room for this many rows is allocated at the start.
        let made =
            Made { keys: count.min(ROWS), ..Made::new(args, parts, Played { read, count }, work) };
        Ok(Detection { made, window, read_s })
    }

    fn made(&self) -> &Made<Played> {
        &self.made
    }

    /// Each tweet is registered, counted and scored. Each window is closed, its tweets are merged,
    /// and its events are selected.
    fn transactions(&self) -> usize {
        3 * self.made.events.count + (self.windows() * (self.window + 2)) as usize
    }

    fn baseline(&self) -> Tight {
        Tight::default()
    }

    fn run_baseline(&self, tight: &mut Tight) -> Verdicts {
        tight.run(&self.made.events, self.window);
        Verdicts::default()
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS
    }

    /// Compares every row with the baseline's.
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
            let stream =
                self.made.parts.program.streams.iter().find(|stream| *stream.spec.name == **name);
            let schema = stream.expect("the program has it").spec.schema.clone();
            let mut hash = RowsHash::default();
            hash.take(&Batch::from_rows(schema, rows.iter().map(Vec::as_slice)));
            (*name, hash)
        });
        Some(format!("{:032x}", streams_hash(hashes)))
    }

    fn details(&self, tight: &Tight) -> Map<String, Json> {
        let mut details = found::details(&self.made.events.read, tight, self.window);
        details.insert("words_max".into(), WORDS.into());
        details
    }
}
