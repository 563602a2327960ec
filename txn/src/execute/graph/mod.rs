//! Executes epochs on their task precedence graph, on as many threads as there are.
//!
//! New versions live in the graph; tables are only read until the graph has been executed, so what
//! has to be taken back is never in them. Then the last version of each row goes to its table, and
//! outputs are appended in stamp order.
//!
//! What nobody knows before it runs (functions, keys that are computed, what takes the outputs of
//! others) depends on all before it, and all after depend on it: it is run by the serial executor,
//! between two graphs. So is a transaction that turns out to need the general path: what is before
//! it is final, what is behind is planned again. After a few of those the rest of the epoch is
//! serial.
//!
//! | file | what it is |
//! | --- | --- |
//! | `shape` | how a handler's transactions are decomposed |
//! | `plan` | what planning is told of an epoch |
//! | `state` | the states of operations, and how they change |
//! | `work` | operations at work |
//! | `natives` | closures |
//! | `values` | transactions over values |
//! | `post` | what is emitted, and why transactions abort |
//! | `commit` | versions go to tables |

mod commit;
mod natives;
mod plan;
mod post;
mod shape;
mod state;
mod values;
mod work;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tidemill_core::Value;
use tidemill_table::{Layout, Seq, Table};

use self::commit::Commit;
use self::natives::{Log, THREADS_MAX};
use self::plan::Stretch;
use self::post::{Item, Posted};
use self::shape::{Kind, Shape};
use self::state::States;
use self::values::Done;
use self::work::{Hand, LaneColumns, Work};
use super::lane::WordColumns;
use super::output::Origin;
use super::serial::{Outcome, Serial, Sink};
use crate::order::Epoch;
use crate::plan::graph::{share, Collected, Graph, Lists};
use crate::pool::Pool;
use crate::program::Program;
use crate::schedule::{Aborts, Course, Explore, Gang, Strategy, Unit, Units};

/// Transactions in one stretch that are worth a graph: meeting the other threads costs as much as
/// some dozens of them.
const WORTH: usize = 64;
/// How often an epoch is planned again because a transaction needs the general path.
const PLANNED_AGAIN_MAX: u32 = 3;

/// The graph executor: what it keeps from epoch to epoch is memory.
pub(crate) struct Graphs {
    program: Arc<Program>,
    /// In slices, and as a whole.
    shapes: [Vec<Option<Shape>>; 2],
    graph: Graph,
    collected: Collected,
    lists: Vec<Lists>,
    states: States,
    chains: Vec<AtomicU32>,
    words: Vec<AtomicU64>,
    notes: Vec<AtomicU64>,
    worth: usize,
}

/// Where a stretch of transactions ended.
struct Reached {
    /// The next one.
    at: usize,
    /// It has to be run by the general path.
    is_trap: bool,
}

impl Graphs {
    pub(crate) fn new(program: Arc<Program>) -> Graphs {
        let layouts: Vec<Layout> = program.tables.iter().map(Layout::of).collect();
        Graphs {
            shapes: shape::shapes(&program, &layouts),
            program,
            graph: Graph::default(),
            collected: Collected::default(),
            lists: Vec::new(),
            states: States::default(),
            chains: Vec::new(),
            words: Vec::new(),
            notes: Vec::new(),
            worth: WORTH,
        }
    }

    /// Makes a graph of two transactions, too: for tests that compare executors on few events.
    pub(crate) fn of_anything(mut self) -> Graphs {
        self.worth = 2;
        self
    }

