//! The executor of epochs: it has the strategies, and picks one for each epoch.

use std::borrow::Cow;
use std::sync::Arc;

use tidemill_core::Result;
use tidemill_table::{Seq, Table};

use super::codes::Path;
use super::graph::{self, Graphs};
use super::lists::Lists;
use super::serial::{Outcome, Serial};
use crate::order::Epoch;
use crate::pool::Pool;
use crate::program::Program;
use crate::schedule::Strategy;

/// How an epoch was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The strategy; not always the one that was asked for, and never [`Strategy::Adaptive`].
    pub strategy: Strategy,
    /// Why this one.
    pub why: Cow<'static, str>,
    /// Transactions that were executed beside others, and not one after the other.
    pub in_parallel: usize,
}

/// Executes epochs, on as many threads as it is handed.
pub struct Executor {
    serial: Serial,
    graphs: Graphs,
    /// For the number of threads that there were the last time.
    lists: Option<(usize, Lists)>,
    strategy: Strategy,
    ran: Ran,
}

impl Executor {
    /// An executor. Every `rerun_every`-th call of an opaque handler is run twice and compared;
    /// never when 0.
    pub fn new(program: Arc<Program>, strategy: Strategy, rerun_every: u64) -> Executor {
        let ran = Ran { strategy, why: "nothing was executed yet".into(), in_parallel: 0 };
        let graphs = Graphs::new(program.clone());
        let serial = Serial::new(program, rerun_every);
        Executor { serial, graphs, lists: None, strategy, ran }
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
        const ASKED: Cow<'static, str> = Cow::Borrowed("it was asked for");
        let strategy = self.strategy;
        let why_not = match strategy {
            Strategy::Serial => ASKED,
            Strategy::Lists => match self.in_lists(pool, tables, epoch) {
                Ok(outcome) => {
                    self.ran = Ran { strategy, why: ASKED, in_parallel: epoch.order.len() };
                    return Ok(outcome);
                }
                Err(why) => why.into(),
            },
            Strategy::TStream | Strategy::Graph(..) => {
                match self.graphs.why_not(epoch).or_else(|| graph::too_many(pool.threads())) {
                    None => {
                        let Executor { graphs, serial, .. } = self;
                        let (outcome, in_parallel) =
                            graphs.run(serial, strategy, pool, tables, epoch);
                        self.ran = Ran { strategy, why: ASKED, in_parallel };
                        return Ok(outcome);
                    }
                    Some(why) => why,
                }
            }
            Strategy::Adaptive | Strategy::SStore => {
                "the one that was asked for is not there".into()
            }
        };
        self.ran = Ran { strategy: Strategy::Serial, why: why_not, in_parallel: 0 };
        self.serial.run(tables, epoch)
    }

    fn in_lists(
        &mut self,
        pool: &dyn Pool,
        tables: &mut [Table],
        epoch: &Epoch,
    ) -> Result<Outcome, &'static str> {
        let Serial { codes, rooms, seq, .. } = &mut self.serial;
        let threads = pool.threads();
        if threads == 1 {
            return Err("there is one thread");
        }
        let lists = match &mut self.lists {
            Some((of, lists)) if *of == threads => lists,
            lists => &mut lists.insert((threads, Lists::new(codes, threads))).1,
        };
        let outcome = lists.run(codes, rooms, pool, tables, epoch, *seq)?;
        *seq = outcome.seq;
        rooms.fill(0);
        for output in &outcome.outputs {
            rooms[output.stream.index()] = output.batch.len();
        }
        Ok(outcome)
    }
}
