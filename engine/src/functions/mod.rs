//! The functions of an app as nodes run them (`tidemill_function`): functions of entities, called
//! procedures, and handlers of events. Each call and each event is a [`Call`]. It runs where its
//! entity lives. A call without an entity runs at a node that a hash of its arguments picks, which
//! is the same everywhere.
//!
//! In some apps more than a transaction with its own steps follows from an event or a call. One node
//! owns all rows of such an app ([`has_sole_owner`]). There `sole.rs` says what each call is.

mod batches;
mod counts;
mod dead;
mod declared;
mod likely;
mod of_nodes;
mod once;
mod results;
pub(crate) mod slides;
mod sole;
#[cfg(test)]
pub(crate) mod tests;
mod times;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidemill_cluster::INTERVALS_MAX;
use tidemill_connect::BadRow;
use tidemill_core::{
    encode, rules, DataType, Error, Result, Row, Schema, StreamId, TableId, TableSpec, Value,
};
use tidemill_function::{Activation, Call, Exchange, Target};
use tidemill_txn::execute::{OpenBatches, RemoteRows, SoleProgram};
use tidemill_txn::order::Groups;
use tidemill_txn::program::{Abort, Body, Footprint, Handler, Origin, Program, Stream, Timer};

use self::batches::Batches;
use self::counts::Counting;
use self::dead::Letters;
use self::likely::Likely;
pub(crate) use self::once::bucket_of;
use self::once::Requests;
use self::slides::Slides;
pub use self::sole::has_sole_owner;
use self::times::Times;
use crate::calls::Reply;
use crate::requests::Request;
use crate::spec::{AppSpec, ExternalDecl};
use crate::timers;

/// Begins functions that find their accesses by running.
pub trait StartFunction: Send + Sync {
    /// Begins a function, by its place among [`Program::opaques`]. For a request, it returns the
    /// reply: the one value of the row, or null. Other calls return any value that their callers
    /// understand.
    fn begin(
        &self,
        function: usize,
        call: &Call,
        is_request: bool,
    ) -> Result<Box<dyn Activation>, Abort>;

    /// Wraps the activation of a function that has been restarted many times. It may retain its
    /// position instead, if that costs less.
    fn keep(&self, activation: Box<dyn Activation>) -> Box<dyn Activation> {
        activation
    }
}

/// Begins no function: where an app has none, or none of them is called.
pub(crate) struct Nobody;

impl StartFunction for Nobody {
    fn begin(&self, _: usize, _: &Call, _: bool) -> Result<Box<dyn Activation>, Abort> {
        Err(Abort::refused("no function runs here"))
    }
}

/// An app's program as nodes see it.
pub struct AppFunctions {
    /// The program as nodes hold its rows: the rows of windows are ordinary rows.
    program: Arc<Program>,
    /// For each handler, the table of its entity, if it is a function of one.
    entities: Vec<Option<TableId>>,
    /// For each handler, how its transactions run if their rows are known from the event.
    alone: Vec<Option<RemoteRows>>,
    /// The handlers that clients call, by name.
    called: BTreeMap<String, usize>,
    /// The columns of calls that have the caller, by the handler's name.
    callers: BTreeMap<String, usize>,
    begins: Arc<dyn StartFunction>,
    requests: Requests,
    letters: Letters,
    batches: Batches,
    slides: Slides,
    times: Arc<Times>,
    likely: Arc<Likely>,
    /// The streams in intervals of event time: the bits of [`Functions::intervals`].
    intervals: Vec<StreamId>,
    /// The streams that are read from topics or files only.
    from_sources: BTreeSet<StreamId>,
    /// The streams that are written to sinks.
    written: BTreeSet<StreamId>,
    /// The tables that ask for work outside.
    outboxes: Vec<TableId>,
    /// Whether functions ask outside.
    asks_outside: bool,
    counting: Counting,
    /// For each stream, the handlers of its events, if they can be executed by column. A number
    /// beyond those of handlers means all handlers of a stream ([`Functions::sole`]).
    by_column: Vec<Option<Vec<usize>>>,
    /// The program of a node that owns all rows, if the app needs one.
    sole: Option<Arc<SoleProgram>>,
}