    /// Why no part of an epoch can be in a graph.
    pub(crate) fn why_not(&self, epoch: &Epoch) -> Option<Cow<'static, str>> {
        let has_shape = |lane: &crate::order::Lane| self.shapes[1][lane.handler as usize].is_some();
        match epoch.lanes.iter().any(has_shape) {
            true => None,
            false => Some("no handler's rows are known before it runs".into()),
        }
    }

    /// Executes an epoch; also says how many transactions were in graphs. `serial` gives the numbers,
    /// and runs what is not for a graph.
    pub(crate) fn run(
        &mut self,
        serial: &mut Serial,
        strategy: Strategy,
        pool: &dyn Pool,
        tables: &mut [Table],
        epoch: &Epoch,
    ) -> (Outcome, usize) {
        let words: Vec<WordColumns<'_>> = (epoch.lanes.iter())
            .map(|lane| WordColumns::new(&epoch.runs[lane.run as usize].batch, true))
            .collect();
        // An empty slice stands for a column that is not of words.
        let columns: LaneColumns<'_> = (words.iter().zip(&epoch.lanes))
            .map(|(words, lane)| {
                let columns = epoch.runs[lane.run as usize].batch.columns().len();
                (0..columns).map(|c| words.get(c).unwrap_or(&[])).collect()
            })
            .collect();
        let is_compiled = |lane: &crate::order::Lane| {
            let shape = self.shapes[1][lane.handler as usize].as_ref();
            shape.is_none_or(|shape| matches!(shape.kind, Kind::Words(_)))
        };
        let whole = usize::from(!epoch.lanes.iter().all(is_compiled));
        let plain = plan::plain_lanes(epoch, &self.shapes[whole], &columns);
        let unknown = self.unknown(whole, pool, epoch, &columns, &plain);
        let mut out = serial.sink();
        let (mut at, mut planned_again, mut in_graphs) = (0, 0, 0);
        let mut fences = unknown.iter().copied().peekable();
        while at < epoch.order.len() {
            while fences.next_if(|fence| *fence < at).is_some() {}
            let end = fences.peek().copied().unwrap_or(epoch.order.len());
            if planned_again > PLANNED_AGAIN_MAX {
                serial.stretch(tables, epoch, at..epoch.order.len(), &mut out);
                break;
            }
            if end - at < self.worth {
                // Up to the next stretch that is worth a graph.
                let mut until = (end + 1).min(epoch.order.len());
                while fences.next_if(|fence| *fence < until).is_some() {
                    let next = fences.peek().copied().unwrap_or(epoch.order.len());
                    if next - until < self.worth {
                        until = (next + 1).min(epoch.order.len());
                    }
                }
                serial.stretch(tables, epoch, at..until, &mut out);
                at = until;
                continue;
            }
            let reached = self.stretch(
                whole,
                serial,
                strategy,
                pool,
                tables,
                epoch,
                at..end,
                &columns,
                &mut out,
            );
            in_graphs += reached.at - at;
            at = reached.at;
            if reached.is_trap {
                serial.stretch(tables, epoch, at..at + 1, &mut out);
                (at, planned_again) = (at + 1, planned_again + 1);
            }
        }
        (serial.finish(out), in_graphs)
    }

    /// The transactions that can't be in a graph, in order.
    fn unknown(
        &self,
        whole: usize,
        pool: &dyn Pool,
        epoch: &Epoch,
        columns: &LaneColumns<'_>,
        plain: &[bool],
    ) -> Vec<usize> {
        let (shapes, txns) = (&self.shapes[whole], epoch.order.len());
        let all = plain.iter().all(|plain| *plain);
        let has_pairs = |shape: &Option<Shape>| match shape {
            Some(Shape { kind: Kind::Words(code), .. }) => !code.pairs.is_empty(),
            _ => false,
        };
        if all && !shapes.iter().any(has_pairs) {
            return Vec::new();
        }
        let found: Vec<Mutex<Vec<usize>>> = (0..pool.threads()).map(|_| Mutex::default()).collect();
        pool.run(&|thread| {
            let own = share(txns, thread, pool.threads());
            let is_unknown = |at: &usize| plan::is_unknown(epoch, shapes, columns, plain, *at);
            let unknown = own.filter(is_unknown).collect();
            *found[thread].lock().expect("no thread has panicked here") = unknown;
        });
        let found = found.into_iter();
        found.flat_map(|found| found.into_inner().expect("no thread has panicked")).collect()
    }

    /// Plans, walks and commits transactions that are all for a graph.
    #[allow(clippy::too_many_arguments)] // One epoch, and what it is executed with.
    fn stretch(
        &mut self,
        whole: usize,
        serial: &mut Serial,
        strategy: Strategy,
        pool: &dyn Pool,
        tables: &mut [Table],
        epoch: &Epoch,
        order: Range<usize>,
        columns: &LaneColumns<'_>,
        out: &mut Sink,
    ) -> Reached {
        let Graphs {
            program, shapes, graph, collected, lists, states, chains, words, notes, ..
        } = self;
        let shapes = &shapes[whole];
        let (explore, unit, aborts) = match strategy {
            Strategy::Graph(explore, unit, aborts) => (explore, unit, aborts),
            _ => (Explore::Ns, Unit::Chain, Aborts::Lazy),
        };
        let threads = pool.threads();
        // Planning.
        let stretch = Stretch { epoch, order: order.clone(), shapes, columns, tables: &*tables };
        graph.collect(&stretch, pool, collected).expect("an epoch's order is shorter than that");
        chains.clear();
        if unit == Unit::Chain {
            chains.resize_with(graph.len(), || AtomicU32::new(0));
        }
        let prefetch = |table: u16, hash: u64| tables[usize::from(table)].prefetch(hash);
        let find = |table: u16, key: u64, hash: u64| {
            let table = &tables[usize::from(table)];
            table.find(key, hash).map(|base| (base / table.layout().slot_words()) as u32)
        };
        graph.link(collected, pool, lists, chains, prefetch, find);
        // Scheduling.
        // Operations without rows are in the first chain.
        let rows = lists.iter().map(Lists::len).max().unwrap_or(0).max(1) * threads;
        let chains: Vec<u32> = chains.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        let course = match strategy {
            Strategy::TStream => Course::tstream(Units::chains(chains, rows)),
            _ => Course::new(graph, Units::new(graph, unit, &chains, rows), explore, aborts),
        };
        // Execution.
        states.clear(graph.len(), graph.txns());
        words.resize_with(words.len().max(graph.words), || AtomicU64::new(0));
        notes.clear();
        notes.resize_with(graph.txns(), || AtomicU64::new(0));
        let work = Work {
            graph,
            shapes,
            program,
            tables,
            epoch,
            from: order.start,
            columns,
            states,
            words,
            notes,
            is_whole: whole == 1,
            at_once: aborts == Aborts::Eager && explore != Explore::Sbfs,
        };
        let gang = Gang::new(pool);
        let logs: Vec<Mutex<Log>> = (0..threads).map(|_| Mutex::default()).collect();
        pool.run(&|thread| {
            let mut hand = Hand::new(thread, shapes);
            course.walk(graph, &work, &mut hand, &gang, thread);
            *logs[thread].lock().expect("no thread has panicked") = hand.natives.log;
        });
        // Post-processing.
        let logs: Vec<Log> =
            logs.into_iter().map(|log| log.into_inner().expect("no thread has panicked")).collect();
        let posted: Vec<Mutex<Posted>> = (0..threads).map(|_| Mutex::default()).collect();
        pool.run(&|thread| {
            let mut hand = Hand::new(thread, shapes);
            let own = work.post(share(graph.txns(), thread, threads), &mut hand, &logs);
            *posted[thread].lock().expect("no thread has panicked") = own;
        });
        let mut until = graph.txns() as u32;
        let mut is_trap = false;
        let first: Seq = serial.seq() + 1;
        for posted in posted {
            let posted = posted.into_inner().expect("no thread has panicked");
            if let Some(trap) = append(program, shapes, epoch, order.start, &posted, &logs, out) {
                (until, is_trap) = (trap, true);
                break;
            }
        }
        serial.advance(u64::from(until));
        // Commit.
        Commit { graph, states, words, until, first }.run(pool, lists, tables);
        Reached { at: order.start + until as usize, is_trap }
    }
}

