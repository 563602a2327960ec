//! The interface of a program: its functions, and what a running function may do.

use std::sync::Arc;

use tidemill_core::{Batch, Key, Row, StreamId, TableId, Value};
use tidemill_table::{Seq, Table};
use tidemill_txn::execute::{HandlerCounts, SoleProgram, SoleWork};
use tidemill_txn::program::{Abort, AbortKind, Asker, Take};
use tidemill_txn::Program;

use crate::columns::{ColumnOutput, SoleResults};
use crate::counts::{Counts, EventPlace, Fault};
use crate::order::Tid;

/// A call of a function of an entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The kind of call.
    pub target: Target,
    /// The table of the entity.
    pub table: TableId,
    /// The entity's key: a value for each key column. For a search of rows, the leading values of
    /// their keys, or the first bound.
    pub key: Arc<[Value]>,
    /// The arguments. For [`Bounds::Between`], the exclusive second bound.
    pub args: Arc<[Value]>,
}

/// The work of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A function of the program, by its number there.
    Function(u32),
    /// Reads the row. The result is a list of its values, or null.
    Get,
    /// Writes the row. The arguments are its values.
    Put,
    /// Removes the row.
    Delete,
    /// Writes the row as it is: the caller writes the row's entries in indexes, too.
    Write,
    /// Removes the row as it is: the caller removes the row's entries in indexes, too.
    Remove,
    /// Returns the first or last rows within the bounds, as a list of lists. If no single node owns
    /// all of them, the result has those that the executing node owns.
    Find(Bounds, Take),
    /// Like [`Target::Find`], but over all nodes together.
    Gather(Bounds, Take),
}

/// The bounds of the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounds {
    /// Rows whose keys begin with these values.
    Leading,
    /// Rows whose keys are not below the first bound, and are below the second, unless that is
    /// empty.
    Between,
}

/// A call that a function has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub(crate) u32);

/// The progress of a function after it ran.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It awaits these calls, and continues when they have returned.
    Wait(Vec<Handle>),
    /// It received [`Stop::Unwind`] but keeps its position. When it can continue, it first repeats
    /// the same use of its context.
    Stay,
    /// It has returned this value.
    Done(Value),
}

/// The reason why a function stops.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// The transaction aborts.
    Abort(Abort),
    /// It can't continue now. A function that gets this from a [`Context`] returns it at once. It
    /// begins again when it can continue.
    Unwind,
    /// It takes too long, according to a clock, for this reason. The verdict is no function of what
    /// the function reads. So it is recorded, and then the transaction aborts, in this and every
    /// later run.
    Overdue(String),
}

impl Stop {
    /// Returns the abort for code that knows only aborts. If it can't continue now, `is_unwound` is set,
    /// and the abort is never seen.
    pub fn abort(self, is_unwound: &mut bool) -> Abort {
        match self {
            Stop::Abort(abort) => abort,
            Stop::Overdue(_) => unreachable!("a function says so, and no context"),
            Stop::Unwind => {
                *is_unwound = true;
                Abort { kind: AbortKind::Raised, reason: String::new() }
            }
        }
    }
}

impl From<Abort> for Stop {
    fn from(abort: Abort) -> Stop {
        Stop::Abort(abort)
    }
}

/// A running function. Between its waits it keeps what it needs to continue.
pub trait Activation: Send {
    /// Continues until the function waits or ends.
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop>;
}

/// A row of a transaction whose rows are known before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowAt {
    /// The table.
    pub table: TableId,
    /// The key.
    pub key: Key,
    /// Whether it may be written.
    pub writes: bool,
}

/// The time of the transactions of an epoch.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// The clock of its cut, in microseconds since 1970.
    pub now_us: i64,
    /// The watermark of each stream in event time at the cut before, in the unit of its times.
    pub marks_us: Arc<[(StreamId, i64)]>,
}

impl From<i64> for Clock {
    /// The clock of a program without streams in event time.
    fn from(now_us: i64) -> Clock {
        Clock { now_us, marks_us: [].into() }
    }
}