/// The target of a call of an entity's function by another function. Requests of clients have
/// another target.
pub fn inner(handler: usize) -> Target {
    Target::Function(2 * handler as u32)
}

/// The prefix of the ids of firings. No client can send it.
const FIRING: &str = "\u{1}firing/";
/// How long the id of a firing is retained beyond two periods, in microseconds. A coordinator that
/// starts requests the last firing again.
const FIRING_KEPT_US: i64 = 600_000_000;

/// Whether all transactions of an app are declared, with rows that follow from the event.
pub fn knows_rows(spec: &AppSpec) -> bool {
    let program = &spec.program;
    let is_one = |(number, handler): (usize, &Handler)| {
        program.streams[handler.input.index()].origin == Origin::Input
            && RemoteRows::of(program, number).is_some()
    };
    results::passed_on(program, &spec.sinks).is_empty()
        && program.handlers.iter().enumerate().all(is_one)
}

/// The target of requests that can't be read. No function has it.
const UNREADABLE: Target = Target::Function(u32::MAX);

/// The longest reason of an unreadable request, in bytes.
const WHY_BYTES_MAX: usize = 1000;

fn request(handler: usize) -> Target {
    Target::Function(2 * handler as u32 + 1)
}

/// The handler that a call is of, and whether it is a request.
fn handler_of(target: Target) -> Option<(usize, bool)> {
    match target {
        Target::Function(number) => Some((number as usize / 2, number % 2 == 1)),
        _ => None,
    }
}

