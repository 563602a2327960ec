//! The whole engine over topics of a real broker equals the reference, bit for bit. Random programs
//! run over random messages, while their process is killed now and then. `make test-servers` starts
//! a broker and runs this.

#![allow(clippy::disallowed_methods)] // The tests use processes, time and files directly.

#[path = "../../../txn/tests/random/mod.rs"]
mod random;
#[path = "../../../kafka/tests/server/read.rs"]
mod read;
mod topics;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use random::{Dice, Shape};
use read::{all, brokers};
use serde_json::json;
use tidemill_connect::values::write_row;
use tidemill_connect::{MessageFormat, MessageValues};
use tidemill_core::{Batch, Key, Row, SourceId, SourceSpec, StreamId, StreamTime};
use tidemill_engine::{AppSpec, Mill, Recovery, Settings, SinkDecl, SourceDecl};
use tidemill_env::Env;
use tidemill_reference::{CutAt, InputRow};
use tidemill_txn::program::{Origin, Program};
use tidemill_txn::schedule::Strategy;
use topics::{make_topics, Writer};

/// The environment variables of a process to kill: seed, life and folder.
const TOLD: [&str; 3] = ["TOPICS_SEED", "TOPICS_LIFE", "TOPICS_FOLDER"];
/// The number of cases that run at the same time.
const AT_ONCE: usize = 4;
/// The partitions of each written topic.
const OUT: usize = 2;

/// A program with its input and settings. All of it comes from one seed, so that several processes
/// have the same.
struct Case {
    seed: u64,
    program: Program,
    rows: Vec<Vec<InputRow>>,
    /// Whether the rows of an epoch are one transaction of Kafka.
    transactions: bool,
    /// Whether snapshots are taken all the time. The cuts do not matter then.
    snapshots: bool,
    /// The prefix of the topics, which no other run uses.
    topics: String,
    folder: PathBuf,
}

impl Case {
    fn new(seed: u64, folder: &Path) -> Case {
        let mut dice = Dice(seed);
        // Each way of writing is combined with each of the two kinds of input.
        let (transactions, orderly) = (seed % 2 == 1, seed / 2 % 2 == 1);
        let shape = Shape { plain: dice.chance(50), orderly, histories: true, words: false };
        let program = random::program(&mut dice, shape);
        let rows = random::sources(&mut dice, &program, shape);
        let in_event_time = |source: &SourceSpec| {
            let time = &program.streams[source.stream.index()].spec.time;
            matches!(time, StreamTime::Event { .. })
        };
        let snapshots = orderly && program.sources.iter().all(in_event_time);
        let name = folder.file_name().expect("a folder of its own").to_string_lossy();
        let topics = format!("any-{seed}{}", name.replace('.', "-"));
        let folder = folder.to_owned();
        Case { seed, program, rows, transactions, snapshots, topics, folder }
    }

    /// The input topic, with one partition for each source.
    fn inputs(&self) -> String {
        format!("{}-in", self.topics)
    }

    fn output(&self, stream: usize) -> String {
        format!("{}-out-{stream}", self.topics)
    }

    /// The streams with sinks.
    fn written(&self) -> Vec<usize> {
        let inner = |origin: &Origin| matches!(origin, Origin::Input | Origin::Derived { .. });
        let streams = self.program.streams.iter().enumerate();
        streams.filter(|(_, stream)| !inner(&stream.origin)).map(|(index, _)| index).collect()
    }

