//! A node's part of a transaction.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;
use tidemill_core::{Key, Row, StreamId, TableId, Value};
use tidemill_txn::program::{Abort, QuestionId, Take};

use super::run::prefetch::Ahead;
use super::run::serial::Serial;
use super::NodeId;
use crate::gate::Access;
use crate::message::{Cost, Mode, Verdict};
use crate::order::Path;
use crate::program::{Activation, Call, Target};
use crate::rows::Stored;

/// Calls by their places. Most maps have one call, and a call has hundreds of bytes, so it is
/// boxed.
pub(super) type Runs = BTreeMap<Path, Box<Invocation>>;

/// A node's part of a transaction.
pub(super) struct Part {
    pub home: NodeId,
    pub mode: Mode,
    /// The calls of this run. `before` has those of the last one.
    pub runs: Runs,
    pub before: Runs,
    /// The rows that this run has written here.
    pub written: Vec<(TableId, Key)>,
    /// The cost of this run here.
    pub spent: Cost,
    /// Whether a repetition of the last run has failed. Then it is not tried again.
    pub has_missed: bool,
    /// The verdict of this run, once it is known.
    pub verdict: Option<Verdict>,
}

impl Part {
    pub fn new(home: NodeId, mode: Mode) -> Part {
        Part {
            home,
            mode,
            runs: BTreeMap::new(),
            before: BTreeMap::new(),
            written: Vec::new(),
            spent: Cost::default(),
            has_missed: false,
            verdict: None,
        }
    }
}

/// A call, while it runs and after.
pub(super) struct Invocation {
    pub call: Call,
    pub share: u32,
    /// The node that awaits the reply.
    pub caller: Option<NodeId>,
    /// The function, while it waits. It is `None` before the function begins, and when it must
    /// begin again.
    pub activation: Option<Box<dyn Activation>>,
    /// How often it has begun.
    pub begun: u32,
    /// The most accesses that it has made, over all times that it has begun.
    pub most: u32,
    /// The number of accesses and calls that it has made.
    pub ordinal: u32,
    /// Its reads, in their order. When it begins again, it gets the same results. `values` counts
    /// those that it has got.
    pub reads: Vec<Read>,
    pub values: usize,
    pub writes: Vec<Write>,
    pub emits: Vec<(u32, StreamId, Row)>,
    /// The calls that it has made. When it begins again, `made` counts those that it has repeated.
    pub children: Vec<Child>,
    pub made: usize,
    /// Its position before its last use of its context.
    pub mark: Mark,
    /// The calls it waits for. `awaited` has all that it has waited for since it began.
    pub waits: Vec<u32>,
    /// The number of calls in `waits` that have returned, counted from the first.
    returned: usize,
    pub awaited: BTreeSet<u32>,
    /// Its question to the outside, while it has no answer.
    pub asks: Option<QuestionId>,
    /// Whether a clock has found that a part of it takes too long.
    pub is_judged: bool,
    /// Whether such a verdict is being recorded, so that its effects must be undone.
    pub misses: bool,
    /// The cost of everything before it, itself included, if calls run one after the other.
    pub before: Cost,
    /// The rows that it has requested before it uses them.
    pub ahead: Option<Box<Ahead>>,
    /// The number of replies that it used ahead and that are not confirmed yet.
    pub unconfirmed: u32,
    /// The progress of its calls, if they take place one after the other.
    pub serial: Option<Box<Serial>>,
    pub outcome: Option<Outcome>,
}

/// The progress of a call: accesses, repeated reads, calls and writes.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark {
    ordinal: u32,
    values: usize,
    made: usize,
    writes: usize,
}

/// A read and its result.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Read {
    pub ordinal: u32,
    pub what: Access,
    /// The rows of a range that it takes.
    pub take: Take,
    pub saw: ReadResult,
}

/// The result of a read: one row, which may be missing, or the rows of a range.
pub(super) type ReadResult = SmallVec<[Stored; 1]>;

/// A write.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Write {
    pub ordinal: u32,
    pub table: TableId,
    pub key: Key,
    pub row: Stored,
}

/// A call that a call has made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Child {
    pub ordinal: u32,
    pub call: Call,
    /// The node that runs it.
    pub to: NodeId,
    pub wanted: bool,
    pub reply: Answer,
    /// Whether `reply` was received ahead, and must be confirmed.
    pub is_ahead: bool,
    /// Its cost, if calls run one after the other.
    pub spent: Cost,
}

/// The reply of a call, as far as it is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Nothing,
    Value(Value),
    Failed,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Returned(Value),
    /// It failed at this place, for this reason.
    Failed(Path, Abort),
    /// It waited for a call that has failed.
    Stopped,
    /// It must run again in this mode.
    Missed(Mode),
}

