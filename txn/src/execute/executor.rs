//! The executor of epochs. It owns the strategies, and picks one for each epoch.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use tidemill_core::Result;
use tidemill_table::{Seq, Table};

use super::blocks::Blocks;
use super::codes::Path;
use super::command::Command;
use super::graph::{self, Graphs, InGraphs};
use super::in_place::{Task, PROCEDURES};
use super::lists::Lists;
use super::rounds::Rounds;
use super::sample::Sample;
use super::serial::{Outcome, Overdue, Serial};
use super::sink::Sink;
use super::slide;
use super::timing::Timing;
use super::work::{Budget, Ledger, TIMES};
use crate::order::{Epoch, Lane, Section};
use crate::pool::{Pool, SingleThread};
use crate::program::{Program, Until, WindowId};
use crate::schedule::{
    slower, Choice, Chooser, EpochTimes, ExecutionMode, Expected, Properties, Strategy,
};

/// The way in which an epoch was executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// The strategy. It may differ from the requested one, and is never [`Strategy::Adaptive`].
    pub strategy: Strategy,
    /// The reason for this strategy.
    pub why: Cow<'static, str>,
    /// The number of transactions that were executed in parallel.
    pub in_parallel: usize,
    /// The epoch's properties, the expected costs and the alternatives, if there was a choice.
    pub chosen: Option<(Properties, Expected, &'static [ExecutionMode])>,
    /// The times, if the epoch was executed in place on several threads.
    pub timing: Option<Timing>,
}

impl Ran {
    fn new(strategy: Strategy, why: impl Into<Cow<'static, str>>) -> Ran {
        Ran { strategy, why: why.into(), in_parallel: 0, chosen: None, timing: None }
    }

    /// Adds the run of another part of the same epoch.
    fn and(self, part: &Ran) -> Ran {
        let timing = match (self.timing, part.timing) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        Ran { in_parallel: self.in_parallel + part.in_parallel, timing, ..self }
    }
}

/// The executor of epochs, on any number of threads.
pub struct Executor {
    program: Arc<Program>,
    serial: Serial,
    /// The executors of strategies, created when they are needed. `rounds`, `blocks` and `lists`
    /// are for a number of threads.
    graphs: Option<Graphs>,
    rounds: Option<(usize, Rounds)>,
    blocks: Option<(usize, Blocks)>,
    lists: Option<(usize, Lists)>,
    /// Whether even epochs that are too short to pay are planned.
    plans_anything: bool,
    /// The most counted work of a graph, for any strategy. For tests.
    limit: Option<u64>,
    /// The wasted and the useful work so far.
    ledger: Ledger,
    /// The counted work of the last epoch, and the wasted part of it.
    work: u64,
    vain: u64,
    /// Whether only a run shows what a handler's transactions touch, by handler.
    discovered: Vec<bool>,
    /// The choosers for epochs that can be executed in place, and for those that can't. Created
    /// once the number of threads is known.
    choosers: Vec<Chooser>,
    /// The samples of the properties of these epochs.
    samples: [Sample; 2],
    /// The share of transactions that aborted in the last epoch.
    aborts: f64,
    strategy: Strategy,
    ran: Ran,
}

/// The reason why an epoch with such functions is serial: each run must number the calls in the
/// same way.
const OVERDUE: &str = "functions have a deadline";

/// The reason why an epoch is serial if no two functions can run at the same time.
const ONE_LOCK: &str = "functions run one at a time";

const LOGGED: &str = "each transaction is logged";

const SLIDES: &str = "windows slide by time";

const ASKED: &str = "it was asked for";

const GIVEN_UP: &str = "it was given up: it took too much work";

/// The reason why no other strategy is tried now.
const WASTED_WORK: &str = "wasted work has to be earned back first";

/// The share of execution that planning for execution in place takes at most: one part in this
/// number.
const PLANNING: u64 = 4;

