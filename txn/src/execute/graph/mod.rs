//! The execution of epochs on their task precedence graph, on all threads.
//!
//! New versions are in the graph. Tables are only read until the graph has been executed, so undone
//! writes are never in them. Then the last version of each row moves to its table, and outputs are
//! appended in stamp order.
//!
//! Some work is known only when it runs: functions, computed keys, windows, ranges, and handlers of
//! other handlers' outputs. It is executed as *units* on the general path. Expected accesses put
//! them into the graph, and in the end everything is settled. If the expectations for some units
//! fail too often, these depend on all earlier transactions, and all later ones on them. The serial
//! executor runs them between two graphs.
//!
//! In a graph with slices, a transaction that turns out to need the general path is run serially,
//! too. Everything before it is final, and everything after it is planned again. After a few of
//! these, the rest of the epoch is serial.
//!
//! | file | content |
//! | --- | --- |
//! | `shape` | the decomposition of a handler's transactions |
//! | `hint` | the expected accesses of units |
//! | `plan` | the input of planning from an epoch |
//! | `state` | the states of operations, and their changes |
//! | `work` | the execution of operations |
//! | `natives` | closures |
//! | `unit` | transactions on the general path, with their cascades |
//! | `view` | the tables as a unit sees them |
//! | `branch` | versions of the graph, for windows |
//! | `settle` | making the results of hints final |
//! | `post` | emitted events, and the reasons of aborts |
//! | `append` | outputs in stamp order |
//! | `commit` | moving versions to tables |

mod append;
mod branch;
mod commit;
mod hint;
mod natives;
mod plan;
mod post;
mod settle;
mod shape;
mod state;
mod unit;
mod view;
mod work;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tidemill_table::{Layout, Table};

use self::append::Appending;
pub(crate) use self::branch::Branch;
use self::branch::Branches;
use self::commit::Commit;
use self::hint::{is_words, Hint, Hints, Source, Trust};
use self::natives::{Log, THREADS_MAX};
use self::plan::Stretch;
use self::post::Posted;
use self::settle::settle;
use self::shape::{Kind, Shape};
use self::state::States;
use self::unit::Ran;
use self::view::Missed;
use self::work::{Hand, LaneColumns, Work};
use super::lane::WordColumns;
use super::serial::Serial;
use super::sink::Sink;
use super::work::Budget;
use crate::order::{Epoch, Section};
use crate::plan::graph::{share, Collected, Graph, Lists};
use crate::pool::Pool;
use crate::program::{Moment, Program};
use crate::schedule::{Aborts, Course, Explore, Gang, Strategy, Unit, Units};

/// The least number of transactions in a stretch for a graph to pay. Synchronizing with the other
/// threads costs as much as some dozens of them.
const WORTH: usize = 64;
/// The most times that an epoch is planned again because a transaction needs the general path.
const PLANNED_AGAIN_MAX: u32 = 3;

/// The graph executor. It reuses its memory from epoch to epoch.
pub(crate) struct Graphs {
    program: Arc<Program>,
    /// The shapes in slices, and as a whole.
    shapes: [Vec<Option<Shape>>; 2],
    graph: Graph,
    collected: Collected,
    lists: Vec<Lists>,
    states: States,
    chains: Vec<AtomicU32>,
    words: Vec<AtomicU64>,
    notes: Vec<AtomicU64>,
    units: Vec<Mutex<Option<Ran>>>,
    /// The source of hints, by handler.
    sources: Vec<Source>,
    trust: Vec<Trust>,
    worth: usize,
}

/// The end of an executed stretch of transactions.
struct Reached {
    /// The next transaction.
    at: usize,
    /// Whether the general path has to run the next transaction.
    is_trap: bool,
    /// The number of transactions before it that were run again, one after the other.
    again: usize,
    /// The counted work that the transactions before it would have taken in serial execution.
    work: u64,
}

/// The work that was done in graphs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InGraphs {
    /// The number of transactions.
    pub(crate) transactions: usize,
    /// The counted work that they would have taken in serial execution.
    pub(crate) work: u64,
    /// Whether a graph was thrown away because its budget was spent.
    pub(crate) is_given_up: bool,
}

/// The result of a thread's walk: its log, and the transactions that missed.
type Left = (Log, Vec<(u32, Missed)>);

