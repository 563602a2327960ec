//! The options of a run, checked before anything runs.

use serde::{Deserialize, Serialize};
use tidemill_connect::FileFormat;
use tidemill_core::{Error, Result};
use tidemill_txn::schedule::Strategy;

/// How the workload's transactions are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramKind {
    /// Rust closures over the words of rows.
    #[default]
    Rust,
    /// Declared transactions: operations known before they run, as the Python tracer records them.
    Traced,
    /// Opaque functions.
    Python,
}

impl ProgramKind {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ProgramKind::Rust => "rust",
            ProgramKind::Traced => "traced",
            ProgramKind::Python => "python",
        }
    }
}

/// The serial executor without prefetching, to measure the effect of prefetching.
const NO_PREFETCH: &str = "serial-noprefetch";

/// All strategies except the adaptive one.
const ALL: &str = "all";

/// The workloads of requests. Replies are durable by default, and each workload has a folder for
/// that.
const REQUESTS: &[&str] = &["leaderboard", "ycsb-t", "tpcc", "hotel", "movie"];

/// Other workloads that write files without reading any.
const LEAVE: &[&str] = &["push", "http", "recovery", "recovery-modes"];

/// The largest number of threads.
const THREADS_MAX: usize = 64;

/// The largest number of client connections.
const CONNECTIONS_MAX: usize = 4096;

/// The data that survives a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durable {
    /// Nothing.
    #[default]
    None,
    /// The log of inputs and cuts.
    Log,
    /// The log and snapshots.
    #[serde(rename = "log+snapshots")]
    LogSnapshots,
}

