//! The state of a random program goes from one process to several and back, with stops, crashes and
//! lost workers between. In the end everything is as after one undisturbed run: tables, versions,
//! outputs and counts, bit for bit. A crash may also come at any moment of a move.

#[path = "inputs/mod.rs"]
mod inputs;
#[path = "../../txn/tests/random/mod.rs"]
mod random;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use random::functions::IS_PLACELESS;
use random::{Dice, Shape};
use serde_json::json;
use tidemill_core::{Error, Row, StreamId, Value};
use tidemill_engine::{
    has_sole_owner, join, unfinished, AppFunctions, AppSpec, Cluster, ClusterSettings,
    JoinedWorker, Mill, OnFault, Settings, SinkDecl, SourceDecl, StartFunction, Summary, Way,
};
use tidemill_env::{Addr, Connection, Env, Listener, Net};
use tidemill_function::{Activation, Call};
use tidemill_reference::InputRow;
use tidemill_sim::{SimDisk, SimEnv};
use tidemill_txn::program::{Abort, Body, Origin, Program, Stream};

const SECRET: &[u8] = b"nobody else may join this cluster";
/// The longest time for a step of a run, in microseconds.
const WAIT_US: u64 = 20_000_000;

struct Nobody;

impl StartFunction for Nobody {
    fn begin(&self, _: usize, _: &Call, _: bool) -> Result<Box<dyn Activation>, Abort> {
        unreachable!("the executor of epochs runs all functions")
    }
}

/// A program with its input, in files.
struct Case {
    seed: u64,
    program: Program,
    rows: Vec<Vec<InputRow>>,
}

impl Case {
    /// Returns the case of a seed, if several processes can run its program without Python.
    fn new(dice: &mut Dice) -> Option<Case> {
        let seed = dice.0;
        let shape = Shape { plain: dice.chance(50), orderly: true, histories: true, words: false };
        let program = random::program(dice, shape);
        let rows = longer(dice, &program, shape);
        let is_native = |of: &_| matches!(of, Body::Native(_));
        let case = Case { seed, program, rows };
        let needs_python = !case.program.opaques.is_empty() && !has_sole_owner(&case.spec(None));
        let is_wrong = case.program.handlers.iter().any(|of| is_native(&of.body)) || needs_python;
        (!is_wrong).then_some(case)
    }

    fn write_files(&self, env: &Env) {
        env.disk.create_dir_all(Path::new("/in")).unwrap();
        env.disk.create_dir_all(Path::new("/out")).unwrap();
        for (index, rows) in self.rows.iter().enumerate() {
            let stream = self.program.sources[index].stream;
            let schema = &self.program.streams[stream.index()].spec.schema;
            inputs::write_file(env, &format!("/in/{index}.jsonl"), schema, rows);
        }
    }

    fn spec(&self, settings: Option<Settings>) -> AppSpec {
        let program = &self.program;
        let sources = program.sources.iter().enumerate().map(|(index, source)| SourceDecl {
            out_of_orderness_us: source.out_of_orderness_us,
            files: Some(json!({"path": format!("/in/{index}.jsonl")})),
            ..SourceDecl::pushed(&program.streams[source.stream.index()].spec.name)
        });
        // Several processes refuse a stream that nothing takes.
        let is_written = |number: u16, stream: &Stream| match stream.origin {
            Origin::Output(_) | Origin::Aborted(_) | Origin::Emitted => true,
            Origin::Input => program.takers(StreamId(number)).next().is_none(),
            Origin::Derived { .. } => false,
        };
        let streams = (0..).zip(&program.streams);
        let written = streams.filter(|(number, stream)| is_written(*number, stream));
        let sinks = written.map(|(_, stream)| SinkDecl {
            stream: stream.spec.name.to_string(),
            files: Some(json!({"path": format!("/out/{}.jsonl", stream.spec.name)})),
            kafka: None,
            at: String::new(),
        });
        let settings = Settings { on_fault: OnFault::Abort, ..settings.unwrap_or_default() };
        AppSpec {
            sinks: sinks.collect(),
            ..AppSpec::new(program.clone(), sources.collect(), settings)
        }
    }
}