/// An epoch, and the way in which it is to be executed.
#[derive(Clone, Copy)]
struct Asked<'e> {
    /// 1 if each transaction is one operation, or else 0.
    whole: usize,
    strategy: Strategy,
    pool: &'e dyn Pool,
    epoch: &'e Epoch,
    columns: &'e LaneColumns<'e>,
    budget: &'e Budget,
}

impl Graphs {
    pub(crate) fn new(program: Arc<Program>) -> Graphs {
        let layouts: Vec<Layout> = program.tables.iter().map(Layout::of).collect();
        Graphs {
            shapes: shape::shapes(&program, &layouts),
            sources: (0..program.handlers.len()).map(|h| Source::of(&program, h)).collect(),
            trust: vec![Trust::default(); program.handlers.len()],
            units: Vec::new(),
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

    /// Builds graphs of as few as two transactions. For tests that compare executors on few events.
    pub(crate) fn with_small_limits(mut self) -> Graphs {
        self.worth = 2;
        self
    }

    /// Executes transactions of an epoch. The outcome goes to `out`.
    ///
    /// `serial` assigns the numbers, and runs the transactions that a graph can't run. If the
    /// budget is spent, the current graph is thrown away, which has written no table yet. Its
    /// transactions and all later ones are then executed serially.
    #[allow(clippy::too_many_arguments)] // The input, the means and the output.
    pub(crate) fn run(
        &mut self,
        serial: &mut Serial,
        strategy: Strategy,
        pool: &dyn Pool,
        tables: &mut [Table],
        section: &Section<'_>,
        budget: &Budget,
        out: &mut Sink,
    ) -> InGraphs {
        let Section { epoch, ranks } = section.clone();
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
        // Handlers about which too little is known beforehand do not prevent slicing the
        // transactions of others.
        let handler = |lane: &crate::order::Lane| lane.handler as usize;
        let plain = plan::plain_lanes(epoch, &self.shapes[0], &columns);
        let is_compiled = |(lane, plain): (&crate::order::Lane, &bool)| {
            let shape = self.shapes[0][handler(lane)].as_ref();
            let is_words = shape.is_some_and(|shape| matches!(shape.kind, Kind::Words(_)));
            is_words && *plain || !self.is_trusted(handler(lane))
        };
        let whole = usize::from(!epoch.lanes.iter().zip(&plain).all(is_compiled));
        let plain = plan::plain_lanes(epoch, &self.shapes[whole], &columns);
        let odd = self.odd(whole, pool, section, &columns, &plain);
        let at = |at: usize| handler(&epoch.lanes[epoch.order[at].lane as usize]);
        let unknown: Vec<usize> = match whole {
            0 => odd.clone(),
            _ => odd.iter().copied().filter(|odd| !self.is_trusted(at(*odd))).collect(),
        };
        let asked = Asked { whole, strategy, pool, epoch, columns: &columns, budget };
        let (mut at, mut planned_again, mut in_graphs) = (ranks.start, 0, InGraphs::default());
        let mut fences = unknown.iter().copied().peekable();
        let part = |ranks: Range<usize>| Section { epoch, ranks };
        while at < ranks.end {
            while fences.next_if(|fence| *fence < at).is_some() {}
            let end = fences.peek().copied().unwrap_or(ranks.end);
            if planned_again > PLANNED_AGAIN_MAX {
                serial.stretch(tables, &part(at..ranks.end), out);
                break;
            }
            if end - at < self.worth {
                // Up to the next stretch for which a graph pays.
                let mut until = (end + 1).min(ranks.end);
                while fences.next_if(|fence| *fence < until).is_some() {
                    let next = fences.peek().copied().unwrap_or(ranks.end);
                    if next - until < self.worth {
                        until = (next + 1).min(ranks.end);
                    }
                }
                serial.stretch(tables, &part(at..until), out);
                at = until;
                continue;
            }
            let hints = match whole {
                0 => Hints::default(),
                _ => {
                    let odd = &odd[odd.partition_point(|odd| *odd < at)..];
                    let odd = &odd[..odd.partition_point(|odd| *odd < end)];
                    self.hints(&asked, tables, at..end, odd)
                }
            };
            let Some(reached) = self.stretch(&asked, serial, tables, at..end, hints, out) else {
                in_graphs.is_given_up = true;
                serial.stretch(tables, &part(at..ranks.end), out);
                break;
            };
            in_graphs.transactions += reached.at - at - reached.again;
            in_graphs.work += reached.work;
            at = reached.at;
            if reached.is_trap {
                serial.stretch(tables, &part(at..at + 1), out);
                (at, planned_again) = (at + 1, planned_again + 1);
            }
        }
        for (handler, trust) in self.trust.iter_mut().enumerate() {
            if !trust.is_there() && epoch.lanes.iter().any(|lane| lane.handler as usize == handler)
            {
                trust.forget();
            }
        }
        in_graphs
    }

    /// Whether a handler's units are worth their hints.
    fn is_trusted(&self, handler: usize) -> bool {
        matches!(self.sources[handler], Source::Event(..)) || self.trust[handler].is_there()
    }

    /// Returns the hints of the units among some transactions.
    fn hints(
        &self,
        &Asked { pool, epoch, budget, .. }: &Asked<'_>,
        tables: &[Table],
        order: Range<usize>,
        units: &[usize],
    ) -> Hints {
        let mut hints = Hints::default();
        hints.of.resize_with(order.len(), || None);
        let of = |at: usize| {
            let ranked = epoch.order[at];
            let lane = epoch.lanes[ranked.lane as usize];
            let event = epoch.runs[lane.run as usize].batch.row(ranked.row as usize);
            let moment = Moment::of(epoch, ranked);
            self.sources[moment.step].hint(&self.program, tables, &event, &moment, budget)
        };
        let found: Vec<Mutex<Vec<Hint>>> = (0..pool.threads()).map(|_| Mutex::default()).collect();
        pool.run(&|thread| {
            let own = &units[share(units.len(), thread, pool.threads())];
            let own = own.iter().map_while(|at| (!budget.is_over(0)).then(|| of(*at))).collect();
            *found[thread].lock().expect("no thread has panicked here") = own;
        });
        let found = found.into_iter();
        let found = found.flat_map(|found| found.into_inner().expect("no thread has panicked"));
        for (at, hint) in units.iter().zip(found) {
            hints.of[at - order.start] = Some(hint);
        }
        hints
    }

    /// Returns the transactions that differ from their handlers' shapes, in order.
    fn odd(
        &self,
        whole: usize,
        pool: &dyn Pool,
        Section { epoch, ranks }: &Section<'_>,
        columns: &LaneColumns<'_>,
        plain: &[bool],
    ) -> Vec<usize> {
        let shapes = &self.shapes[whole];
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
            let own = share(ranks.len(), thread, pool.threads());
            let own = ranks.start + own.start..ranks.start + own.end;
            let is_odd = |at: &usize| plan::is_odd(epoch, shapes, columns, plain, *at);
            let odd = own.filter(is_odd).collect();
            *found[thread].lock().expect("no thread has panicked here") = odd;
        });
        let found = found.into_iter();
        found.flat_map(|found| found.into_inner().expect("no thread has panicked")).collect()
    }