/// The numbers of transactions below which a graph, or execution in place, does not pay. The fixed
/// work for each part would dominate.
const GRAPH_MIN: usize = 512;
const IN_PLACE_MIN: usize = 4_096;

impl Executor {
    /// Creates an executor. Every `rerun_every`-th call of an opaque handler is run twice and
    /// compared, or none if it is 0.
    pub fn new(program: Arc<Program>, strategy: Strategy, rerun_every: u64) -> Executor {
        Executor {
            serial: Serial::new(program.clone(), rerun_every),
            discovered: (0..program.handlers.len())
                .map(|h| graph::discovers(&program, h))
                .collect(),
            samples: [0, 1].map(|_| Sample::new(&program)),
            program,
            graphs: None,
            rounds: None,
            blocks: None,
            lists: None,
            plans_anything: false,
            limit: None,
            ledger: Ledger::default(),
            work: 0,
            vain: 0,
            choosers: Vec::new(),
            aborts: 0.0,
            strategy,
            ran: Ran::new(strategy, "nothing was executed yet"),
        }
    }

    /// Continues after a recovered state. `seq` is the number of its last transaction.
    pub fn after(mut self, seq: Seq) -> Executor {
        self.serial = self.serial.after(seq);
        self
    }

    /// Continues after a transaction that was executed elsewhere, if its number is higher than that
    /// of the last one here.
    pub fn skip_to(&mut self, seq: Seq) {
        self.serial.skip_to(seq);
    }

    /// Turns off prefetching, to measure its benefit.
    pub fn without_prefetch(mut self) -> Executor {
        self.serial = self.serial.without_prefetch();
        self
    }

    /// Plans even epochs that are too short to pay, and lets adaptive take all strategies in turn.
    /// For tests that compare executors on few events.
    #[doc(hidden)]
    pub fn with_small_limits(mut self) -> Executor {
        self.plans_anything = true;
        self
    }

    /// Gives up graphs that take more than this counted work, for any strategy. For tests.
    #[doc(hidden)]
    pub fn giving_up_after(mut self, work: u64) -> Executor {
        self.limit = Some(work);
        self
    }

    /// Returns the counted work of the last epoch, including work that was repeated or thrown away.
    /// It is the same on every machine.
    #[doc(hidden)]
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Returns the wasted part of this work: executed twice, thrown away, or spent on planning a
    /// graph.
    #[doc(hidden)]
    pub fn wasted_work(&self) -> u64 {
        self.vain
    }

    /// Sets the calls of functions that exceed their deadline in the next epoch, as in its first
    /// execution. For replays.
    pub fn obey(&mut self, overdue: Vec<Overdue>) {
        self.serial.obey(overdue);
    }

    /// Logs each transaction, for strong recovery. Transactions are executed one after the other,
    /// on the general path.
    pub fn logging(mut self) -> Executor {
        self.serial.log();
        self.strategy = Strategy::Serial;
        self
    }

    /// Sets the commands of the next epoch's first execution, which it replays. `None` if it was
    /// not logged.
    pub fn follow(&mut self, commands: Option<Vec<Command>>) {
        self.serial.follow(commands);
    }

    /// Returns when the clock ends the next window of those without event time, if it does.
    pub fn due_us(&self, tables: &[Table]) -> Option<i64> {
        self.serial.due_us(tables)
    }

    /// Whether a window that has rows will be ended by time.
    pub fn is_open(&self, tables: &[Table]) -> bool {
        self.serial.is_open(tables)
    }

    /// Returns the next due slide of a group's windows. There is none if commands are replayed.
    pub fn due_slide(
        &self,
        tables: &[Table],
        group: usize,
        until: Until,
    ) -> Option<(WindowId, i64)> {
        match self.serial.commands.are_followed() {
            true => None,
            false => self.serial.due_slide(tables, group, until),
        }
    }

