//! Calls: replies have the results of transactions, and leave when these are durable.

use std::sync::mpsc;
use std::sync::Arc;

use tidemill_core::{Batch, Column, DataType, Kind, Schema, Value};
use tidemill_engine::{AppSpec, Durable, Mill, Reply, Settings, SourceDecl};
use tidemill_sim::SimEnv;
use tidemill_txn::program::{Builder, Program};

/// Accounts. A call of `add` with an account and an amount returns the new balance.
fn bank() -> Program {
    let mut b = Builder::new("bank");
    let ints = |names: [&str; 2]| names.map(|name| Column::new(name, DataType::Int)).to_vec();
    let balance = Column::new("balance", DataType::Int).default(Value::Int(0));
    let table = b.table("accounts", &["id"], vec![Column::new("id", DataType::Int), balance]);
    let calls = b.calls("add.calls", ints(["id", "amount"]));
    let mut h = b.handler("add", calls);
    let (id, amount) = (h.column("id"), h.column("amount"));
    let row = h.row(table, &[id]);
    let balance = h.read(row, "balance");
    let balance = h.add(balance, amount);
    let zero = h.int(0);
    let enough = h.ge(balance, zero);
    h.require(enough, "overdrawn");
    h.set(row, "balance", balance);
    h.output(&[("id", id), ("balance", balance)]);
    h.done();
    // Clients push into the same table.
    let wages = b.stream("wages", ints(["id", "amount"]));
    let mut h = b.handler("pay", wages);
    let (id, amount) = (h.column("id"), h.column("amount"));
    let row = h.row(table, &[id]);
    let balance = h.read(row, "balance");
    let balance = h.add(balance, amount);
    h.set(row, "balance", balance);
    h.done();
    b.finish().unwrap()
}

fn app(data_dir: Option<&str>, workers: usize) -> AppSpec {
    let durable = if data_dir.is_some() { Durable::Log } else { Durable::None };
    let data_dir = data_dir.map(Into::into);
    AppSpec::new(
        bank(),
        ["add.calls", "wages"].map(SourceDecl::pushed).to_vec(),
        Settings { data_dir, durable, workers, log_segment_bytes: 1 << 16, ..Settings::default() },
    )
}

/// Calls and wages have the same columns.
fn schema() -> Arc<Schema> {
    bank().streams[0].spec.schema.clone()
}

fn arguments(id: i64, amount: i64) -> Batch {
    Batch::from_rows(schema(), [&[Value::Int(id), Value::Int(amount)][..]])
}

fn returned(id: i64, balance: i64) -> Reply {
    Reply::Returned(Some([Value::Int(id), Value::Int(balance)].into()))
}

fn balance(mill: &Mill, id: i64) -> i64 {
    match mill.row("accounts", &[Value::Int(id)]).unwrap().map(|row| row[1].clone()) {
        Some(Value::Int(balance)) => balance,
        None => 0,
        Some(other) => unreachable!("{other}"),
    }
}

#[test]
fn a_call_is_answered_with_what_it_came_to() {
    for (data_dir, workers) in [(None, 1), (None, 3), (Some("/data"), 2)] {
        let sim = SimEnv::new(1);
        let mill = Mill::start(app(data_dir, workers), sim.env()).unwrap();
        assert_eq!(mill.call("add", arguments(7, 5)).unwrap(), returned(7, 5));
        mill.send("wages", arguments(7, 10)).unwrap();
        mill.drain().unwrap();
        assert_eq!(mill.call("add", arguments(7, -12)).unwrap(), returned(7, 3));
        let refused = mill.call("add", arguments(7, -4)).unwrap();
        assert_eq!(refused, Reply::Aborted("overdrawn".into()));
        assert_eq!(balance(&mill, 7), 3);
        mill.stop().unwrap();
    }
}

/// Each call of an epoch has a reply of its own.
#[test]
fn many_calls_at_once_are_told_apart() {
    let sim = SimEnv::new(2);
    let mill = Mill::start(app(Some("/data"), 2), sim.env()).unwrap();
    let (tell, told) = mpsc::channel();
    for n in 0..500i64 {
        let tell = tell.clone();
        let amount = if n % 7 == 0 { -1_000_000 } else { n };
        let then = move |reply| tell.send((n, reply)).unwrap();
        mill.call_then("add", arguments(n % 3, amount), None, Box::new(then)).unwrap();
    }
    drop(tell);
    let mut balances = [0; 3];
    let mut replies: Vec<_> = told.iter().collect();
    replies.sort_by_key(|(n, _)| *n);
    assert_eq!(replies.len(), 500);
    for (n, reply) in replies {
        let balance = &mut balances[(n % 3) as usize];
        let wanted = match n % 7 {
            0 => Reply::Aborted("overdrawn".into()),
            _ => {
                *balance += n;
                returned(n % 3, *balance)
            }
        };
        assert_eq!(reply.unwrap(), wanted, "call {n}");
    }
    mill.stop().unwrap();
}

#[test]
fn what_was_answered_is_there_after_any_crash() {
    let sim = SimEnv::new(3);
    sim.disk.record();
    let mill = Mill::start(app(Some("/data"), 1), sim.env()).unwrap();
    for n in 1..=12 {
        assert_eq!(mill.call("add", arguments(1, 1)).unwrap(), returned(1, n));
        sim.disk.mark(n as u64);
    }
    mill.stop().unwrap();
    drop(mill);
    let trace = sim.disk.take_trace();
    let mut seen = 0;
    for image in trace.images(5, 1).step_by(3) {
        let Some(answered) = image.mark else { continue };
        let world = SimEnv { disk: image.disk.clone(), ..sim.clone() };
        let mill = Mill::start(app(Some("/data"), 1), world.env()).unwrap();
        // A call that was logged and not answered is executed nevertheless.
        mill.drain().unwrap();
        let balance = balance(&mill, 1);
        assert!(balance >= answered as i64, "{balance} of {answered}: {}", image.after);
        // The balance continues from there.
        assert_eq!(mill.call("add", arguments(1, 1)).unwrap(), returned(1, balance + 1));
        mill.stop().unwrap();
        seen += 1;
    }
    assert!(seen > 20, "{seen} images");
}

#[test]
fn who_waits_is_told_of_the_end() {
    let sim = SimEnv::new(6);
    let mill = Mill::start(app(None, 1), sim.env()).unwrap();
    mill.call("add", arguments(1, 1)).unwrap();
    mill.finish().unwrap();
    let error = mill.call("add", arguments(1, 1)).unwrap_err();
    assert_eq!(error.kind, Kind::Resource, "{error}");
}

#[test]
fn calls_that_can_not_be_made_are_refused() {
    let sim = SimEnv::new(7);
    let mill = Mill::start(app(None, 1), sim.env()).unwrap();
    let refused = |procedure: &str, arguments: Batch| {
        mill.call(procedure, arguments).unwrap_err().to_string()
    };
    assert!(refused("ad", arguments(1, 1)).contains("did you mean 'add'?"));
    assert!(refused("pay", arguments(1, 1)).contains("can be called"));
    let two = Batch::from_rows(schema(), vec![&[Value::Int(1), Value::Int(1)][..]; 2]);
    assert!(refused("add", two).contains("one row of arguments, not 2"));
    let other = Schema::new(vec![Column::new("id", DataType::Int)]);
    let other = Batch::from_rows(other.into(), [&[Value::Int(1)][..]]);
    assert!(refused("add", other).contains("parameters"));
    mill.stop().unwrap();
}
