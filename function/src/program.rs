//! What a program gives: functions, and for those that run what they may do.

use std::sync::Arc;

use tidemill_core::{Key, Row, StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Ask};
use tidemill_txn::Program;

/// A call of a function of an entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What runs.
    pub target: Target,
    /// The table of the entity.
    pub table: TableId,
    /// The entity's key: a value for each key column. Of rows that are looked for, what they begin with, or where they begin.
    pub key: Arc<[Value]>,
    /// The arguments. Of [`Bounds::Between`] the bound that they stay below.
    pub args: Arc<[Value]>,
}

/// What a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A function of the program, by its number there.
    Function(u32),
    /// Reads the row: its values as a list, or null.
    Get,
    /// Writes the row: the arguments are its values.
    Put,
    /// Removes the row.
    Delete,
    /// The first of these rows, so many at most, in the order of their keys: a list of lists. Where no one node owns all
    /// of them, those that the node owns that runs it.
    Find(Bounds, u32),
    /// The same of all nodes together.
    Gather(Bounds, u32),
}

/// Which rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounds {
    /// Those whose keys begin so.
    Leading,
    /// Those whose keys are not below the first bound, and below the second, if that is not empty.
    Between,
}

/// A call that a function has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub(crate) u32);

/// How far a function has come.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It goes on when these calls have returned, which it wanted.
    Wait(Vec<Handle>),
    /// It was told [`Stop::Unwind`] and keeps where it is, all the same: when it can go on it makes the same use of its
    /// context again, and no other before.
    Stay,
    /// It returns.
    Done(Value),
}

/// Why a function stops.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// The transaction aborts.
    Abort(Abort),
    /// It can't go on now. Whoever gets this from a [`Context`] hands it on at once; it is begun again when
    /// it can.
    Unwind,
    /// It takes too long, as some clock says, for this reason. That is no function of what it reads: so it is
    /// recorded, and the transaction aborts when it is, then and whenever it runs again.
    Overdue(String),
}

impl From<Abort> for Stop {
    fn from(abort: Abort) -> Stop {
        Stop::Abort(abort)
    }
}

/// A function that runs: between its waits it keeps what it needs to go on.
pub trait Activation: Send {
    /// Goes on until it waits or ends.
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop>;
}

/// A row of a transaction that is known before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowAt {
    /// The table.
    pub table: TableId,
    /// The key.
    pub key: Key,
    /// Whether it may be written.
    pub writes: bool,
}

/// When the transactions of an epoch are.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// The clock of its cut, in microseconds since 1970.
    pub now_us: i64,
    /// How far each stream in event time had come at the cut before, in the unit of its times.
    pub marks_us: Arc<[(StreamId, i64)]>,
}

impl From<i64> for Clock {
    /// Where no stream is in event time.
    fn from(now_us: i64) -> Clock {
        Clock { now_us, marks_us: [].into() }
    }
}

/// What such a transaction comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// The rows that it writes, by their places in its list: new ones, or `None` for those removed.
    pub rows: Vec<(u32, Option<Arc<[Value]>>)>,
    /// What it returns.
    pub value: Option<Value>,
    /// The events that it emits, in their order.
    pub events: Vec<(StreamId, Row)>,
}

/// A program as nodes see it. All nodes have the same; functions are deterministic.
pub trait Functions: Send + Sync {
    /// Its tables and streams.
    fn program(&self) -> &Program;

    /// Begins a function; aborts when there is none, or when the arguments do not fit.
    fn begin(&self, call: &Call) -> Result<Box<dyn Activation>, Abort>;

    /// Begins a function that has been begun again many times: it may keep where it is ([`Step::Stay`]), if that costs
    /// less.
    fn begin_kept(&self, call: &Call) -> Result<Box<dyn Activation>, Abort> {
        self.begin(call)
    }

    /// The event that tells others what a request has come to, beside its reply, if somebody wants it.
    fn told(&self, call: &Call, outcome: &Result<Value, Abort>) -> Option<(StreamId, Row)> {
        let _ = (call, outcome);
        None
    }

    /// The stream and the time of a request that is an event in event time; nothing of all others.
    fn timed(&self, call: &Call) -> Option<(StreamId, i64)> {
        let _ = call;
        None
    }

    /// What is executed of such an event that has come too late, in its place among those of its kind.
    fn late(&self, call: Call) -> Call {
        call
    }

    /// What is executed of such an event that is late, and stands at this time.
    fn admitted(&self, call: Call, time_us: i64) -> Call {
        let _ = time_us;
        call
    }

    /// On which streams such an event is of which the events of an interval are executed together: a bit for each of the
    /// program's.
    fn intervals(&self, call: &Call) -> u64 {
        let _ = call;
        0
    }

