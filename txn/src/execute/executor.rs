//! The executor of epochs: it has the strategies, and picks one for each epoch.

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
use super::serial::{Outcome, Overdue, Serial, Sink};
use super::slide;
use super::timing::Timing;
use super::work::{Budget, Ledger, TIMES};
use crate::order::{Epoch, Lane, Section};
use crate::pool::{Alone, Pool};
use crate::program::{Program, Until, WindowId};
use crate::schedule::{slower, Arm, Choice, Chooser, Expected, Properties, Strategy, Took};

/// How an epoch was executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// The strategy; not always the one that was asked for, and never [`Strategy::Adaptive`].
    pub strategy: Strategy,
    /// Why this one.
    pub why: Cow<'static, str>,
    /// Transactions that were executed beside others, and not one after the other.
    pub in_parallel: usize,
    /// What it looked like, what was expected of it and what could be chosen from, when there was a choice.
    pub chosen: Option<(Properties, Expected, &'static [Arm])>,
    /// Where the time went, when it was executed in place on several threads.
    pub timing: Option<Timing>,
}

impl Ran {
    fn new(strategy: Strategy, why: impl Into<Cow<'static, str>>) -> Ran {
        Ran { strategy, why: why.into(), in_parallel: 0, chosen: None, timing: None }
    }

    /// Of an epoch of which a part was executed otherwise.
    fn and(self, part: &Ran) -> Ran {
        let timing = match (self.timing, part.timing) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        Ran { in_parallel: self.in_parallel + part.in_parallel, timing, ..self }
    }
}

/// Executes epochs, on as many threads as it is handed.
pub struct Executor {
    program: Arc<Program>,
    serial: Serial,
    /// Made when they are needed, the latter two for the number of threads that there were then.
    graphs: Option<Graphs>,
    rounds: Option<(usize, Rounds)>,
    blocks: Option<(usize, Blocks)>,
    lists: Option<(usize, Lists)>,
    /// Plans even what is too little to be worth it.
    plans_anything: bool,
    /// What graphs may take, of any strategy: for tests.
    limit: Option<u64>,
    /// What was tried in vain until now, and what was not.
    ledger: Ledger,
    /// What the last epoch has taken, in counted work, and what of it was in vain.
    work: u64,
    vain: u64,
    /// By handler: whether only a run tells what its transactions touch.
    discovered: Vec<bool>,
    /// For epochs that can be executed in place, and for those that can't; made when it is known on how many threads.
    choosers: Vec<Chooser>,
    /// What these look like.
    samples: [Sample; 2],
    /// The share of transactions that aborted in the last epoch.
    aborts: f64,
    strategy: Strategy,
    ran: Ran,
}

/// Why an epoch with such functions is executed serially: which call it was must be the same each time.
const OVERDUE: &str = "functions have a deadline";

/// The same where no two functions can run at a time.
const ONE_LOCK: &str = "functions run one at a time";

const LOGGED: &str = "each transaction is logged";

const SLIDES: &str = "windows slide when their time has come";

const ASKED: &str = "it was asked for";

const GIVEN_UP: &str = "it was given up: it took too much work";

/// Why nothing else is tried now.
const IN_VAIN: &str = "what was tried in vain has to be earned back first";

/// What is executed in place is planned for one part in so many of what executing it takes, at most.
const PLANNING: u64 = 4;

/// Fewer transactions of an epoch are not worth a graph, or being executed in place: what is done once for each part
/// would be much of it.
const GRAPH_MIN: usize = 512;
const IN_PLACE_MIN: usize = 4_096;

impl Executor {
    /// An executor. Every `rerun_every`-th call of an opaque handler is run twice and compared;
    /// never when 0.
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

    /// Goes on behind a recovered state, of which `seq` is the number of the last transaction.
    pub fn after(mut self, seq: Seq) -> Executor {
        self.serial = self.serial.after(seq);
        self
    }

    /// Without prefetching: only to measure what it is worth.
    pub fn without_prefetch(mut self) -> Executor {
        self.serial = self.serial.without_prefetch();
        self
    }

    /// Plans even what is too little to be worth it, and has what adaptive chooses from in turn: for tests that
    /// compare executors on few events.
    #[doc(hidden)]
    pub fn planning_anything(mut self) -> Executor {
        self.plans_anything = true;
        self
    }

    /// Gives up graphs that take more than so much counted work, whichever strategy was asked for: for tests.
    #[doc(hidden)]
    pub fn giving_up_after(mut self, work: u64) -> Executor {
        self.limit = Some(work);
        self
    }