/// Returns the rows of every source, some of which have many.
fn longer(dice: &mut Dice, program: &Program, shape: Shape) -> Vec<Vec<InputRow>> {
    let mut all = random::sources(dice, program, shape);
    for _ in 0..dice.below(5) {
        let more = random::sources(dice, program, shape);
        for ((rows, more), source) in all.iter_mut().zip(more).zip(&program.sources) {
            let columns = &program.streams[source.stream.index()].spec.schema.columns;
            let at = columns.iter().position(|column| &*column.name == "at").unwrap();
            let time = |row: &InputRow| match row.values[at] {
                Value::Timestamp(us) => us,
                _ => unreachable!("it is a time"),
            };
            let offset = rows.last().map_or(0, |row| row.offset + 1);
            let newest_us = rows.iter().map(time).max().unwrap_or(0);
            rows.extend(more.into_iter().map(|mut row| {
                row.values[at] = Value::Timestamp(newest_us + time(&row));
                InputRow { offset: offset + row.offset, ..row }
            }));
        }
    }
    all
}

/// All that a user can see in the end.
#[derive(Debug, PartialEq)]
struct Seen {
    tables: BTreeMap<String, Vec<String>>,
    files: BTreeMap<String, String>,
    state_hash: String,
    counts: [(&'static str, u64); 6],
    reasons: Vec<String>,
}

impl Seen {
    fn of(case: &Case, mill: &Mill, summary: &Summary, env: &Env) -> Seen {
        // As text, because NaN equals no float.
        let shown = |row: Row| format!("{row:?}");
        let table = |name: &str| mill.table(name).unwrap().rows().map(shown).collect();
        let tables = case.program.tables.iter();
        let files = env.disk.list(Path::new("/out")).unwrap().into_iter().map(|path| {
            let mut text = String::new();
            let mut open = env.disk.open_read(&path).unwrap();
            std::io::Read::read_to_string(&mut open, &mut text).unwrap();
            (path.display().to_string(), text)
        });
        // Of the least frequent ones that are listed, others may be as frequent.
        let least = summary.reasons.last().map_or(0, |last| last.count);
        let reasons = summary.reasons.iter().filter(|of| of.count > least);
        let reasons = reasons.map(|of| format!("{of:?}"));
        let mut reasons: Vec<String> = reasons.collect();
        reasons.sort();
        Seen {
            tables: tables.map(|of| (of.name.to_string(), table(&of.name))).collect(),
            files: files.collect(),
            state_hash: summary.state_hash.clone(),
            counts: [
                ("events", summary.events),
                ("committed", summary.committed),
                ("refused", summary.refused),
                ("faults", summary.faults),
                ("dead", summary.dead),
                ("late", summary.late),
            ],
            reasons,
        }
    }

    /// Compares, and describes the differences briefly.
    fn check(&self, whole: &Seen, story: &str) {
        let mut wrong = Vec::new();
        let mut compare = |what: &str, found: &[String], wanted: &[String]| {
            if found == wanted {
                return;
            }
            let same = found.iter().zip(wanted).take_while(|(one, other)| one == other).count();
            let (found, wanted) =
                ((found.len(), found.get(same)), (wanted.len(), wanted.get(same)));
            wrong.push(format!("{what} differs after {same}: {found:?}, not {wanted:?}"));
        };
        for (name, rows) in &self.tables {
            compare(name, rows, &whole.tables[name]);
        }
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        for (name, text) in &whole.files {
            compare(name, &lines(self.files.get(name).map_or("", |text| text)), &lines(text));
        }
        compare("reasons", &self.reasons, &whole.reasons);
        if self.counts != whole.counts {
            wrong.push(format!("{:?}, not {:?}", self.counts, whole.counts));
        }
        if self.state_hash != whole.state_hash {
            wrong.push("the state hash differs".into());
        }
        assert!(wrong.is_empty(), "{story}:\n{}", wrong.join("\n"));
        assert_eq!(self.files.len(), whole.files.len(), "{story}: the files");
    }
}

/// The way in which a leg runs: in one process, or on so many workers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leg {
    One,
    Several(u64),
}

impl Leg {
    fn way(self) -> Way {
        match self {
            Leg::One => Way::One,
            Leg::Several(_) => Way::Several,
        }
    }
}

/// The end of a leg.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Stop,
    /// The machine stops, when so many events have been executed, or at some moment of the start.
    Crash,
    CrashAtStart,
}

