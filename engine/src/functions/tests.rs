use tidemill_core::{Column, Late};
use tidemill_function::{
    Clock, Event, Functions as _, Node, NodeId, Outbox, Owners, Rows, Sequencing,
};
use tidemill_txn::program::{Batching, Builder, Expr, Opaque, Tx};

use super::*;
use crate::settings::Settings;

/// A program whose handler moves an amount from one row to another. It may have a second handler on
/// the first one's output.
fn program(has_second: bool) -> Program {
    let mut b = Builder::new("bank");
    let int = |name: &str| Column::new(name, DataType::Int);
    let rows = b.table("accounts", &["id"], vec![int("id"), int("balance").default(Value::Int(0))]);
    let moves = b.stream("moves", ["id", "amount"].map(int).to_vec());
    let moved = b.emitted("moved", vec![int("id")]);
    let mut h = b.handler("move", moves);
    let [id, amount] = ["id", "amount"].map(|column| h.column(column));
    let row = h.row(rows, &[id]);
    h.set(row, "balance", amount);
    h.emit(moved, &[id]);
    h.done();
    if has_second {
        let mut h = b.handler("count", moved);
        let id = h.column("id");
        let row = h.row(rows, &[id]);
        let one = h.int(1);
        h.set(row, "balance", one);
        h.done();
    }
    b.finish().unwrap()
}

#[test]
fn rows_are_known_where_nothing_sets_off_more() {
    let app = |has_second| AppSpec::new(program(has_second), Vec::new(), Settings::default());
    assert!(knows_rows(&app(false)));
    assert!(!knows_rows(&app(true)));
    let written = |stream: &str| {
        let mut app = app(false);
        let sink = serde_json::json!({"stream": stream, "files": {"path": "moves.csv"}});
        app.sinks = vec![serde_json::from_value(sink).unwrap()];
        app
    };
    assert!(knows_rows(&written("moved")));
    assert!(!knows_rows(&written("moves")));
}

/// A procedure that does nothing.
pub(crate) struct Nothing;

impl Opaque for Nothing {
    fn call(&self, _: &[Value], _: &mut dyn Tx) -> std::result::Result<(), Abort> {
        Ok(())
    }
}

fn functions(program: Program) -> Arc<AppFunctions> {
    let spec = AppSpec::new(program, Vec::new(), Settings::default());
    AppFunctions::new(&spec, Arc::new(Nobody)).unwrap()
}

/// Returns why a call aborts on a node. The node has no rows then.
fn refused(functions: &Arc<AppFunctions>, call: Call) -> String {
    let rows = Rows::new(&functions.program().tables, 7);
    let (settings, functions) = (tidemill_function::Settings::default(), functions.clone());
    let mut node = Node::new(NodeId(0), functions, Owners::equal(1), settings, rows);
    let (mut out, order) = (Outbox::default(), Sequencing { sources: 1, base: 0 });
    node.begin(
        1,
        Clock::from(7),
        vec![(order.tid(0, 0), call)],
        (Vec::new(), tidemill_function::ColumnPlan::default()),
        &mut out,
    );
    assert_eq!(node.rows().iter().count(), 0);
    let reply = out.events.iter().find_map(|event| match event {
        Event::Replied { outcome, .. } => Some(outcome.clone()),
        _ => None,
    });
    reply.expect("it has ended").expect_err("it is refused").reason
}

#[test]
fn what_others_have_written_into_the_log_is_refused() {
    let bank = functions(program(false));
    let moves = bank.taken("moves").unwrap();
    let call = |values: [Value; 2]| bank.event(moves, &values).unwrap().pop().unwrap();
    let once = |call: Call| bank.requests.call(call, &Request { id: "i".into(), kept_us: 10 });
    // This holds for calls with and without a request id.
    let text = call([Value::str("x"), Value::Int(4)]);
    let why = "\"x\" can't be stored in column 'id' of type int";
    assert_eq!(refused(&bank, text.clone()), why);
    assert_eq!(refused(&bank, once(text)), why);
    let nowhere = Call { table: TableId(u16::MAX), ..call([1, 2].map(Value::Int)) };
    assert_eq!(refused(&bank, once(nowhere)), "there is no table 65535");
}

#[test]
fn only_events_of_a_stream_are_in_its_intervals() {
    let mut b = Builder::new("timed");
    let int = |name: &str| Column::new(name, DataType::Int);
    b.table("accounts", &["id"], vec![int("id")]);
    let all = b.stream("all", vec![int("at"), int("n")]);
    b.event_time(all, "at", Late::Admit);
    let few = b.filter("few", all, |exprs, _| {
        let (n, ten) = (exprs.push(Expr::Column(1)), exprs.push(Expr::Const(Value::Int(10))));
        let by = exprs.push(Expr::Binary(rules::Binary::Div, ten, n));
        exprs.push(Expr::Binary(rules::Binary::Gt, by, n))
    });
    b.batch(all, Batching::TimeUs(10));
    b.batch(few, Batching::TimeUs(10));
    b.procedure("take", &[all, few], &[], Arc::new(Nothing));
    let timed = functions(b.finish().unwrap());
    let event = |values: &[Value]| {
        let mut call = timed.event(all, &[3, 4].map(Value::Int)).unwrap().pop().unwrap();
        call.args = values.into();
        timed.intervals(&call)
    };
    assert_eq!(event(&[3, 1].map(Value::Int)), 0b11);
    assert_eq!(event(&[3, 9].map(Value::Int)), 0b01);
    // With a division by zero it does not reach the derived stream.
    assert_eq!(event(&[3, 0].map(Value::Int)), 0b01);
    // Too few columns and a wrong type are refused, and end no interval.
    assert_eq!(event(&[3].map(Value::Int)), 0);
    assert_eq!(event(&[Value::Int(3), Value::str("x")]), 0);
}
