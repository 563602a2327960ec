//! The executor of epochs: it has the strategies, and picks one for each epoch.

use std::borrow::Cow;
use std::sync::Arc;

use tidemill_core::Result;
use tidemill_table::{Seq, Table};

use super::codes::Path;
use super::graph::{self, Graphs};
use super::lists::{Lists, Timing};
use super::serial::{Outcome, Serial};
use crate::order::Epoch;
use crate::pool::Pool;
use crate::program::Program;
use crate::schedule::{Chooser, Expected, Properties, Strategy, Took};

/// How an epoch was executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// The strategy; not always the one that was asked for, and never [`Strategy::Adaptive`].
    pub strategy: Strategy,
    /// Why this one.
    pub why: Cow<'static, str>,
    /// Transactions that were executed beside others, and not one after the other.
    pub in_parallel: usize,
    /// What it looked like and what was expected of it, when there was a choice.
    pub chosen: Option<(Properties, Expected)>,
}

/// Executes epochs, on as many threads as it is handed.
pub struct Executor {
    serial: Serial,
    graphs: Graphs,
    /// For the number of threads that there were the last time.
    lists: Option<(usize, Lists)>,
    chooser: Chooser,
    /// The share of transactions that aborted in the last epoch.
    aborts: f64,
    strategy: Strategy,
    ran: Ran,
}

const ASKED: Cow<'static, str> = Cow::Borrowed("it was asked for");

