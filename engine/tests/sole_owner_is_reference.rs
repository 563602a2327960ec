//! Nodes of which one owns all rows equal the reference, bit for bit: tables and outputs of random
//! programs with cascades, procedures, batches, triggers and indexes. Events come by column or as
//! calls, at any nodes, and the owner goes back to snapshots.

#[path = "../../txn/tests/random/mod.rs"]
mod random;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use proptest::prelude::*;
use random::functions::IS_PLACELESS;
use random::{Dice, Shape};
use tidemill_core::{Batch, Key, Row, StreamId, StreamTime};
use tidemill_engine::{AppFunctions, AppSpec, Settings, StartFunction};
use tidemill_function::{
    Activation, Call, Clock, ColumnPlan, Event, Functions, HandlerEvents, Message, Node, NodeId,
    Outbox, Owners, Rows, Tid,
};
use tidemill_reference::InputRow;
use tidemill_txn::execute::SoleProgram;
use tidemill_txn::program::{Abort, Batching, Program};

struct Nobody;

impl StartFunction for Nobody {
    fn begin(&self, _: usize, _: &Call, _: bool) -> Result<Box<dyn Activation>, Abort> {
        unreachable!("procedures are executed with their rounds")
    }
}

/// Returns a random program that suits a sole owner, if the seed gives one.
fn program(dice: &mut Dice) -> Option<Program> {
    let shape = Shape { plain: dice.chance(50), orderly: false, histories: false, words: false };
    let mut program = random::program(dice, shape);
    for stream in &mut program.streams {
        stream.spec.time = StreamTime::Arrival;
        // Batches by time depend on when a clock looks.
        if let Some(Batching::TimeUs(us)) = stream.batch {
            stream.batch = Some(Batching::Count(us.unsigned_abs() % 7 + 1));
        }
    }
    // Two sources of a stream in batches have no order on one process.
    let root = |of: usize| program.root_stream(StreamId(of as u16));
    let has_two = |of: usize| program.sources.iter().filter(|s| s.stream == root(of)).count() > 1;
    let is_wrong = |of: &usize| program.streams[*of].batch.is_some() && has_two(*of);
    let is_wrong = (0..program.streams.len()).any(|of| is_wrong(&of));
    program.forget();
    (SoleProgram::suits(&program) && !is_wrong).then_some(program)
}

/// An event with the place of its first transaction.
type Placed = (u64, StreamId, Row);

/// The nodes, and the messages between them.
struct Nodes {
    nodes: Vec<Node>,
    functions: Arc<AppFunctions>,
    wires: BTreeMap<(u16, u16), VecDeque<Message>>,
    outputs: BTreeMap<StreamId, Vec<(u64, u32, Row)>>,
}

impl Nodes {
    /// Executes an epoch.
    fn run(&mut self, number: u64, clock_us: i64, work: &[(usize, Placed)], dice: &mut Dice) {
        let functions = self.functions.clone();
        let by_column =
            work.iter().all(|(_, (_, stream, _))| functions.by_column(*stream).is_some());
        let by_column = by_column && dice.chance(70);
        for node in 0..self.nodes.len() {
            let own = work.iter().filter(|(of, _)| *of == node).map(|(_, placed)| placed);
            let (mut calls, mut events) = (Vec::new(), Vec::new());
            for (tid, stream, row) in own {
                if !by_column {
                    calls.extend((*tid..).map(Tid).zip(Functions::event(
                        &*functions,
                        *stream,
                        row,
                    )));
                    continue;
                }
                let handlers = functions.by_column(*stream).expect("it is by column");
                let schema = functions.program().streams[stream.index()].spec.schema.clone();
                for (handler, tid) in handlers.iter().zip(*tid..) {
                    let batch = Batch::from_rows(schema.clone(), [&row[..]]);
                    let is_it = |of: &&mut HandlerEvents| of.handler == *handler;
                    match events.iter_mut().find(is_it).filter(|_| dice.chance(95)) {
                        Some(of) => {
                            of.tids.push(tid);
                            of.batch = Batch::concat(&[&of.batch, &batch]);
                        }
                        None => {
                            events.push(HandlerEvents { handler: *handler, tids: vec![tid], batch })
                        }
                    }
                }
            }
            let mut out = Outbox::default();
            let plan = ColumnPlan { executes: None, by_owner: true };
            self.nodes[node].begin(number, Clock::from(clock_us), calls, (events, plan), &mut out);
            self.take(node, out, work);
        }
        while let Some(at) = {
            let busy: Vec<_> = self.wires.iter().filter(|(_, wire)| !wire.is_empty()).collect();
            (!busy.is_empty()).then(|| *dice.pick(&busy).0)
        } {
            let message = self.wires.get_mut(&at).unwrap().pop_front().unwrap();
            let mut out = Outbox::default();
            self.nodes[usize::from(at.1)].receive(NodeId(at.0), message, &mut out);
            self.take(at.1.into(), out, work);
        }
        assert!(self.nodes.iter().all(|node| !node.is_running()), "epoch {number} ends");
    }

