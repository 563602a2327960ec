//! Each run continues exactly where the last one ended. Random programs run over random files and
//! pushed rows on a simulated disk. They are stopped, killed and crashed, and compared with one run
//! without a break.

#[path = "../../txn/tests/random/mod.rs"]
mod random;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use random::{Dice, Shape};
use serde_json::json;
use tidemill_core::{Batch, Error, Kind, Row, Schema, StreamId, Value};
use tidemill_engine::{
    App, AppSpec, Mill, Recovery, RetainedRows, Settings, SinkDecl, SourceDecl, Summary,
};
use tidemill_env::Env;
use tidemill_reference::InputRow;
use tidemill_sim::{SimDisk, SimEnv};
use tidemill_txn::program::Program;

fn json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => json!(null),
        Value::Bool(b) => json!(b),
        Value::Int(i) | Value::Timestamp(i) => json!(i),
        Value::Float(f) if f.is_nan() => json!("NaN"),
        Value::Float(f) => json!(f),
        Value::Str(s) => json!(&**s),
        Value::Decimal(units, scale) => json!(tidemill_core::value::format_decimal(*units, *scale)),
        other => unreachable!("{other} is not in random rows"),
    }
}

fn file(schema: &Schema, rows: &[InputRow]) -> String {
    let (mut text, mut line) = (String::new(), 0);
    for row in rows {
        while line < row.offset {
            writeln!(text, "oops {line}").unwrap();
            line += 1;
        }
        let fields = schema.columns.iter().zip(&row.values);
        let object: serde_json::Map<String, serde_json::Value> =
            fields.map(|(c, v)| (c.name.to_string(), json_value(v))).collect();
        writeln!(text, "{}", serde_json::Value::from(object)).unwrap();
        line += 1;
    }
    text
}

/// A program with its input. The first source is pushed if it has no undecodable rows, and the
/// others are files.
struct Case {
    program: Program,
    rows: Vec<Vec<InputRow>>,
    pushed: bool,
}

impl Case {
    fn new(dice: &mut Dice) -> Case {
        let shape = Shape { plain: dice.chance(50), orderly: true, histories: true, words: false };
        let program = random::program(dice, shape);
        let rows = random::sources(dice, &program, shape);
        // A pushed stream has only one source, and no gaps.
        let first = program.sources[0].stream;
        let alone = program.sources.iter().filter(|s| s.stream == first).count() == 1;
        let dense = rows[0].iter().enumerate().all(|(i, r)| r.offset == i as u64);
        Case { pushed: alone && dense && dice.chance(60), program, rows }
    }

    fn write_files(&self, env: &Env) {
        env.disk.create_dir_all(Path::new("/in")).unwrap();
        env.disk.create_dir_all(Path::new("/out")).unwrap();
        for (index, rows) in self.rows.iter().enumerate() {
            let stream = self.program.sources[index].stream;
            let text = file(&self.program.streams[stream.index()].spec.schema, rows);
            let mut out = env.disk.create(Path::new(&format!("/in/{index}.jsonl"))).unwrap();
            std::io::Write::write_all(&mut out, text.as_bytes()).unwrap();
            out.sync().unwrap();
        }
        env.disk.sync_dir(Path::new("/in")).unwrap();
    }

    fn spec(&self, settings: Settings) -> AppSpec {
        let program = &self.program;
        let sources = program.sources.iter().enumerate().map(|(index, source)| SourceDecl {
            stream: program.streams[source.stream.index()].spec.name.to_string(),
            out_of_orderness_us: source.out_of_orderness_us,
            idle_us: None,
            files: (!(self.pushed && index == 0))
                .then(|| json!({"path": format!("/in/{index}.jsonl")})),
            kafka: None,
            at: String::new(),
        });
        let sinks = program.streams.iter().filter(|s| {
            !matches!(
                s.origin,
                tidemill_txn::program::Origin::Input
                    | tidemill_txn::program::Origin::Derived { .. }
            )
        });
        let sinks = sinks.map(|s| SinkDecl {
            stream: s.spec.name.to_string(),
            files: Some(json!({"path": format!("/out/{}.jsonl", s.spec.name)})),
            kafka: None,
            at: String::new(),
        });
        AppSpec {
            sinks: sinks.collect(),
            ..AppSpec::new(program.clone(), sources.collect(), settings)
        }
    }

