//! Deaths of the process from outside, and wrong clocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use tidemill_core::{Batch, Column, DataType, Kind, Schema, TableId, Value};
use tidemill_engine::{AppSpec, Mill, Settings, SourceDecl};
use tidemill_env::Env;
use tidemill_sim::{SimClock, SimDisk, SimEnv};
use tidemill_txn::program::{Abort, Builder, Opaque, Program, Tx};

/// A function during which the process is ended: after so many calls nothing reaches the disk any
/// more.
struct Witness {
    disk: Arc<SimDisk>,
    clock: Arc<SimClock>,
    calls: AtomicU64,
    kill_every: u64,
}

impl Opaque for Witness {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        // Earlier rows are stored meanwhile.
        Env::real().clock.sleep_us(100);
        self.clock.advance_us(1_000);
        let calls = 1 + self.calls.fetch_add(1, Ordering::Relaxed);
        if calls.is_multiple_of(self.kill_every) {
            self.disk.fail_from(None, 1, std::io::ErrorKind::Other);
        }
        tx.put(TableId(0), &[event[0].clone(), Value::Int(1)])
    }
}

fn program(sim: &SimEnv, kill_every: u64) -> Program {
    let int = |name: &str| Column::new(name, DataType::Int);
    let mut b = Builder::new("lives");
    b.table("seen", &["n"], vec![int("n"), int("times")]);
    let stream = b.stream("numbers", vec![int("n")]);
    let calls = AtomicU64::new(0);
    let witness =
        Arc::new(Witness { disk: sim.disk.clone(), clock: sim.clock.clone(), calls, kill_every });
    b.opaque("look", stream, witness);
    b.finish().unwrap()
}

fn spec(program: &Program, settings: Settings) -> AppSpec {
    let settings = Settings { data_dir: Some("/data".into()), ..settings };
    AppSpec::new(program.clone(), vec![SourceDecl::pushed("numbers")], settings)
}

fn numbers(schema: &Arc<Schema>, range: std::ops::Range<i64>) -> Batch {
    let rows: Vec<[Value; 1]> = range.map(|n| [Value::Int(n)]).collect();
    Batch::from_rows(schema.clone(), rows.iter().map(|row| &row[..]))
}

/// A process that is killed again and again keeps its progress, and no event is quarantined.
#[test]
fn a_process_that_is_killed_again_and_again_comes_to_its_end() {
    const ROWS: i64 = 3_000;
    let sim = SimEnv::new(1);
    let program = program(&sim, 600);
    let schema = program.streams[0].spec.schema.clone();
    let mut deaths = 0;
    loop {
        let mill = Mill::start(spec(&program, Settings::default()), sim.env()).unwrap();
        let sent = mill.sent("numbers").unwrap() as i64;
        let done = mill.send("numbers", numbers(&schema, sent..ROWS)).and_then(|_| mill.drain());
        match done.and_then(|()| mill.stop()) {
            Ok(summary) => {
                assert_eq!((summary.events, summary.dead), (ROWS as u64, 0));
                break;
            }
            Err(_) => deaths += 1,
        }
        drop(mill);
        sim.disk.clear_faults();
        sim.disk.kill();
        assert!(deaths < 60, "it makes no progress");
    }
    assert!(deaths > 4, "it was killed {deaths} times");
}

/// Without a data directory no setting would help, and none is named.
#[test]
fn in_memory_an_app_begins_anew_with_whatever_the_clock_says() {
    const DAY_US: i64 = 24 * 3_600_000_000;
    let sim = SimEnv::new(2);
    let program = program(&sim, u64::MAX);
    let schema = program.streams[0].spec.schema.clone();
    let start = || {
        let sources = vec![SourceDecl::pushed("numbers")];
        Mill::start(AppSpec::new(program.clone(), sources, Settings::default()), sim.env()).unwrap()
    };
    let send =
        |mill: &Mill| mill.send("numbers", numbers(&schema, 0..1)).and_then(|_| mill.drain());
    let mill = start();
    send(&mill).unwrap();
    sim.clock.step_wall_us(367 * DAY_US);
    let error = send(&mill).unwrap_err();
    assert_eq!(error.kind, Kind::Setting, "{error}");
    assert!(error.what.contains("the clock says 2021-") && !error.help.is_empty(), "{error}");
    assert!(!error.to_string().contains("clock_jump_us_max"), "{error}");
    assert!(error.help.contains("an app in memory starts from scratch"), "{error}");
    drop(mill);
    let mill = start();
    send(&mill).unwrap();
    mill.stop().unwrap();
}

#[test]
fn a_clock_that_is_far_ahead_is_refused_and_one_that_is_behind_is_told() {
    const DAY_US: i64 = 24 * 3_600_000_000;
    let sim = SimEnv::new(2);
    let program = program(&sim, u64::MAX);
    let schema = program.streams[0].spec.schema.clone();
    let start = |settings: Settings| Mill::start(spec(&program, settings), sim.env());
    let send = |mill: &Mill, n: i64| {
        mill.send("numbers", numbers(&schema, n..n + 1)).and_then(|_| mill.drain())
    };
    let mill = start(Settings::default()).unwrap();
    send(&mill, 0).unwrap();
    // Passing time is no jump.
    sim.clock.advance_us(400 * DAY_US as u64);
    send(&mill, 1).unwrap();
    sim.clock.step_wall_us(365 * DAY_US);
    send(&mill, 2).unwrap();
    sim.clock.step_wall_us(367 * DAY_US);
    let error = send(&mill, 3).unwrap_err();
    assert_eq!(error.kind, Kind::Setting, "{error}");
    assert!(error.what.contains("the clock says 2023-10-"), "{error}");
    assert!(error.what.contains("was made at 2022-10-"), "{error}");
    drop(mill);
    let error = start(Settings::default()).map(drop).unwrap_err();
    assert!(error.help.contains("clock_jump_us_max"), "{error}");
    // With the right clock again nothing is lost, and the waiting row is executed.
    sim.clock.step_wall_us(-367 * DAY_US);
    let mill = start(Settings::default()).unwrap();
    mill.drain().unwrap();
    assert_eq!(mill.table("seen").unwrap().len() as u64, mill.sent("numbers").unwrap());
    assert!(mill.status().troubles.is_empty());
    sim.clock.step_wall_us(-DAY_US);
    send(&mill, 4).unwrap();
    assert!(mill.status().troubles["clock"].contains("it was wrong then, or is now"));
    sim.clock.step_wall_us(DAY_US);
    send(&mill, 5).unwrap();
    assert!(mill.status().troubles.is_empty());
    mill.stop().unwrap();
    // The clock is right in spite of the jump.
    sim.clock.step_wall_us(367 * DAY_US);
    assert!(start(Settings::default()).is_err());
    let settings = Settings { clock_jump_us_max: 400 * DAY_US, ..Settings::default() };
    let mill = start(settings).unwrap();
    send(&mill, 6).unwrap();
    mill.stop().unwrap();
    start(Settings::default()).unwrap().stop().unwrap();
}
