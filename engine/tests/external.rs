//! Work outside. It begins after its request is durable, and its answer counts once, across crashes
//! of the machine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tidemill_core::{Batch, Column, DataType, TableId, Value};
use tidemill_engine::{
    AppSpec, Durable, ExternalDecl, GivesUp, Mill, Outside, Recovery, Settings, SourceDecl,
};
use tidemill_sim::{SimDisk, SimEnv};
use tidemill_txn::program::{Abort, Builder, Opaque, Tx};
use tidemill_txn::Program;

/// By item, the number of its answers, and the last answer.
const ORDERS: TableId = TableId(0);
/// By item, the question.
const OUTBOX: TableId = TableId(1);

/// Takes an order, and asks.
struct Order;

impl Opaque for Order {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        tx.put(ORDERS, &[event[0].clone(), Value::Int(0), Value::Int(0)])?;
        tx.put(OUTBOX, event)
    }
}

/// Takes an answer, if it is the first.
struct Answer;

impl Opaque for Answer {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        if tx.get(OUTBOX, &event[..1])?.is_none() {
            return Ok(());
        }
        tx.delete(OUTBOX, &event[..1])?;
        let row = tx.get(ORDERS, &event[..1])?.expect("whoever asks has ordered");
        let [_, Value::Int(times), _] = &row[..] else { panic!("{row:?}") };
        tx.put(ORDERS, &[event[0].clone(), Value::Int(times + 1), event[1].clone()])
    }
}

/// Answers with twice the question.
struct Twice {
    disk: Arc<SimDisk>,
    /// The number of questions, by item.
    asked: Mutex<BTreeMap<i64, u64>>,
    /// Whether the first answer is wrong.
    is_wrong: bool,
}

impl Outside for Twice {
    fn call(&self, asked: &[Value], _: GivesUp) -> Vec<Value> {
        let [Value::Int(item)] = asked else { panic!("{asked:?}") };
        self.disk.mark(*item as u64);
        let mut asked = self.asked.lock().unwrap();
        let times = asked.entry(*item).or_default();
        *times += 1;
        let is_first = *times == 1;
        drop(asked);
        match item % 3 {
            0 if self.is_wrong && is_first => panic!("it does not know"),
            1 if self.is_wrong && is_first => return vec![Value::str("twice")],
            2 if self.is_wrong && is_first => return Vec::new(),
            _ => {}
        }
        vec![Value::Int(item * 2)]
    }
}

fn program() -> Program {
    let ints = |names: &[&str]| -> Vec<Column> {
        names.iter().map(|name| Column::new(name, DataType::Int)).collect()
    };
    let mut b = Builder::new("shop");
    b.table("orders", &["item"], ints(&["item", "times", "answer"]));
    b.table("outbox", &["item"], ints(&["item"]));
    let placed = b.stream("placed", ints(&["item"]));
    let answers = b.stream("answers", ints(&["item", "answer"]));
    b.opaque("order", placed, Arc::new(Order));
    b.opaque("answer", answers, Arc::new(Answer));
    b.finish().unwrap()
}

fn app(outside: &Arc<Twice>, settings: Settings, at_once: usize) -> AppSpec {
    let external = ExternalDecl {
        outbox: "outbox".into(),
        answers: "answers".into(),
        function: 0,
        at_once,
        at: String::new(),
        outside: Some(outside.clone()),
    };
    AppSpec {
        externals: vec![external],
        ..AppSpec::new(program(), ["placed", "answers"].map(SourceDecl::pushed).to_vec(), settings)
    }
}

fn send(mill: &Mill, items: std::ops::RangeInclusive<i64>) {
    let schema = program().streams[0].spec.schema.clone();
    let rows: Vec<[Value; 1]> = items.map(|item| [Value::Int(item)]).collect();
    mill.send("placed", Batch::from_rows(schema, rows.iter().map(|row| &row[..]))).unwrap();
}

/// Checks that every item has one correct answer.
fn check(mill: &Mill, items: i64, place: &str) {
    let orders: Vec<_> = mill.table("orders").unwrap().rows().collect();
    let wanted = |item: i64| [item, 1, item * 2].map(Value::Int);
    let wanted: Vec<_> = (1..=items).map(wanted).collect();
    assert!(orders.iter().map(|row| &row[..]).eq(wanted.iter().map(|row| &row[..])), "{place}");
    assert_eq!(mill.table("outbox").unwrap().len(), 0, "{place}");
}

