//! What nodes tell each other. Between two nodes messages arrive in the order in which they were sent.

use tidemill_core::{Key, TableId, Value};
use tidemill_txn::program::Abort;

use crate::order::{Path, Tid};
use crate::program::Call;
use crate::store::Stored;
use crate::NodeId;

/// A message; one of a round that the receiver has not reached yet waits there.
#[derive(Clone, Debug)]
pub struct Message {
    /// The epoch.
    pub epoch: u64,
    /// The round in it, from 0.
    pub round: u32,
    /// What it says.
    pub body: Body,
}

/// What calls of functions came to, with all that they have called: how many there were, and how many uses of their contexts they
/// made. It does not depend on where rows live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Calls.
    pub calls: u32,
    /// Uses of rows, calls and events.
    pub uses: u32,
}

impl Spent {
    /// Both together.
    pub fn and(self, more: Spent) -> Spent {
        let calls = self.calls.saturating_add(more.calls);
        Spent { calls, uses: self.uses.saturating_add(more.uses) }
    }
}

/// How a transaction runs. Later ones are slower, and right in more cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// As it did the last time: every call where it was, with the arguments that it had, all at once (Styx
    /// 6.3). Nobody is called; whoever comes to another call or another result says so, and the
    /// transaction runs [`Mode::Fresh`] in the next round.
    Cached,
    /// Calls are made as it runs, side by side where nobody awaits them.
    Fresh,
    /// One call after the other, each until all that it has called has ended.
    Sequential,
}

/// What a run of a transaction came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its writes stand.
    Commit,
    /// It is undone.
    Abort,
    /// It was not run to the end, and has to be run again so.
    Missed(Mode),
}

/// What a message says.
#[derive(Clone, Debug)]
pub enum Body {
    /// Run this function of an entity that you own.
    Call {
        /// The transaction.
        tid: Tid,
        /// The call's place in it.
        path: Path,
        /// What to run.
        call: Call,
        /// Its share, as the exponent of 1/2.
        share: u32,
        /// Where the request came from.
        home: NodeId,
        /// Who wants the reply.
        caller: Option<NodeId>,
        /// How the transaction runs.
        mode: Mode,
        /// What there has been before it, itself included, where calls run one after the other.
        before: Spent,
    },
    /// What a call has returned; `None` when it did not.
    Reply {
        /// The transaction.
        tid: Tid,
        /// The call's place in it.
        path: Path,
        /// What it returned.
        value: Option<Value>,
        /// What it took, where calls run one after the other.
        spent: Spent,
    },
    /// What are these rows, of which you own each, before this call? It will use them, most likely.
    Ahead {
        /// The transaction.
        tid: Tid,
        /// The call's place in it.
        path: Path,
        /// The rows.
        rows: Vec<(TableId, Key)>,
    },
    /// They are this now.
    AreAhead {
        /// The transaction.
        tid: Tid,
        /// The call's place in it.
        path: Path,
        /// The rows.
        rows: Vec<(TableId, Key, Stored)>,
    },
    /// A call has ended.
    Ended {
        /// The transaction.
        tid: Tid,
        /// Its share.
        share: u32,
        /// How many calls it has made, each of which says so itself.
        calls: u32,
        /// What it took itself.
        spent: Spent,
        /// Where and why it failed, if it did.
        failure: Option<(Path, Abort)>,
        /// It was not run to the end, and has to be run again so.
        missed: Option<Mode>,
        /// Whether that is because a clock has said that a part of it takes too long.
        judged: bool,
    },
    /// All calls of a transaction have ended.
    Finished {
        /// The transaction.
        tid: Tid,
        /// What they came to.
        verdict: Verdict,
    },
    /// A transaction whose rows are known before it runs, some of which you own.
    Declared {
        /// The transaction.
        tid: Tid,
        /// What it runs.
        call: Call,
    },
    /// All of these that have come in at the sender have been told to whom they concern.
    AllDeclared {
        /// Whether something else has come in there, too.
        others: bool,
    },
    /// The rows that the sender owns of such a transaction, by their places in its list.
    Values {
        /// The transaction.
        tid: Tid,
        /// The rows.
        rows: Vec<(u32, Stored)>,
    },
    /// What such a transaction came to that has come in where none of its rows are.
    Outcome {
        /// The transaction.
        tid: Tid,
        /// What it returned, or why it aborted.
        outcome: Result<Value, Abort>,
    },
    /// All transactions of the round that have come from the sender have ended.
    Done,
    /// Transactions that have read, from the sender, what is not so, or have not been run to the end.
    Conflicts {
        /// Which, and how they are to run again.
        again: Vec<(Tid, Mode)>,
        /// Others that have read what a transaction of the epoch wrote: who, whose, and how they are to run if
        /// that one does.
        reads: Vec<(Tid, Tid, Mode)>,
        /// How many of them run again for what a clock has said.
        judged: u32,
    },
}