impl Executor {
    /// An executor. Every `rerun_every`-th call of an opaque handler is run twice and compared;
    /// never when 0.
    pub fn new(program: Arc<Program>, strategy: Strategy, rerun_every: u64) -> Executor {
        let why = "nothing was executed yet".into();
        let ran = Ran { strategy, why, in_parallel: 0, chosen: None };
        let graphs = Graphs::new(program.clone());
        let serial = Serial::new(program, rerun_every);
        let chooser = Chooser::default();
        Executor { serial, graphs, lists: None, chooser, aborts: 0.0, strategy, ran }
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

    /// Plans even what is too little to be worth it: for tests that compare executors on few events.
    #[doc(hidden)]
    pub fn planning_anything(mut self) -> Executor {
        self.graphs = self.graphs.of_anything();
        self
    }

    /// How each handler is executed.
    pub fn paths(&self) -> &[Path] {
        self.serial.paths()
    }

    /// How the last epoch was executed, and why so.
    pub fn ran(&self) -> &Ran {
        &self.ran
    }

    /// Executes an epoch on the tables, which belong to the program.
    pub fn run(&mut self, pool: &dyn Pool, tables: &mut [Table], epoch: &Epoch) -> Result<Outcome> {
        let outcome = match self.strategy {
            Strategy::Adaptive => self.adaptive(pool, tables, epoch),
            strategy @ (Strategy::Lists | Strategy::SStore) => {
                match self.in_lists(pool, tables, epoch) {
                    Ok(outcome) => {
                        let in_parallel = epoch.order.len();
                        self.ran = Ran { strategy, why: ASKED, in_parallel, chosen: None };
                        Ok(outcome)
                    }
                    Err(why) => self.serially(why.into(), tables, epoch),
                }
            }
            strategy @ (Strategy::TStream | Strategy::Graph(..)) => {
                match graph::too_many(pool.threads()) {
                    None => {
                        let Executor { graphs, serial, .. } = self;
                        let (outcome, in_parallel) =
                            graphs.run(serial, strategy, pool, tables, epoch);
                        self.ran = Ran { strategy, why: ASKED, in_parallel, chosen: None };
                        Ok(outcome)
                    }
                    Some(why) => self.serially(why, tables, epoch),
                }
            }
            Strategy::Serial => self.serially(ASKED, tables, epoch),
        }?;
        let aborted: u64 = outcome.counts.iter().map(|count| count.aborted).sum();
        self.aborts = aborted as f64 / epoch.order.len().max(1) as f64;
        Ok(outcome)
    }

    fn serially(
        &mut self,
        why: Cow<'static, str>,
        tables: &mut [Table],
        epoch: &Epoch,
    ) -> Result<Outcome> {
        self.ran = Ran { strategy: Strategy::Serial, why, in_parallel: 0, chosen: None };
        self.serial.run(tables, epoch)
    }

    /// Decides before planning, and learns from what it took.
    fn adaptive(
        &mut self,
        pool: &dyn Pool,
        tables: &mut [Table],
        epoch: &Epoch,
    ) -> Result<Outcome> {
        let threads = pool.threads();
        if threads == 1 {
            return self.serially("there is one thread".into(), tables, epoch);
        }
        if let Err(why) = self.lists(threads).1.check(tables, epoch) {
            return self.serially(why.into(), tables, epoch);
        }
        let codes = &self.serial.codes;
        let mut seen = codes.properties(epoch, &codes.columns(epoch));
        seen.aborts = self.aborts;
        let (wanted, expected) =
            (self.chooser.takes_lists(&seen, threads), self.chooser.expected(&seen, threads));
        let begun = pool.now_ns();
        let each = |ns: u64| ns as f64 / seen.transactions.max(1) as f64;
        let in_lists = if wanted { self.in_lists(pool, tables, epoch) } else { Err("") };
        let (outcome, took, strategy, why) = match in_lists {
            Ok(outcome) => {
                let ns = each(pool.now_ns() - begun);
                let (_, lists) = self.lists(threads);
                let Timing { plan, execute, wait, executed, .. } = lists.timing;
                let execute_ns = match executed {
                    0 => expected.serial_ns,
                    executed => execute.saturating_sub(wait) as f64 / executed as f64,
                };
                let took = Took::Lists { ns, plan_ns: each(plan), execute_ns };
                (outcome, took, Strategy::Lists, "it is expected to be faster")
            }
            Err(failed) => {
                let outcome = self.serial.run(tables, epoch)?;
                let ns = each(pool.now_ns() - begun);
                let why = if wanted { failed } else { "it is expected to be faster" };
                let took = match wanted {
                    // What was tried in vain counts as what it was.
                    true => Took::Lists { ns, plan_ns: 0.0, execute_ns: expected.serial_ns },
                    false => Took::Serial { ns },
                };
                (outcome, took, Strategy::Serial, why)
            }
        };
        self.chooser.learn(&seen, threads, took);
        let in_parallel = if strategy == Strategy::Lists { epoch.order.len() } else { 0 };
        let chosen = Some((seen, expected));
        self.ran = Ran { strategy, why: why.into(), in_parallel, chosen };
        Ok(outcome)
    }

    /// The lists for so many threads, and what they are told.
    fn lists(&mut self, threads: usize) -> (&mut Serial, &mut Lists) {
        if self.lists.as_ref().is_none_or(|(of, _)| *of != threads) {
            let by_partition = self.strategy == Strategy::SStore;
            let lists = Lists::new(self.serial.codes.clone(), threads, by_partition);
            self.lists = Some((threads, lists));
        }
        let (_, lists) = self.lists.as_mut().expect("there are some now");
        (&mut self.serial, lists)
    }

    fn in_lists(
        &mut self,
        pool: &dyn Pool,
        tables: &mut [Table],
        epoch: &Epoch,
    ) -> Result<Outcome, &'static str> {
        let threads = pool.threads();
        if threads == 1 {
            return Err("there is one thread");
        }
        let (serial, lists) = self.lists(threads);
        let outcome = lists.run(&serial.rooms, pool, tables, epoch, serial.seq)?;
        serial.seq = outcome.seq;
        serial.rooms.fill(0);
        for output in &outcome.outputs {
            serial.rooms[output.stream.index()] = output.batch.len();
        }
        Ok(outcome)
    }
}