    /// Plans, walks, settles and commits transactions that a graph can run. Returns `None` if the
    /// budget is spent before all is settled.
    fn stretch(
        &mut self,
        asked: &Asked<'_>,
        serial: &mut Serial,
        tables: &mut [Table],
        order: Range<usize>,
        mut hints: Hints,
        out: &mut Sink,
    ) -> Option<Reached> {
        let Asked { whole, strategy, pool, epoch, columns, budget } = *asked;
        let Graphs {
            program,
            shapes,
            graph,
            collected,
            lists,
            states,
            chains,
            words,
            notes,
            units,
            ..
        } = self;
        let shapes = &shapes[whole];
        let (explore, unit, aborts) = match strategy {
            Strategy::Graph(explore, unit, aborts) => (explore, unit, aborts),
            _ => (Explore::Ns, Unit::Chain, Aborts::Lazy),
        };
        let threads = pool.threads();
        let (from, to) = (order.start, order.end);
        // Planning.
        if budget.is_over(0) {
            return None;
        }
        if hints.have_ranges() {
            Stretch { epoch, from, to, shapes, columns, tables, hints: &hints }.written();
            hints.expand(budget);
        }
        budget.spend(hints.work());
        if budget.is_over(0) {
            return None;
        }
        hints.number(tables);
        let stretch = Stretch { epoch, from, to, shapes, columns, tables, hints: &hints };
        graph.collect(&stretch, pool, collected).expect("an epoch's order is shorter than that");
        chains.clear();
        if unit == Unit::Chain {
            chains.resize_with(graph.len(), || AtomicU32::new(0));
        }
        let prefetch = |table: u16, hash: u64| tables[usize::from(table)].prefetch(hash);
        let find = |table: u16, key: u64, hash: u64| {
            let table = &tables[usize::from(table)];
            let base = if is_words(table) { table.find(key, hash) } else { None };
            base.map(|base| (base / table.layout().slot_words()) as u32)
        };
        graph.link(collected, pool, lists, chains, prefetch, find);
        // Scheduling. Operations without rows are in the first chain.
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
        units.clear();
        units.resize_with(if whole == 1 { graph.txns() } else { 0 }, Mutex::default);
        let branches = Branches::default();
        let work = Work {
            graph,
            shapes,
            program,
            tables,
            stretch,
            lists,
            states,
            words,
            notes,
            units,
            branches: &branches,
            budget,
            is_whole: whole == 1,
            at_once: aborts == Aborts::Eager && explore != Explore::Sbfs,
        };
        let gang = Gang::new(pool);
        let left: Vec<Mutex<Left>> = (0..threads).map(|_| Mutex::default()).collect();
        pool.run(&|thread| {
            let mut hand = Hand::new(thread, shapes);
            course.walk(graph, &work, &mut hand, &gang, thread);
            hand.spend(budget);
            *left[thread].lock().expect("no thread has panicked") = (hand.natives.log, hand.missed);
        });
        let left = left.into_iter().map(|left| left.into_inner().expect("no thread has panicked"));
        let (logs, missed): (Vec<Log>, Vec<Vec<(u32, Missed)>>) = left.unzip();
        if budget.is_over(0) {
            units.clear();
            return None;
        }
        let Some((extra, again)) = settle(&work, missed.iter().flatten().map(|(txn, _)| *txn))
        else {
            units.clear();
            return None;
        };
        learn(&mut self.trust, &stretch, missed.iter().flatten());
        // Post-processing.
        let posted: Vec<Mutex<Posted>> = (0..threads).map(|_| Mutex::default()).collect();
        pool.run(&|thread| {
            let mut hand = Hand::new(thread, shapes);
            let own = work.post(share(graph.txns(), thread, threads), &mut hand, &logs);
            *posted[thread].lock().expect("no thread has panicked") = own;
        });
        let numbers = Vec::with_capacity(graph.txns());
        let mut appending =
            Appending { work: &work, extra: &extra, logs: &logs, serial, out, numbers };
        let trap = posted.into_iter().find_map(|posted| {
            appending.append(&posted.into_inner().expect("no thread has panicked"))
        });
        let until = trap.unwrap_or(graph.txns() as u32);
        let numbers = appending.numbers;
        let taken = work.taken(until, &serial.codes.known, &mut serial.usual);
        // Commit.
        let stamps =
            |txn: u32| (numbers[txn as usize], epoch.time_us(epoch.order[from + txn as usize]));
        let (extra, hints, stamps) = (&extra, &hints, &stamps);
        let commit = Commit { graph, states, words, units, hints, extra, until, stamps };
        commit.run(pool, lists, tables);
        units.clear();
        Some(Reached { at: from + until as usize, is_trap: trap.is_some(), again, work: taken })
    }
}

/// Learns from the results of hints.
fn learn<'m>(
    trust: &mut [Trust],
    stretch: &Stretch<'_>,
    missed: impl Iterator<Item = &'m (u32, Missed)>,
) {
    let units = stretch.hints.of.iter().enumerate().filter(|(_, hint)| hint.is_some());
    units.for_each(|(txn, _)| trust[stretch.handler(txn)].learn(1, 0));
    for (txn, _) in missed.filter(|(_, why)| *why == Missed::Itself) {
        trust[stretch.handler(*txn as usize)].learn(0, 1);
    }
}

/// Whether the accesses of a handler's transactions are discovered by running them.
pub(crate) fn discovers(program: &Program, handler: usize) -> bool {
    matches!(Source::of(program, handler), Source::Discovery)
}

/// Returns the reason why a graph strategy can't run on this many threads, if it can't.
pub(crate) fn too_many(threads: usize) -> Option<Cow<'static, str>> {
    (threads > THREADS_MAX).then(|| format!("a graph has at most {THREADS_MAX} threads").into())
}
