//! Epochs by column on several nodes equal the reference, bit for bit: rows, outputs in order and
//! counts, whatever the order of messages and the strategy.

#[path = "../../txn/tests/pool/mod.rs"]
mod pool;
#[path = "../../txn/tests/random/mod.rs"]
mod random;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

use pool::Threads;
use proptest::prelude::*;
use random::{Dice, Shape};
use tidemill_core::{
    Batch, Column, DataType, Key, Row, Schema, StreamId, TableId, TableSpec, Value,
};
use tidemill_function::{
    ColumnEpoch, ColumnMessage, ColumnOutbox, ColumnOutcome, Exchange, GivenRows, HandlerEvents,
    LentRows, NodeId, Owners, Rows, Tid, Wanted, ABORTED,
};
use tidemill_place::PARTITIONS;
use tidemill_txn::execute::{HandlerCounts, RemoteRows};
use tidemill_txn::pool::{Pool, SingleThread};
use tidemill_txn::program::{Builder, Program};
use tidemill_txn::schedule::Strategy as Executed;

/// Returns pools of one to four threads.
fn pools() -> &'static [Threads] {
    static POOLS: OnceLock<Vec<Threads>> = OnceLock::new();
    POOLS.get_or_init(|| (1..=4).map(Threads::new).collect())
}

/// An event: its transaction's place, its handler, and the node that receives it.
struct Event {
    tid: u64,
    handler: usize,
    node: usize,
    row: Vec<Value>,
}

/// Outputs by stream, each with its transaction and its place there, in order.
type Outputs = BTreeMap<StreamId, Vec<(u64, u32, Row)>>;

/// The rows of all nodes.
type Model = BTreeMap<(TableId, Key), Row>;

/// Nodes in one thread.
struct Nodes {
    exchanges: Vec<Exchange>,
    rows: Vec<Rows>,
    owners: Owners,
    program: Arc<Program>,
}

impl Nodes {
    fn new(program: &Arc<Program>, owners: Owners, strategy: Executed) -> Nodes {
        let exchanges = Nodes::exchanges(program, &owners, strategy);
        let rows = (0..owners.nodes()).map(|_| Rows::new(&program.tables, 7)).collect();
        Nodes { exchanges, rows, owners, program: program.clone() }
    }

    fn exchanges(program: &Arc<Program>, owners: &Owners, strategy: Executed) -> Vec<Exchange> {
        let exchange = |node| {
            let made = Exchange::new(program, owners.clone(), NodeId(node), strategy);
            made.unwrap().with_small_limits()
        };
        (0..owners.nodes()).map(exchange).collect()
    }

    fn owner(&self, table: TableId, key: &Key) -> usize {
        let spec = &self.program.tables[table.index()];
        usize::from(self.owners.of(tidemill_place::partition_in(spec, key)).0)
    }

    /// Returns the owner of a row of the first table whose key is an int.
    fn owner_of(&self, id: i64) -> usize {
        self.owner(TableId(0), &Key::of([&Value::Int(id)]))
    }

    /// Writes or removes a row at its owner, as the path row by row does.
    fn apply(&mut self, tid: u64, table: TableId, key: &Key, row: Option<Row>) {
        let owner = self.owner(table, key);
        self.rows[owner].apply(Tid(tid), table, key, row.map(Arc::from));
    }