    /// Pushes the rows that the engine does not have yet, in pieces. Returns an error when it has
    /// ended.
    fn push(&self, mill: &Mill, dice: &mut Dice) -> Result<(), Error> {
        if !self.pushed {
            return Ok(());
        }
        let stream = &self.program.streams[self.program.sources[0].stream.index()].spec;
        let mut at = mill.sent(&stream.name)? as usize;
        let rows: Vec<&[Value]> = self.rows[0].iter().map(|r| &r.values[..]).collect();
        while at < rows.len() {
            let end = (at + 1 + dice.below(5) as usize).min(rows.len());
            let batch = Batch::from_rows(stream.schema.clone(), rows[at..end].iter().copied());
            mill.send(&stream.name, batch)?;
            at = end;
        }
        Ok(())
    }
}

fn settings(dice: &mut Dice, durable: bool) -> Settings {
    Settings {
        workers: 1 + dice.below(3) as usize,
        epoch_idle: dice.chance(70),
        epoch_rows_max: 1 + dice.below(40) as usize,
        epoch_us_max: 1,
        rerun_every: 0,
        data_dir: durable.then(|| "/data".into()),
        snapshot_us: if dice.chance(50) { 1 } else { 1_000_000_000 },
        log_segment_bytes: 1 << 16,
        recovery: if durable && dice.chance(30) { Recovery::Strong } else { Recovery::Weak },
        tail_rows: 7,
        // Without a data directory, streams can be followed only over HTTP.
        http_port: (!durable).then_some(0),
        ..Settings::default()
    }
}

/// All that a user can see in the end.
#[derive(Debug, PartialEq)]
struct Seen {
    tables: Vec<Vec<Row>>,
    files: Vec<(String, String)>,
    output_hash: String,
    /// The hash of the tables and of their retained versions.
    state_hash: String,
    events: u64,
    /// The last rows of each stream for its followers, with the first number and the next one.
    retained: Vec<(String, u64, u64, Vec<Row>)>,
}

fn seen(case: &Case, mill: &Mill, summary: &Summary, env: &Env) -> Seen {
    let tables = case.program.tables.iter();
    let tables = tables.map(|t| mill.table(&t.name).unwrap().rows().collect()).collect();
    let files = env.disk.list(Path::new("/out")).unwrap_or_default();
    let files = files.into_iter().map(|path| {
        let mut text = String::new();
        let mut open = env.disk.open_read(&path).unwrap();
        std::io::Read::read_to_string(&mut open, &mut text).unwrap();
        (path.display().to_string(), text)
    });
    // The order of bad and late events of several sources depends on the cuts.
    let is_mixed = |late: &str| {
        let mut all = case.program.streams.iter().zip(0..);
        let (_, of) = all.find(|(of, _)| *of.spec.name == *late).unwrap();
        let root = case.program.root_stream(StreamId(of));
        case.program.sources.iter().filter(|source| source.stream == root).count() > 1
    };
    let streams = mill.streams().into_iter().filter(|(name, _)| !name.ends_with(".dead"));
    let retained = streams.map(|(stream, _)| {
        let first = mill.retained(&stream, 0, 0).unwrap().first;
        let RetainedRows { first, next, rows } = mill.retained(&stream, first, usize::MAX).unwrap();
        let mut rows: Vec<Row> = rows.iter().flat_map(|(_, batch)| batch.rows()).collect();
        assert_eq!(rows.len() as u64, next - first, "{stream}");
        if stream.strip_suffix(".late").is_some_and(is_mixed) {
            assert_eq!(first, 0, "{stream} has all of them");
            rows.sort_by_cached_key(|row| format!("{row:?}"));
        }
        (stream, first, next, rows)
    });
    Seen {
        retained: retained.collect(),
        tables,
        files: files.collect(),
        output_hash: summary.output_hash.clone(),
        state_hash: summary.state_hash.clone(),
        events: summary.events,
    }
}

/// Compares, and describes the differences briefly.
fn same(again: &Seen, whole: &Seen, seed: u64) {
    assert!(again.tables == whole.tables, "seed {seed}: the tables differ");
    for ((name, text), (_, expected)) in again.files.iter().zip(&whole.files) {
        let lines = |text: &str| text.lines().count();
        let (n, m) = (lines(text), lines(expected));
        assert!(text == expected, "seed {seed}: {name} differs: {n} lines, not {m}");
    }
    assert_eq!(again.state_hash, whole.state_hash, "seed {seed}: versions differ");
    for (again, whole) in again.retained.iter().zip(&whole.retained) {
        let numbers = |of: &(String, u64, u64, Vec<Row>)| (of.0.clone(), of.1, of.2);
        assert_eq!(numbers(again), numbers(whole), "seed {seed}: other rows can be followed");
        assert!(again == whole, "seed {seed}: what can be followed of {} differs", whole.0);
    }
    assert!(again == whole, "seed {seed}: hash, events or the list of files differ");
}