/// The options of a run: a JSON object in which every field but `workload` has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// The workload's name.
    pub workload: String,
    /// The form in which its transactions are written.
    #[serde(default)]
    pub program: ProgramKind,
    /// Workers per process.
    #[serde(default = "one")]
    pub threads: usize,
    /// Processes.
    #[serde(default = "one")]
    pub processes: usize,
    /// The strategy of execution; see [`Args::strategy`].
    #[serde(default = "adaptive")]
    pub strategy: String,
    /// The strategies that run beside `strategy` in each repeat: names separated by commas, or
    /// [`ALL`].
    #[serde(default)]
    pub compare: String,
    /// Keys of each table.
    #[serde(default = "default_keys")]
    pub keys: usize,
    /// Zipf's θ; 0 draws all keys uniformly.
    #[serde(default)]
    pub skew: f64,
    /// The share of keys, 0 to 1, that are drawn again from recent ones.
    #[serde(default)]
    pub overlap: f64,
    /// Operations per transaction, for workloads where this varies.
    #[serde(default)]
    pub length: Option<usize>,
    /// Whether dependencies between keys only rise from level to level, without cycles.
    #[serde(default)]
    pub acyclic: bool,
    /// Whether transactions write the average instead of the sum.
    #[serde(default)]
    pub average: bool,
    /// The share of transactions, 0 to 1, with a key that is known only after another row is read.
    #[serde(default)]
    pub computed: f64,
    /// The length of window reads, in units of event time; `None` for none.
    #[serde(default)]
    pub window: Option<i64>,
    /// One transaction in this many reads windows.
    #[serde(default)]
    pub window_every: Option<usize>,
    /// Whether the shape of the events changes in phases.
    #[serde(default)]
    pub dynamic: bool,
    /// The share of events, 0 to 1, whose transactions must abort.
    #[serde(default)]
    pub abort: f64,
    /// Events per epoch. By default [`DEFAULT_EPOCH`], and for runs from files the engine's
    /// maximum.
    #[serde(default)]
    pub epoch: Option<usize>,
    /// Events per run. By default [`DEFAULT_EVENTS`], and for recorded events all of them.
    #[serde(default)]
    pub events: Option<usize>,
    /// Events, rounded up to whole epochs, that the engine executes before the measured time
    /// begins.
    #[serde(default)]
    pub warm_up: usize,
    /// The seed of events and tables.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Extra work per operation, in nanoseconds.
    #[serde(default)]
    pub udf_ns: u64,
    /// The number of runs of the engine, each beside one of the baseline.
    #[serde(default = "default_repeat")]
    pub repeat: usize,
    /// The percentage of events that are deposits.
    #[serde(default = "default_deposits")]
    pub deposits: f64,
    /// Rows sent at once, for workloads that send.
    #[serde(default)]
    pub batch: Option<usize>,
    /// Rows per second, sent one at a time, for workloads that send. The latency is measured.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Client connections. Each waits for its reply before it sends the next call.
    #[serde(default)]
    pub connections: Option<usize>,
    /// The time, in seconds, in which external clients may call the address that is shown.
    #[serde(default)]
    pub serve: Option<f64>,
    /// Whether each call has a request id.
    #[serde(default)]
    pub requests: bool,
    /// The rate of a stream beside the calls, as a share of the rate that the app takes without
    /// calls.
    #[serde(default)]
    pub beside: Option<f64>,
    /// A CSV file of labelled tweets, or a folder of them, for the workload with tweets.
    #[serde(default)]
    pub tweets: Option<String>,
    /// Candidates of the show, for the workload that has them.
    #[serde(default)]
    pub candidates: Option<usize>,
    /// Phones of the viewers.
    #[serde(default)]
    pub phones: Option<usize>,
    /// A candidate is removed after every this many accepted votes.
    #[serde(default)]
    pub every: Option<u64>,
    /// The kind of graphs of calls, for the workload with several kinds.
    #[serde(default)]
    pub of: Option<String>,
    /// Warehouses, for the workload that has them.
    #[serde(default)]
    pub warehouses: Option<usize>,
    /// Items that the warehouses sell.
    #[serde(default)]
    pub items: Option<usize>,
    /// Lengths of chains, separated by commas.
    #[serde(default)]
    pub lengths: Option<String>,
    /// The durable data; see [`Args::durable`].
    #[serde(default)]
    pub durable: Option<Durable>,
    /// The files with the events, as `write_source` has written them. Then the run is end to end.
    #[serde(default)]
    pub source: Option<String>,
    /// A folder for the outputs, and for the data directory.
    #[serde(default)]
    pub sink: Option<String>,
    /// The format of the outputs: parquet, csv or jsonl.
    #[serde(default = "parquet")]
    pub sink_format: FileFormat,
    /// The path for the generated events. Its extension is the format. Each stream has a file, with
    /// the stream's name before the extension.
    #[serde(default)]
    pub write_source: Option<String>,
    /// The log server.
    #[serde(default)]
    pub log: Option<String>,
    /// The snapshot store.
    #[serde(default)]
    pub snapshots: Option<String>,
}

impl Durable {
    /// Returns the engine's setting.
    pub(crate) fn setting(self) -> tidemill_engine::Durable {
        match self {
            Durable::None => tidemill_engine::Durable::None,
            Durable::Log => tidemill_engine::Durable::Log,
            Durable::LogSnapshots => tidemill_engine::Durable::LogAndSnapshots,
        }
    }
}

fn one() -> usize {
    1
}

fn adaptive() -> String {
    "adaptive".into()
}

fn default_keys() -> usize {
    122_880
}

fn parquet() -> FileFormat {
    FileFormat::Parquet
}

/// Events per epoch of runs in memory.
pub const DEFAULT_EPOCH: usize = 10_240;

/// Events per run.
const DEFAULT_EVENTS: usize = 3_000_000;

fn default_seed() -> u64 {
    42
}

fn default_repeat() -> usize {
    5
}

fn default_deposits() -> f64 {
    25.0
}

impl Args {
    /// Reads and checks options.
    pub fn from_json(json: &str) -> Result<Args> {
        let mut args: Args = serde_json::from_str(json)
            .map_err(|e| Error::setting(format!("the options of the benchmark: {e}")))?;
        if REQUESTS.contains(&&*args.workload) && args.durable() != Durable::None {
            let folder = format!("{}.tidemill", args.workload);
            args.sink.get_or_insert(folder);
        }
        args.check()?;
        Ok(args)
    }

    /// Returns the events per epoch.
    pub fn epoch(&self) -> usize {
        self.epoch.unwrap_or(DEFAULT_EPOCH)
    }