    /// What is executed of such an event that is the last of its interval on some of these streams.
    fn closes(&self, call: Call, streams: u64) -> Call {
        let _ = streams;
        call
    }

    /// Whether requests like this one with one key all use and write the same rows: then each waits for the one before it, which
    /// would only be in its way. Nothing depends on it but time.
    fn takes_turns(&self, call: &Call) -> bool {
        let _ = call;
        false
    }

    /// Tables whose rows ask for work outside: whoever drives the nodes has it done while a row is there.
    fn outboxes(&self) -> &[TableId] {
        &[]
    }

    /// Bytes that an event or a reply takes in a log, where the bound ([`crate::output_bytes`]) is not enough.
    fn output_bytes(&self, values: &[Value]) -> usize {
        crate::output_bytes(values)
    }

    /// Whether there are calls whose rows are known before they run.
    fn declares(&self) -> bool {
        false
    }

    /// The rows of a call, if they are known before it runs; no row twice, and none that is written and has
    /// entries in indexes: these are not known. Nor are those of a call that is not what it should be, which is begun
    /// then, and refused.
    fn declared(&self, call: &Call) -> Option<Vec<RowAt>> {
        let _ = call;
        None
    }

    /// Runs such a call on its rows, as they are. Every owner of one of them does, and they come to the same.
    fn run_declared(
        &self,
        call: &Call,
        rows: &[RowAt],
        are: &[Option<Arc<[Value]>>],
    ) -> Result<Changes, Abort> {
        let _ = (call, rows, are);
        Ok(Changes::default())
    }
}

/// What a function may do inside its transaction, which sees its own writes. Rows that live elsewhere are
/// fetched, for which the function is begun again; calls bring the function to the row instead.
pub trait Context {
    /// The row with this key, or `None` when it is missing.
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Arc<[Value]>>, Stop>;
    /// Makes or replaces a whole row; aborts when a value does not fit its column.
    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Stop>;
    /// Removes a row; nothing happens when it is missing.
    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Stop>;
    /// The first `limit` rows, in key order, whose keys begin so. All nodes are asked where these columns do not say in
    /// which partition they are.
    fn find(
        &mut self,
        table: TableId,
        leading: &[Value],
        limit: u32,
    ) -> Result<Vec<Arc<[Value]>>, Stop>;
    /// The first `limit` rows, in key order, whose keys are not below `from` and below `to`, if that is not empty. Bounds are leading
    /// columns of keys; all nodes are asked where those that they have in common do not say in which partition the rows are.
    fn range(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        limit: u32,
    ) -> Result<Vec<Arc<[Value]>>, Stop>;
    /// Says which rows the function will use, most likely: those that other nodes own are asked for together, so that it
    /// does not begin again for each. Nothing depends on it.
    fn expect(&mut self, rows: &mut dyn Iterator<Item = (TableId, Vec<Value>)>)
        -> Result<(), Stop>;
    /// Calls a function, and says whether anybody will wait for what it returns.
    fn call(&mut self, call: Call, wanted: bool) -> Result<Handle, Stop>;
    /// What a call has returned that the function has waited for.
    fn reply(&mut self, handle: Handle) -> Option<&Value>;
    /// What a call has returned, whose reply the function wanted. Where it has not yet, the function is begun
    /// again when it has: so functions wait that can't keep where they are.
    fn settled(&mut self, handle: Handle) -> Result<&Value, Stop>;
    /// Emits an event; it leaves when the transaction has committed.
    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Stop>;
    /// What somebody outside says to a question. It is logged before the function goes on, which is begun again then,
    /// and told again, without asking, whenever the same call asks the same at the same place.
    fn lookup(&mut self, question: &[u8], ask: &Ask) -> Result<Arc<[u8]>, Stop>;
    /// Whether a clock may end it. Not any more where something has left of its transaction or of one behind it: what has
    /// left was told that it did not take too long.
    fn has_deadline(&self) -> bool;
    /// Why a part of the function took too long, the first time that it ran; parts have numbers from 1 on. With a
    /// reason it does so now: that is recorded, and then the transaction runs again, without it.
    fn verdict(&mut self, part: u32, reason: Option<&str>) -> Result<Option<String>, Stop>;
    /// A random number: a hash of the transaction's place and the place in it.
    fn random(&mut self) -> u64;
    /// The clock of the cut, in microseconds since 1970.
    fn now_us(&self) -> i64;
    /// How far a stream in event time had come at the cut before: where stands what has no time of its own.
    fn mark_us(&self, stream: StreamId) -> Option<i64>;
}