impl AppFunctions {
    /// Creates the functions of an app.
    ///
    /// # Errors
    /// A program error for a part of the app that does not run on several nodes yet, with the
    /// user's line.
    pub fn new(spec: &AppSpec, begins: Arc<dyn StartFunction>) -> Result<Arc<AppFunctions>> {
        let program = &spec.program;
        program.check()?;
        refused(spec)?;
        let mut entities = vec![None; program.handlers.len()];
        for decl in &spec.functions {
            let is_it = |handler: &Handler| *handler.name == *decl.handler;
            let handler = program.handlers.iter().position(is_it);
            let table = usize::from(decl.table) < program.tables.len();
            let (Some(handler), true) = (handler, table) else {
                return Err(Error::internal(format!(
                    "the handler or table of the function {} does not exist",
                    decl.handler
                )));
            };
            entities[handler] = Some(TableId(decl.table));
        }
        if program.tables.is_empty() && !program.handlers.is_empty() {
            return Err(Error::program("an app without tables can't run on several processes")
                .help("run it in one process"));
        }
        let decl = |handler: &Handler| spec.procedures.get(&*handler.name);
        let called = |(number, handler): (usize, &Handler)| {
            let is_private = decl(handler).is_some_and(|decl| decl.private);
            let is_called = program.calls.contains(&handler.input) && !is_private;
            is_called.then(|| (handler.name.to_string(), number))
        };
        let callers = program.handlers.iter().filter_map(|handler| {
            let columns = &program.streams[handler.input.index()].spec.schema;
            let caller = columns.index_of(decl(handler)?.caller.as_ref()?)?;
            Some((handler.name.to_string(), caller))
        });
        let callers = callers.collect();
        let called = program.handlers.iter().enumerate().filter_map(called).collect();
        let mut program = program.clone();
        let open = OpenBatches::add(&mut program);
        let passed_on = results::passed_on(&spec.program, &spec.sinks);
        let slides = Slides::add(spec, &mut program, &Groups::of(&spec.program)?);
        let batches = Batches::add(&mut program);
        let intervals = program.batches_by_event_time().map(|(stream, _)| stream).collect();
        let mut letters = Letters::add(&mut program, &spec.sources);
        let groups = Groups::of(&program)?;
        let times = Arc::new(Times::add(&mut program, &groups));
        let requests = Requests::add(&mut program, &entities);
        let sole = match has_sole_owner(spec) {
            true => {
                let whole = Arc::new(program.clone());
                Some(Arc::new(SoleProgram::new(whole, open, passed_on, slides.aborted)?))
            }
            false => None,
        };
        letters.add_stages(&mut program);
        results::check(&program, &spec.sinks)?;
        for window in program.windows.clone() {
            for table in window.table_ids() {
                program.tables[table.index()].keeps = None;
            }
            // The groups of a window are read together.
            program.tables[window.groups.index()].partition_prefix = Some(0);
        }
        program.forget();
        let written = spec.sinks.iter().filter_map(|decl| results::stream(&program, &decl.stream));
        let written = written.collect();
        let by_name = |name: &String| {
            let is_it = |s: &tidemill_txn::program::Stream| *s.spec.name == **name;
            program.streams.iter().position(is_it).map(|found| StreamId(found as u16))
        };
        let is_pushed = |of: &String| spec.sources.iter().any(|s| s.stream == *of && s.is_pushed());
        let from_sources = spec.sources.iter().map(|decl| &decl.stream);
        let from_sources = from_sources.filter(|of| !is_pushed(of)).filter_map(by_name).collect();
        let is_outbox = |name: &str| spec.externals.iter().any(|decl| *decl.outbox == *name);
        let outboxes = (0..).zip(&program.tables).filter(|(_, table)| is_outbox(&table.name));
        let outboxes: Vec<TableId> = outboxes.map(|(number, _)| TableId(number)).collect();
        let of = |number: usize| {
            // Entries of indexes change with the rows that transactions of functions write.
            let mut touched =
                Footprint::of(&program, number).tables().collect::<Vec<_>>().into_iter();
            let is_kept = touched.any(|of| program.tables[of.index()].keeps.is_some());
            (!is_kept && sole.is_none()).then(|| RemoteRows::of(&program, number)).flatten()
        };
        let alone = (0..program.handlers.len()).map(of).collect();
        let program = Arc::new(program);
        let counting = Counting::of(&program);
        let by_column = (0..program.streams.len() as u16).map(StreamId).map(|stream| {
            let is_event = program.streams[stream.index()].origin == Origin::Input
                && !program.calls.contains(&stream)
                && program.timers.iter().all(|timer| timer.stream != stream);
            if let Some(sole) = sole.as_ref().filter(|_| is_event) {
                // The last events of intervals are known one by one.
                let is_of = |(of, _): (StreamId, i64)| program.root_stream(of) == stream;
                let is_taken = program.takers(stream).next().is_some() || sole.is_passed_on(stream);
                let is_by_column = is_taken && !program.batches_by_event_time().any(is_of);
                return is_by_column.then(|| vec![program.handlers.len() + stream.index()]);
            }
            let handlers: Vec<usize> = program.handlers_on(stream).collect();
            let has_columns = |handler: &usize| {
                let writes_outbox = Footprint::of(&program, *handler)
                    .tables()
                    .any(|table| outboxes.contains(&table));
                Exchange::takes(&program, *handler) && !writes_outbox
            };
            let is_by_column = is_event && !handlers.is_empty() && handlers.iter().all(has_columns);
            is_by_column.then_some(handlers)
        });
        let by_column = by_column.collect();
        Ok(Arc::new(AppFunctions {
            program,
            entities,
            alone,
            called,
            callers,
            begins,
            requests,
            letters,
            batches,
            slides,
            times,
            likely: Arc::default(),
            intervals,
            from_sources,
            written,
            outboxes,
            asks_outside: spec.asks_outside,
            counting,
            by_column,
            sole,
        }))
    }