/// Appends outputs and counts, up to a transaction that the general path must decide; gives that.
fn append(
    program: &Program,
    shapes: &[Option<Shape>],
    epoch: &Epoch,
    from: usize,
    posted: &Posted,
    logs: &[Log],
    out: &mut Sink,
) -> Option<u32> {
    let handler = |txn: u32| {
        let ranked = epoch.order[from + txn as usize];
        epoch.lanes[ranked.lane as usize].handler as usize
    };
    let origin = |txn: u32| Origin::new((from + txn as usize) as u32, 0, handler(txn));
    let abort = |out: &mut Sink, txn: u32, reason: &str| {
        let ranked = epoch.order[from + txn as usize];
        let run = epoch.lanes[ranked.lane as usize].run;
        let mut event = epoch.runs[run as usize].batch.row(ranked.row as usize).into_vec();
        event.push(Value::str(reason));
        out.counts[handler(txn)].aborted += 1;
        out.builders[program.handlers[handler(txn)].aborted.index()].push(&event, origin(txn));
    };
    let mut words = &posted.words[..];
    for item in &posted.items {
        match *item {
            Item::Commits(txn) => out.counts[handler(txn)].committed += 1,
            Item::Emits { txn, stream, ordinal, width } => {
                let (event, rest) = words.split_at(width as usize);
                words = rest;
                let origin = origin(txn).output(ordinal);
                let builder = &mut out.builders[usize::from(stream)];
                builder.push_words(origin, event.len(), |column| event[column]);
            }
            Item::Aborts(txn, reason) => {
                let Some(Shape { kind: Kind::Words(code), .. }) = &shapes[handler(txn)] else {
                    unreachable!("only compiled code numbers its reasons")
                };
                abort(out, txn, &code.reasons[usize::from(reason)]);
            }
            Item::Refuses { txn, thread, at } => {
                abort(out, txn, logs[usize::from(thread)].reason(at as usize));
            }
            Item::Values { txn, thread, at } => {
                match &logs[usize::from(thread)].values[at as usize] {
                    Done::Aborts(reason) => abort(out, txn, reason),
                    Done::Commits(emitted) => {
                        out.counts[handler(txn)].committed += 1;
                        for (ordinal, (stream, row)) in emitted.iter().enumerate() {
                            let origin = origin(txn).output(ordinal as u32);
                            out.builders[stream.index()].push(row, origin);
                        }
                    }
                }
            }
            Item::Trap(txn) => return Some(txn),
        }
    }
    None
}

/// Why a strategy that needs a graph can't have one on so many threads.
pub(crate) fn too_many(threads: usize) -> Option<Cow<'static, str>> {
    (threads > THREADS_MAX).then(|| format!("a graph has at most {THREADS_MAX} threads").into())
}