    fn spec(&self, life: u64) -> AppSpec {
        let mut dice = Dice(self.seed << 16 | life);
        let name = |index: usize| self.program.streams[index].spec.name.to_string();
        let sources = self.program.sources.iter().enumerate().map(|(index, source)| SourceDecl {
            out_of_orderness_us: source.out_of_orderness_us,
            kafka: Some(json!({
                "topic": self.inputs(), "brokers": brokers(), "partitions": [index],
            })),
            ..SourceDecl::pushed(&name(source.stream.index()))
        });
        let sinks = self.written().into_iter().map(|index| SinkDecl {
            stream: name(index),
            files: None,
            kafka: Some(json!({
                "topic": self.output(index), "brokers": brokers(),
                "transactions": self.transactions,
            })),
            at: String::new(),
        });
        let settings = Settings {
            workers: 1 + dice.below(4) as usize,
            epoch_idle: dice.chance(70),
            epoch_rows_max: 1 + dice.below(40) as usize,
            epoch_us_max: *dice.pick(&[1, 500, 5_000]),
            strategy: dice.pick(&Strategy::all()).to_string(),
            rerun_every: 2,
            keep_cuts: true,
            data_dir: Some(self.folder.join("data")),
            log_segment_bytes: 1 << 16,
            snapshot_us: if self.snapshots { 1 } else { 1_000_000_000 },
            recovery: if dice.chance(30) { Recovery::Strong } else { Recovery::Weak },
            ..Settings::default()
        };
        let sinks = sinks.collect();
        AppSpec { sinks, ..AppSpec::new(self.program.clone(), sources.collect(), settings) }
    }

    /// The messages of each partition: rows, and unreadable messages where a row is missing.
    fn messages(&self) -> Vec<Vec<Vec<u8>>> {
        let of = |(rows, source): (&Vec<InputRow>, &SourceSpec)| {
            let schema = &self.program.streams[source.stream.index()].spec.schema;
            let mut messages: Vec<Vec<u8>> = Vec::new();
            for row in rows {
                messages.resize(row.offset as usize, b"oops".to_vec());
                let mut text = Vec::new();
                write_row(schema, &row.values, &mut text);
                messages.push(text);
            }
            messages
        };
        self.rows.iter().zip(&self.program.sources).map(of).collect()
    }

    /// Starts a process that runs the app until it is killed.
    fn process(&self, life: u64) -> Child {
        let told = [self.seed.to_string(), life.to_string(), self.folder.display().to_string()];
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "server_any_program_over_topics_is_the_reference"])
            .envs(TOLD.into_iter().zip(told))
            .stdout(std::fs::File::create(self.folder.join(format!("{life}.log"))).expect("a file"))
            .spawn()
            .expect("a process")
    }

    /// Returns the result of the reference.
    fn wanted(&self, mill: &Mill) -> tidemill_reference::Outcome {
        let cuts: Vec<CutAt> = if self.snapshots {
            let end = |rows: &Vec<InputRow>| rows.last().map_or(0, |row| row.offset + 1);
            let offsets = self.rows.iter().map(end).collect();
            let idle = (0..self.rows.len() as u32).map(SourceId).collect();
            vec![CutAt { offsets, clock_us: 0, idle, ended: Vec::new(), ..Default::default() }]
        } else {
            let cuts = mill.cuts();
            // Without a snapshot the last life repeats all recorded epochs of earlier lives.
            let epochs: Vec<u64> = cuts.iter().map(|cut| cut.epoch).collect();
            assert_eq!(epochs, (1..=cuts.len() as u64).collect::<Vec<_>>(), "{}", self.topics);
            cuts.into_iter().map(random::cut_at).collect()
        };
        tidemill_reference::run(&self.program, &self.rows, &cuts)
    }

    fn compare(&self, mill: &Mill) {
        let wanted = self.wanted(mill);
        for (table, wanted) in self.program.tables.iter().zip(&wanted.tables) {
            let key = |row: &Row| Key::of(table.key.iter().map(|c| &row[*c]));
            let found = mill.table(&table.name).unwrap();
            let found: BTreeMap<Key, Row> = found.rows().map(|row| (key(&row), row)).collect();
            assert_eq!(*wanted, found, "{}: table {}", self.topics, table.name);
        }
        for index in self.written() {
            let stream = &self.program.streams[index].spec;
            let rows = wanted.outputs.get(&StreamId(index as u16));
            let rows: Vec<&Row> = rows.into_iter().flatten().map(|(_, row)| row).collect();
            let rows = Batch::from_rows(stream.schema.clone(), rows.iter().map(|row| &row[..]));
            let values = MessageValues::new(&stream.schema, MessageFormat::Json, &[]).unwrap();
            // Rows without a key go to the partitions in turn, by their numbers.
            let mut expected = vec![Vec::new(); OUT];
            for n in 0..rows.len() {
                let mut text = Vec::new();
                values.value(&rows, n, &mut text);
                let text = String::from_utf8(text).expect("JSON");
                expected[n % OUT].push((format!("{}/{n}", stream.name), text));
            }
            for (partition, (expected, found)) in
                expected.iter().zip(all(&self.output(index))).enumerate()
            {
                let place = format!("{}: {}/{partition}", self.topics, stream.name);
                assert_eq!(found.len(), expected.len(), "{place}");
                for ((id, text), found) in expected.iter().zip(found) {
                    let found_id = found.id.expect("an id");
                    assert!(found_id.ends_with(id), "{place}: {id} and {found_id}");
                    assert_eq!(found.value, *text, "{place}: {id}");
                }
            }
        }
    }
}

