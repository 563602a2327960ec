//! Nodes of which one owns all rows equal the reference, bit for bit: tables and outputs of random
//! programs with functions, cascades, procedures, batches, windows, histories, triggers and indexes,
//! in event time or not. Events come by column or as calls, at any nodes, and the owner goes back to
//! snapshots.

#[path = "../../txn/tests/random/mod.rs"]
mod random;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use random::functions::IS_PLACELESS;
use random::{Dice, Shape};
use tidemill_cluster::{load_rows, put_part};
use tidemill_core::{Batch, Key, Row, SourceId, SourceSpec, Stamp, StreamId, StreamTime, Value};
use tidemill_durable::{MemoryStore, Store};
use tidemill_engine::{has_sole_owner, AppFunctions, AppSpec, Settings, StartFunction, Workers};
use tidemill_env::Env;
use tidemill_function::{
    Activation, Call, Clock, ColumnPlan, Event, Functions, HandlerEvents, Message, Node, NodeId,
    Outbox, Owners, Rows, Tid,
};
use tidemill_place::{Partition, PartitionSet, PARTITIONS};
use tidemill_reference::{CutAt, InputRow};
use tidemill_txn::order::{CutInput, Run, Sequencer};
use tidemill_txn::pool::{Pool, SingleThread};
use tidemill_txn::program::{Abort, Batching, Body, Origin, Program};

struct Nobody;

impl StartFunction for Nobody {
    fn begin(&self, _: usize, _: &Call, _: bool) -> Result<Box<dyn Activation>, Abort> {
        unreachable!("the executor of epochs runs all functions")
    }
}

/// Returns a random program with a sole owner, if the seed gives one.
fn program(dice: &mut Dice) -> Option<Program> {
    let (plain, histories) = (dice.chance(50), dice.chance(50));
    let mut program =
        random::program(dice, Shape { plain, orderly: false, histories, words: false });
    let is_timed = dice.chance(50);
    for stream in &mut program.streams {
        if !is_timed {
            stream.spec.time = StreamTime::Arrival;
        }
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
    let is_native = program.handlers.iter().any(|of| matches!(of.body, Body::Native(_)));
    let spec = AppSpec::new(program.clone(), Vec::new(), Settings::default());
    (!is_native && !is_wrong && has_sole_owner(&spec)).then_some(program)
}

/// An event with the place of its first transaction.
type Placed = (u64, StreamId, Row);

/// Returns the rows of sources with times that never go back, so that none is late.
fn in_order(program: &Program, sources: Vec<Vec<InputRow>>) -> Vec<Vec<InputRow>> {
    let in_order = |(mut rows, source): (Vec<InputRow>, &SourceSpec)| {
        let spec = &program.streams[source.stream.index()].spec;
        let StreamTime::Event { column } = spec.time else { return rows };
        let time = |row: &InputRow| row.values[column].clone();
        let mut times: Vec<Value> = rows.iter().map(time).collect();
        times.sort_by_key(|time| Key::of([time]));
        rows.iter_mut().zip(times).for_each(|(row, time)| row.values[column] = time);
        rows
    };
    sources.into_iter().zip(&program.sources).map(in_order).collect()
}

/// The order of the events of cuts, and the watermarks before each.
struct Cutter<'c> {
    program: &'c Program,
    sources: &'c [Vec<InputRow>],
    sequencer: Sequencer,
    from: Vec<u64>,
}