    /// What the last epoch has taken, in counted work: whatever was executed twice, or thrown away, counts. It is the
    /// same on every machine.
    #[doc(hidden)]
    pub fn work(&self) -> u64 {
        self.work
    }

    /// What of it was in vain, of what was chosen: executed twice, thrown away, or planned for a graph.
    #[doc(hidden)]
    pub fn in_vain(&self) -> u64 {
        self.vain
    }

    /// In the next epoch these calls of functions take too long, as they did when it was executed for
    /// the first time: for replays.
    pub fn obey(&mut self, overdue: Vec<Overdue>) {
        self.serial.obey(overdue);
    }

    /// Logs each transaction, for strong recovery: one after the other, on the general path.
    pub fn logging(mut self) -> Executor {
        self.serial.log();
        self.strategy = Strategy::Serial;
        self
    }

    /// The next epoch is what these commands of its first execution say; none are there when it was not
    /// logged.
    pub fn follow(&mut self, commands: Option<Vec<Command>>) {
        self.serial.follow(commands);
    }

    /// When the clock ends the next window of those without event time, if it does.
    pub fn due_us(&self, tables: &[Table]) -> Option<i64> {
        self.serial.due_us(tables)
    }

    /// Whether time will end a window that has rows.
    pub fn is_open(&self, tables: &[Table]) -> bool {
        self.serial.is_open(tables)
    }

    /// The next slide of a group's windows that is due; none either where an epoch is what commands say.
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

    /// Executes one slide in an epoch, and all that it sets off, and nothing else of it.
    pub fn slide(
        &mut self,
        tables: &mut [Table],
        epoch: &Epoch,
        (window, edge): (WindowId, i64),
    ) -> Outcome {
        let mut out = self.serial.sink();
        slide::run(&mut self.serial, tables, epoch, &mut out, window, edge);
        self.serial.finish(&Alone, epoch, out)
    }

    /// How each handler is executed.
    pub fn paths(&self) -> &[Path] {
        self.serial.paths()
    }

    /// How the last epoch was executed, and why so.
    pub fn ran(&self) -> &Ran {
        &self.ran
    }