    /// Whether one worker owns all rows of the app.
    pub fn has_sole_owner(&self) -> bool {
        self.sole.is_some()
    }

    /// Creates a client's call of a procedure or an entity's function by its name, with a value for
    /// each column of its stream of calls.
    ///
    /// # Errors
    /// When there is none of this name, or the row has other columns.
    pub fn call(&self, name: &str, row: &[Value]) -> Result<Call> {
        let handler = *self.called.get(name).ok_or_else(|| self.no_procedure(name))?;
        self.made(handler, row)
    }

    /// Creates a client's call that is executed once, however often it is sent with one id.
    ///
    /// # Errors
    /// As [`AppFunctions::call`].
    pub fn request(&self, name: &str, row: &[Value], request: &Request) -> Result<Call> {
        Ok(self.requests.call(self.call(name, row)?, request))
    }

    /// Creates the transactions of an event, in the order of the handlers on its stream. A sole owner
    /// of all rows executes all that follows from an event as one.
    ///
    /// # Errors
    /// When the row has other columns than the stream.
    pub fn event(&self, stream: StreamId, row: &[Value]) -> Result<Vec<Call>> {
        if self.sole.is_none() {
            return self.program.handlers_on(stream).map(|h| self.made(h, row)).collect();
        }
        if let Some(look) = self.batches.look(stream).or_else(|| self.slides.look(stream)) {
            return Ok(vec![look]);
        }
        self.check_columns(stream, row)?;
        let number = self.program.handlers.len() + stream.index();
        let target = Target::Function(2 * number as u32);
        let key = placed(&self.program.tables[0], number, row).into();
        Ok(vec![Call { target, table: TableId(0), key, args: row.into() }])
    }

    /// Whether a client has called a function, and gets its result.
    fn is_called(&self, call: &Call) -> bool {
        let input = self.handler_of_call(call).map(|number| self.program.handlers[number].input);
        input.is_some_and(|input| self.program.calls.contains(&input))
    }

    /// The handler whose transaction a call is, if it is of one handler.
    fn handler_of_call(&self, call: &Call) -> Option<usize> {
        if call.target == Requests::TARGET {
            return self.handler_of_call(&Requests::inner(call)?);
        }
        let ending = || Some(Batches::ending(&self.program, call)?.0);
        let stream = match call.target {
            Batches::ENDING => ending(),
            Times::ADMITTED => Some(Batches::admitted(&self.program, call)?.0),
            target => self.round_of(target),
        };
        match stream {
            Some(stream) => {
                let mut takers = self.program.takers(stream).map(|(handler, _)| handler);
                takers.next().filter(|_| takers.next().is_none())
            }
            None => {
                let (handler, _) = handler_of(call.target)?;
                (handler < self.program.handlers.len()).then_some(handler)
            }
        }
    }

    /// The stream of the event whose round the call is, if it is one.
    fn round_of(&self, target: Target) -> Option<StreamId> {
        let (number, _) = handler_of(target).filter(|(_, is_request)| !is_request)?;
        let stream = number.checked_sub(self.program.handlers.len())?;
        (stream < self.program.streams.len()).then_some(StreamId(stream as u16))
    }

    /// The input stream of the event that the call is, if that stream has event time.
    fn in_time(&self, call: &Call) -> Option<StreamId> {
        let stream = self.round_of(call.target).or_else(|| {
            let (number, _) = handler_of(call.target).filter(|(_, is_request)| *is_request)?;
            self.program.handlers.get(number).map(|handler| handler.input)
        });
        stream.filter(|stream| self.times.has(*stream))
    }

    /// Returns the calls at the end of one of `sources` sources of an input stream, whose newest
    /// event had the time `newest_us`, if any.
    pub fn last_batches(
        &self,
        stream: StreamId,
        sources: usize,
        newest_us: Option<i64>,
    ) -> Vec<Call> {
        let mut last = Batches::last(&self.program, stream, (sources, newest_us));
        // They come last, because the last batch may put rows into windows.
        last.extend(self.slides.last(stream, newest_us));
        last
    }

