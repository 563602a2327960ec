//! A closure's writes take effect in program order, also on rows with unique indexes or triggers.

#[allow(dead_code)]
mod drive;
mod pool;
#[allow(dead_code)]
mod random;

use std::sync::Arc;

use drive::same;
use pool::Threads;
use random::Dice;
use tidemill_core::{Column, DataType, SourceId, StreamId, TableId, Value};
use tidemill_reference::{CutAt, InputRow};
use tidemill_table::Table;
use tidemill_txn::execute::Executor;
use tidemill_txn::order::Epoch;
use tidemill_txn::program::{Abort, Builder, On, Opaque, Program, Tx};
use tidemill_txn::schedule::Strategy;

/// Emits each changed row and, for each event, the current value of a row.
struct Tells(StreamId);

impl Opaque for Tells {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let first = match event[0] {
            Value::Str(_) => event[3].clone(),
            _ => match tx.get(TableId(0), &[Value::Int(1)])? {
                Some(row) => row[1].clone(),
                None => Value::Int(-1),
            },
        };
        tx.emit(self.0, &[first])
    }
}

fn program() -> (Arc<Program>, StreamId) {
    let int = |name: &str| Column::new(name, DataType::Int);
    let mut b = Builder::new("closures");
    let people = b.table("people", &["id"], vec![int("id"), int("mail").default(Value::Int(0))]);
    b.index("people.by_mail", people, &["mail"], true);
    let input = b.stream("input", vec![int("way"), int("one"), int("other")]);
    b.source("source", input, 0);
    let (said, told) = (b.emitted("said", vec![int("n")]), b.emitted("told", vec![int("n")]));
    let rows: [(TableId, &[&str]); 2] = [(people, &["one"]), (people, &["other"])];
    b.native("swap", input, &rows, &[said], |tx| {
        let (one, other) = (tx.get(0, 1), tx.get(1, 1));
        match tx.event(0) {
            // A row takes the value of another row, which then takes a third value.
            0 => {
                tx.set(1, 1, one);
                tx.set(0, 1, other);
            }
            // The swap goes through a value that no row has.
            1 => {
                tx.set(0, 1, 1000);
                tx.emit(0, &[1]);
                tx.set(1, 1, one);
                tx.set(0, 1, other);
            }
            // The later row is written first.
            2 => {
                tx.set(1, 1, other + 100);
                tx.set(0, 1, one + 100);
            }
            // The rows are new.
            _ => {
                tx.set(0, 1, tx.event(1) * 10);
                tx.set(1, 1, tx.event(2) * 10);
            }
        }
        Ok(())
    });
    let on = On::Written { table: people, insert: true, update: true, delete: true };
    b.trigger("written", on, &[told], Arc::new(Tells(told)));
    b.trigger("emitted", On::Emitted(said), &[told], Arc::new(Tells(told)));
    (Arc::new(b.finish().unwrap()), told)
}

#[test]
fn closures_act_in_the_order_of_their_program() {
    let (program, told) = program();
    let events = [[3, 1, 2], [0, 1, 2], [1, 1, 2], [2, 1, 2]];
    let row = |(n, event): (usize, &[i64; 3])| InputRow {
        offset: n as u64,
        values: event.map(Value::Int).to_vec(),
    };
    let sources = [events.iter().enumerate().map(row).collect::<Vec<_>>()];
    let ended = vec![SourceId(0)];
    let cut =
        CutAt { offsets: vec![4], clock_us: 0, idle: Vec::new(), ended, ..Default::default() };
    let wanted = tidemill_reference::run(&program, &sources, std::slice::from_ref(&cut));
    assert_eq!(wanted.aborts, 1, "what another row has can't be taken");
    let people: Vec<Vec<Value>> = wanted.tables[0].values().map(|row| row.to_vec()).collect();
    assert_eq!(people, [[1, 120], [2, 110]].map(|row| row.map(Value::Int).to_vec()));
    let told: Vec<Value> = wanted.outputs[&told].iter().map(|(_, row)| row[0].clone()).collect();
    // The new rows; the value midway through the swap, then both rows; the later row first.
    assert_eq!(told, [1, 2, 1000, 1, 2, 2, 1].map(Value::Int));
    for strategy in Strategy::all() {
        let pool = Threads::new(2);
        let cuts = std::slice::from_ref(&cut);
        let found = drive::run(&program, &sources, cuts, &mut Dice(1), |seq| {
            let executor = Executor::new(program.clone(), strategy, 5);
            let mut executor = executor.with_small_limits().after(seq);
            let pool = &pool;
            move |tables: &mut [Table], epoch: &Epoch| executor.run(pool, tables, epoch).unwrap()
        });
        same(&wanted, &found);
    }
}
