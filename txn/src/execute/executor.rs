//! The executor of epochs: it has the strategies, and picks one for each epoch.

use std::borrow::Cow;
use std::sync::Arc;

use tidemill_core::Result;
use tidemill_table::{Seq, Table};

use super::graph::{self, Graphs};
use super::serial::{Outcome, Path, Serial};
use crate::order::Epoch;
use crate::pool::Pool;
use crate::program::Program;
use crate::schedule::Strategy;

/// How the last epoch was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The strategy; not always the one that was asked for.
    pub strategy: Strategy,
    /// Why this one.
    pub why: Cow<'static, str>,
    /// Transactions that were executed in graphs.
    pub in_graphs: usize,
}

/// Executes epochs, on as many threads as it is handed.
pub struct Executor {
    serial: Serial,
    graphs: Graphs,
    strategy: Strategy,
    ran: Ran,
}

impl Executor {
    /// An executor. Every `rerun_every`-th call of an opaque handler is run twice and compared;
    /// never when 0.
    pub fn new(program: Arc<Program>, strategy: Strategy, rerun_every: u64) -> Executor {
        let ran = Ran { strategy, why: "nothing was executed yet".into(), in_graphs: 0 };
        let graphs = Graphs::new(program.clone());
        Executor { serial: Serial::new(program, rerun_every), graphs, strategy, ran }
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

    /// How the last epoch was executed.
    pub fn ran(&self) -> &Ran {
        &self.ran
    }

    /// Executes an epoch on the tables, which belong to the program.
    pub fn run(&mut self, pool: &dyn Pool, tables: &mut [Table], epoch: &Epoch) -> Result<Outcome> {
        let strategy = self.strategy;
        let why_not = match strategy {
            Strategy::Serial => Some("it was asked for".into()),
            Strategy::TStream | Strategy::Graph(..) => {
                self.graphs.why_not(epoch).or_else(|| graph::too_many(pool.threads()))
            }
            Strategy::Adaptive | Strategy::SStore | Strategy::Lists => {
                Some("the one that was asked for is not there".into())
            }
        };
        if let Some(why) = why_not {
            self.ran = Ran { strategy: Strategy::Serial, why, in_graphs: 0 };
            return self.serial.run(tables, epoch);
        }
        let (outcome, in_graphs) = self.graphs.run(&mut self.serial, strategy, pool, tables, epoch);
        self.ran = Ran { strategy, why: "it was asked for".into(), in_graphs };
        Ok(outcome)
    }
}