    /// Those threads of a pool that are awake before the next epoch: all, where the last one was executed in parallel.
    /// Calling others takes longer than putting an epoch in order, and they may be asleep because somebody else has
    /// use for their cores.
    pub fn awake<'p>(&self, pool: &'p dyn Pool) -> &'p dyn Pool {
        match self.ran.in_parallel {
            0 => &Alone,
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

    /// Decides before anything is planned, and learns from what it took.
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
                // In tests it is their outcome that counts.
                let one_lock = (one_lock && !self.plans_anything).then_some(ONE_LOCK.into());
                match one_lock.or(self.is_for_no_graph(threads)) {
                    Some(why) => return self.serially(why, tables, epoch, out),
                    None => 1,
                }
            }
        };
        if self.choosers.is_empty() {
            let slower = slower(|| pool.now_ns());
            let among = [Arm::in_place(threads), Arm::ELSEWHERE];
            self.choosers.extend(among.map(|among| Chooser::new(among, slower)));
        }
        let unknown = if kind == 1 { self.unknown(epoch) } else { 0.0 };
        let sample = &mut self.samples[kind];
        let chooser = &mut self.choosers[kind];
        let mut seen = chooser.look_at(epoch.order.len(), || sample.properties(epoch));
        (seen.aborts, seen.unknown) = (self.aborts, unknown);
        // A long epoch is no reason to try something for long: what is tried executes a part, and the rest goes to
        // what is expected to be the best.
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
        // The longest part is what there is to tell.
        rans.sort_by_key(|(transactions, _)| Reverse(*transactions));
        let ran = rans.into_iter().map(|(_, ran)| ran).reduce(|most, other| most.and(&other));
        self.ran = ran.expect("there was a part");
        Ok(())
    }

    /// What is to be used for what is left of an epoch, or a part of it.
    fn choice(&self, kind: usize, left: &Properties, threads: usize) -> Choice {
        let chooser = &self.choosers[kind];
        match self.plans_anything {
            true => chooser.in_turn(left),
            false => chooser.choose(left, threads),
        }
    }

    /// A choice, of no more transactions than may be executed in vain: a graph, which may be thrown away at any time, and
    /// what is executed in place, once it has been given up. They usually take `each`.
    fn within_bounds(&self, choice: Choice, left: &Properties, each: f64) -> Choice {
        let (may_fail, least) = match choice.arm {
            Arm::Serial => (false, 0),
            Arm::Graph => (true, GRAPH_MIN),
            Arm::Rounds | Arm::Blocks | Arm::Lists => (self.ledger.has_failed, IN_PLACE_MIN),
        };
        if !may_fail || self.plans_anything {
            return choice;
        }
        let fits = self.ledger.transactions(each);
        match fits.min(choice.transactions) {
            all if all == choice.transactions => choice,
            few if few < least => {
                Choice { arm: Arm::Serial, transactions: left.transactions, why: IN_VAIN }
            }
            part => Choice { transactions: part, ..choice },
        }
    }

    /// What a graph may take where serial execution usually takes so much.
    fn budget(&self, usually: f64) -> Budget {
        Budget::of(self.limit.unwrap_or((usually * TIMES) as u64))
    }

    /// Executes an epoch, or a part of one, by what was chosen, and learns from what it took. What it came to goes
    /// to `out`.
    #[allow(clippy::too_many_arguments)] // What was chosen, for what, and where it goes.
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
            Arm::Serial => Strategy::Serial,
            Arm::Rounds => Strategy::Rounds,
            Arm::Blocks => Strategy::Blocks,
            Arm::Lists => Strategy::Lists,
            Arm::Graph => chooser.graph(seen),
        };
        let (begun, aborted) = (pool.now_ns(), out.aborted());
        let (usually, before) = (each_work * transactions as f64, self.serial.work);
        // What it took that serial execution would have taken, too, and what else.
        let (mut done, mut vain) = (0, 0);
        let ran = match arm {
            Arm::Serial => Err(why),
            Arm::Graph => {
                let budget = self.budget(usually);
                let ran = self.graph(strategy, pool, tables, section, &budget, out);
                done += ran.work;
                vain += budget.spent().saturating_sub(ran.work);
                let why = if ran.is_given_up { GIVEN_UP } else { why };
                Ok(Ran { in_parallel: ran.transactions, ..Ran::new(strategy, why) })
            }
            Arm::Rounds | Arm::Blocks | Arm::Lists => {
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
        // What was tried in vain counts as what it was.
        let ns = each(pool.now_ns() - begun);
        let mut took = Took { ns, aborts: each(out.aborted() - aborted), ..Took::default() };
        if let Some(timing) = ran.timing {
            took.plan_ns = Some(each(timing.plan));
            let executing = timing.execute.saturating_sub(timing.wait) as f64;
            took.execute_ns = (timing.executed > 0).then(|| executing / timing.executed as f64);
        }
        self.choosers[kind].learn(seen, threads, arm, took);
        Ran { chosen: Some((*seen, expected, among)), ..ran }
    }

    /// The share of an epoch's transactions of which only a run tells what they touch.
    fn unknown(&self, epoch: &Epoch) -> f64 {
        let is_unknown = |lane: &&Lane| self.discovered[lane.handler as usize];
        let events = |lane: &Lane| epoch.runs[lane.run as usize].batch.len();
        let unknown: usize = epoch.lanes.iter().filter(is_unknown).map(events).sum();
        unknown as f64 / epoch.order.len().max(1) as f64
    }

    /// Why epochs are not put into a graph, if so.
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
                true => graphs.of_anything(),
                false => graphs,
            }
        });
        graphs.run(&mut self.serial, strategy, pool, tables, section, budget, out)
    }

    /// The rounds for so many threads.
    fn rounds(&mut self, threads: usize) -> &mut Rounds {
        if self.rounds.as_ref().is_none_or(|(of, _)| *of != threads) {
            self.rounds = Some((threads, Rounds::new(self.serial.codes.clone(), threads)));
        }
        &mut self.rounds.as_mut().expect("there are some now").1
    }

    /// The blocks for so many threads.
    fn blocks(&mut self, threads: usize) -> &mut Blocks {
        if self.blocks.as_ref().is_none_or(|(of, _)| *of != threads) {
            let blocks = Blocks::new(self.serial.codes.clone(), threads);
            let blocks = if self.plans_anything { blocks.of_anything() } else { blocks };
            self.blocks = Some((threads, blocks));
        }
        &mut self.blocks.as_mut().expect("there are some now").1
    }

    /// The lists for so many threads.
    fn lists(&mut self, threads: usize) -> &mut Lists {
        if self.lists.as_ref().is_none_or(|(of, _)| *of != threads) {
            let by_partition = self.strategy == Strategy::SStore;
            let lists = Lists::new(self.serial.codes.clone(), threads, by_partition);
            let lists = if self.plans_anything { lists.of_anything() } else { lists };
            self.lists = Some((threads, lists));
        }
        &mut self.lists.as_mut().expect("there are some now").1
    }

    /// Executes in place, on all threads; or says why that must be done serially.
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