/// The result of a transaction whose rows are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// The rows that it writes, by their places in its list: the new row, or `None` if it is
    /// removed.
    pub rows: Vec<(u32, Option<Arc<[Value]>>)>,
    /// The returned value.
    pub value: Option<Value>,
    /// The emitted events, in their order.
    pub events: Vec<(StreamId, Row)>,
}

/// A program as nodes see it. All nodes have the same program, and its functions are deterministic.
pub trait Functions: Send + Sync {
    /// Returns its tables and streams.
    fn program(&self) -> &Program;

    /// Begins a function. Aborts if there is no such function, or if the arguments do not fit.
    fn begin(&self, call: &Call) -> Result<Box<dyn Activation>, Abort>;

    /// Begins a function that has begun many times. It may keep its position ([`Step::Stay`]), if
    /// that costs less.
    fn begin_kept(&self, call: &Call) -> Result<Box<dyn Activation>, Abort> {
        self.begin(call)
    }

    /// Returns the event that announces the result of a request, beside its reply, if a stream
    /// takes it.
    fn result_event(&self, call: &Call, outcome: &Result<Value, Abort>) -> Option<(StreamId, Row)> {
        let _ = (call, outcome);
        None
    }

    /// Returns the transactions of an event, in the order of the stream's handlers.
    fn event(&self, stream: StreamId, row: &[Value]) -> Vec<Call> {
        let _ = (stream, row);
        Vec::new()
    }

    /// Counts the result of a request's transaction. `place` is where its event comes from, if it
    /// is one, and `is_first` says whether the event has no transaction before this. Returns the
    /// fault, if the result is one that no client learns of.
    fn count(
        &self,
        call: &Call,
        outcome: &Result<Value, Abort>,
        (place, is_first): (Option<&EventPlace>, bool),
        counts: &mut Counts,
    ) -> Option<Fault> {
        let _ = (call, place, is_first);
        counts.events += u64::from(is_first);
        match outcome {
            Ok(_) => counts.ended += 1,
            Err(_) => counts.refused += 1,
        }
        None
    }

    /// Returns the handlers of a stream's events, in their order, if all of them can be executed by
    /// column.
    fn by_column(&self, stream: StreamId) -> Option<&[usize]> {
        let _ = stream;
        None
    }

    /// Returns the program by which a sole owner of all rows executes all events and calls with all
    /// that they trigger, if the app needs one. A number beyond those of handlers then means all
    /// handlers of a stream: `handlers + stream`.
    fn sole(&self) -> Option<Arc<SoleProgram>> {
        None
    }

    /// Returns the work of a call at a sole owner.
    ///
    /// # Errors
    /// The result, if the call is refused.
    fn sole_work(&self, call: &Call) -> Result<SoleWork, Abort> {
        let _ = call;
        unreachable!("a program has a sole owner")
    }

    /// Whether functions ask outside. A sole owner then tries functions first, so that all questions
    /// are asked together. The answer affects only speed.
    fn asks_outside(&self) -> bool {
        false
    }

    /// Returns the identity of a request that is executed once, however often it comes.
    fn request_id(&self, call: &Call) -> Option<Key> {
        let _ = call;
        None
    }

    /// Returns the result of such a request, if it is known, from the tables of a sole owner.
    fn known_result(
        &self,
        call: &Call,
        tables: &[Table],
        now_us: i64,
    ) -> Option<Result<Value, Abort>> {
        let _ = (call, tables, now_us);
        None
    }

    /// Stores the result of such a request in the tables of a sole owner. `seq` is the number of the
    /// new versions.
    fn remember(
        &self,
        call: &Call,
        result: &Result<Value, Abort>,
        (tables, seq): (&mut [Table], Seq),
        now_us: i64,
    ) {
        let _ = (call, result, tables, seq, now_us);
    }

    /// Whether the program has such a stream.
    fn has_columns(&self) -> bool {
        false
    }

