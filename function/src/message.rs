//! Messages between nodes. Between two nodes, messages arrive in the order in which they were sent.

use tidemill_core::{Key, TableId, Value};
use tidemill_txn::program::Abort;

use crate::columns::{GivenRows, HandlerEvents, LentRows, Wanted};
use crate::order::{Path, Tid};
use crate::program::Call;
use crate::rows::Stored;
use crate::NodeId;

/// A message. If the receiver has not reached its round yet, the message waits there.
#[derive(Clone, Debug)]
pub struct Message {
    /// The epoch.
    pub epoch: u64,
    /// The round in the epoch, from 0.
    pub round: u32,
    /// The content.
    pub body: Body,
}

/// The cost of calls of functions, with all that they have called: the number of calls, and of uses
/// of their contexts. It does not depend on where rows live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Calls.
    pub calls: u32,
    /// Uses of rows, calls and events.
    pub uses: u32,
}

impl Cost {
    /// Returns the sum of both.
    pub fn and(self, more: Cost) -> Cost {
        let calls = self.calls.saturating_add(more.calls);
        Cost { calls, uses: self.uses.saturating_add(more.uses) }
    }
}

/// The way in which a transaction runs. Later variants are slower, and right in more cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Repeats the last run: every call where it was, with the same arguments, all at once (Styx,
    /// section 6.3). No call is sent. A node that finds a different call or a different result
    /// reports it, and the transaction runs [`Mode::Fresh`] in the next round.
    Cached,
    /// Makes calls as the function runs, side by side where it awaits none of them.
    Fresh,
    /// Makes one call after the other. Each call begins when the one before has ended, with all
    /// that it called.
    Sequential,
}

/// The result of a run of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its writes are valid.
    Commit,
    /// It is undone.
    Abort,
    /// It did not run to the end, and must run again in this mode.
    Missed(Mode),
}

/// The content of a message.
#[derive(Clone, Debug)]
pub enum Body {
    /// The sender has received these events, of transactions with rows of the receiver, for an epoch
    /// that is executed by column. If it has received anything else, the epoch is not.
    Events {
        /// The events.
        events: Vec<HandlerEvents>,
        /// Whether it has received anything else.
        others: bool,
    },
    /// Events and calls that the sender has received, for the sole owner of all rows.
    Work {
        /// The events.
        events: Vec<HandlerEvents>,
        /// The calls.
        calls: Vec<(Tid, Call)>,
        /// Whether no more follow.
        is_last: bool,
    },
    /// Results of these calls.
    Results {
        /// The results.
        results: Vec<(Tid, Result<Value, Abort>)>,
        /// Whether no more follow.
        is_last: bool,
    },
    /// Rows of the sender, for an epoch that is executed by column.
    Rows {
        /// The rows.
        rows: Vec<GivenRows>,
    },
    /// Keys of rows of the receiver that the sender wants, because it executes the epoch by column.
    Wanted(Wanted),
    /// Rows that are lent to the node that executes an epoch by column, or come back from it.
    Lent {
        /// The place of the epoch's last transaction, or 0 if it has none.
        last: u64,
        /// The rows.
        rows: Vec<LentRows>,
    },
    /// A request to run a function of an entity that the receiver owns.
    Call {
        /// The transaction.
        tid: Tid,
        /// The call's place in the transaction.
        path: Path,
        /// The call to run.
        call: Call,
        /// Its share, as the exponent of 1/2.
        share: u32,
        /// The node that received the request.
        home: NodeId,
        /// The node that awaits the reply.
        caller: Option<NodeId>,
        /// How the transaction runs.
        mode: Mode,
        /// The cost of everything before the call, itself included, if calls run one after the
        /// other.
        before: Cost,
    },
    /// The result of a call.
    Reply {
        /// The transaction.
        tid: Tid,
        /// The call's place in the transaction.
        path: Path,
        /// The returned value, or `None` if the call did not return.
        value: Option<Value>,
        /// The cost of the call, if calls run one after the other.
        spent: Cost,
    },
    /// A question for rows that the receiver owns, as they are before this call. The call will
    /// probably use them.
    Prefetch {
        /// The transaction.
        tid: Tid,
        /// The call's place in the transaction.
        path: Path,
        /// The rows.
        rows: Vec<(TableId, Key)>,
    },
    /// The answer to [`Body::Prefetch`]: the rows as they are now.
    Prefetched {
        /// The transaction.
        tid: Tid,
        /// The call's place in the transaction.
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
        /// The number of calls that it has made. Each of them reports its own end.
        calls: u32,
        /// The cost of the call itself.
        spent: Cost,
        /// The place and reason of the failure, if it failed.
        failure: Option<(Path, Abort)>,
        /// The mode in which it must run again, if it did not run to the end.
        missed: Option<Mode>,
        /// Whether it must run again because a clock found that a part of it takes too long.
        judged: bool,
    },
    /// All calls of a transaction have ended.
    Finished {
        /// The transaction.
        tid: Tid,
        /// The verdict of the run.
        verdict: Verdict,
    },
    /// A transaction whose rows are known before it runs. The receiver owns some of them.
    Declared {
        /// The transaction.
        tid: Tid,
        /// The call to run.
        call: Call,
    },
    /// The sender has announced all such transactions that it received to the owners of their rows.
    AllDeclared {
        /// Whether the sender also received other transactions.
        others: bool,
    },
    /// The sender's rows of such a transaction, by their places in its list.
    Values {
        /// The transaction.
        tid: Tid,
        /// The rows.
        rows: Vec<(u32, Stored)>,
    },
    /// The result of such a transaction, for the node that received it and owns none of its rows.
    Outcome {
        /// The transaction.
        tid: Tid,
        /// The returned value, or the reason of the abort.
        outcome: Result<Value, Abort>,
    },
    /// All transactions of the round that the sender received have ended.
    Done,
    /// Transactions that must run again: they read from the sender what the order does not give, or
    /// did not run to the end.
    Conflicts {
        /// The transactions, each with the mode in which it must run again.
        again: Vec<(Tid, Mode)>,
        /// Other transactions that have read what a transaction of the epoch wrote: the reader, the
        /// writer, and the mode in which the reader runs again if the writer does.
        reads: Vec<(Tid, Tid, Mode)>,
        /// The number of transactions that run again because of a clock's verdict.
        judged: u32,
    },
}