impl Cutter<'_> {
    fn new<'c>(program: &'c Program, sources: &'c [Vec<InputRow>]) -> Cutter<'c> {
        // Nodes receive events one by one, and make batches of them.
        let mut plain = program.clone();
        plain.streams.iter_mut().for_each(|stream| stream.batch = None);
        plain.forget();
        let sequencer = Sequencer::new(Arc::new(plain)).unwrap();
        Cutter { program, sources, sequencer, from: vec![0; sources.len()] }
    }

    /// Returns the watermark of each input stream in event time.
    fn marks_us(&self) -> Arc<[(StreamId, i64)]> {
        let marks = self.sequencer.state().watermarks;
        let of = (0..).map(StreamId).zip(&self.program.streams).zip(marks);
        let timed = of.filter(|((_, stream), _)| {
            stream.origin == Origin::Input && stream.spec.time != StreamTime::Arrival
        });
        timed.map(|((stream, _), mark)| (stream, mark.time_us)).collect()
    }

    /// Makes a cut. Returns its events in their order.
    fn cut(&mut self, cut: &CutAt) -> Vec<(StreamId, Row)> {
        let (mut runs, mut times_max) = (Vec::new(), Vec::new());
        for (number, rows) in self.sources.iter().enumerate() {
            let stream = self.program.sources[number].stream;
            let spec = &self.program.streams[stream.index()].spec;
            let time = |row: &InputRow| match spec.time {
                StreamTime::Arrival => 0,
                StreamTime::Event { column } => match row.values[column] {
                    Value::Timestamp(us) => us,
                    _ => unreachable!("it is a time"),
                },
            };
            let seen = || rows.iter().filter(|row| row.offset < cut.offsets[number]);
            let new: Vec<&InputRow> =
                seen().filter(|row| row.offset >= self.from[number]).collect();
            times_max.push(seen().map(time).max().filter(|_| spec.time != StreamTime::Arrival));
            let values = new.iter().map(|row| &row.values[..]);
            runs.push(Run {
                stream,
                source: SourceId(number as u32),
                batch: Batch::from_rows(spec.schema.clone(), values),
                offsets: new.iter().map(|row| row.offset).collect(),
                times: new.iter().map(|row| time(row)).collect(),
                admitted: None,
            });
        }
        self.from.clone_from(&cut.offsets);
        let (offsets, clock_us) = (cut.offsets.clone(), cut.clock_us);
        let input = CutInput { runs, offsets, times_max, clock_us, ..CutInput::default() };
        let epoch = self.sequencer.cut(&SingleThread, input).unwrap().epoch;
        let mut all: Vec<(Stamp, StreamId, Row)> = Vec::new();
        for run in &epoch.runs {
            let events = run.batch.rows().enumerate();
            all.extend(events.map(|(nth, row)| (run.stamp(nth), run.stream, row)));
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.into_iter().map(|(_, stream, row)| (stream, row)).collect()
    }
}

/// The nodes, and the messages between them.
struct Nodes {
    nodes: Vec<Node>,
    functions: Arc<AppFunctions>,
    wires: BTreeMap<(u16, u16), VecDeque<Message>>,
    outputs: BTreeMap<StreamId, Vec<(u64, u32, Row)>>,
    /// The results of calls, by place.
    results: BTreeMap<u64, Result<Value, Abort>>,
}