    /// Returns the events per run.
    pub fn events(&self) -> usize {
        self.events.unwrap_or(DEFAULT_EVENTS)
    }

    /// Returns the durable data. By default there is none, except for the workloads of requests.
    pub fn durable(&self) -> Durable {
        let default =
            if REQUESTS.contains(&&*self.workload) { Durable::Log } else { Durable::None };
        self.durable.unwrap_or(default)
    }

    /// Returns the strategy of execution.
    pub fn strategy(&self) -> Result<Strategy> {
        match self.prefetches() {
            true => self.strategy.parse(),
            false => Ok(Strategy::Serial),
        }
    }

    /// Returns the strategies of the comparison.
    pub(crate) fn compared(&self) -> Result<Vec<Strategy>> {
        match &*self.compare {
            "" => Ok(Vec::new()),
            ALL => Ok(Strategy::all().into_iter().filter(|s| *s != Strategy::Adaptive).collect()),
            names => names.split(',').map(|name| name.trim().parse()).collect(),
        }
    }

    /// Whether the executor prefetches.
    pub(crate) fn prefetches(&self) -> bool {
        self.strategy != NO_PREFETCH
    }

    /// Refuses given options that are not among a workload's own.
    pub(crate) fn only(&self, own: &[&str]) -> Result<()> {
        let given = [
            ("overlap", self.overlap != 0.0),
            ("length", self.length.is_some()),
            ("acyclic", self.acyclic),
            ("average", self.average),
            ("computed", self.computed != 0.0),
            ("window", self.window.is_some()),
            ("window-every", self.window_every.is_some()),
            ("dynamic", self.dynamic),
            ("deposits", self.deposits != default_deposits()),
            ("batch", self.batch.is_some()),
            ("rate", self.rate.is_some()),
            ("connections", self.connections.is_some()),
            ("requests", self.requests),
            ("serve", self.serve.is_some()),
            ("beside", self.beside.is_some()),
            ("compare", !self.compare.is_empty()),
            ("warm-up", self.warm_up != 0),
            ("tweets", self.tweets.is_some()),
            ("candidates", self.candidates.is_some()),
            ("phones", self.phones.is_some()),
            ("every", self.every.is_some()),
            ("warehouses", self.warehouses.is_some()),
            ("items", self.items.is_some()),
            ("of", self.of.is_some()),
            ("lengths", self.lengths.is_some()),
            ("source", self.source.is_some()),
            ("write-source", self.write_source.is_some()),
        ];
        match given.iter().find(|(name, given)| *given && !own.contains(name)) {
            None => Ok(()),
            Some((name, _)) => {
                let what = format!("--{name}: {} has no such option", self.workload);
                let own = if own.is_empty() { "none".into() } else { own.join(", ") };
                Err(Error::setting(what).help(format!("its own options: {own}")))
            }
        }
    }

