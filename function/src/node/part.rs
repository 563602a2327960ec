//! What one node does of a transaction.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;
use tidemill_core::{Key, Row, StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Asked};

use super::run::ahead::Ahead;
use super::run::serial::Serial;
use super::NodeId;
use crate::gate::Wish;
use crate::message::{Mode, Spent, Verdict};
use crate::order::Path;
use crate::program::{Activation, Call, Target};
use crate::store::Stored;

/// Calls by their places. Most maps have one, and a call has hundreds of bytes.
pub(super) type Runs = BTreeMap<Path, Box<Invocation>>;

/// What a node does of a transaction.
pub(super) struct Part {
    pub home: NodeId,
    pub mode: Mode,
    /// The calls of this run, and of the last one.
    pub runs: Runs,
    pub before: Runs,
    /// The rows that this run has written here.
    pub written: Vec<(TableId, Key)>,
    /// What this run has taken here.
    pub spent: Spent,
    /// Whether repeating the last run has failed: then it is not tried again.
    pub has_missed: bool,
    /// What this run came to, once that is known.
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
            spent: Spent::default(),
            has_missed: false,
            verdict: None,
        }
    }
}

/// A call, as it runs and as it has run.
pub(super) struct Invocation {
    pub call: Call,
    pub share: u32,
    /// Who wants the reply.
    pub caller: Option<NodeId>,
    /// The function, while it waits; none before it begins, and when it has to begin again.
    pub activation: Option<Box<dyn Activation>>,
    /// How often it has begun.
    pub begun: u32,
    /// How many accesses it has made at most, of all times that it has begun.
    pub most: u32,
    /// How many accesses and calls it has made.
    pub ordinal: u32,
    /// What it has read, in its order; one that begins again is told the same again.
    pub reads: Vec<Read>,
    pub told: usize,
    pub writes: Vec<Write>,
    pub emits: Vec<(u32, StreamId, Row)>,
    /// The calls it has made; one that begins again has made so many of them again.
    pub children: Vec<Child>,
    pub made: usize,
    /// How far it was before its last use of its context.
    pub mark: Mark,
    /// The calls it waits for, and all that it has waited for since it began.
    pub waits: Vec<u32>,
    /// So many of the calls it waits for have returned, from the first on.
    returned: usize,
    pub awaited: BTreeSet<u32>,
    /// What it has asked outside, while it is not told.
    pub asks: Option<Asked>,
    /// Whether a clock has said that some of it takes too long.
    pub is_judged: bool,
    /// Whether that is recorded now, and what it has done must be undone.
    pub misses: bool,
    /// What there has been before it, itself included, where calls run one after the other.
    pub before: Spent,
    /// What it has asked for before it uses it.
    pub ahead: Option<Box<Ahead>>,
    /// How much of what it was told by that has not been confirmed.
    pub unconfirmed: u32,
    /// How far its calls have come, where they take place one after the other.
    pub serial: Option<Box<Serial>>,
    pub outcome: Option<Outcome>,
}

/// How far a call has come: accesses, reads told, calls and writes.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark {
    ordinal: u32,
    told: usize,
    made: usize,
    writes: usize,
}

/// A read, and what it was told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Read {
    pub ordinal: u32,
    pub what: Wish,
    /// Of a range: at most so many rows.
    pub limit: u32,
    pub saw: Saw,
}

/// What a read was told: one row, which may be missing, or those of a range.
pub(super) type Saw = SmallVec<[Stored; 1]>;

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
    /// Where it runs.
    pub to: NodeId,
    pub wanted: bool,
    pub reply: Answer,
    /// Whether that is what was told ahead, and is to be confirmed.
    pub is_ahead: bool,
    /// What it took, where calls run one after the other.
    pub spent: Spent,
}

/// What has come back from a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Nothing,
    Value(Value),
    Failed,
}

/// What a call came to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Returned(Value),
    /// At this place, for this reason.
    Failed(Path, Abort),
    /// It waited for one that has failed.
    Stopped,
    /// It has to run again so.
    Missed(Mode),
}

impl Invocation {
    pub fn new(call: Call, share: u32, caller: Option<NodeId>, before: Spent) -> Invocation {
        Invocation {
            call,
            share,
            caller,
            activation: None,
            begun: 0,
            most: 0,
            ordinal: 0,
            reads: Vec::new(),
            told: 0,
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

    /// It goes on when these calls have returned.
    pub fn wait_for(&mut self, calls: Vec<u32>) {
        (self.waits, self.returned) = (calls, 0);
    }

    /// Whether it can't go on yet.
    pub fn is_waiting(&mut self) -> bool {
        // What has returned once is not looked at again.
        let Invocation { waits, children, returned, .. } = self;
        let is_open = |&n: &u32| children[n as usize].reply == Answer::Nothing;
        *returned += waits[*returned..].iter().take_while(|n| !is_open(n)).count();
        let ahead = self.ahead.as_ref();
        self.returned < self.waits.len()
            || ahead.is_some_and(|ahead| ahead.open > 0 || ahead.confirms && self.is_unconfirmed())
    }

    /// Whether it goes on: also where it was told what is not so, but not before all who were asked ahead have told. Nothing else
    /// would wait for them.
    pub fn may_go_on(&mut self) -> bool {
        let is_wrong = |ahead: &Ahead| ahead.is_wrong && ahead.open == 0;
        self.ahead.as_deref().is_some_and(is_wrong) || !self.is_waiting()
    }

    /// Whether something that it was told ahead has not been confirmed.
    pub fn is_unconfirmed(&self) -> bool {
        self.unconfirmed > 0
    }

    /// Remembers how far it is.
    pub fn mark(&mut self) {
        let (told, made, writes) = (self.told, self.made, self.writes.len());
        self.mark = Mark { ordinal: self.ordinal, told, made, writes };
    }

    /// Goes back to where it was before the use that could not be.
    pub fn back(&mut self) {
        let Mark { ordinal, told, made, writes } = self.mark;
        (self.ordinal, self.told, self.made) = (ordinal, told, made);
        self.writes.truncate(writes);
    }

    /// The same call again.
    pub fn again(&self) -> Invocation {
        Invocation::new(self.call.clone(), self.share, self.caller, Spent::default())
    }

    /// What it has read.
    pub fn wishes(&self) -> impl Iterator<Item = Wish> + '_ {
        self.reads.iter().map(|read| read.what.clone())
    }

    /// What it took itself; uses of rows where they live are part of what used them.
    pub fn own(&self) -> Spent {
        match self.call.target {
            Target::Function(_) => Spent { calls: 1, uses: self.ordinal },
            _ => Spent::default(),
        }
    }

    /// What it and those that it has made took, where they run one after the other.
    pub fn spent(&self) -> Spent {
        self.children.iter().fold(self.own(), |spent, child| spent.and(child.spent))
    }

    /// Whether another run of the same call has read the same and yet done something else. What a clock has ended is no
    /// function of what it has read.
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
