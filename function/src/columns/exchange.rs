//! The state of columnar execution that lasts from epoch to epoch.

use tidemill_core::Result;
use tidemill_txn::execute::{ColumnProgram, Executor};
use tidemill_txn::program::Program;
use tidemill_txn::schedule::Strategy;

use super::one_node::Lent;
use super::pass::Pass;
use super::waiting::Waiting;
use crate::node::{NodeId, Owners};

/// The program, executor and owners of a node that executes epochs by column. It lasts as long as
/// the node.
pub struct Exchange {
    pub(super) program: ColumnProgram,
    pub(super) executor: Executor,
    pub(super) owners: Owners,
    pub(super) me: NodeId,
    /// The number of the whole program's handlers.
    pub(super) handlers: usize,
    /// The memory of an epoch, between epochs.
    pub(super) waiting: Waiting,
    pub(super) pass: Pass,
    /// The rows that other nodes have lent to this one.
    pub(super) lent: Lent,
}

impl Exchange {
    /// Creates the state of node `me`. Epochs are executed by this strategy.
    ///
    /// # Errors
    /// If an expression of the program has no type. A checked program has none.
    pub fn new(
        program: &Program,
        owners: Owners,
        me: NodeId,
        strategy: Strategy,
    ) -> Result<Exchange> {
        assert!(me.0 < owners.nodes(), "a node is one of the nodes");
        let handlers = program.handlers.len();
        let program = ColumnProgram::new(program)?;
        let executor = Executor::new(program.program().clone(), strategy, 0);
        Ok(Exchange {
            program,
            executor,
            owners,
            me,
            handlers,
            waiting: Waiting::default(),
            pass: Pass::default(),
            lent: Lent::default(),
        })
    }

    /// Whether a handler's transactions can be executed by column. All transactions of an epoch
    /// must be of such handlers.
    ///
    /// A program does not say everything: the caller leaves out handlers whose events are executed
    /// as rounds, and tables whose rows ask for work outside.
    pub fn takes(program: &Program, handler: usize) -> bool {
        ColumnProgram::takes(program, handler)
    }

    /// Notes that an epoch is not executed by column: rows that other nodes have lent to this one may
    /// change.
    pub fn forget(&mut self) {
        self.lent.forget();
    }

    /// Executes even short passes on several threads, for tests.
    #[doc(hidden)]
    pub fn with_small_limits(mut self) -> Exchange {
        self.executor = self.executor.with_small_limits();
        self
    }
}