impl Invocation {
    pub fn new(call: Call, share: u32, caller: Option<NodeId>, before: Cost) -> Invocation {
        Invocation {
            call,
            share,
            caller,
            activation: None,
            begun: 0,
            most: 0,
            ordinal: 0,
            reads: Vec::new(),
            values: 0,
            writes: Vec::new(),
            emits: Vec::new(),
            children: Vec::new(),
            made: 0,
            mark: Mark::default(),
            waits: Vec::new(),
            returned: 0,
            awaited: BTreeSet::new(),
            asks: None,
            is_judged: false,
            misses: false,
            before,
            ahead: None,
            unconfirmed: 0,
            serial: None,
            outcome: None,
        }
    }

    /// Makes it wait until these calls have returned.
    pub fn wait_for(&mut self, calls: Vec<u32>) {
        (self.waits, self.returned) = (calls, 0);
    }

    /// Whether it can't continue yet.
    pub fn is_waiting(&mut self) -> bool {
        // A call that has returned is not checked again.
        let Invocation { waits, children, returned, .. } = self;
        let is_open = |&n: &u32| children[n as usize].reply == Answer::Nothing;
        *returned += waits[*returned..].iter().take_while(|n| !is_open(n)).count();
        let ahead = self.ahead.as_ref();
        self.returned < self.waits.len()
            || ahead.is_some_and(|ahead| ahead.open > 0 || ahead.confirms && self.is_unconfirmed())
    }

    /// Whether it continues. It also continues when a value used ahead was wrong, but only after
    /// all answers to requests ahead have arrived. Nothing else would wait for these.
    pub fn may_go_on(&mut self) -> bool {
        let is_wrong = |ahead: &Ahead| ahead.is_wrong && ahead.open == 0;
        self.ahead.as_deref().is_some_and(is_wrong) || !self.is_waiting()
    }

    /// Whether something that it received ahead has not been confirmed.
    pub fn is_unconfirmed(&self) -> bool {
        self.unconfirmed > 0
    }

    /// Notes its position.
    pub fn mark(&mut self) {
        let (values, made, writes) = (self.values, self.made, self.writes.len());
        self.mark = Mark { ordinal: self.ordinal, values, made, writes };
    }

    /// Returns to the position before the use that was not possible.
    pub fn back(&mut self) {
        let Mark { ordinal, values, made, writes } = self.mark;
        (self.ordinal, self.values, self.made) = (ordinal, values, made);
        self.writes.truncate(writes);
    }

    /// Creates the same call for another run.
    pub fn again(&self) -> Invocation {
        Invocation::new(self.call.clone(), self.share, self.caller, Cost::default())
    }

    /// Creates the same call for a run that reads the same, and gets the same replies.
    pub fn repeated(&self) -> Invocation {
        Invocation { reads: self.reads.clone(), children: self.children.clone(), ..self.again() }
    }

    /// Returns the rows and ranges that it has read.
    pub fn accesses(&self) -> impl Iterator<Item = Access> + '_ {
        self.reads.iter().map(|read| read.what.clone())
    }

    /// Returns its own cost. Uses of rows where they live belong to the function that used them.
    pub fn own(&self) -> Cost {
        match self.call.target {
            Target::Function(_) => Cost { calls: 1, uses: self.ordinal },
            _ => Cost::default(),
        }
    }

    /// Returns the cost of it and of the calls that it has made, if these run one after the other.
    pub fn spent(&self) -> Cost {
        self.children.iter().fold(self.own(), |spent, child| spent.and(child.spent))
    }

    /// Whether another run of the same call has read the same but acted differently. A run that a
    /// clock has ended is no function of its reads, so it never contradicts.
    pub fn contradicts(&self, other: &Invocation) -> bool {
        let is_over =
            |o: &Option<Outcome>| matches!(o, Some(Outcome::Returned(_) | Outcome::Failed(..)));
        let returned = |i: &Invocation| match &i.outcome {
            Some(Outcome::Returned(value)) => Some(value.clone()),
            _ => None,
        };
        let calls = |i: &Invocation| -> Vec<(u32, Call, Answer)> {
            let made = i.children.iter();
            made.map(|c| (c.ordinal, c.call.clone(), c.reply.clone())).collect()
        };
        let replies = |i: &Invocation| -> Vec<Answer> {
            i.children.iter().map(|c| c.reply.clone()).collect()
        };
        !(self.is_judged || other.is_judged)
            && is_over(&self.outcome)
            && is_over(&other.outcome)
            && self.call == other.call
            && self.reads == other.reads
            && replies(self) == replies(other)
            && (self.writes != other.writes
                || self.emits != other.emits
                || calls(self) != calls(other)
                || returned(self) != returned(other))
    }
}