    /// The input streams whose batches or windows end together with those of this stream, and the
    /// stream itself. All of their sources count.
    pub fn end_together(&self, stream: StreamId) -> BTreeSet<StreamId> {
        self.slides.together(stream).chain([stream]).collect()
    }

    /// The app's timers.
    pub fn timers(&self) -> &[Timer] {
        &self.program.timers
    }

    /// Creates the transactions of a timer's firing, in the order of the handlers on its stream.
    /// Each is executed once, however often it is sent.
    ///
    /// # Errors
    /// When this is no stream of firings.
    pub fn firing(&self, stream: StreamId, at_us: i64, period_us: i64) -> Result<Vec<Call>> {
        let calls = self.event(stream, &[Value::Timestamp(at_us)])?;
        let once = |(nth, call): (usize, Call)| {
            let name = &self.program.streams[stream.index()].spec.name;
            let id = format!("{FIRING}{name}/{nth}/{at_us}");
            let kept_us = period_us.saturating_mul(2).saturating_add(FIRING_KEPT_US);
            self.requests.call(call, &Request { id, kept_us })
        };
        Ok(calls.into_iter().enumerate().map(once).collect())
    }

    /// Returns the rows that say of each timer that its last firing before a time was executed.
    pub fn fired(&self, now_us: i64) -> Vec<(TableId, Row)> {
        let last = |timer: &Timer| {
            let at_us = timers::next(now_us, timer.period_us) - timer.period_us;
            self.firing(timer.stream, at_us, timer.period_us).unwrap_or_default()
        };
        let firings = self.program.timers.iter().flat_map(last);
        firings.flat_map(|call| self.requests.executed(&call, now_us)).collect()
    }

    /// The tables of incomplete batches, if a node owns all rows.
    pub fn open_batches(&self) -> Option<&OpenBatches> {
        self.sole.as_ref().map(|sole| sole.open_batches())
    }

