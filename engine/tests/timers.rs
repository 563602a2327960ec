//! Timers with a clock that the test moves.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tidemill_core::{Column, DataType, TableId, Value};
use tidemill_engine::{AppSpec, Mill, Settings, SourceDecl};
use tidemill_env::{Clock, Env};
use tidemill_sim::SimEnv;
use tidemill_txn::program::{Abort, Builder, Opaque, Program, Tx};

const SECOND_US: i64 = 1_000_000;
/// A multiple of the period.
const BEGUN_US: i64 = 1_600_000_000 * SECOND_US;

/// The clock stands still, and sleeping threads check again soon.
struct ByHand(AtomicI64);

impl ByHand {
    fn set_s(&self, seconds: f64) {
        self.0.store(BEGUN_US + (seconds * SECOND_US as f64) as i64, Ordering::SeqCst);
    }
}

impl Clock for ByHand {
    fn now_us(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    fn monotonic_ns(&self) -> u64 {
        (self.now_us() * 1000).cast_unsigned()
    }

    fn sleep_us(&self, us: u64) {
        Env::real().clock.sleep_us(us.min(200));
    }
}

/// Notes firings. Can make the engine wait in one.
#[derive(Default)]
struct Gate {
    /// The second whose firing waits, and whether one waits now.
    waits: Mutex<(Option<i64>, bool)>,
    changed: Condvar,
}

impl Gate {
    fn close(&self, second: i64) {
        *self.waits.lock() = (Some(second), false);
    }

    fn wait_for_one(&self) {
        let mut waits = self.waits.lock();
        while !waits.1 {
            self.changed.wait(&mut waits);
        }
    }

    fn open(&self) {
        *self.waits.lock() = (None, false);
        self.changed.notify_all();
    }
}

struct Note(Arc<Gate>);

impl Opaque for Note {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let Value::Timestamp(at) = event[0] else { panic!("{event:?}") };
        let second = Value::Int((at - BEGUN_US) / SECOND_US);
        let mut waits = self.0.waits.lock();
        if waits.0.map(Value::Int) == Some(second.clone()) {
            waits.1 = true;
            self.0.changed.notify_all();
            while waits.0.is_some() {
                self.0.changed.wait(&mut waits);
            }
        }
        drop(waits);
        tx.put(TableId(0), &[second])
    }
}

fn program(gate: &Arc<Gate>) -> Program {
    let mut b = Builder::new("ticking");
    b.table("fired", &["second"], vec![Column::new("second", DataType::Int)]);
    let ticks = b.timer("tick", SECOND_US);
    b.opaque("note", ticks, Arc::new(Note(gate.clone())));
    // There is a source that does not end.
    b.stream("events", vec![Column::new("n", DataType::Int)]);
    b.finish().unwrap()
}

fn fired(mill: &Mill) -> Vec<i64> {
    let table = mill.table("fired").unwrap();
    let seconds = table.rows().map(|row| match row[0] {
        Value::Int(second) => second,
        _ => panic!("{row:?}"),
    });
    seconds.collect()
}

/// Waits until exactly these have been executed.
#[track_caller]
fn soon(mill: &Mill, wanted: &[i64]) {
    for _ in 0..20_000 {
        if fired(mill) == wanted {
            return;
        }
        Env::real().clock.sleep_us(1000);
    }
    assert_eq!(fired(mill), wanted);
}

/// Advances by seconds until a firing comes, because the timer begins with its thread. Waits for
/// the firing of the last second, and returns that second.
fn first(mill: &Mill, clock: &ByHand, from: i64) -> i64 {
    let before = fired(mill).len();
    let mut second = from;
    while fired(mill).len() == before {
        assert!(second < from + 10_000, "nothing fires");
        clock.set_s(second as f64);
        (0..50).for_each(|_| clock.sleep_us(200));
        second += 1;
    }
    let last = second - 1;
    for _ in 0..20_000 {
        if fired(mill).last() == Some(&last) {
            return last;
        }
        clock.sleep_us(200);
    }
    panic!("{last} is not fired: {:?}", fired(mill));
}

/// Missed firings become one: while the timer did not check the clock, while the engine was busy,
/// and while nothing ran.
#[test]
fn firings_that_could_not_be_taken_in_time_come_as_one() {
    for data_dir in [None, Some("/data".into())] {
        let sim = SimEnv::new(1);
        let clock = Arc::new(ByHand(AtomicI64::new(BEGUN_US)));
        let env = Env { clock: clock.clone(), ..sim.env() };
        let gate = Arc::new(Gate::default());
        let program = program(&gate);
        let start = || {
            let settings = Settings {
                data_dir: data_dir.clone(),
                workers: 1,
                rerun_every: 0,
                ..Settings::default()
            };
            let sources = ["tick", "events"].map(SourceDecl::pushed).to_vec();
            Mill::start(AppSpec::new(program.clone(), sources, settings), env.clone()).unwrap()
        };
        let mill = start();
        let begun = first(&mill, &clock, 1);
        let at = |seconds: f64| clock.set_s(begun as f64 + seconds);
        // The firings since then.
        let before = fired(&mill);
        let soon = |mill: &Mill, seconds: &[i64]| {
            let seconds = seconds.iter().map(|second| begun + second);
            soon(mill, &before.iter().copied().chain(seconds).collect::<Vec<i64>>());
        };
        at(7.5);
        soon(&mill, &[7]);
        // The engine executes the firing of the eighth second while others come.
        gate.close(begun + 8);
        at(8.0);
        gate.wait_for_one();
        for second in 9..=30 {
            at(f64::from(second));
            // The timer checks the clock meanwhile.
            (0..10).for_each(|_| clock.sleep_us(200));
        }
        at(30.5);
        gate.open();
        soon(&mill, &[7, 8, 30]);
        // No firing comes twice when the clock is set back.
        at(29.0);
        at(31.0);
        soon(&mill, &[7, 8, 30, 31]);
        mill.stop().unwrap();
        if data_dir.is_none() {
            continue;
        }
        at(44.5);
        let mill = start();
        // No firing is of the time when nothing ran.
        first(&mill, &clock, begun + 45);
        let since = &fired(&mill)[before.len() + 4..];
        assert!(since.iter().all(|second| *second >= begun + 45), "{begun}: {since:?}");
        mill.stop().unwrap();
    }
}