    /// Returns the transaction of a handler of such a stream for an event.
    fn handler_call(&self, handler: usize, row: &[Value]) -> Call {
        let _ = (handler, row);
        unreachable!("a program has such streams")
    }

    /// Counts transactions that were executed by column: the counts of each handler, and the outputs
    /// of its transactions.
    fn count_columns(
        &self,
        handlers: &[HandlerCounts],
        outputs: &[ColumnOutput],
        counts: &mut Counts,
    ) {
        let _ = outputs;
        counts.ended += handlers.iter().map(|of| of.committed).sum::<u64>();
        counts.refused += handlers.iter().map(|of| of.aborted).sum::<u64>();
    }

    /// Counts events that a sole owner has executed. Returns the first fault among them, and its
    /// transaction. `place` is where an event comes from, if this node has received it.
    fn count_sole(
        &self,
        results: &SoleResults,
        outputs: &[ColumnOutput],
        place: &dyn Fn(Tid) -> Option<EventPlace>,
        counts: &mut Counts,
    ) -> Option<(Tid, Fault)> {
        let _ = (outputs, place);
        counts.ended += results.committed;
        None
    }

    /// Whether results of requests on this stream are outputs: see [`Functions::result_event`].
    fn is_copied(&self, stream: StreamId) -> bool {
        let _ = stream;
        true
    }

    /// Returns the name of the function of a call, for people.
    fn function_name(&self, call: &Call) -> Arc<str> {
        format!("{:?}", call.target).into()
    }

    /// Counts an event that a transaction has emitted.
    fn count_emitted(&self, stream: StreamId, row: &[Value], counts: &mut Counts) {
        let _ = (stream, row, counts);
    }

    /// Returns the stream and the time of a request that is an event in event time, or `None`.
    fn timed(&self, call: &Call) -> Option<(StreamId, i64)> {
        let _ = call;
        None
    }

    /// Returns the call that is executed for such an event if it is late. It has the event's place
    /// among those of its kind.
    fn late(&self, call: Call) -> Call {
        call
    }

    /// Returns the call that is executed for such an event if it is late but admitted at this time.
    fn admitted(&self, call: Call, time_us: i64) -> Call {
        let _ = time_us;
        call
    }

    /// Returns the call that is executed for an event instead of this one, which ends the process that
    /// executes it: the event of a stream's dead letters. Returns `None` if it has none.
    fn dead_letter(&self, call: &Call, place: Option<&EventPlace>, reason: &str) -> Option<Call> {
        let _ = (call, place, reason);
        None
    }

    /// Returns the dead letters of events that a `map` or `filter` can't compute, and that this node
    /// has received: the row of each, its stream, and its columns. `place` is where an event comes
    /// from.
    fn stage_letters(
        &self,
        stream: StreamId,
        batch: &Batch,
        place: &dyn Fn(usize) -> EventPlace,
    ) -> Vec<(usize, StreamId, Row)> {
        let _ = (stream, batch, place);
        Vec::new()
    }

    /// Returns the same for the event of a call.
    fn stage_letters_of(&self, call: &Call, place: &EventPlace) -> Vec<(StreamId, Row)> {
        let _ = (call, place);
        Vec::new()
    }

    /// Returns a call that aborts with this reason. It is executed instead of one that ends the process.
    fn refusal(&self, reason: &str) -> Call {
        let _ = reason;
        unreachable!("a program that nobody refuses calls of")
    }

    /// Returns the streams on which the events of an interval are executed together with this one,
    /// with a bit for each stream of the program.
    fn intervals(&self, call: &Call) -> u64 {
        let _ = call;
        0
    }

    /// Returns the call that is executed for such an event if it is the last of its interval on
    /// these streams.
    fn closes(&self, call: Call, streams: u64) -> Call {
        let _ = streams;
        call
    }

    /// Returns the tables whose rows ask for work outside. The driver of the nodes has the work
    /// done as long as a row is there.
    fn outboxes(&self) -> &[TableId] {
        &[]
    }

