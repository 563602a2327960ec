//! Requests: calls with ids are executed once, whenever they are repeated, and across crashes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc};

use tidemill_core::{Batch, Column, DataType, Schema, StreamId, TableId, Value};
use tidemill_engine::App;
use tidemill_engine::{AppSpec, Durable, Mill, Recovery, Reply, Request, Settings, SourceDecl};
use tidemill_sim::SimEnv;
use tidemill_txn::program::{Abort, Builder, Opaque, Tx};
use tidemill_txn::Program;

const DAY_US: i64 = 86_400_000_000;

/// Adds to an account, and returns the new balance.
struct Add {
    accounts: TableId,
    output: StreamId,
    /// The number of its calls.
    calls: Arc<AtomicU64>,
}

impl Opaque for Add {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let [id, Value::Int(amount)] = event else { panic!("{event:?}") };
        let before = tx.get(self.accounts, std::slice::from_ref(id))?;
        let before = match before.as_deref() {
            Some([_, Value::Int(balance)]) => *balance,
            _ => 0,
        };
        let balance = before + amount;
        if balance < 0 {
            return Err(Abort::refused("overdrawn"));
        }
        tx.put(self.accounts, &[id.clone(), Value::Int(balance)])?;
        if *amount == 0 {
            return Ok(());
        }
        tx.emit(self.output, &[Value::Int(balance)])
    }
}

/// Another handler counts aborted calls. It sees the parameters and the reason.
struct Count {
    refused: TableId,
}

impl Opaque for Count {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        assert_eq!(event.len(), 3, "{event:?}");
        let seen = tx.get(self.refused, &event[..1])?.map_or(0, |row| match row[1] {
            Value::Int(n) => n,
            _ => 0,
        });
        tx.put(self.refused, &[event[0].clone(), Value::Int(seen + 1)])
    }
}

fn ints(names: [&str; 2]) -> Vec<Column> {
    names.map(|name| Column::new(name, DataType::Int)).to_vec()
}

fn program(calls: &Arc<AtomicU64>) -> Program {
    let mut b = Builder::new("bank");
    let accounts = b.table("accounts", &["id"], ints(["id", "balance"]));
    let refused = b.table("refused", &["id"], ints(["id", "times"]));
    for name in ["add", "also"] {
        let stream = b.calls(&format!("{name}.calls"), ints(["id", "amount"]));
        let balance = vec![Column::new("balance", DataType::Int)];
        let calls = calls.clone();
        let handler =
            b.returning(name, stream, balance, |output| Arc::new(Add { accounts, output, calls }));
        let aborted = b.aborted(handler);
        b.opaque(&format!("count {name}"), aborted, Arc::new(Count { refused }));
    }
    b.finish().unwrap()
}

fn app(calls: &Arc<AtomicU64>, data_dir: Option<&str>, durable: Durable) -> AppSpec {
    let durable = if data_dir.is_some() { durable } else { Durable::None };
    let settings = Settings {
        data_dir: data_dir.map(Into::into),
        durable,
        workers: 1,
        snapshot_us: 2_000,
        log_segment_bytes: 1 << 16,
        rerun_every: 1,
        ..Settings::default()
    };
    AppSpec {
        keep: vec!["add".into()],
        ..AppSpec::new(
            program(calls),
            ["add.calls", "also.calls"].map(SourceDecl::pushed).to_vec(),
            settings,
        )
    }
}

fn arguments(id: i64, amount: i64) -> Batch {
    let schema = Schema::new(ints(["id", "amount"]));
    Batch::from_rows(schema.into(), [&[Value::Int(id), Value::Int(amount)][..]])
}

/// Calls once, and waits.
fn ask(mill: &Mill, procedure: &str, request: &str, id: i64, amount: i64) -> Reply {
    asked(mill, procedure, request, id, amount, DAY_US)
}

fn asked(mill: &Mill, procedure: &str, id: &str, account: i64, amount: i64, kept_us: i64) -> Reply {
    let (tell, told) = mpsc::channel();
    let request = Request { id: id.into(), kept_us };
    let then = move |reply| drop(tell.send(reply));
    mill.call_then(procedure, arguments(account, amount), Some(request), Box::new(then)).unwrap();
    told.recv().unwrap().unwrap()
}

fn returned(balance: i64) -> Reply {
    Reply::Returned(Some([Value::Int(balance)].into()))
}

fn number(mill: &Mill, table: &str, id: i64) -> i64 {
    match mill.row(table, &[Value::Int(id)]).unwrap().map(|row| row[1].clone()) {
        Some(Value::Int(number)) => number,
        _ => 0,
    }
}