/// A running leg.
enum Running {
    One(Mill),
    Several { cluster: Arc<Cluster>, settings: Box<ClusterSettings>, workers: Vec<JoinedWorker> },
}

impl Running {
    /// Ends without a last word.
    fn dies(self) {
        if let Running::Several { workers, .. } = self {
            workers.into_iter().for_each(dies);
        }
    }
}

fn dies(worker: JoinedWorker) {
    worker.process.end();
}

/// A network with the sockets that are files of the simulated disk, and the real one for the rest.
struct Nets {
    files: Arc<dyn Net>,
    rest: Arc<dyn Net>,
}

impl Nets {
    fn of(&self, at: &Addr) -> &dyn Net {
        match at {
            Addr::Unix(_) => &*self.files,
            _ => &*self.rest,
        }
    }
}

impl Net for Nets {
    fn listen(&self, at: &Addr) -> io::Result<Box<dyn Listener>> {
        self.of(at).listen(at)
    }

    fn connect(&self, at: &Addr, timeout_us: u64) -> io::Result<Box<dyn Connection>> {
        self.of(at).connect(at, timeout_us)
    }
}

/// A case on its way, with the disk as the last process has left it.
struct Journey<'c> {
    case: &'c Case,
    dice: Dice,
    disk: Arc<SimDisk>,
    /// The cluster's number of sources, and its store of snapshots, which never change.
    sources: u32,
    snapshots: Option<String>,
    /// The events so far, for messages.
    story: String,
    moved: u64,
}