#[test]
fn answers_count_once() {
    for (durable, data_dir) in [(Durable::None, None), (Durable::Log, Some("/data".into()))] {
        let sim = SimEnv::new(1);
        let outside =
            Arc::new(Twice { disk: sim.disk.clone(), asked: Mutex::default(), is_wrong: false });
        let settings = Settings { data_dir, durable, tail_rows: 10, ..Settings::default() };
        let mill = Mill::start(app(&outside, settings, 3), sim.env()).unwrap();
        for first in (1..=300).step_by(50) {
            send(&mill, first..=first + 49);
        }
        mill.finish().unwrap();
        check(&mill, 300, "");
        assert_eq!(*outside.asked.lock().unwrap(), (1..=300).map(|item| (item, 1)).collect());
    }
}

#[test]
fn who_panics_or_gives_no_answer_is_asked_again() {
    let sim = SimEnv::new(2);
    let asked = Mutex::default();
    let outside = Arc::new(Twice { disk: sim.disk.clone(), asked, is_wrong: true });
    let settings = Settings { durable: Durable::None, ..Settings::default() };
    let mill = Mill::start(app(&outside, settings.clone(), 2), sim.env()).unwrap();
    send(&mill, 1..=9);
    mill.finish().unwrap();
    check(&mill, 9, "");
    assert_eq!(*outside.asked.lock().unwrap(), (1..=9).map(|item| (item, 2)).collect());
    let mut nobody = app(&outside, settings, 1);
    nobody.externals[0].outside = None;
    let refused = Mill::start(nobody, sim.env()).err().unwrap();
    assert!(
        refused.to_string().contains("no function does the work of outbox outbox"),
        "{refused}"
    );
}

#[test]
fn a_crash_at_any_moment_loses_no_question_and_takes_no_answer_twice() {
    const ITEMS: i64 = 5;
    let mut again = 0;
    for (durable, recovery) in [
        (Durable::Log, Recovery::Weak),
        (Durable::Log, Recovery::Strong),
        (Durable::LogAndSnapshots, Recovery::Weak),
    ] {
        let sim = SimEnv::new(3);
        let outside =
            Arc::new(Twice { disk: sim.disk.clone(), asked: Mutex::default(), is_wrong: false });
        let data_dir = Some("/data".into());
        let snapshot_us = 50_000;
        let settings = Settings {
            data_dir,
            durable,
            recovery,
            workers: 1,
            log_segment_bytes: 1 << 16,
            snapshot_us,
            ..Settings::default()
        };
        sim.disk.record();
        let mill = Mill::start(app(&outside, settings.clone(), 1), sim.env()).unwrap();
        for item in 1..=ITEMS {
            send(&mill, item..=item);
            mill.drain().unwrap();
        }
        mill.finish().unwrap();
        check(&mill, ITEMS, "without a crash");
        drop(mill);
        let trace = sim.disk.take_trace();
        let (mut seen, step) = (0, 1 + trace.len() / 40);
        for image in trace.images(5, 1).step_by(step) {
            let place = format!("{durable:?}, {recovery:?}, a crash at {}", image.at);
            let world = SimEnv { disk: image.disk.clone(), ..sim.clone() };
            let outside = Arc::new(Twice {
                disk: image.disk.clone(),
                asked: Mutex::default(),
                is_wrong: false,
            });
            let mill = Mill::start(app(&outside, settings.clone(), 1), world.env()).unwrap();
            // Every question that was asked outside was durable.
            let known = mill.sent("placed").unwrap() as i64;
            assert!(image.mark.is_none_or(|asked| asked as i64 <= known), "{place}");
            if known < ITEMS {
                send(&mill, known + 1..=ITEMS);
            }
            mill.finish().unwrap();
            check(&mill, ITEMS, &place);
            let asked = outside.asked.lock().unwrap();
            assert!(asked.values().all(|times| *times == 1), "{place}: {asked:?}");
            again += image.mark.map_or(0, |mark| asked.range(..=mark as i64).count());
            seen += 1;
        }
        assert!(seen > 10, "{seen} images");
    }
    assert!(again > 0, "nothing was asked again after a crash");
}