fn rows(mill: &Mill, table: &str) -> usize {
    mill.table(table).unwrap().len()
}

#[test]
fn a_request_is_executed_once() {
    for data_dir in [None, Some("/data")] {
        let sim = SimEnv::new(1);
        let calls = Arc::default();
        let mill = Mill::start(app(&calls, data_dir, Durable::Log), sim.env()).unwrap();
        assert_eq!(ask(&mill, "add", "a", 7, 5), returned(5));
        assert_eq!(ask(&mill, "add", "b", 7, 5), returned(10));
        assert_eq!(ask(&mill, "add", "a", 7, 5), returned(5));
        assert_eq!(mill.call("add", arguments(7, 1)).unwrap(), returned(11));
        // A call that returns nothing is remembered as well.
        assert_eq!(ask(&mill, "add", "none", 8, 0), Reply::Returned(None));
        assert_eq!(ask(&mill, "add", "none", 8, 0), Reply::Returned(None));
        // A different call with a known id is refused.
        assert_eq!(ask(&mill, "add", "a", 7, 6), Reply::OtherRequest);
        assert_eq!(ask(&mill, "also", "a", 7, 5), Reply::OtherRequest);
        assert_eq!(number(&mill, "accounts", 7), 11);
        // The procedure's own events come once.
        let events: usize = mill.output("add", 0).unwrap().iter().map(Batch::len).sum();
        assert_eq!(events, 3);
        mill.stop().unwrap();
    }
}

#[test]
fn an_aborted_request_is_executed_again() {
    let sim = SimEnv::new(2);
    let calls = Arc::default();
    let mill = Mill::start(app(&calls, Some("/data"), Durable::Log), sim.env()).unwrap();
    let overdrawn = Reply::Aborted("overdrawn".into());
    assert_eq!(ask(&mill, "add", "a", 7, -5), overdrawn);
    assert_eq!(ask(&mill, "add", "a", 7, -5), overdrawn);
    // A handler of aborted calls does not see the request id.
    assert_eq!(number(&mill, "refused", 7), 2);
    assert_eq!(mill.call("add", arguments(7, 5)).unwrap(), returned(5));
    assert_eq!(ask(&mill, "add", "a", 7, -5), returned(0));
    assert_eq!(ask(&mill, "add", "a", 7, -5), returned(0));
    mill.stop().unwrap();
}

/// Many requests at once, in the same epochs.
#[test]
fn requests_at_once_are_executed_once() {
    let sim = SimEnv::new(3);
    let calls = Arc::default();
    let mill = Mill::start(app(&calls, Some("/data"), Durable::Log), sim.env()).unwrap();
    let (tell, told) = mpsc::channel();
    for n in 0..600i64 {
        let tell = tell.clone();
        let request = Request { id: (n % 100).to_string(), kept_us: DAY_US };
        let then = move |reply| tell.send((n % 100, reply)).unwrap();
        mill.call_then("add", arguments(n % 100, 1), Some(request), Box::new(then)).unwrap();
    }
    drop(tell);
    for (n, reply) in &told {
        assert_eq!(reply.unwrap(), returned(1), "{n}");
    }
    assert_eq!(number(&mill, "accounts", 99), 1);
    mill.stop().unwrap();
}

#[test]
fn a_clock_that_runs_days_ahead_makes_no_request_forgotten() {
    let sim = SimEnv::new(9);
    let calls = Arc::default();
    let mill = Mill::start(app(&calls, Some("/data"), Durable::Log), sim.env()).unwrap();
    assert_eq!(asked(&mill, "add", "one", 1, 1, DAY_US), returned(1));
    sim.clock.advance_us(2 * DAY_US as u64);
    assert_eq!(asked(&mill, "add", "two", 1, 1, DAY_US), returned(2));
    assert_eq!(asked(&mill, "add", "one", 1, 1, DAY_US), returned(1));
    // The clock advances by an hour at most between two requests, and the id expires in the end.
    for n in 0..24 {
        sim.clock.advance_us(2 * 3_600_000_000);
        assert_eq!(asked(&mill, "add", &format!("hour {n}"), 1, 1, DAY_US), returned(3 + n));
    }
    assert_eq!(asked(&mill, "add", "one", 1, 1, DAY_US), returned(27));
    mill.stop().unwrap();
}