/// Sends messages in small pieces, some of them repeatedly in transactions that are aborted.
fn send(inputs: &str, messages: &[Vec<Vec<u8>>], seed: u64, in_transactions: bool) {
    let mut dice = Dice(seed);
    let writer = Writer::new(in_transactions.then_some(inputs));
    let mut left: Vec<&[Vec<u8>]> = messages.iter().map(|messages| &messages[..]).collect();
    while left.iter().any(|left| !left.is_empty()) {
        let partition = dice.below(left.len() as u64) as usize;
        let count = (1 + dice.below(9) as usize).min(left[partition].len());
        let (now, later) = left[partition].split_at(count);
        if in_transactions && dice.chance(20) {
            writer.send(inputs, partition, now, false);
        }
        writer.send(inputs, partition, now, true);
        left[partition] = later;
        std::thread::sleep(Duration::from_millis(dice.below(20)));
    }
}

/// Runs a case, and counts how often its process was killed.
fn check(seed: u64) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let case = Case::new(seed, folder.path());
    let outputs = case.written().into_iter().map(|index| (case.output(index), OUT));
    make_topics(&outputs.chain([(case.inputs(), case.rows.len())]).collect::<Vec<_>>());
    let mut dice = Dice(seed ^ 0x6b69_6c6c);
    let (inputs, messages, in_transactions) = (case.inputs(), case.messages(), dice.chance(50));
    let writer = std::thread::spawn(move || send(&inputs, &messages, seed, in_transactions));
    let kills = 1 + dice.below(2);
    for life in 0..kills {
        let mut process = case.process(life);
        // The kill comes before the start, during the recovery, or during the input.
        std::thread::sleep(Duration::from_millis(dice.below(1_200)));
        if let Some(status) = process.try_wait().expect("its status") {
            let said = std::fs::read_to_string(folder.path().join(format!("{life}.log")));
            panic!("seed {seed}: life {life} has ended by itself: {status}\n{}", said.unwrap());
        }
        process.kill().expect("it is killed");
        process.wait().expect("it has ended");
    }
    writer.join().expect("all is sent");
    let mill = Mill::start(case.spec(kills), Env::real());
    let mill = mill.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let summary = mill.finish().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    case.compare(&mill);
    assert!(summary.unstable.is_empty(), "seed {seed}");
    let messages = case.messages();
    let ends: Vec<u64> = messages.iter().map(|messages| messages.len() as u64).collect();
    assert_eq!(mill.cuts().last().map(|cut| &*cut.offsets), Some(&*ends), "seed {seed}");
    let bad = messages.iter().flatten().filter(|message| **message == b"oops").count();
    assert_eq!(summary.dead, bad as u64, "seed {seed}");
    kills
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_any_program_over_topics_is_the_reference() {
    if let [Ok(seed), Ok(life), Ok(folder)] = TOLD.map(std::env::var) {
        // The process of a case.
        let case = Case::new(seed.parse().unwrap(), Path::new(&folder));
        let mill = Mill::start(case.spec(life.parse().unwrap()), Env::real()).unwrap();
        while !mill.wait(1_000_000).unwrap() {}
        return;
    }
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let (next, kills) = (AtomicU64::new(0), AtomicU64::new(0));
    let run = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= cases {
            return;
        }
        kills.fetch_add(check(seed), Ordering::Relaxed);
    };
    // The threads wait most of the time.
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(run))));
    println!("{cases} programs, killed {} times", kills.into_inner());
}