    /// Executes one slide in an epoch with everything that it triggers, and nothing else of the
    /// epoch.
    pub fn slide(
        &mut self,
        tables: &mut [Table],
        epoch: &Epoch,
        (window, edge): (WindowId, i64),
    ) -> Outcome {
        let mut out = self.serial.sink();
        slide::run(&mut self.serial, tables, epoch, &mut out, window, edge);
        self.serial.finish(&SingleThread, epoch, out)
    }

    /// Returns how each handler is executed.
    pub fn paths(&self) -> &[Path] {
        self.serial.paths()
    }

    /// Returns how the last epoch was executed, and why.
    pub fn ran(&self) -> &Ran {
        &self.ran
    }

    /// Returns the threads of a pool that are awake before the next epoch: all, if the last one was
    /// executed in parallel.
    ///
    /// Waking the others takes longer than ordering an epoch. They may be asleep because another
    /// process uses their cores.
    pub fn awake<'p>(&self, pool: &'p dyn Pool) -> &'p dyn Pool {
        match self.ran.in_parallel {
            0 => &SingleThread,
            _ => pool,
        }
    }

    /// Executes an epoch on the tables, which belong to the program.
    pub fn run(&mut self, pool: &dyn Pool, tables: &mut [Table], epoch: &Epoch) -> Result<Outcome> {
        let mut out = self.serial.sink();
        (self.work, self.vain) = (0, 0);
        match self.strategy {
            _ if self.serial.commands.is_on() => self.serially(LOGGED, tables, epoch, &mut out),
            _ if self.serial.slides() => self.serially(SLIDES, tables, epoch, &mut out),
            Strategy::Adaptive => self.adaptive(pool, tables, epoch, &mut out),
            strategy @ (Strategy::Rounds
            | Strategy::Blocks
            | Strategy::Lists
            | Strategy::SStore) => {
                let each = self.serial.usual.of_epoch(epoch, &self.serial.codes.known);
                let work = (each * epoch.order.len() as f64) as u64;
                self.work += work + work / PLANNING;
                match self.in_place(strategy, pool, tables, &epoch.whole(), &mut out) {
                    Ok(timing) => {
                        let in_parallel = epoch.order.len();
                        let timing = Some(timing);
                        self.ran = Ran { in_parallel, timing, ..Ran::new(strategy, ASKED) };
                        Ok(())
                    }
                    Err(why) => self.serially(why, tables, epoch, &mut out),
                }
            }
            strategy @ (Strategy::TStream | Strategy::Graph(..)) => {
                match self.is_for_no_graph(pool.threads()) {
                    None => {
                        let (section, budget) = (epoch.whole(), self.budget(f64::INFINITY));
                        let before = self.serial.work;
                        let ran = self.graph(strategy, pool, tables, &section, &budget, &mut out);
                        self.work += budget.spent() + self.serial.work - before;
                        let in_parallel = ran.transactions;
                        self.ran = Ran { in_parallel, ..Ran::new(strategy, ASKED) };
                        Ok(())
                    }
                    Some(why) => self.serially(why, tables, epoch, &mut out),
                }
            }
            Strategy::Serial => self.serially(ASKED, tables, epoch, &mut out),
        }?;
        self.aborts = out.aborted() as f64 / epoch.order.len().max(1) as f64;
        Ok(self.serial.finish(pool, epoch, out))
    }

    fn serially(
        &mut self,
        why: impl Into<Cow<'static, str>>,
        tables: &mut [Table],
        epoch: &Epoch,
        out: &mut Sink,
    ) -> Result<()> {
        self.ran = Ran::new(Strategy::Serial, why);
        let before = self.serial.work;
        let result = self.serial.whole(tables, epoch, out);
        let work = self.serial.work - before;
        self.work += work;
        self.ledger.note(work, 0);
        result
    }

    /// Chooses before anything is planned, and learns from the measured costs.
    fn adaptive(
        &mut self,
        pool: &dyn Pool,
        tables: &mut [Table],
        epoch: &Epoch,
        out: &mut Sink,
    ) -> Result<()> {
        let threads = pool.threads();
        if threads == 1 {
            return self.serially("there is one thread", tables, epoch, out);
        }
        let kind = match self.rounds(threads).check(tables, epoch) {
            Ok(()) => 0,
            Err((why, false)) => return self.serially(why, tables, epoch, out),
            Err((_, true)) => {
                let one_lock = self.program.opaques.iter().any(|opaque| opaque.has_one_lock());
                // Tests run in parallel all the same, because only the outcome counts there.
                let one_lock = (one_lock && !self.plans_anything).then_some(ONE_LOCK.into());
                match one_lock.or(self.is_for_no_graph(threads)) {
                    Some(why) => return self.serially(why, tables, epoch, out),
                    None => 1,
                }
            }
        };
        if self.choosers.is_empty() {
            let slower = slower(|| pool.now_ns());
            let among = [ExecutionMode::in_place(threads), ExecutionMode::NOT_IN_PLACE];
            self.choosers.extend(among.map(|among| Chooser::new(among, slower)));
        }
        let unknown = if kind == 1 { self.unknown(epoch) } else { 0.0 };
        let sample = &mut self.samples[kind];
        let chooser = &mut self.choosers[kind];
        let mut seen = chooser.look_at(epoch.order.len(), || sample.properties(epoch));
        (seen.aborts, seen.unknown) = (self.aborts, unknown);
        // A trial executes only a part, however long the epoch is. The rest goes to the strategy
        // that is expected to be the best.
        let (mut at, mut rans) = (0, Vec::new());
        while at < epoch.order.len() || rans.is_empty() {
            let left = Properties { transactions: epoch.order.len() - at, ..seen };
            let each = self.serial.usual.of_epoch(epoch, &self.serial.codes.known);
            let choice = self.choice(kind, &left, threads);
            let choice = self.within_bounds(choice, &left, each);
            let section = epoch.section(at, choice.transactions);
            at = section.ranks.end;
            let ran = self.measured(kind, choice, &seen, each, pool, tables, &section, out);
            rans.push((section.ranks.len(), ran));
        }
        // The report is about the longest part.
        rans.sort_by_key(|(transactions, _)| Reverse(*transactions));
        let ran = rans.into_iter().map(|(_, ran)| ran).reduce(|most, other| most.and(&other));
        self.ran = ran.expect("there was a part");
        Ok(())
    }

    /// Chooses a strategy for the rest of an epoch, or for a part of it.
    fn choice(&self, kind: usize, left: &Properties, threads: usize) -> Choice {
        let chooser = &self.choosers[kind];
        match self.plans_anything {
            true => chooser.in_turn(left),
            false => chooser.choose(left, threads),
        }
    }

    /// Limits a choice that may fail to as many transactions as may be wasted.
    ///
    /// A graph may always be thrown away, and execution in place may fail once it has been given up
    /// before. A transaction usually takes `each` counted work.
    fn within_bounds(&self, choice: Choice, left: &Properties, each: f64) -> Choice {
        let (may_fail, least) = match choice.arm {
            ExecutionMode::Serial => (false, 0),
            ExecutionMode::Graph => (true, GRAPH_MIN),
            ExecutionMode::Rounds | ExecutionMode::Blocks | ExecutionMode::Lists => {
                (self.ledger.has_failed, IN_PLACE_MIN)
            }
        };
        if !may_fail || self.plans_anything {
            return choice;
        }
        let fits = self.ledger.transactions(each);
        match fits.min(choice.transactions) {
            all if all == choice.transactions => choice,
            few if few < least => Choice {
                arm: ExecutionMode::Serial,
                transactions: left.transactions,
                why: WASTED_WORK,
            },
            part => Choice { transactions: part, ..choice },
        }
    }

    /// Returns the budget of a graph, if serial execution usually takes this much work.
    fn budget(&self, usually: f64) -> Budget {
        Budget::of(self.limit.unwrap_or((usually * TIMES) as u64))
    }

    /// Executes an epoch or a part of one by this choice, and learns from the costs. The outcome
    /// goes to `out`.
    #[allow(clippy::too_many_arguments)] // The choice, its input and its output.
    fn measured(
        &mut self,
        kind: usize,
        Choice { arm, why, .. }: Choice,
        seen: &Properties,
        each_work: f64,
        pool: &dyn Pool,
        tables: &mut [Table],
        section: &Section<'_>,
        out: &mut Sink,
    ) -> Ran {
        let transactions = section.ranks.len();
        let seen = &Properties { transactions, ..*seen };
        let (chooser, threads) = (&self.choosers[kind], pool.threads());
        let (expected, among) = (chooser.expected(seen, threads), chooser.among());
        let strategy = match arm {
            ExecutionMode::Serial => Strategy::Serial,
            ExecutionMode::Rounds => Strategy::Rounds,
            ExecutionMode::Blocks => Strategy::Blocks,
            ExecutionMode::Lists => Strategy::Lists,
            ExecutionMode::Graph => chooser.graph(seen),
        };
        let (begun, aborted) = (pool.now_ns(), out.aborted());
        let (usually, before) = (each_work * transactions as f64, self.serial.work);
        // The work that serial execution would have taken, too, and the wasted work.
        let (mut done, mut vain) = (0, 0);
        let ran = match arm {
            ExecutionMode::Serial => Err(why),
            ExecutionMode::Graph => {
                let budget = self.budget(usually);
                let ran = self.graph(strategy, pool, tables, section, &budget, out);
                done += ran.work;
                vain += budget.spent().saturating_sub(ran.work);
                let why = if ran.is_given_up { GIVEN_UP } else { why };
                Ok(Ran { in_parallel: ran.transactions, ..Ran::new(strategy, why) })
            }
            ExecutionMode::Rounds | ExecutionMode::Blocks | ExecutionMode::Lists => {
                let (work, planning) = (usually as u64, usually as u64 / PLANNING);
                match self.in_place(strategy, pool, tables, section, out) {
                    Ok(timing) => {
                        (done, self.work) = (work, self.work + planning);
                        let (in_parallel, timing) = (transactions, Some(timing));
                        Ok(Ran { in_parallel, timing, ..Ran::new(strategy, why) })
                    }
                    Err(why) => {
                        vain = work + planning;
                        self.ledger.has_failed = true;
                        Err(why)
                    }
                }
            }
        };
        let ran = match ran {
            Ok(ran) => ran,
            Err(why) => {
                self.serial.stretch(tables, section, out);
                Ran::new(Strategy::Serial, why)
            }
        };
        done += self.serial.work - before;
        self.work += done + vain;
        self.vain += vain;
        self.ledger.note(done, vain);
        let each = |ns: u64| ns as f64 / transactions.max(1) as f64;
        // A failed trial counts for the strategy that was tried.
        let ns = each(pool.now_ns() - begun);
        let mut took =
            EpochTimes { ns, aborts: each(out.aborted() - aborted), ..EpochTimes::default() };
        if let Some(timing) = ran.timing {
            took.plan_ns = Some(each(timing.plan));
            let executing = timing.execute.saturating_sub(timing.wait) as f64;
            took.execute_ns = (timing.executed > 0).then(|| executing / timing.executed as f64);
        }
        self.choosers[kind].learn(seen, threads, arm, took);
        Ran { chosen: Some((*seen, expected, among)), ..ran }
    }

    /// Returns the share of an epoch's transactions for which only a run shows what they touch.
    fn unknown(&self, epoch: &Epoch) -> f64 {
        let is_unknown = |lane: &&Lane| self.discovered[lane.handler as usize];
        let events = |lane: &Lane| epoch.runs[lane.run as usize].batch.len();
        let unknown: usize = epoch.lanes.iter().filter(is_unknown).map(events).sum();
        unknown as f64 / epoch.order.len().max(1) as f64
    }

    /// Returns the reason why epochs can't be put into a graph, if there is one.
    fn is_for_no_graph(&self, threads: usize) -> Option<Cow<'static, str>> {
        let procedures = (!self.serial.codes.turns.is_empty()).then_some(PROCEDURES);
        let overdue = self.program.opaques.iter().any(|opaque| opaque.may_be_overdue());
        let one_by_one = procedures.or(overdue.then_some(OVERDUE));
        one_by_one.map(Cow::from).or(graph::too_many(threads))
    }

    /// Executes on a graph, as long as the budget lasts.
    fn graph(
        &mut self,
        strategy: Strategy,
        pool: &dyn Pool,
        tables: &mut [Table],
        section: &Section<'_>,
        budget: &Budget,
        out: &mut Sink,
    ) -> InGraphs {
        let graphs = self.graphs.get_or_insert_with(|| {
            let graphs = Graphs::new(self.program.clone());
            match self.plans_anything {
                true => graphs.with_small_limits(),
                false => graphs,
            }
        });
        graphs.run(&mut self.serial, strategy, pool, tables, section, budget, out)
    }

    /// Returns the rounds for this number of threads.
    fn rounds(&mut self, threads: usize) -> &mut Rounds {
        if self.rounds.as_ref().is_none_or(|(of, _)| *of != threads) {
            self.rounds = Some((threads, Rounds::new(self.serial.codes.clone(), threads)));
        }
        &mut self.rounds.as_mut().expect("there are some now").1
    }

    /// Returns the blocks for this number of threads.
    fn blocks(&mut self, threads: usize) -> &mut Blocks {
        if self.blocks.as_ref().is_none_or(|(of, _)| *of != threads) {
            let blocks = Blocks::new(self.serial.codes.clone(), threads);
            let blocks = if self.plans_anything { blocks.with_small_limits() } else { blocks };
            self.blocks = Some((threads, blocks));
        }
        &mut self.blocks.as_mut().expect("there are some now").1
    }

    /// Returns the lists for this number of threads.
    fn lists(&mut self, threads: usize) -> &mut Lists {
        if self.lists.as_ref().is_none_or(|(of, _)| *of != threads) {
            let by_partition = self.strategy == Strategy::SStore;
            let lists = Lists::new(self.serial.codes.clone(), threads, by_partition);
            let lists = if self.plans_anything { lists.with_small_limits() } else { lists };
            self.lists = Some((threads, lists));
        }
        &mut self.lists.as_mut().expect("there are some now").1
    }

    /// Executes in place, on all threads. If it must be done serially, returns the reason.
    fn in_place(
        &mut self,
        strategy: Strategy,
        pool: &dyn Pool,
        tables: &mut [Table],
        section: &Section<'_>,
        out: &mut Sink,
    ) -> Result<Timing, &'static str> {
        let threads = pool.threads();
        if threads == 1 {
            return Err("there is one thread");
        }
        let (before, len) = (self.serial.seq, section.ranks.len());
        let share = |room: &usize| (room * len).div_ceil(section.epoch.order.len().max(1));
        let rooms: Vec<usize> = self.serial.rooms.iter().map(share).collect();
        let task = &Task { pool, section, before, rooms: &rooms };
        let timing = match strategy {
            Strategy::Rounds => {
                let rounds = self.rounds(threads);
                rounds.run(task, tables, out)?;
                rounds.timing
            }
            Strategy::Blocks => {
                let blocks = self.blocks(threads);
                blocks.run(task, tables, out)?;
                blocks.timing
            }
            _ => {
                let lists = self.lists(threads);
                lists.run(task, tables, out)?;
                lists.timing
            }
        };
        self.serial.advance(len as u64);
        Ok(timing)
    }
}