    /// Runs an epoch. `pick` chooses among this many deliveries.
    fn run(
        &mut self,
        (mut own, executes): (Vec<Vec<HandlerEvents>>, Option<NodeId>),
        pool: &dyn Pool,
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Vec<ColumnOutcome> {
        let nodes = self.rows.len();
        let mut epochs: Vec<Option<ColumnEpoch>> = (0..nodes).map(|_| None).collect();
        let mut queues: BTreeMap<(usize, usize), VecDeque<ColumnMessage>> = BTreeMap::new();
        loop {
            // The nodes that have not begun, and the first messages to those that have.
            let begins = (0..nodes).filter(|node| epochs[*node].is_none()).map(|node| (node, node));
            let ready =
                queues.iter().filter(|((_, to), queue)| !queue.is_empty() && epochs[*to].is_some());
            let steps: Vec<(usize, usize)> = begins.chain(ready.map(|(pair, _)| *pair)).collect();
            if steps.is_empty() {
                break;
            }
            let (from, to) = steps[pick(steps.len())];
            let (exchange, rows) = (&mut self.exchanges[to], &mut self.rows[to]);
            let mut out = ColumnOutbox::new();
            if from == to {
                let work = (std::mem::take(&mut own[to]), executes);
                let epoch = ColumnEpoch::begin(exchange, rows, pool, work, &mut out).unwrap();
                let announced =
                    out.iter().filter(|(_, message)| matches!(message, ColumnMessage::Events(_)));
                let expected = match executes {
                    None => nodes - 1,
                    Some(node) => usize::from(usize::from(node.0) != to),
                };
                assert_eq!(announced.count(), expected, "one message for each node that runs any");
                epochs[to] = Some(epoch);
            } else {
                let message = queues.get_mut(&(from, to)).unwrap().pop_front().unwrap();
                let (from, epoch) = (NodeId(from as u16), epochs[to].as_mut().unwrap());
                epoch.receive(from, from_wire(message), exchange, rows, pool, &mut out).unwrap();
            }
            for (node, message) in out {
                queues.entry((to, usize::from(node.0))).or_default().push_back(message);
            }
        }
        let nodes = self.exchanges.iter_mut().zip(&mut self.rows);
        let ended = epochs.into_iter().zip(nodes).map(|(epoch, (exchange, rows))| {
            let epoch = epoch.expect("all have begun");
            assert!(epoch.is_done(), "no message is under way");
            epoch.finish(exchange, rows)
        });
        ended.collect()
    }

    /// Takes a snapshot. Each change is of a row of the node.
    fn take(&mut self, id: (u64, u64)) {
        for (node, rows) in (0..).zip(&mut self.rows) {
            for (_, changed) in rows.take(id).changes {
                changed.for_each(|partition, _, _| {
                    assert_eq!(self.owners.of(partition), NodeId(node), "a guest has changed");
                });
            }
        }
    }

    /// Returns all rows. Each is at its owner.
    fn all(&self) -> Model {
        let mut all = Model::new();
        for (node, rows) in self.rows.iter().enumerate() {
            for (table, key, row) in rows.iter() {
                assert_eq!(self.owner(table, &key), node, "a guest is left");
                assert_eq!(all.insert((table, key), (*row).into()), None);
            }
        }
        all
    }
}

/// Returns a message as a receiver gets it: its batches have the right arrays, and other names.
fn from_wire(message: ColumnMessage) -> ColumnMessage {
    let retyped = |batch: Batch| {
        let columns = batch.schema().columns.iter().enumerate();
        let columns = columns.map(|(nth, column)| {
            let ty = match &column.ty {
                DataType::Timestamp | DataType::Decimal(_) => DataType::Int,
                ty => ty.clone(),
            };
            Column::new(&format!("column {nth}"), ty).nullable()
        });
        let schema = Arc::new(Schema::new(columns.collect()));
        Batch::new(schema, batch.columns().to_vec(), batch.len())
    };
    match message {
        other @ (ColumnMessage::Work { .. } | ColumnMessage::Results { .. }) => {
            unreachable!("{other:?} is for a sole owner")
        }
        ColumnMessage::Events(all) => ColumnMessage::Events(
            all.into_iter()
                .map(|events| HandlerEvents { batch: retyped(events.batch), ..events })
                .collect(),
        ),
        ColumnMessage::Rows(all) => ColumnMessage::Rows(
            all.into_iter().map(|rows| GivenRows { batch: retyped(rows.batch), ..rows }).collect(),
        ),
        ColumnMessage::Wanted(Wanted { last, keys }) => ColumnMessage::Wanted(Wanted {
            last,
            keys: keys.into_iter().map(|(table, keys)| (table, retyped(keys))).collect(),
        }),
        ColumnMessage::Lent { last, rows } => {
            let retyped = |rows: LentRows| LentRows { batch: retyped(rows.batch), ..rows };
            ColumnMessage::Lent { last, rows: rows.into_iter().map(retyped).collect() }
        }
    }
}

/// Deals events to the nodes that receive them, by handler.
fn deal(program: &Program, events: &[Event], nodes: usize) -> Vec<Vec<HandlerEvents>> {
    let mut own: Vec<BTreeMap<usize, Vec<&Event>>> = vec![BTreeMap::new(); nodes];
    for event in events {
        own[event.node].entry(event.handler).or_default().push(event);
    }
    let batch = |(handler, events): (usize, Vec<&Event>)| {
        let input = program.handlers[handler].input;
        let schema = program.streams[input.index()].spec.schema.clone();
        let tids = events.iter().map(|event| event.tid).collect();
        let batch = Batch::from_rows(schema, events.iter().map(|event| &event.row[..]));
        HandlerEvents { handler, tids, batch }
    };
    own.into_iter().map(|own| own.into_iter().map(batch).collect()).collect()
}

/// Runs the transactions of events one after the other, as the reference does.
fn reference(
    program: &Program,
    events: &[Event],
    model: &mut Model,
) -> (Outputs, Vec<HandlerCounts>) {
    let (mut outputs, mut counts) =
        (Outputs::new(), vec![HandlerCounts::default(); program.handlers.len()]);
    for Event { tid, handler, row, .. } in events {
        let given = model.iter().map(|((table, key), row)| (*table, key.clone(), Some(&row[..])));
        match tidemill_reference::run_single(program, *handler, row, given) {
            Ok((written, emitted)) => {
                counts[*handler].committed += 1;
                for (table, key, row) in written {
                    match row {
                        Some(row) => model.insert((table, key), row),
                        None => model.remove(&(table, key)),
                    };
                }
                for (nth, (stream, row)) in emitted.into_iter().enumerate() {
                    outputs.entry(stream).or_default().push((*tid, nth as u32, row));
                }
            }
            Err(abort) => {
                counts[*handler].aborted += 1;
                let event = program.abort_event(*handler, row, &abort.public_reason());
                let stream = program.handlers[*handler].aborted;
                outputs.entry(stream).or_default().push((*tid, ABORTED, event.into()));
            }
        }
    }
    (outputs, counts)
}

/// Returns the outputs of all nodes in order, and the sums of their counts.
fn merged(outcomes: &[ColumnOutcome]) -> (Outputs, Vec<HandlerCounts>) {
    let mut outputs = Outputs::new();
    let mut counts = vec![HandlerCounts::default(); outcomes[0].counts.len()];
    for outcome in outcomes {
        for output in &outcome.outputs {
            let places: Vec<(u64, u32)> =
                output.tids.iter().copied().zip(output.ordinals.iter().copied()).collect();
            assert!(places.is_sorted(), "the outputs of a node are in order");
            assert_eq!(places.len(), output.batch.len());
            let rows = places.into_iter().zip(output.batch.rows());
            let rows = rows.map(|((tid, ordinal), row)| (tid, ordinal, row));
            outputs.entry(output.stream).or_default().extend(rows);
        }
        for (sum, counts) in counts.iter_mut().zip(&outcome.counts) {
            sum.committed += counts.committed;
            sum.aborted += counts.aborted;
        }
    }
    outputs.values_mut().for_each(|rows| rows.sort_by_key(|(tid, ordinal, _)| (*tid, *ordinal)));
    (outputs, counts)
}

/// Returns a random event of a stream. There are `keys` different ints in keys.
fn event(dice: &mut Dice, schema: &Schema, keys: u64) -> Vec<Value> {
    let values = schema.columns.iter().map(|column| match &*column.name {
        "at" => Value::Timestamp(dice.below(9) as i64),
        "k" | "j" => Value::Int(dice.below(keys) as i64),
        "x" => Value::Int(dice.below(60) as i64 - 30),
        "f" => Value::Float(*dice.pick(&[0.0, -0.0, 2.5, -1.0, f64::NAN, 1e300])),
        "m" => Value::Decimal(dice.below(2000) as i64 - 1000, 2),
        "b" => Value::Bool(dice.chance(50)),
        "s" => Value::str(dice.text(&["", "a", "b\0", "é"])),
        _ if column.nullable && dice.chance(30) => Value::Null,
        _ if column.ty == DataType::Str => Value::str("why"),
        _ => Value::Int(dice.below(9) as i64),
    });
    values.collect()
}

/// Returns a random row of a table with one of the keys.
fn row(dice: &mut Dice, spec: &TableSpec, keys: u64) -> Row {
    let values = spec.schema.columns.iter().map(|column| match (&*column.name, &column.ty) {
        ("id", _) => Value::Int(dice.below(keys) as i64),
        _ if column.nullable && dice.chance(30) => Value::Null,
        (_, DataType::Int) => Value::Int(dice.below(100) as i64 - 50),
        (_, DataType::Float) => Value::Float(dice.below(100) as i64 as f64 / 4.0),
        (_, DataType::Decimal(scale)) => Value::Decimal(dice.below(1000) as i64, *scale),
        (_, DataType::Bool) => Value::Bool(dice.chance(50)),
        _ => Value::str(dice.text(&["", "a", "b\0", "é"])),
    });
    values.collect()
}

fn key_of(spec: &TableSpec, row: &[Value]) -> Key {
    Key::of(spec.key.iter().map(|column| &row[*column]))
}

/// Returns owners of random partitions, of which few may have most.
fn owners(dice: &mut Dice, nodes: u16) -> Owners {
    let by_partition = (0..PARTITIONS).map(|_| NodeId(dice.below(nodes.into()) as u16));
    Owners::new(nodes, by_partition.collect())
}

const STRATEGIES: [&str; 7] =
    ["serial", "adaptive", "lists", "rounds", "blocks", "ns-op-eager", "tstream"];

/// Runs one case. Returns how many transactions were run by another node than the one that reports
/// them.
fn check(seed: u64) -> usize {
    let mut dice = Dice(seed);
    let words = dice.chance(20);
    let shape = Shape { plain: words || dice.chance(40), orderly: false, histories: false, words };
    let program = Arc::new(random::program(&mut dice, shape));
    let taken = 0..program.handlers.len();
    let taken: Vec<usize> = taken.filter(|number| Exchange::takes(&program, *number)).collect();
    for handler in &taken {
        assert!(RemoteRows::of(&program, *handler).is_some(), "handler {handler}: seed {seed}");
    }
    if taken.is_empty() {
        return 0;
    }
    let nodes = 1 + dice.below(4) as usize;
    let owners = owners(&mut dice, nodes as u16);
    let strategy = dice.text(&STRATEGIES);
    let mut all = Nodes::new(&program, owners, strategy.parse().unwrap());
    let pool = dice.pick(pools());
    let keys = *dice.pick(&[2, 5, 20, 200]);
    let (mut model, mut tid) = (Model::new(), 0);
    for table in [TableId(0), TableId(1)] {
        for _ in 0..dice.below(2 * keys) {
            let spec = &program.tables[table.index()];
            let row = row(&mut dice, spec, keys);
            let key = key_of(spec, &row);
            tid += 1;
            all.apply(tid, table, &key, Some(row.clone()));
            model.insert((table, key), row);
        }
    }
    all.rows.iter_mut().for_each(Rows::end_epoch);
    all.rows.iter_mut().for_each(|rows| rows.begin((1, 0)));
    let mut snapshots = vec![((1, 0), model.clone())];
    let mut by_others = 0;
    let mut executes = dice.chance(50).then(|| NodeId(dice.below(nodes as u64) as u16));
    for number in 1..=1 + dice.below(6) {
        if dice.chance(30) {
            // An epoch of the path row by row.
            for _ in 0..dice.below(9) {
                let table = TableId(dice.below(2) as u16);
                let spec = &program.tables[table.index()];
                let row = row(&mut dice, spec, keys);
                let (key, is_there) = (key_of(spec, &row), dice.chance(70));
                tid += 1 + dice.below(3);
                all.apply(tid, table, &key, is_there.then(|| row.clone()));
                match is_there {
                    true => model.insert((table, key), row),
                    false => model.remove(&(table, key)),
                };
            }
            all.rows.iter_mut().for_each(Rows::end_epoch);
            all.exchanges.iter_mut().for_each(Exchange::forget);
        }
        let mut events = Vec::new();
        let most = *dice.pick(&[5, 40, 150]);
        // The nodes of a new generation, with the rows of the one before.
        if dice.chance(15) {
            all.exchanges = Nodes::exchanges(&program, &all.owners, strategy.parse().unwrap());
        }
        let reader = dice.chance(40).then(|| dice.below(nodes as u64) as usize);
        for _ in 0..dice.below(most) {
            tid += 1 + dice.below(3);
            let handler = *dice.pick(&taken);
            let input = program.handlers[handler].input;
            let schema = program.streams[input.index()].spec.schema.clone();
            let node = reader.unwrap_or(dice.below(nodes as u64) as usize);
            events.push(Event { tid, handler, node, row: event(&mut dice, &schema, keys) });
        }
        let (outputs, counts) = reference(&program, &events, &mut model);
        // The same node executes several epochs one after the other.
        if dice.chance(30) {
            executes = dice.chance(60).then(|| NodeId(dice.below(nodes as u64) as u16));
        }
        let own = (deal(&program, &events, nodes), executes);
        let outcomes = all.run(own, pool, &mut |steps| dice.below(steps as u64) as usize);
        let got = merged(&outcomes);
        let about = format!("seed {seed}, {nodes} nodes, {strategy}, epoch {number}, {executes:?}");
        assert_eq!(all.all(), model, "rows: {about}");
        assert_eq!(got.0, outputs, "outputs: {about}");
        assert_eq!(got.1, counts, "counts: {about}");
        let ran = outcomes.iter().map(|outcome| outcome.transactions).sum::<usize>();
        by_others += ran - events.len();
        let by_one = executes.map(|node| outcomes[usize::from(node.0)].transactions);
        assert!(by_one.is_none_or(|by_one| by_one == events.len()), "{about}: one node runs all");
        if dice.chance(40) {
            let id = (1, number);
            all.take(id);
            snapshots.push((id, model.clone()));
        }
    }
    // Later changes are undone.
    let (id, then) = dice.pick(&snapshots);
    all.rows.iter_mut().for_each(|rows| rows.go_back_to(*id));
    assert_eq!(all.all(), *then, "back: seed {seed}, {nodes} nodes, {strategy}");
    by_others
}

/// Returns the number of random cases. `make soak` runs more.
fn cases(default: u32) -> u32 {
    std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn any_program_any_nodes_any_strategy() {
    let cases = cases(300);
    let by_others: usize = (0..u64::from(cases)).map(check).sum();
    assert!(by_others > 3 * cases as usize, "{by_others} transactions of other nodes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(100)))]

    #[test]
    fn any_seed(seed: u64) {
        check(seed);
    }
}

/// Returns a program of transfers between two rows, of which the first must have enough.
fn transfers() -> Arc<Program> {
    let mut b = Builder::new("transfers");
    let int = |name: &str| Column::new(name, DataType::Int);
    let table =
        b.table("accounts", &["id"], vec![int("id"), int("balance").default(Value::Int(0))]);
    let input = b.stream("transfers", vec![int("from"), int("to"), int("amount")]);
    let mut h = b.handler("transfer", input);
    let (from, to, amount) = (h.column("from"), h.column("to"), h.column("amount"));
    let (source, target) = (h.row(table, &[from]), h.row(table, &[to]));
    let have = h.read(source, "balance");
    let enough = h.ge(have, amount);
    h.require(enough, "too little");
    let left = h.sub(have, amount);
    h.set(source, "balance", left);
    let have = h.read(target, "balance");
    let more = h.add(have, amount);
    h.set(target, "balance", more);
    h.output(&[("from", from), ("left", left)]);
    h.done();
    Arc::new(b.finish().unwrap())
}

/// Creates nodes for transfers, with rows that have this balance.
fn banks(nodes: u16, rows: i64, balance: i64) -> Nodes {
    let mut all = Nodes::new(&transfers(), Owners::equal(nodes), Executed::Serial);
    for id in 0..rows {
        let row = [Value::Int(id), Value::Int(balance)];
        all.apply(1, TableId(0), &Key::of([&row[0]]), Some(row.into()));
    }
    all.rows.iter_mut().for_each(Rows::end_epoch);
    all.rows.iter_mut().for_each(|rows| rows.begin((1, 0)));
    all
}

/// Returns transfers of 1, as events that each node has received a share of.
fn moves(program: &Program, nodes: usize, pairs: &[(i64, i64)]) -> Vec<Vec<HandlerEvents>> {
    let schema = &program.streams[program.handlers[0].input.index()].spec.schema;
    let share = |node: usize| {
        let own = || (2u64..).zip(pairs).skip(node).step_by(nodes);
        let of = |pick: &dyn Fn(&(i64, i64)) -> i64| {
            own().map(|(_, pair)| pick(pair) as u64).collect::<Vec<u64>>()
        };
        let columns = vec![of(&|pair| pair.0), of(&|pair| pair.1), of(&|_| 1)];
        let tids: Vec<u64> = own().map(|(tid, _)| tid).collect();
        let batch = Batch::of_words(schema.clone(), columns, tids.len());
        vec![HandlerEvents { handler: 0, tids, batch }]
    };
    (0..nodes).map(share).collect()
}

/// A chain of transactions on one row runs in one pass, once the other owner's rows are here.
#[test]
fn a_hot_row_takes_few_passes() {
    const MANY: usize = 1000;
    let mut all = banks(2, 4000, 5000);
    let hot = (0..).find(|id| all.owner_of(*id) == 0).unwrap();
    let cold = (0..4000).filter(|id| all.owner_of(*id) == 1).take(MANY);
    let pairs: Vec<(i64, i64)> = cold.map(|id| (hot, id)).collect();
    let program = all.program.clone();
    let outcomes = all.run((moves(&program, 2, &pairs), None), &SingleThread, &mut |_| 0);
    for outcome in outcomes {
        assert_eq!(outcome.transactions, MANY);
        assert!(outcome.passes <= 4, "{} passes", outcome.passes);
    }
    let rows = all.all();
    let balance = |id: i64| rows[&(TableId(0), Key::of([&Value::Int(id)]))][1].clone();
    assert_eq!(balance(hot), Value::Int(4000));
    assert!(pairs.iter().all(|(_, id)| balance(*id) == Value::Int(5001)));
}

/// Messages that do not fit are refused. Then the rows can still go back.
#[test]
fn messages_that_do_not_fit_are_errors() {
    use ColumnMessage::{Events, Rows as Given};
    let ids = |all: &Nodes, node: usize| -> Vec<i64> {
        (0..40).filter(|id| all.owner_of(*id) == node).collect()
    };
    let program = transfers();
    let input = program.streams[0].spec.schema.clone();
    let events = |columns: [u64; 3], tids: &[u64]| {
        let columns = columns.map(|word| vec![word; tids.len()]).to_vec();
        let batch = Batch::of_words(input.clone(), columns, tids.len());
        HandlerEvents { handler: 0, tids: tids.to_vec(), batch }
    };
    let rows_schema = Arc::new(Schema::new(vec![
        Column::new("id", DataType::Int),
        Column::new("balance", DataType::Int),
        Column::new("exists", DataType::Bool),
    ]));
    let given = |id: u64, tids: &[u64]| {
        let columns = vec![vec![id; tids.len()], vec![7; tids.len()], vec![1; tids.len()]];
        let batch = Batch::of_words(rows_schema.clone(), columns, tids.len());
        GivenRows { table: TableId(0), tids: tids.to_vec(), batch }
    };
    let all = banks(2, 40, 100);
    let (own, others) = (ids(&all, 0), ids(&all, 1));
    let (a, b, x, y) = (own[0] as u64, own[1] as u64, others[0] as u64, others[1] as u64);
    // Node 0 receives 2: a to x, and 4: a to b, which waits for it. Node 1 receives 3: x to b.
    let fine = || Events(vec![events([x, b, 1], &[3])]);
    let narrow = {
        let schema = Arc::new(Schema::new(vec![Column::new("id", DataType::Int)]));
        let mut rows = given(x, &[2]);
        rows.batch = Batch::of_words(schema, vec![vec![x]], 1);
        rows
    };
    let floats = {
        let columns = ["from", "to", "amount"].map(|name| Column::new(name, DataType::Float));
        let schema = Arc::new(Schema::new(columns.to_vec()));
        let batch = Batch::of_words(schema, vec![vec![x], vec![a], vec![1]], 1);
        HandlerEvents { handler: 0, tids: vec![3], batch }
    };
    let null = {
        let columns = rows_schema.columns.iter().cloned().map(Column::nullable);
        let schema = Arc::new(Schema::new(columns.collect()));
        let row = [Value::Int(x as i64), Value::Int(7), Value::Null];
        let batch = Batch::from_rows(schema, [&row[..]]);
        GivenRows { table: TableId(0), tids: vec![2], batch }
    };
    let cases: Vec<(&str, Vec<(u16, ColumnMessage)>)> = vec![
        ("no other node 0", vec![(0, fine())]),
        ("no other node 2", vec![(2, fine())]),
        ("twice", vec![(1, fine()), (1, fine())]),
        (
            "handler 7",
            vec![(1, Events(vec![HandlerEvents { handler: 7, ..events([x, b, 1], &[3]) }]))],
        ),
        ("do not rise", vec![(1, Events(vec![events([x, b, 1], &[5, 3])]))]),
        ("do not rise", vec![(1, Events(vec![events([x, b, 1], &[3, 3])]))]),
        ("place 2", vec![(1, Events(vec![events([x, b, 1], &[2])]))]),
        ("no row here", vec![(1, Events(vec![events([x, y, 1], &[3])]))]),
        (
            "2 places for 1",
            vec![(1, Events(vec![HandlerEvents { tids: vec![3, 5], ..events([x, b, 1], &[3]) }]))],
        ),
        ("Float64", vec![(1, Events(vec![floats]))]),
        ("columns", vec![(1, fine()), (1, Given(vec![narrow]))]),
        ("null", vec![(1, fine()), (1, Given(vec![null]))]),
        (
            "table 1",
            vec![(1, fine()), (1, Given(vec![GivenRows { table: TableId(1), ..given(x, &[2]) }]))],
        ),
        (
            "2 places for 1",
            vec![(1, fine()), (1, Given(vec![GivenRows { tids: vec![2, 3], ..given(x, &[2]) }]))],
        ),
        ("transaction 9", vec![(1, Given(vec![given(x, &[9])])), (1, fine())]),
        ("transaction 2", vec![(1, fine()), (1, Given(vec![given(x, &[3, 2])]))]),
        ("does not use", vec![(1, fine()), (1, Given(vec![given(y, &[2])]))]),
        ("does not use", vec![(1, fine()), (1, Given(vec![given(x, &[4])]))]),
        ("does not use", vec![(1, fine()), (1, Given(vec![given(x, &[2, 2])]))]),
        (
            "has a row already",
            vec![(1, fine()), (1, Given(vec![given(x, &[3])])), (1, Given(vec![given(x, &[3])]))],
        ),
    ];
    for (nth, (wanted, messages)) in cases.into_iter().enumerate() {
        let mut all = banks(2, 40, 100);
        let before = all.all();
        let (exchange, rows, mut out) = (&mut all.exchanges[0], &mut all.rows[0], Vec::new());
        let mut own = events([a, x, 1], &[2, 4]);
        own.batch = Batch::of_words(input.clone(), vec![vec![a, a], vec![x, b], vec![1, 1]], 2);
        let begun = ColumnEpoch::begin(exchange, rows, &SingleThread, (vec![own], None), &mut out);
        let mut epoch = begun.unwrap();
        let mut receive = |(from, message): (u16, ColumnMessage)| {
            epoch.receive(NodeId(from), message, exchange, rows, &SingleThread, &mut out)
        };
        let error = messages.into_iter().find_map(|message| receive(message).err());
        let error = error.map_or("it was taken".into(), |error| error.what);
        assert!(error.contains(wanted), "case {nth}: {error}, not {wanted}");
        epoch.abandon(rows);
        all.rows[0].go_back_to((1, 0));
        assert_eq!(all.all(), before);
    }
}

/// Returns a message with a random change.
fn damaged(dice: &mut Dice, message: ColumnMessage) -> ColumnMessage {
    let places = |dice: &mut Dice, tids: &mut Vec<u64>| match dice.below(4) {
        0 => drop(tids.pop()),
        1 => tids.extend(tids.first().copied()),
        2 => tids.reverse(),
        _ => tids.iter_mut().for_each(|tid| *tid = tid.wrapping_add(dice.below(3))),
    };
    let batch = |dice: &mut Dice, batch: &Batch| match dice.below(4) {
        0 => batch.slice(0, batch.len().saturating_sub(1)),
        1 => batch.take(&vec![0; if batch.is_empty() { 0 } else { batch.len() }]),
        2 => {
            let mut columns = batch.schema().columns.clone();
            let mut arrays = batch.columns().to_vec();
            let at = dice.below(arrays.len() as u64) as usize;
            drop((columns.remove(at), arrays.remove(at)));
            Batch::new(Arc::new(Schema::new(columns)), arrays, batch.len())
        }
        _ => {
            let columns = batch.schema().columns.iter().cloned().map(Column::nullable);
            let schema = Arc::new(Schema::new(columns.collect()));
            let mut rows: Vec<Vec<Value>> = batch.rows().map(|row| row.to_vec()).collect();
            for row in &mut rows {
                if !dice.chance(30) {
                    continue;
                }
                let at = dice.below(row.len() as u64) as usize;
                row[at] = match &row[at] {
                    Value::Int(n) if dice.chance(70) => Value::Int(n.wrapping_add(1)),
                    _ => Value::Null,
                };
            }
            Batch::from_rows(schema, rows.iter().map(|row| &row[..]))
        }
    };
    match message {
        other @ (ColumnMessage::Work { .. } | ColumnMessage::Results { .. }) => {
            unreachable!("{other:?} is for a sole owner")
        }
        ColumnMessage::Events(mut all) => {
            for events in &mut all {
                match dice.below(3) {
                    0 => events.handler = dice.below(9) as usize,
                    1 => places(dice, &mut events.tids),
                    _ => events.batch = batch(dice, &events.batch),
                }
            }
            ColumnMessage::Events(all)
        }
        ColumnMessage::Rows(mut all) => {
            for rows in &mut all {
                match dice.below(3) {
                    0 => rows.table = TableId(dice.below(4) as u16),
                    1 => places(dice, &mut rows.tids),
                    _ => rows.batch = batch(dice, &rows.batch),
                }
            }
            ColumnMessage::Rows(all)
        }
        ColumnMessage::Wanted(Wanted { mut last, mut keys }) => {
            for (table, keys) in &mut keys {
                match dice.below(3) {
                    0 => *table = TableId(dice.below(4) as u16),
                    1 => last = last.wrapping_sub(dice.below(9)),
                    _ => *keys = batch(dice, keys),
                }
            }
            ColumnMessage::Wanted(Wanted { last, keys })
        }
        ColumnMessage::Lent { last, rows: mut all } => {
            for rows in &mut all {
                match dice.below(3) {
                    0 => rows.table = TableId(dice.below(4) as u16),
                    _ => rows.batch = batch(dice, &rows.batch),
                }
            }
            if dice.chance(20) {
                drop(all.pop());
            }
            ColumnMessage::Lent { last, rows: all }
        }
    }
}

/// Messages with random changes never make a node panic, and leave no guests.
#[test]
fn damaged_messages_are_errors() {
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..u64::from(cases(300)) {
        let mut dice = Dice(seed);
        let plain = dice.chance(50);
        let shape = Shape { plain, orderly: false, histories: false, words: false };
        let program = Arc::new(random::program(&mut dice, shape));
        let handlers = 0..program.handlers.len();
        let handlers: Vec<usize> = handlers.filter(|h| Exchange::takes(&program, *h)).collect();
        if handlers.is_empty() {
            continue;
        }
        let owners = owners(&mut dice, 3);
        let mut all = Nodes::new(&program, owners, Executed::Serial);
        let events: Vec<Event> = (1..60)
            .map(|tid| {
                let handler = *dice.pick(&handlers);
                let input = program.handlers[handler].input;
                let schema = &program.streams[input.index()].spec.schema;
                let node = dice.below(3) as usize;
                Event { tid, handler, node, row: event(&mut dice, schema, 9) }
            })
            .collect();
        let executes = dice.chance(60).then(|| NodeId(dice.below(3) as u16));
        let mut queue = VecDeque::new();
        let mut epochs: Vec<Option<ColumnEpoch>> = Vec::new();
        for (from, own) in deal(&program, &events, 3).into_iter().enumerate() {
            let (exchange, rows, mut out) = (&mut all.exchanges[from], &mut all.rows[from], vec![]);
            let work = (own, executes);
            let epoch = ColumnEpoch::begin(exchange, rows, &SingleThread, work, &mut out);
            epochs.push(epoch.ok());
            queue.extend(out.into_iter().map(|(to, message)| (from, to, message)));
        }
        while let Some((from, to, mut message)) = queue.pop_front() {
            let to = usize::from(to.0);
            let Some(epoch) = &mut epochs[to] else { continue };
            if dice.chance(30) {
                message = damaged(&mut dice, message);
            }
            let (exchange, rows, mut out) = (&mut all.exchanges[to], &mut all.rows[to], vec![]);
            let id = NodeId(from as u16);
            match epoch.receive(id, message, exchange, rows, &SingleThread, &mut out) {
                Ok(()) => taken += 1,
                Err(_) => {
                    refused += 1;
                    epochs[to].take().expect("it is there").abandon(rows);
                }
            }
            queue.extend(out.into_iter().map(|(node, message)| (to, node, message)));
        }
        for (epoch, rows) in epochs.into_iter().zip(&mut all.rows) {
            epoch.into_iter().for_each(|epoch| epoch.abandon(rows));
        }
        drop(all.all());
    }
    assert!(refused > 50 && taken > 50, "{refused} refused, {taken} taken");
}

/// Returns ranks by Zipf's law.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(ranks: usize, skew: f64) -> Zipf {
        let mut sum = 0.0;
        let weights = (1..=ranks).map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        });
        Zipf(weights.collect())
    }

    fn pick(&self, dice: &mut Dice) -> usize {
        let at = dice.next() as f64 / u64::MAX as f64 * self.0[self.0.len() - 1];
        self.0.partition_point(|sum| *sum < at).min(self.0.len() - 1)
    }
}

