//! The executor of epochs: it has the strategies, and picks one for each epoch.

use std::sync::Arc;

use tidemill_core::Result;
use tidemill_table::{Seq, Table};

use super::codes::Path;
use super::lists::Lists;
use super::serial::{Outcome, Serial};
use crate::order::Epoch;
use crate::pool::Pool;
use crate::program::Program;
use crate::schedule::Strategy;

/// Executes epochs, on as many threads as it is handed.
pub struct Executor {
    serial: Serial,
    strategy: Strategy,
    /// For the number of threads that there were the last time.
    lists: Option<(usize, Lists)>,
    ran: Ran,
}

/// How an epoch was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The strategy: never [`Strategy::Adaptive`].
    pub strategy: Strategy,
    /// Why this one.
    pub why: &'static str,
}

impl Executor {
    /// An executor. Every `rerun_every`-th call of an opaque handler is run twice and compared;
    /// never when 0.
    pub fn new(program: Arc<Program>, strategy: Strategy, rerun_every: u64) -> Executor {
        let serial = Serial::new(program, rerun_every);
        let ran = Ran { strategy: Strategy::Serial, why: "nothing was executed yet" };
        Executor { serial, strategy, lists: None, ran }
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

    /// How each handler is executed.
    pub fn paths(&self) -> &[Path] {
        self.serial.paths()
    }

    /// How the last epoch was executed, and why so.
    pub fn ran(&self) -> Ran {
        self.ran
    }

    /// Executes an epoch on the tables, which belong to the program.
    pub fn run(&mut self, pool: &dyn Pool, tables: &mut [Table], epoch: &Epoch) -> Result<Outcome> {
        let why = match self.strategy {
            Strategy::Lists if pool.threads() > 1 => match self.in_lists(pool, tables, epoch) {
                Ok(outcome) => {
                    self.ran = Ran { strategy: Strategy::Lists, why: "asked for" };
                    return Ok(outcome);
                }
                Err(why) => why,
            },
            Strategy::Serial => "asked for",
            _ => "there is one thread",
        };
        self.ran = Ran { strategy: Strategy::Serial, why };
        self.serial.run(tables, epoch)
    }

    /// hack
    pub fn timing(&self) -> String {
        format!("{:?}", self.lists.as_ref().map(|l| l.1.timing))
    }

    fn in_lists(
        &mut self,
        pool: &dyn Pool,
        tables: &mut [Table],
        epoch: &Epoch,
    ) -> Result<Outcome, &'static str> {
        let Serial { codes, rooms, seq, .. } = &mut self.serial;
        let threads = pool.threads();
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