/// Runs to the end.
fn finish(case: &Case, sim: &SimEnv, dice: &mut Dice, settings: Settings) -> Seen {
    try_finish(case, sim, dice, settings, |_| {}).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs to the end, or to an error. `acknowledged` receives the number of durable pushed rows.
fn try_finish(
    case: &Case,
    sim: &SimEnv,
    dice: &mut Dice,
    settings: Settings,
    acknowledged: impl Fn(u64),
) -> Result<Seen, Error> {
    let env = sim.env();
    let mill = Mill::start(case.spec(settings), env.clone())?;
    let closing = Arc::new(mill);
    let summary = {
        let clock = sim.clock.clone();
        let ended = closing.clone();
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = done.clone();
        let ticking = env
            .threads
            .spawn(
                "clock",
                Box::new(move || {
                    while !flag.load(std::sync::atomic::Ordering::Acquire) {
                        clock.advance_us(1);
                        let _ = ended.wait(50);
                    }
                }),
            )
            .unwrap();
        let pushed = case.push(&closing, dice).and_then(|()| {
            if case.pushed && dice.chance(50) {
                let stream = case.program.sources[0].stream.index();
                let name = &case.program.streams[stream].spec.name;
                let rows = closing.sent(name)?;
                closing.acknowledge(name, rows)?;
                acknowledged(rows);
            }
            Ok(())
        });
        let summary = closing.finish();
        done.store(true, std::sync::atomic::Ordering::Release);
        ticking.join().unwrap();
        let summary = summary?;
        pushed?;
        summary
    };
    Ok(seen(case, &closing, &summary, &env))
}

/// Runs for a while and is stopped.
fn run_a_while(case: &Case, sim: &SimEnv, dice: &mut Dice, settings: Settings) {
    let env = sim.env();
    let mill = Mill::start(case.spec(settings), env).unwrap_or_else(|e| panic!("{e}"));
    let _ = case.push(&mill, dice);
    for _ in 0..dice.below(20) {
        sim.clock.advance_us(1);
        if mill.wait(20).unwrap_or(true) {
            break;
        }
    }
    mill.stop().unwrap_or_else(|e| panic!("{e}"));
}

fn cases() -> u64 {
    std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
}

fn in_event_time(program: &Program) -> bool {
    use tidemill_core::StreamTime;
    program
        .sources
        .iter()
        .all(|s| matches!(program.streams[s.stream.index()].spec.time, StreamTime::Event { .. }))
}

#[test]
fn stopped_and_started_again_is_as_if_it_had_gone_on() {
    let mut compared = 0;
    for seed in 0..cases() {
        let mut dice = Dice(seed);
        let case = Case::new(&mut dice);
        if !in_event_time(&case.program) {
            continue;
        }
        compared += 1;
        let whole = {
            let sim = SimEnv::new(seed);
            case.write_files(&sim.env());
            finish(&case, &sim, &mut Dice(seed), settings(&mut Dice(seed), false))
        };
        let sim = SimEnv::new(seed);
        case.write_files(&sim.env());
        for _ in 0..1 + dice.below(3) {
            let settings = settings(&mut dice, true);
            run_a_while(&case, &sim, &mut dice, settings);
            if dice.chance(50) {
                sim.disk.crash();
            }
        }
        let settings = settings(&mut dice, true);
        let again = finish(&case, &sim, &mut dice, settings);
        same(&again, &whole, seed);
    }
    assert!(compared > 0);
}

/// An environment with another disk.
fn on(sim: &SimEnv, disk: &Arc<tidemill_sim::SimDisk>) -> SimEnv {
    SimEnv { disk: disk.clone(), ..sim.clone() }
}

/// Programs with event time, with the results of a run without faults.
fn whole_runs(first: u64, count: u64) -> impl Iterator<Item = (u64, Case, Seen)> {
    (first..first + count).filter_map(|seed| {
        let case = Case::new(&mut Dice(seed));
        in_event_time(&case.program).then(|| {
            let sim = SimEnv::new(seed);
            case.write_files(&sim.env());
            let whole = finish(&case, &sim, &mut Dice(seed), settings(&mut Dice(seed), false));
            (seed, case, whole)
        })
    })
}

/// After a crash at any moment, also during a recovery, the next run has the same results, and
/// knows every acknowledged row.
#[test]
fn a_crash_at_any_moment_loses_and_repeats_nothing() {
    let mut images = 0;
    for (seed, case, whole) in whole_runs(1000, 2 + cases() / 20) {
        let sim = SimEnv::new(seed);
        case.write_files(&sim.env());
        let mut dice = Dice(seed);
        let chosen =
            Settings { snapshot_us: 1 + dice.below(3) as i64, ..settings(&mut dice, true) };
        sim.disk.record();
        let disk = sim.disk.clone();
        let first = try_finish(&case, &sim, &mut dice, chosen.clone(), |rows| disk.mark(rows));
        same(&first.unwrap_or_else(|e| panic!("seed {seed}: {e}")), &whole, seed);
        let trace = sim.disk.take_trace();
        let every = 1 + trace.len() * 3 / 60;
        let skip = dice.below(every as u64) as usize;
        for image in trace.images(seed, 1).skip(skip).step_by(every) {
            let place = format!("seed {seed}, a crash at {} after {}", image.at, image.after);
            let world = on(&sim, &image.disk);
            let nested = dice.chance(30);
            if nested {
                image.disk.record();
            }
            let known = Arc::new(std::sync::Mutex::new(Vec::new()));
            // A restart may choose the other kind of recovery.
            let recovery = settings(&mut dice, true).recovery;
            let then = Settings { recovery, ..chosen.clone() };
            let again = try_finish(&case, &world, &mut dice, then, |rows| {
                known.lock().unwrap().push(rows);
            });
            let again = again.unwrap_or_else(|e| panic!("{place}: {e}"));
            let acknowledged = known.lock().unwrap().iter().copied().max();
            if let (Some(before), Some(after)) = (image.mark, acknowledged) {
                assert!(after >= before, "{place}: {before} rows were acknowledged");
            }
            same(&again, &whole, seed);
            images += 1;
            if nested {
                let trace = image.disk.take_trace();
                let at = dice.below(trace.len() as u64 * 3 + 1) as usize;
                let second = trace.images(seed, 1).nth(at);
                if let Some(second) = second {
                    let world = on(&sim, &second.disk);
                    let again = try_finish(&case, &world, &mut dice, chosen.clone(), |_| {});
                    let again = again.unwrap_or_else(|e| panic!("{place}, and again: {e}"));
                    same(&again, &whole, seed);
                    images += 1;
                }
            }
        }
    }
    assert!(images > 0);
    println!("{images} crashes");
}

/// After a stop, one bit is flipped or one file is shorter. The next run refuses it by name, or has
/// the same results.
#[test]
fn damage_is_refused_or_does_not_matter() {
    let (mut refused, mut harmless) = (0, 0);
    for (seed, case, whole) in whole_runs(5000, 2 + cases() / 20) {
        let sim = SimEnv::new(seed);
        case.write_files(&sim.env());
        let mut dice = Dice(seed);
        let chosen =
            Settings { snapshot_us: 1 + dice.below(3) as i64, ..settings(&mut dice, true) };
        run_a_while(&case, &sim, &mut dice, chosen.clone());
        sim.disk.record();
        let trace = sim.disk.take_trace();
        for damage in 0..30 {
            let image = trace.images(seed, 0).next().expect("a disk");
            let world = on(&sim, &image.disk);
            let env = world.env();
            let mut files = Vec::new();
            for dir in ["/data", "/data/cuts", "/data/input", "/out"] {
                let paths = env.disk.list(Path::new(dir)).unwrap_or_default();
                files.extend(paths.into_iter().filter(|p| !p.ends_with("LOCK")));
            }
            let mut stack = vec![std::path::PathBuf::from("/data/store")];
            while let Some(dir) = stack.pop() {
                for path in env.disk.list(&dir).unwrap_or_default() {
                    match env.disk.metadata(&path).unwrap().is_dir {
                        true => stack.push(path),
                        false => files.push(path),
                    }
                }
            }
            files.retain(|path| {
                env.disk.metadata(path).is_ok_and(|meta| !meta.is_dir && meta.len > 0)
            });
            let path = dice.pick(&files).clone();
            let len = env.disk.metadata(&path).unwrap().len;
            if damage % 3 == 0 {
                image.disk.truncate(&path, dice.below(len)).unwrap();
            } else {
                // Logs are mostly reserved space, so the damage is mostly near the beginning.
                let within = if dice.chance(80) { len.min(4096) } else { len };
                image.disk.flip_bit(&path, dice.below(within * 8)).unwrap();
            }
            match try_finish(&case, &world, &mut dice, chosen.clone(), |_| {}) {
                Ok(again) => {
                    same(&again, &whole, seed);
                    harmless += 1;
                }
                Err(error) => {
                    assert!(error.kind != Kind::Internal, "{}: {error}", path.display());
                    assert!(!error.help.is_empty(), "{}: {error}", path.display());
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 0 && harmless > 0, "{refused} refused, {harmless} harmless");
    println!("{refused} refused, {harmless} harmless");
}

/// A disk that fails once stops the engine, by an error and not by a panic. A restart then
/// continues as if it had not failed.
#[test]
fn a_failing_disk_stops_the_engine_and_harms_nothing() {
    use std::io::ErrorKind;
    use tidemill_sim::DiskOp;
    let mut stopped = 0;
    for (seed, case, whole) in whole_runs(9000, 3 + cases() / 10) {
        let mut dice = Dice(seed);
        for op in [DiskOp::Sync, DiskOp::Write, DiskOp::Rename, DiskOp::SyncDir, DiskOp::Create] {
            let sim = SimEnv::new(seed);
            case.write_files(&sim.env());
            let chosen =
                Settings { snapshot_us: 1 + dice.below(3) as i64, ..settings(&mut dice, true) };
            sim.disk.fail_nth(op, 1 + dice.below(12), ErrorKind::Other);
            let failed = try_finish(&case, &sim, &mut dice, chosen.clone(), |_| {});
            match failed {
                Ok(seen) => same(&seen, &whole, seed),
                Err(error) => {
                    assert!(error.kind == Kind::Io, "seed {seed}, {op:?}: {error}");
                    stopped += 1;
                }
            }
            sim.disk.clear_faults();
            if dice.chance(50) {
                sim.disk.crash();
            }
            let again = try_finish(&case, &sim, &mut dice, chosen, |_| {});
            same(&again.unwrap_or_else(|e| panic!("seed {seed}, {op:?}: {e}")), &whole, seed);
        }
    }
    assert!(stopped > 0);
}

/// An opaque function that ends the process on one of its events: nothing reaches the disk from
/// there on.
struct Killer(Arc<SimDisk>);

impl tidemill_txn::program::Opaque for Killer {
    fn call(
        &self,
        event: &[Value],
        tx: &mut dyn tidemill_txn::program::Tx,
    ) -> Result<(), tidemill_txn::program::Abort> {
        if event[0] == Value::Int(13) {
            self.0.fail_from(None, 1, std::io::ErrorKind::Other);
        }
        tx.put(tidemill_core::TableId(0), &[event[0].clone(), Value::Int(1)])
    }
}

/// An input that ends the process again and again is finally quarantined, and nothing else is.
#[test]
fn an_input_that_kills_is_set_aside() {
    use tidemill_core::{Column, DataType};
    let mut b = tidemill_txn::program::Builder::new("deadly");
    let int = |name: &str| Column::new(name, DataType::Int);
    b.table("seen", &["n"], vec![int("n"), int("times")]);
    let stream = b.stream("numbers", vec![int("n")]);
    let sim = SimEnv::new(1);
    b.opaque("look", stream, Arc::new(Killer(sim.disk.clone())));
    let program = b.finish().unwrap();
    let spec = || AppSpec {
        keep: vec!["numbers.dead".into()],
        ..AppSpec::new(
            program.clone(),
            vec![SourceDecl::pushed("numbers")],
            Settings { data_dir: Some("/data".into()), ..Settings::default() },
        )
    };
    let schema = program.streams[0].spec.schema.clone();
    let mut deaths = 0;
    loop {
        let mill = Mill::start(spec(), sim.env()).unwrap();
        let sent = mill.sent("numbers").unwrap() as i64;
        let rows: Vec<[Value; 1]> = (sent..40).map(|n| [Value::Int(n)]).collect();
        let batch = Batch::from_rows(schema.clone(), rows.iter().map(|r| &r[..]));
        let _ = mill.send("numbers", batch);
        match mill.drain().and_then(|()| mill.stop()) {
            Ok(summary) => {
                assert_eq!((summary.events, summary.dead), (40, 1));
                let dead = mill.output("numbers.dead", 0).unwrap();
                let row = dead[0].row(0);
                assert_eq!(row[1], Value::Int(13));
                assert_eq!(row[4], Value::str(
                        "it ended the process 3 times, each time while nothing else was executed; 'tidemill dlq replay' sends it again, if its stream is pushed"
                    ));
                assert_eq!(mill.table("seen").unwrap().len(), 39);
                break;
            }
            Err(_) => deaths += 1,
        }
        // The process is gone.
        drop(mill);
        sim.disk.clear_faults();
        sim.disk.kill();
    }
    // The first death had an unknown cause.
    assert_eq!(deaths, 4);
    let mill = Mill::start(spec(), sim.env()).unwrap();
    assert_eq!(mill.table("seen").unwrap().len(), 39);
    assert_eq!(mill.stop().unwrap().dead, 1);
}