/// Transfers between two rows leave the sum of all balances as it is. Prints the time of a
/// transaction on a node, with all nodes in one thread. The number of transfers in an epoch is
/// TIDEMILL_EVENTS.
#[test]
#[allow(clippy::disallowed_methods)] // It measures time.
fn times_of_transfers() {
    const BALANCE: i64 = 1_000_000;
    let asked: Option<usize> = std::env::var("TIDEMILL_EVENTS").ok().and_then(|n| n.parse().ok());
    let (count, rounds) = asked.map_or((500, 2), |asked| (asked, 20));
    let accounts = 2 * count;
    let cases = [
        ("1 node", 1, 0.0),
        ("each on one node", 2, 0.0),
        ("uniform", 2, 0.0),
        ("zipf 0.99", 2, 0.99),
        ("3 nodes", 3, 0.0),
        ("one pair", 2, 0.0),
        ("one node of 2", 2, 0.0),
        ("one node of 2, zipf 0.99", 2, 0.99),
        ("one node of 3", 3, 0.0),
    ];
    for (name, nodes, skew) in cases {
        let (zipf, mut dice) = (Zipf::new(accounts, skew), Dice(7));
        let mut all = banks(nodes, accounts as i64, BALANCE);
        let program = all.program.clone();
        let mut best = (f64::INFINITY, 0.0, 0);
        for round in 0..rounds {
            let mut id = || (zipf.pick(&mut dice) * 7919 % accounts) as i64;
            let pair = |from: i64| match name {
                // Each waits for the one before on both nodes, so each needs a pass of its own.
                "one pair" => (0, (1..).find(|id| all.owner_of(*id) != all.owner_of(0)).unwrap()),
                "each on one node" => {
                    let owner = all.owner_of(from);
                    (from, (0..).map(|_| id()).find(|id| all.owner_of(*id) == owner).unwrap())
                }
                _ => (from, id()),
            };
            let events = if name == "one pair" { count / 25 } else { count };
            let mut dice = Dice(round);
            let debtors = (0..events).map(|_| (zipf.pick(&mut dice) * 7919 % accounts) as i64);
            let pairs: Vec<(i64, i64)> = debtors.map(pair).collect();
            let mut own = moves(&program, usize::from(nodes), &pairs);
            for events in own.iter_mut().flatten() {
                events.tids.iter_mut().for_each(|tid| *tid += round * count as u64);
            }
            let executes = name.starts_with("one node").then_some(NodeId(0));
            let begun = std::time::Instant::now();
            let outcomes = all.run((own, executes), &SingleThread, &mut |_| 0);
            let ns = begun.elapsed().as_nanos() as f64;
            let ran: usize = outcomes.iter().map(|outcome| outcome.transactions).sum();
            let ended = outcomes.iter().flat_map(|outcome| &outcome.counts);
            let ended: u64 = ended.map(|of| of.committed).sum();
            assert_eq!(ended, pairs.len() as u64, "{name}: each transfer is counted once");
            let passes = outcomes.iter().map(|outcome| outcome.passes).max().unwrap_or(0);
            if ns / (ran as f64) < best.0 {
                best = (ns / ran as f64, ns / pairs.len() as f64, passes);
            }
        }
        let balance = |row: &Row| match row[1] {
            Value::Int(balance) => balance,
            _ => unreachable!("balances are integers"),
        };
        let sum: i64 = all.all().values().map(balance).sum();
        assert_eq!(sum, BALANCE * accounts as i64, "{name}");
        println!(
            "{name}: {:.0} ns a transaction and node, {:.0} ns a transaction, {} passes",
            best.0, best.1, best.2
        );
    }
}