    fn take(&mut self, node: usize, out: Outbox, work: &[(usize, Placed)]) {
        for (to, message) in out.messages {
            self.wires.entry((node as u16, to.0)).or_default().push_back(message);
        }
        for event in out.events {
            match event {
                Event::Emitted { tid, path, stream, row } => {
                    self.outputs.entry(stream).or_default().push((tid.0, path[0], row));
                }
                Event::Columns(outcome) => {
                    for of in outcome.outputs {
                        let to = self.outputs.entry(of.stream).or_default();
                        let places = of.tids.into_iter().zip(of.ordinals);
                        to.extend(
                            places.zip(of.batch.rows()).map(|((tid, at), row)| (tid, at, row)),
                        );
                    }
                }
                // The driver of nodes makes an event of the reason.
                Event::Replied { tid, outcome: Err(abort) } => {
                    let find = |(_, (first, stream, row)): &(usize, Placed)| {
                        let nth = tid.0.checked_sub(*first)? as usize;
                        Functions::event(&*self.functions, *stream, row).into_iter().nth(nth)
                    };
                    // Each event's places are before those of the next one.
                    let is_it = |of: &&(usize, Placed)| of.1 .0 <= tid.0;
                    let call = work.iter().rfind(is_it).and_then(find);
                    let call = call.expect("it is one of them");
                    let (_, event) = self.functions.replied(&call, Err(abort));
                    let (stream, row) = event.expect("an abort has an event");
                    self.outputs.entry(stream).or_default().push((tid.0, u32::MAX, row));
                }
                Event::Replied { .. } | Event::Committed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Returns rows as text, because NaN equals no float.
fn shown(rows: impl Iterator<Item = (Key, Row)>) -> Vec<String> {
    let rows: BTreeMap<Key, Row> = rows.collect();
    rows.into_values().map(|row| format!("{row:?}")).collect()
}

/// Compares nodes with the reference. Returns whether the seed gave a program.
fn check(seed: u64) -> bool {
    IS_PLACELESS.store(true, Ordering::Relaxed);
    let mut dice = Dice(seed);
    let Some(program) = program(&mut dice) else { return false };
    let shape = Shape { plain: false, orderly: false, histories: false, words: false };
    let sources = random::sources(&mut dice, &program, shape);
    let mut cuts = random::cuts(&mut dice, &sources, shape);
    // The order of nodes has neither equal clocks nor ends of streams.
    for (nth, cut) in cuts.iter_mut().enumerate() {
        (cut.clock_us, cut.ended, cut.idle) = (1000 * (nth as i64 + 1), Vec::new(), Vec::new());
    }
    let wanted = tidemill_reference::run(&program, &sources, &cuts);

    let spec = AppSpec::new(program.clone(), Vec::new(), Settings::default());
    let functions = AppFunctions::new(&spec, Arc::new(Nobody)).unwrap();
    let number = 1 + dice.below(4) as u16;
    let owner = NodeId(dice.below(number.into()) as u16);
    let owners = Owners::all_of(number, owner);
    let node = |number: u16, rows: Rows| {
        let functions: Arc<dyn Functions> = functions.clone();
        Node::new(NodeId(number), functions, owners.clone(), Default::default(), rows)
    };
    let empty = |number: u16| {
        let mut rows = Rows::new(&functions.program().tables);
        rows.begin((1, 0));
        node(number, rows)
    };
    let nodes: Vec<Node> = (0..number).map(empty).collect();
    let (wires, outputs) = (BTreeMap::new(), BTreeMap::new());
    let mut all = Nodes { nodes, functions: functions.clone(), wires, outputs };
    let (mut from, mut tid) = (vec![0; sources.len()], 1u64);
    for (epoch, cut) in (1..).zip(&cuts) {
        let mut work = Vec::new();
        for (source, rows) in sources.iter().enumerate() {
            let stream = program.sources[source].stream;
            let is_new =
                |row: &&InputRow| (from[source]..cut.offsets[source]).contains(&row.offset);
            for InputRow { values, .. } in rows.iter().filter(is_new) {
                let node = dice.below(number.into()) as usize;
                work.push((node, (tid, stream, values[..].into())));
                tid += 1 + program.handlers.len() as u64 + dice.below(3);
            }
            from[source] = cut.offsets[source];
        }
        let before = all.outputs.clone();
        all.run(epoch, cut.clock_us, &work, &mut dice);
        // A snapshot, or back to the last one and the epoch again.
        if dice.chance(20) {
            for of in &mut all.nodes {
                let rows = of.rows_mut();
                drop(rows.take((1, epoch)));
                rows.counts((1, epoch));
            }
        } else if dice.chance(20) && all.nodes[0].rows().leads_to((1, epoch - 1)) {
            all.outputs = before;
            for (number, of) in (0..).zip(&mut all.nodes) {
                let mut rows = of.take_rows();
                rows.go_back_to((1, epoch - 1));
                rows.begin((1, epoch - 1));
                *of = node(number, rows);
            }
            all.run(epoch, cut.clock_us, &work, &mut dice);
        }
    }
    for (node, of) in all.nodes.iter().enumerate() {
        assert!(node == usize::from(owner.0) || of.rows().iter().next().is_none());
    }
    for (number, table) in wanted.tables.iter().enumerate() {
        let rows = all.nodes[usize::from(owner.0)].rows().iter();
        let own = rows.filter(|(of, ..)| of.index() == number);
        let found = shown(own.map(|(_, key, row)| (key, row[..].into())));
        let wanted = shown(table.iter().map(|(key, row)| (key.clone(), row.clone())));
        assert_eq!(found, wanted, "table {}", program.tables[number].name);
    }
    for rows in all.outputs.values_mut() {
        rows.sort_by_key(|(tid, at, _)| (*tid, *at));
        let places: Vec<(u64, u32)> = rows.iter().map(|(tid, at, _)| (*tid, *at)).collect();
        assert!(places.is_sorted_by(|a, b| a < b), "places differ: {places:?}");
    }
    let text = |rows: &mut dyn Iterator<Item = &Row>| -> Vec<String> {
        rows.map(|row| format!("{row:?}")).collect()
    };
    for number in 0..program.streams.len() as u16 {
        let stream = StreamId(number);
        let found = all.outputs.get(&stream).map(|rows| text(&mut rows.iter().map(|of| &of.2)));
        let wanted = wanted.outputs.get(&stream).filter(|rows| !rows.is_empty());
        let wanted = wanted.map(|rows| text(&mut rows.iter().map(|(_, row)| row)));
        assert_eq!(found, wanted, "stream {}", program.streams[stream.index()].spec.name);
    }
    true
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig::with_cases(cases.unwrap_or(400))
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn any_program_any_nodes(seed: u64) {
        check(seed);
    }
}

#[test]
fn many_programs_are_tried() {
    let tried = (0..300).filter(|seed| check(*seed)).count();
    assert!(tried > 60, "{tried} of 300");
}