    /// Returns the columns of a call by its name: the entity's key, where it has one, and the
    /// parameters.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn parameters(&self, name: &str) -> Result<Arc<Schema>> {
        let handler = self.called.get(name).ok_or_else(|| self.no_procedure(name))?;
        Ok(self.program.streams[self.program.handlers[*handler].input.index()].spec.schema.clone())
    }

    /// Refuses the values of a call whose sender names the caller itself.
    ///
    /// # Errors
    /// When it does.
    pub fn check_caller(&self, name: &str, row: &[Value]) -> Result<()> {
        match self.callers.get(name).and_then(|caller| row.get(*caller)) {
            None | Some(Value::Null) => Ok(()),
            Some(_) => Err(Error::program(format!("callers of {name} can't say who they are"))),
        }
    }

    /// Returns the columns of an input stream.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn columns(&self, stream: &str) -> Result<Arc<Schema>> {
        Ok(self.program.streams[self.input(stream)?.index()].spec.schema.clone())
    }

    /// Creates the transaction of an event of a stream with exactly one handler.
    ///
    /// # Errors
    /// When there is no such stream, or it has several handlers or none.
    pub fn only_event(&self, stream: &str, row: &[Value]) -> Result<Call> {
        let input = self.input(stream)?;
        if self.times.has(input) && self.from_sources.contains(&input) {
            let what =
                format!("clients can't send events of stream {stream}: its source has their order");
            return Err(Error::program(what)
                .help("write the event to the source, or declare the stream with push()"));
        }
        let mut calls = self.event(input, row)?;
        match (calls.pop(), calls.is_empty()) {
            (Some(call), true) => Ok(call),
            _ => Err(Error::program(format!(
                "stream {stream} has no handler, or several: clients send only events that one handler takes"
            ))),
        }
    }

    fn input(&self, name: &str) -> Result<StreamId> {
        let streams = &self.program.streams;
        let is_it = |s: &tidemill_txn::program::Stream| *s.spec.name == *name;
        let found = streams.iter().position(|s| is_it(s) && s.origin == Origin::Input);
        let found = found.map(|found| StreamId(found as u16));
        // Only the clock sends into the stream of a timer.
        let is_timer = |stream: &StreamId| self.timers().iter().any(|t| t.stream == *stream);
        let found = found.filter(|stream| !is_timer(stream));
        found.ok_or_else(|| Error::program(format!("there is no stream {name}")))
    }

    /// Finds an input stream whose events are taken by a handler or sink.
    ///
    /// # Errors
    /// When there is none of this name, or nothing takes its events.
    pub fn taken(&self, name: &str) -> Result<StreamId> {
        let stream = self.input(name)?;
        let has_taker = self.program.takers(stream).next().is_some();
        match has_taker || self.sole.as_ref().is_some_and(|sole| sole.is_passed_on(stream)) {
            true => Ok(stream),
            false => {
                Err(Error::program(format!("no handler or sink takes the events of stream {name}"))
                    .help("give it a handler, write it to a sink, or leave its source out"))
            }
        }
    }

    /// Finds a stream whose events only clients send, if something takes them.
    pub fn pushed(&self, name: &str) -> Option<StreamId> {
        let is_call = |of: &StreamId| self.program.calls.contains(of);
        let found = self.taken(name).ok()?;
        Some(found).filter(|of| !self.from_sources.contains(of) && !is_call(of))
    }

    /// Returns a stream's name and columns.
    pub fn stream(&self, stream: StreamId) -> Option<(Arc<str>, Arc<Schema>)> {
        let spec = &self.program.streams.get(stream.index())?.spec;
        Some((spec.name.clone(), spec.schema.clone()))
    }

    /// Creates the call for a request that could not be read. It aborts with the reason.
    pub fn unreadable(&self, why: &str) -> Call {
        let end = (0..=WHY_BYTES_MAX.min(why.len())).rfind(|at| why.is_char_boundary(*at));
        let why = &why[..end.unwrap_or(0)];
        self.aborts(&format!("the request can't be read: {why}"))
    }

    /// Creates a call that aborts with a reason.
    fn aborts(&self, why: &str) -> Call {
        let args = [Value::str(why)];
        let key = placed(&self.program.tables[0], 0, &args).into();
        Call { target: UNREADABLE, table: TableId(0), key, args: args.into() }
    }

    /// Creates the call for a row of a topic or file that could not be read. It becomes a row of
    /// the stream's dead letters. `from` is the partition, or the file's name.
    pub fn dead(&self, stream: StreamId, from: &str, bad: &BadRow) -> Call {
        let name = &self.program.streams[stream.index()].spec.name;
        match self.letters.call(stream, &format!("{name}/{from}"), bad) {
            None => self.unreadable(&bad.reason),
            Some(args) => {
                let key = placed(&self.program.tables[0], 0, &args).into();
                Call { target: Letters::TARGET, table: TableId(0), key, args: args.into() }
            }
        }
    }

    /// Returns the abort of such a call. Any client may have written it into the log.
    fn why_unreadable(&self, call: &Call) -> Option<Abort> {
        match call.args.first() {
            Some(Value::Str(why)) => Some(Abort::refused(&**why)),
            _ => None,
        }
    }

    fn no_procedure(&self, name: &str) -> Error {
        let known: Vec<&str> = self.called.keys().map(String::as_str).collect();
        Error::program(format!("there is no procedure {name}"))
            .help(format!("the procedures are {}", known.join(", ")))
    }

    fn made(&self, handler: usize, row: &[Value]) -> Result<Call> {
        self.check_columns(self.program.handlers[handler].input, row)?;
        let target = request(handler);
        if let Some(table) = self.entities[handler] {
            let (key, args) = row.split_at(self.program.tables[table.index()].key.len());
            return Ok(Call { target, table, key: key.into(), args: args.into() });
        }
        // A call whose rows are known is sent to their owners, so it may enter anywhere.
        let table = TableId(0);
        let key = placed(&self.program.tables[0], handler, row);
        Ok(Call { target, table, key: key.into(), args: row.into() })
    }

    fn check_columns(&self, stream: StreamId, row: &[Value]) -> Result<()> {
        let stream = &self.program.streams[stream.index()].spec;
        if row.len() != stream.schema.len() {
            let (columns, given) = (stream.schema.len(), row.len());
            let what = format!("{} has {columns} columns, but {given} were given", stream.name);
            return Err(Error::program(what));
        }
        Ok(())
    }

    /// Returns the stream and the values of an event.
    fn event_of(&self, call: &Call) -> Option<(StreamId, Vec<Value>)> {
        match call.target {
            Times::ADMITTED => {
                let (stream, _, _, event) = Batches::admitted(&self.program, call)?;
                Some((stream, event.args.to_vec()))
            }
            Batches::ENDING => {
                let (stream, _, event) = Batches::ending(&self.program, call)?;
                Some((stream, event.args.to_vec()))
            }
            target => match self.round_of(target) {
                Some(stream) => Some((stream, call.args.to_vec())),
                None => {
                    let handler = self.handler_of_call(call)?;
                    Some((self.program.handlers[handler].input, self.row(handler, call)))
                }
            },
        }
    }

    /// Whether a call is an answer to work outside.
    pub fn is_answer(&self, call: &Call, externals: &[ExternalDecl]) -> bool {
        let inner = (call.target == Requests::TARGET).then(|| Requests::inner(call)).flatten();
        let call = inner.as_ref().unwrap_or(call);
        let of_handler = || {
            let handler = &self.program.handlers[self.handler_of_call(call)?];
            Some(handler.input)
        };
        let stream = self.round_of(call.target).or_else(of_handler);
        let name = stream.map(|stream| &*self.program.streams[stream.index()].spec.name);
        name.is_some_and(|name| externals.iter().any(|decl| *decl.answers == *name))
    }

    /// Whether a call is a row that could not be read.
    pub fn is_dead_letter(&self, call: &Call) -> bool {
        call.target == Letters::TARGET
    }

    /// Whether a call is an event of a stream, or one of a function.
    pub fn is_event(&self, call: &Call) -> bool {
        matches!(call.target, Batches::ENDING | Times::ADMITTED)
            || self.round_of(call.target).is_some()
            || self.handler_of_call(call).is_some()
    }

    /// Whether the handler exists, and the call has a value for each column of its stream. Any
    /// client may have written the call into the log.
    fn has_columns(&self, number: usize, call: &Call) -> bool {
        self.program.handlers.get(number).is_some_and(|handler| {
            let columns = self.program.streams[handler.input.index()].spec.schema.len();
            let key = if self.entities[number].is_some() { call.key.len() } else { 0 };
            key + call.args.len() == columns
        })
    }

    /// Whether values form a row of a stream. Any client may have written them into the log.
    fn is_row(&self, stream: StreamId, values: &[Value]) -> bool {
        let columns = &self.program.streams[stream.index()].spec.schema.columns;
        let fits = |(value, column)| rules::store(value, column).is_ok_and(|v| v == *value);
        values.len() == columns.len() && values.iter().zip(columns).all(fits)
    }

    /// Rebuilds the row of the stream that a request came in by.
    fn row(&self, handler: usize, call: &Call) -> Vec<Value> {
        let key = match self.entities[handler] {
            Some(_) => &call.key[..],
            None => &[],
        };
        key.iter().chain(call.args.iter()).cloned().collect()
    }

    /// Returns the reply to a request's caller, and the last event of its transaction. That event
    /// tells others what the function returned, or that it aborted.
    pub fn replied(
        &self,
        call: &Call,
        outcome: std::result::Result<Value, Abort>,
    ) -> (Reply, Option<(StreamId, Row)>) {
        if call.target == Requests::TARGET {
            return match (&outcome, Requests::inner(call)) {
                (Err(abort), _) if Requests::is_other(abort) => (Reply::OtherRequest, None),
                (_, Some(inner)) => self.replied(&inner, outcome),
                (_, None) => unreachable!("requests are made here"),
            };
        }
        if matches!(
            call.target,
            Letters::TARGET
                | Times::LATE
                | Times::ADMITTED
                | Batches::TARGET
                | Batches::ENDING
                | Batches::LAST
                | Slides::TARGET
                | Slides::LAST
        ) {
            return match outcome {
                Ok(_) => (Reply::Returned(None), None),
                Err(abort) => (Reply::of(&abort), None),
            };
        }
        if let Some(stream) = self.round_of(call.target) {
            let Err(abort) = outcome else { return (Reply::Returned(None), None) };
            let only = self.sole.as_ref().and_then(|sole| sole.only(stream));
            let event = only.map(|only| {
                let event = self.program.abort_event(only, &call.args, &abort.public_reason());
                (self.program.handlers[only].aborted, event.into())
            });
            return (Reply::of(&abort), event);
        }
        let Some((number, true)) = handler_of(call.target) else {
            unreachable!("requests are made here")
        };
        let handler = &self.program.handlers[number];
        match outcome {
            Err(abort) => {
                let row = self.row(number, call);
                let event = self.program.abort_event(number, &row, &abort.public_reason());
                (Reply::of(&abort), Some((handler.aborted, event.into())))
            }
            Ok(Value::Null) => (Reply::Returned(None), None),
            Ok(value) => {
                let row: Row = [value].into();
                let event = handler.output.map(|output| (output, row.clone()));
                (Reply::Returned(Some(row)), event)
            }
        }
    }
}