impl Nodes {
    /// Executes an epoch.
    fn run(&mut self, number: u64, clock: &Clock, work: &[(usize, Placed)], dice: &mut Dice) {
        let functions = self.functions.clone();
        let is_by_column = |(_, (_, stream, _)): &(usize, Placed)| {
            let spec = &functions.program().streams[stream.index()].spec;
            // An event without a time of its own comes as a call where others have one.
            functions.by_column(*stream).is_some()
                && (clock.marks_us.is_empty() || spec.time != StreamTime::Arrival)
        };
        // Most come by column, or all, or none.
        let share = *dice.pick(&[0, 80, 100]);
        for node in 0..self.nodes.len() {
            let own = work.iter().filter(|(of, _)| *of == node);
            let (mut calls, mut events) = (Vec::new(), Vec::new());
            for placed in own {
                let (_, (tid, stream, row)) = placed;
                if !(is_by_column(placed) && dice.chance(share)) {
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
            let plan = ColumnPlan::default();
            self.nodes[node].begin(number, clock.clone(), calls, (events, plan), &mut out);
            self.take(node, out);
        }
        while let Some(at) = {
            let busy: Vec<_> = self.wires.iter().filter(|(_, wire)| !wire.is_empty()).collect();
            (!busy.is_empty()).then(|| *dice.pick(&busy).0)
        } {
            let message = self.wires.get_mut(&at).unwrap().pop_front().unwrap();
            let mut out = Outbox::default();
            self.nodes[usize::from(at.1)].receive(NodeId(at.0), message, &mut out);
            self.take(at.1.into(), out);
        }
        assert!(self.nodes.iter().all(|node| !node.is_running()), "epoch {number} ends");
    }

    fn take(&mut self, node: usize, out: Outbox) {
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
                // An abort is among the outputs, too.
                Event::Replied { tid, outcome } => drop(self.results.insert(tid.0, outcome)),
                Event::Committed { .. } => {}
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
fn check(seed: u64, pools: &[Arc<dyn Pool>]) -> bool {
    IS_PLACELESS.store(true, Ordering::Relaxed);
    let mut dice = Dice(seed);
    let Some(program) = program(&mut dice) else { return false };
    let shape = Shape { plain: false, orderly: false, histories: false, words: false };
    let sources = in_order(&program, random::sources(&mut dice, &program, shape));
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
    let strategy = dice.pick(&["adaptive", "serial", "rounds", "blocks", "lists"]).parse().unwrap();
    let pool = pools[dice.below(pools.len() as u64) as usize].clone();
    let node = |number: u16, rows: Rows| {
        let functions: Arc<dyn Functions> = functions.clone();
        let settings = tidemill_function::Settings { strategy, ..Default::default() };
        Node::new(NodeId(number), functions, owners.clone(), settings, rows).on(pool.clone())
    };
    let empty = |number: u16| {
        let mut rows = Rows::new(&functions.program().tables, 7);
        rows.begin((1, 0));
        node(number, rows)
    };
    let nodes: Vec<Node> = (0..number).map(empty).collect();
    let (wires, outputs, results) = Default::default();
    let mut all = Nodes { nodes, functions: functions.clone(), wires, outputs, results };
    let looks = functions.timers().iter().map(|timer| timer.stream);
    let is_slide =
        |of: &StreamId| functions.program().streams[of.index()].spec.name.ends_with(".slides");
    let looks: Vec<StreamId> = looks.filter(is_slide).collect();
    let (mut cutter, mut tid, mut epoch) = (Cutter::new(&program, &sources), 1u64, 0);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (mut objects, mut snapshot) = (Vec::new(), 0);
    for cut in &cuts {
        epoch += 1;
        let (mut work, mut look) = (Vec::new(), Vec::new());
        let mut add = |(stream, row): (StreamId, Row), work: &mut Vec<(usize, Placed)>| {
            work.push((dice.below(number.into()) as usize, (tid, stream, row)));
            tid += 1 + program.handlers.len() as u64 + dice.below(3);
        };
        let clock = Clock { now_us: cut.clock_us, marks_us: cutter.marks_us() };
        // Windows that no event ends are looked at. Before the end of the epoch none is due.
        let at: Row = [Value::Timestamp(cut.clock_us)].into();
        for (nth, event) in cutter.cut(cut).into_iter().enumerate() {
            if nth % 5 == 3 {
                looks.iter().for_each(|of| add((*of, at.clone()), &mut work));
            }
            add(event, &mut work);
        }
        looks.iter().for_each(|of| add((*of, at.clone()), &mut look));
        let before = all.outputs.clone();
        all.run(epoch, &clock, &work, &mut dice);
        // A snapshot, or back to the last one and the epoch again.
        if dice.chance(20) {
            let counts = dice.chance(80);
            for (number, of) in (0..).zip(&mut all.nodes) {
                let rows = of.rows_mut();
                let taken = rows.take((1, epoch));
                if !counts {
                    rows.give_up((1, epoch));
                    continue;
                }
                let name = format!("part-{epoch}-{number}");
                objects.extend(put_part(&*store, (1, epoch), &name, &taken).unwrap());
                rows.counts((1, epoch));
                snapshot = epoch;
            }
        } else if dice.chance(20) && snapshot == epoch - 1 {
            all.outputs = before;
            for (number, of) in (0..).zip(&mut all.nodes) {
                let mut rows = of.take_rows();
                match rows.leads_to((1, epoch - 1)) {
                    true => rows.go_back_to((1, epoch - 1)),
                    false if NodeId(number) == owner => {
                        let tables = &functions.program().tables;
                        let all: PartitionSet = (0..PARTITIONS).map(Partition).collect();
                        let loaded = load_rows(&store, 1, &objects, &all, (tables, 9)).unwrap();
                        rows = loaded.rows;
                    }
                    false => rows = Rows::new(&functions.program().tables, 7),
                }
                rows.begin((1, epoch - 1));
                *of = node(number, rows);
            }
            all.run(epoch, &clock, &work, &mut dice);
        }
        if !look.is_empty() {
            epoch += 1;
            let clock = Clock { marks_us: cutter.marks_us(), ..clock };
            all.run(epoch, &clock, &look, &mut dice);
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
    // The sender of a call learns of an abort, if that is the only transaction of the event.
    let aborts = all.outputs.values().flatten().filter(|(_, at, _)| *at == u32::MAX);
    for (tid, _, event) in aborts {
        let Some(result) = all.results.get(tid) else { continue };
        let why = result.as_ref().expect_err("it has aborted").public_reason();
        assert_eq!(event.last(), Some(&Value::str(&why)));
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

#[test]
fn any_program_any_nodes() {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok());
    let cases: u64 = cases.unwrap_or(600);
    let pool =
        |threads| -> Arc<dyn Pool> { Arc::new(Workers::start(&Env::real(), threads).unwrap()) };
    let pools = [1, 2, 3].map(pool);
    let tried = (0..cases).filter(|seed| check(*seed, &pools)).count() as u64;
    assert!(4 * tried > cases, "{tried} of {cases} have a program");
}