    /// Returns the bytes that an event or a reply takes in a log. It is called where the bound
    /// ([`crate::output_bytes`]) is too coarse.
    fn output_bytes(&self, values: &[Value]) -> usize {
        crate::output_bytes(values)
    }

    /// Whether the program has calls whose rows are known before they run.
    fn declares(&self) -> bool {
        false
    }

    /// Returns the rows of a call, if they are known before it runs. No row is twice in the list.
    /// Calls that write a row with entries in indexes return `None`, because the entries are not
    /// known. So do malformed calls, which then begin as functions and are refused.
    fn declared(&self, call: &Call) -> Option<Vec<RowAt>> {
        let _ = call;
        None
    }

    /// Runs such a call on its rows. Every owner of one of the rows runs it, with the same result.
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

/// The operations of a function inside its transaction, which sees its own writes. Rows that live
/// elsewhere are fetched, and then the function begins again. A call brings the function to the row
/// instead.
pub trait Context {
    /// Returns the row with this key, or `None` if there is none.
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Arc<[Value]>>, Stop>;
    /// Inserts or replaces a whole row. Aborts if a value does not fit its column.
    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Stop>;
    /// Removes a row, if it is there.
    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Stop>;
    /// Writes or removes a row of any table as it is. Its values fit the columns, and the caller
    /// also writes the row's entries in indexes.
    fn write(&mut self, table: TableId, key: &[Value], row: Option<&[Value]>) -> Result<(), Stop>;
    /// Returns the first or last rows whose keys begin with these values. Asks all nodes if these
    /// columns do not determine the partition.
    fn find(
        &mut self,
        table: TableId,
        leading: &[Value],
        take: Take,
    ) -> Result<Vec<Arc<[Value]>>, Stop>;
    /// Returns the first or last rows whose keys are not below `from`, and are below `to` unless
    /// that is empty. Bounds are leading columns of keys. Asks all nodes if the columns that both
    /// bounds share do not determine the partition.
    fn range(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        take: Take,
    ) -> Result<Vec<Arc<[Value]>>, Stop>;
    /// Announces the rows that the function will probably use. Those of other nodes are requested
    /// together, so the function does not begin again for each. Affects only speed.
    fn expect(&mut self, rows: &mut dyn Iterator<Item = (TableId, Vec<Value>)>)
        -> Result<(), Stop>;
    /// Calls a function. `wanted` says whether the caller will await the reply.
    fn call(&mut self, call: Call, wanted: bool) -> Result<Handle, Stop>;
    /// Returns the reply of a call that the function has awaited.
    fn reply(&mut self, handle: Handle) -> Option<&Value>;
    /// Returns the reply of a call whose reply is wanted. If it is not here yet, the function
    /// begins again when it is. This serves functions that can't keep their position.
    fn settled(&mut self, handle: Handle) -> Result<&Value, Stop>;
    /// Emits an event. It leaves when the transaction has committed.
    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Stop>;
    /// Returns the answer of somebody outside to a question. The answer is logged before the
    /// function continues by beginning again. Whenever the same call asks the same at the same
    /// place, it gets this answer without another question.
    fn lookup(&mut self, question: &[u8], ask: &Asker) -> Result<Arc<[u8]>, Stop>;
    /// Whether a clock may end the function. It may not if output of its transaction, or of a later
    /// one, has left. That output was computed as if the function did not take too long.
    fn has_deadline(&self) -> bool;
    /// Returns the reason why a part of the function took too long in its first run. Parts are
    /// numbered from 1. With a `reason`, the part takes too long now: that is recorded, and the
    /// transaction runs again without it.
    fn verdict(&mut self, part: u32, reason: Option<&str>) -> Result<Option<String>, Stop>;
    /// Returns a random number: a hash of the transaction's place and the place in it.
    fn random(&mut self) -> u64;
    /// Returns the clock of the cut, in microseconds since 1970.
    fn now_us(&self) -> i64;
    /// Returns the watermark of a stream in event time at the cut before. Rows without a time of
    /// their own get this time.
    fn mark_us(&self, stream: StreamId) -> Option<i64>;
}