impl Journey<'_> {
    /// The real environment with the simulated disk, and the sockets on it.
    fn env(&self) -> Env {
        let net = Arc::new(Nets { files: SimEnv::new(1).env().net, rest: Env::real().net });
        Env { disk: self.disk.clone(), net, ..Env::real() }
    }

    fn start(&mut self, leg: Leg) -> Result<Running, Error> {
        let (env, dice) = (self.env(), &mut self.dice);
        let workers = match leg {
            Leg::One => {
                let settings = Settings {
                    workers: 1 + dice.below(3) as usize,
                    epoch_idle: dice.chance(70),
                    epoch_rows_max: 1 + dice.below(20) as usize,
                    epoch_us_max: 100,
                    rerun_every: 0,
                    data_dir: Some("/data".into()),
                    snapshot_us: if dice.chance(50) { 1_000 } else { 1_000_000_000 },
                    log_segment_bytes: 1 << 16,
                    ..Settings::default()
                };
                return Mill::start(self.case.spec(Some(settings)), env).map(Running::One);
            }
            Leg::Several(workers) => workers,
        };
        let spec = self.case.spec(None);
        let functions = AppFunctions::new(&spec, Arc::new(Nobody))?;
        let settings = self.settings();
        let cluster = Cluster::start(&spec, functions, &settings, SECRET, &env)?;
        let settings = Box::new(settings);
        let mut running = Running::Several { cluster, settings, workers: Vec::new() };
        (0..workers).for_each(|_| self.join(&mut running));
        Ok(running)
    }

    fn settings(&mut self) -> ClusterSettings {
        ClusterSettings {
            dir: "/data/cluster".into(),
            sources: self.sources,
            snapshots: self.snapshots.clone(),
            beat_us: 10_000,
            lease_us: 300_000,
            form_us: 2_000_000,
            epoch_rows_max: Some(1 + self.dice.below(20)),
            snapshot_us: if self.dice.chance(50) { 1_000 } else { 1_000_000_000 },
            ..ClusterSettings::default()
        }
    }

    fn join(&self, running: &mut Running) {
        let env = self.env();
        let Running::Several { cluster, settings, workers } = running else { unreachable!() };
        let (spec, at) = (self.case.spec(None), cluster.address());
        let functions = AppFunctions::new(&spec, Arc::new(Nobody)).unwrap();
        workers.push(join(&spec, functions, settings, SECRET, &at, &env).unwrap());
    }

    /// Waits until so many events have been executed, or all.
    fn wait(&self, running: &Running, events: u64) {
        let env = self.env();
        let until_ns = env.clock.monotonic_ns() + WAIT_US * 1_000;
        loop {
            let (has_ended, done, told) = match running {
                Running::One(mill) => {
                    let has_ended = mill.wait(50);
                    let has_ended =
                        has_ended.unwrap_or_else(|e| panic!("seed {}: {e}", self.story));
                    let status = mill.status();
                    (has_ended, status.events, format!("{status:?}"))
                }
                Running::Several { cluster, workers, .. } => {
                    env.clock.sleep_us(50);
                    let status = cluster.status();
                    assert!(status.ended.is_none(), "seed {}: {status:?}", self.story);
                    let counts = status.counts.events;
                    let has_ended = cluster.status_json()["input_ended"] == true;
                    let of =
                        |worker: &JoinedWorker| (worker.process.status(), worker.process.trouble());
                    let told = || {
                        let workers: Vec<_> = workers.iter().map(of).collect();
                        format!("{workers:?} {status:?}")
                    };
                    (has_ended && status.generation > 0, counts, told())
                }
            };
            if has_ended || done >= events {
                return;
            }
            let is_late = env.clock.monotonic_ns() > until_ns;
            assert!(!is_late, "seed {}: nothing happens: {told}", self.story);
        }
    }

    /// Stops cleanly. All that was executed is in a snapshot then, if no worker is missing.
    fn stop(&mut self, running: Running) {
        match running {
            Running::One(mill) => drop(mill.stop().unwrap_or_else(|e| self.fails(&e))),
            Running::Several { cluster, workers, .. } => {
                let has_generation = || cluster.status().generation > 0;
                let clock = self.env().clock;
                let until_ns = clock.monotonic_ns() + WAIT_US * 1_000;
                while !has_generation() {
                    assert!(clock.monotonic_ns() < until_ns, "seed {}: no generation", self.story);
                    clock.sleep_us(500);
                }
                let is_whole = cluster.leave(true).unwrap_or_else(|e| self.fails(&e));
                if !is_whole {
                    // A worker has just died. The next leg finishes what it has left.
                    self.story += " (without a snapshot)";
                }
                workers.into_iter().for_each(dies);
            }
        }
    }

    fn fails(&self, error: &Error) -> ! {
        panic!("seed {}: {error}", self.story)
    }

    /// Ends the machine at some moment since the recording began. Another disk has what is left.
    fn crash(&mut self) {
        let trace = self.disk.take_trace();
        // Without a step there is one moment. Each has three disks.
        let nth = self.dice.below(3 * (trace.len() as u64 + 1)) as usize;
        let image = trace.images(self.dice.next(), 1).nth(nth).expect("there are as many");
        self.story += &format!(" (crash {nth}: after {}, {:?})", image.after, image.left);
        self.disk = image.disk;
    }

    /// Finishes a run of the other way that was killed, as every start does.
    fn finish_before(&mut self, leg: Leg) {
        if unfinished(&self.env(), Path::new("/data"), leg.way()).is_none() {
            return;
        }
        self.story += " finish";
        let other = if leg == Leg::One { Leg::Several(1) } else { Leg::One };
        let running = self.start(other).unwrap_or_else(|e| self.fails(&e));
        self.stop(running);
    }

    /// Runs a leg.
    fn run(&mut self, leg: Leg, end: End, events: u64) {
        self.story += &format!("; {leg:?}");
        self.finish_before(leg);
        if end == End::CrashAtStart {
            self.disk.record();
        }
        let mut running = match self.start(leg) {
            Ok(running) => running,
            Err(error) if error.what.contains("its last start or upgrade was not completed") => {
                // There is no cluster yet, and its settings are not known. The error says so.
                self.story += " again";
                let other = self.start(Leg::Several(1)).unwrap_or_else(|e| self.fails(&e));
                self.stop(other);
                self.start(leg).unwrap_or_else(|e| self.fails(&e))
            }
            Err(error) => self.fails(&error),
        };
        self.moved += 1;
        if end == End::CrashAtStart {
            self.crash();
            return running.dies();
        }
        self.wait(&running, events);
        if leg != Leg::One && self.dice.chance(30) {
            // A worker dies, and another one comes.
            self.story += " loses a worker";
            let Running::Several { workers, .. } = &mut running else { unreachable!() };
            let nth = self.dice.below(workers.len() as u64) as usize;
            dies(workers.remove(nth));
            self.join(&mut running);
            let more = 1 + self.dice.below(20);
            self.wait(&running, events + more);
        }
        self.story += &format!(" {end:?}");
        match end {
            End::Stop => self.stop(running),
            End::Crash => {
                self.disk.record();
                self.crash();
                running.dies();
            }
            End::CrashAtStart => unreachable!(),
        }
    }
}