#[test]
fn requests_are_forgotten_in_time() {
    let sim = SimEnv::new(4);
    let calls = Arc::default();
    let mill = Mill::start(app(&calls, Some("/data"), Durable::Log), sim.env()).unwrap();
    for n in 0..20 {
        asked(&mill, "add", &format!("old {n}"), 1, 1, 1_000_000);
    }
    assert_eq!(asked(&mill, "add", "young", 1, 1, DAY_US), returned(21));
    assert_eq!(asked(&mill, "add", "old 3", 1, 1, 1_000_000), returned(4));
    sim.clock.advance_us(2_000_000);
    // It has expired, so it is a new request, whether it has been removed or not.
    assert_eq!(asked(&mill, "add", "old 19", 1, 1, DAY_US), returned(22));
    assert_eq!(asked(&mill, "add", "young", 1, 1, DAY_US), returned(21));
    for n in 0..6 {
        asked(&mill, "add", &format!("new {n}"), 1, 1, DAY_US);
    }
    // The clock by which requests expire is a row, too.
    assert_eq!(rows(&mill, "tidemill.requests"), 9);
    assert_eq!(rows(&mill, "tidemill.expiries"), 8);
    mill.stop().unwrap();
}

/// The engine's own tables and streams are hidden, unless they are named.
#[test]
fn nobody_is_surprised() {
    let sim = SimEnv::new(5);
    let calls = Arc::default();
    let spec = app(&calls, Some("/data"), Durable::LogAndSnapshots);
    let mill = Mill::start(spec.clone(), sim.env()).unwrap();
    ask(&mill, "add", "a", 7, 5);
    ask(&mill, "add", "a", 7, 5);
    let summary = mill.summary().unwrap();
    let tables: Vec<&str> = summary.tables.iter().map(|table| &*table.name).collect();
    assert_eq!(tables, ["accounts", "refused"]);
    assert!(summary.outputs.keys().all(|name| !name.starts_with("tidemill.")), "{summary:?}");
    assert!(mill.streams().iter().all(|(name, _)| !name.starts_with("tidemill.")));
    let inspect = Mill::inspect(&spec).unwrap().to_string();
    assert!(!inspect.contains("tidemill."), "{inspect}");
    let replies = tidemill_engine::ask(&sim.env(), "/data".as_ref(), r#"{"do":"inspect"}"#);
    let said: Vec<String> = replies.collect();
    assert!(said.len() == 1 && !said[0].contains("tidemill."), "{said:?}");
    mill.stop().unwrap();
    let mut b = Builder::new("bank");
    b.table("tidemill.accounts", &["id"], ints(["id", "balance"]));
    let program = b.finish().unwrap();
    let refused = Mill::start(AppSpec { program, ..spec }, SimEnv::new(6).env()).err().unwrap();
    assert!(refused.to_string().contains("are reserved"), "{refused}");
}

/// A client repeats each request until it has the reply, across crashes of the machine. Each is
/// executed once, and has one reply.
#[test]
fn requests_are_executed_once_across_crashes() {
    let requests: i64 = 4;
    for (durable, recovery) in [
        (Durable::Log, Recovery::Weak),
        (Durable::Log, Recovery::Strong),
        (Durable::LogAndSnapshots, Recovery::Weak),
    ] {
        let sim = SimEnv::new(7);
        let calls = Arc::default();
        let app = |calls, data_dir, durable| {
            let mut app = app(calls, data_dir, durable);
            app.settings.recovery = recovery;
            app
        };
        sim.disk.record();
        let mill = Mill::start(app(&calls, Some("/data"), durable), sim.env()).unwrap();
        for n in 1..=requests {
            assert_eq!(ask(&mill, "add", &n.to_string(), 1, 1), returned(n));
            sim.disk.mark(n as u64);
            sim.clock.advance_us(1_000);
        }
        mill.stop().unwrap();
        drop(mill);
        let trace = sim.disk.take_trace();
        let mut seen = 0;
        for image in trace.images(5, 1).step_by(4) {
            let Some(answered) = image.mark else { continue };
            let answered = answered as i64;
            let world = SimEnv { disk: image.disk.clone(), ..sim.clone() };
            let mill = Mill::start(app(&calls, Some("/data"), durable), world.env()).unwrap();
            // A request with a reply gets the same reply again. The others are repeated.
            for n in 1..=requests {
                let reply = ask(&mill, "add", &n.to_string(), 1, 1);
                assert_eq!(reply, returned(n), "{answered} were answered: {}", image.after);
            }
            assert_eq!(number(&mill, "accounts", 1), requests, "{}", image.after);
            assert_eq!(ask(&mill, "add", "1", 1, 2), Reply::OtherRequest);
            mill.stop().unwrap();
            seen += 1;
        }
        assert!(seen > 10, "{seen} images");
    }
}