/// Makes a key of a table from the arguments of a call without an entity.
fn placed(spec: &TableSpec, handler: usize, row: &[Value]) -> Vec<Value> {
    let mut bytes = vec![handler as u8];
    row.iter().for_each(|value| encode::value(value, &mut bytes));
    let hash = encode::hash128(&bytes);
    let value = |column: &usize| match &spec.schema.columns[*column].ty {
        DataType::Int => Value::Int((hash >> 2) as i64 & i64::MAX),
        DataType::Float => Value::Float((hash as u32).into()),
        DataType::Bool => Value::Bool(hash & 1 == 1),
        DataType::Str => Value::str(&format!("{hash:x}")),
        DataType::Bytes => Value::Bytes(hash.to_le_bytes().as_slice().into()),
        DataType::Timestamp => Value::Timestamp(hash as u32 as i64),
        DataType::Decimal(scale) => Value::Decimal(hash as u32 as i64, *scale),
        DataType::List(_) => Value::List([].into()),
        DataType::Any => Value::Any([0xc0].as_slice().into()),
    };
    spec.key.iter().map(value).collect()
}

/// Refuses the parts of an app that do not run on several nodes yet.
fn refused(spec: &AppSpec) -> Result<()> {
    let program = &spec.program;
    let refuse = |what: String, at: &str| {
        Err(Error::program(format!("{what}: that does not run on several processes yet"))
            .help("run the app in one process")
            .at(at.to_string()))
    };
    if let Some((stream, _)) = program.batches_by_event_time().nth(INTERVALS_MAX) {
        let Stream { spec, .. } = &program.streams[stream.index()];
        let what = format!(
            "{} is one of more than {INTERVALS_MAX} streams whose batches are intervals of event time",
            spec.name
        );
        return refuse(what, &spec.at);
    }
    for handler in &program.handlers {
        if matches!(handler.body, Body::Native(_)) {
            return refuse(format!("{} is a closure", handler.name), &handler.at);
        }
    }
    Ok(())
}