/// Runs a case in one process without a break.
fn undisturbed(case: &Case) -> Seen {
    let disk = SimEnv::new(case.seed).disk;
    let env = Env { disk, ..Env::real() };
    case.write_files(&env);
    let mill = Mill::start(case.spec(None), env.clone()).unwrap_or_else(|e| panic!("{e}"));
    let summary = mill.finish().unwrap_or_else(|e| panic!("{e}"));
    Seen::of(case, &mill, &summary, &env)
}

/// Runs the case of a seed. Returns the number of its legs, if several processes can run it.
fn check(seed: u64) -> Option<u64> {
    let mut dice = Dice(seed);
    let case = Case::new(&mut dice)?;
    let whole = undisturbed(&case);
    let (sources, story) = (1 + dice.below(3) as u32, format!("{seed}"));
    let snapshots = dice.chance(30).then(|| "/elsewhere".to_owned());
    let disk = SimEnv::new(seed).disk;
    let mut on = Journey { case: &case, dice, disk, sources, snapshots, story, moved: 0 };
    case.write_files(&on.env());
    let mut legs = vec![Leg::One, Leg::Several(3), Leg::Several(1), Leg::One];
    for _ in 0..on.dice.below(3) {
        let leg = match on.dice.chance(40) {
            true => Leg::One,
            false => Leg::Several(1 + on.dice.below(3)),
        };
        let at = on.dice.below(legs.len() as u64 + 1) as usize;
        legs.insert(at, leg);
    }
    let mut events = 0;
    let most = whole.counts[0].1 / legs.len() as u64;
    for leg in legs {
        events += on.dice.below(2 * most + 1);
        let end = *on.dice.pick(&[End::Stop, End::Stop, End::Crash, End::Crash, End::CrashAtStart]);
        on.run(leg, end, events);
    }
    on.finish_before(Leg::One);
    let running = on.start(Leg::One).unwrap_or_else(|e| on.fails(&e));
    let Running::One(mill) = running else { unreachable!() };
    let summary = mill.finish().unwrap_or_else(|e| on.fails(&e));
    let seen = Seen::of(&case, &mill, &summary, &on.env());
    seen.check(&whole, &format!("seed {}", on.story));
    Some(on.moved)
}

/// Seeds of programs whose aborts and late events several processes once counted in another way.
const KNOWN: [u64; 6] = [10, 25, 85, 128, 152, 174];

#[test]
fn any_program_on_any_way() {
    IS_PLACELESS.store(true, Ordering::Relaxed);
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let seeds: Vec<u64> = match (number("TIDEMILL_SEED"), number("TIDEMILL_CASES")) {
        (Some(seed), _) => vec![seed],
        // Each of them takes about a second, and those of other tests much less.
        (None, Some(cases)) => (0..cases / 20).collect(),
        (None, None) => (0..12).chain(KNOWN).collect(),
    };
    let legs: Vec<u64> = seeds.into_iter().filter_map(check).collect();
    println!("{} programs, {} legs", legs.len(), legs.iter().sum::<u64>());
    assert!(!legs.is_empty(), "no seed has a program that several processes can run");
}