    /// Refuses options that no workload supports.
    fn check(&self) -> Result<()> {
        self.strategy()?;
        self.compared()?;
        let wrong = |what: String| Err(Error::setting(what));
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return wrong(format!("--threads {}: it must be 1 to {THREADS_MAX}", self.threads));
        }
        if self.processes != 1 {
            return wrong(format!("--processes {}: it must be 1", self.processes));
        }
        if self.warm_up > 0 && (self.dynamic || self.source.is_some()) {
            return wrong(format!("--warm-up {}: not with --dynamic or --source", self.warm_up));
        }
        let counts = [("epoch", self.epoch()), ("events", self.events()), ("repeat", self.repeat)];
        for (name, count) in counts {
            if count == 0 {
                return wrong(format!("--{name} 0: it must be at least 1"));
            }
        }
        if self.keys < 2 || self.keys > 1 << 30 {
            return wrong(format!("--keys {}: it must be 2 to {}", self.keys, 1 << 30));
        }
        if !(0.0..=10.0).contains(&self.skew) {
            return wrong(format!("--skew {}: it must be 0 to 10", self.skew));
        }
        let shares =
            [("abort", self.abort), ("overlap", self.overlap), ("computed", self.computed)];
        for (name, share) in shares {
            if !(0.0..=1.0).contains(&share) {
                return wrong(format!("--{name} {share}: it is a share, 0 to 1"));
            }
        }
        if !(0.0..=100.0).contains(&self.deposits) {
            return wrong(format!("--deposits {}: it is a percentage, 0 to 100", self.deposits));
        }
        if self.udf_ns > 0 && self.program != ProgramKind::Rust {
            return Err(Error::setting(format!(
                "--udf-ns {}: only programs of Rust closures can have extra work",
                self.udf_ns
            ))
            .help("use --program rust"));
        }
        if self.batch == Some(0) || self.rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
            return wrong("--batch and --rate must be positive".into());
        }
        if self.connections.is_some_and(|n| !(1..=CONNECTIONS_MAX).contains(&n)) {
            return wrong(format!("--connections: it must be 1 to {CONNECTIONS_MAX}"));
        }
        if self.beside.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
            return wrong("--beside is a share: more than 0, at most 1".into());
        }
        if self.source.is_none()
            && ![LEAVE, REQUESTS].concat().contains(&&*self.workload)
            && (self.durable() != Durable::None || self.sink.is_some())
        {
            return Err(Error::setting("--durable and --sink: runs in memory write no files")
                .help("write the events with --write-source, then run with --source"));
        }
        if self.source.is_some() && !self.compare.is_empty() {
            return Err(Error::setting("--compare: a run from files has one strategy")
                .help("leave out --compare, or --source"));
        }
        if self.durable() != Durable::None && self.sink.is_none() {
            return Err(Error::setting("--durable needs a folder for the data directory")
                .help("give one with --sink"));
        }
        for (name, value) in [("log", &self.log), ("snapshots", &self.snapshots)] {
            if value.is_some() {
                return Err(Error::setting(format!("--{name} is not supported"))
                    .help("leave it out: logs and snapshots are in the folder of --sink"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(json: &str) -> String {
        Args::from_json(json).expect_err("it should be refused").to_string()
    }

    #[test]
    fn defaults() {
        let args = Args::from_json(r#"{"workload":"sl"}"#).unwrap();
        assert_eq!((args.keys, args.epoch(), args.repeat), (122_880, 10_240, 5));
        assert_eq!(args.strategy().unwrap(), Strategy::Adaptive);
    }

    #[test]
    fn wrong_options_are_named() {
        let cases = [
            (r#""kays":1"#, "kays"),
            (r#""threads":0"#, "--threads 0: it must be 1 to 64"),
            (r#""processes":2"#, "--processes 2"),
            (
                r#""strategy":"x""#,
                "the strategies are adaptive, serial, rounds, blocks, lists, s-store",
            ),
            (r#""compare":"lists,x""#, "there is no strategy 'x'"),
            (r#""compare":"lists","source":"x""#, "--compare"),
            (r#""epoch":0"#, "--epoch 0"),
            (r#""events":0"#, "--events 0"),
            (r#""repeat":0"#, "--repeat 0"),
            (r#""keys":1"#, "--keys 1"),
            (r#""skew":-1"#, "--skew -1"),
            (r#""abort":1.5"#, "--abort 1.5"),
            (r#""deposits":101"#, "--deposits 101"),
            (r#""program":"traced","udf_ns":5"#, "--udf-ns 5"),
            (r#""durable":"log""#, "--durable"),
            (r#""sink":"x""#, "--sink"),
            (r#""overlap":2"#, "--overlap 2"),
            (r#""computed":-0.1"#, "--computed -0.1"),
            (r#""batch":0"#, "--batch"),
            (r#""source":"x","durable":"log""#, "--sink"),
            (r#""source":"x","sink_format":"xml""#, "xml"),
            (r#""log":"kafka""#, "--log"),
            (r#""snapshots":"s3""#, "--snapshots"),
            (r#""program":"java""#, "java"),
        ];
        for (option, want) in cases {
            let text = refused(&format!(r#"{{"workload":"sl",{option}}}"#));
            assert!(text.contains(want), "{option}: {text}");
        }
    }
}
