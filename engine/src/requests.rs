//! Requests: calls that are executed once, however often they come.
//!
//! Who calls over a network does not know, when no reply comes, whether the call was executed, so it
//! calls again, with the same *request id*. What a request came to is a row of an internal table, which is
//! written by the transaction of the call itself: it is there when the call was executed and not
//! otherwise, after any crash, and goes with snapshots and upgrades as all tables do.
//!
//! [`add`] gives a program what that needs: the streams of calls two columns more, the tables, a
//! stream of answers that are no output of the procedure, and functions around those of procedures.
//! Only functions can be wrapped; procedures that are declared or native take no ids.
//!
//! An aborted call leaves nothing, here as everywhere: the same request runs again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use arrow_array::new_null_array;
use tidemill_core::batch::inner_type;
use tidemill_core::wire::{put_columns, take_columns};
use tidemill_core::{
    encode, rules, Batch, Column, DataType, Error, Late, Result, Row, Schema, StreamId, StreamSpec,
    StreamTime, TableId, TableSpec, Value,
};
use tidemill_txn::program::{
    Abort, Aggregate, Ask, Body, Opaque, Origin, Program, Stream, Tx, Window, WindowId,
};

/// What the engine adds to a program has names that begin so, and nothing else has.
const PREFIX: &str = "tidemill.";
/// Columns of calls: the request's id, and for how long it is remembered.
const ID: &str = "tidemill.request";
const KEPT: &str = "tidemill.kept_us";
/// The tables: what requests came to, and when each is forgotten.
pub(crate) const REQUESTS: &str = "tidemill.requests";
pub(crate) const EXPIRIES: &str = "tidemill.expiries";
/// Where requests are answered that were known.
const ANSWERS: &str = "tidemill.answers";
/// In place of an id, in the row of the clock by which they are forgotten: no client sends it.
const CLOCK: &str = "\u{1}clock";
/// What goes by between two requests, at most.
const HOUR_US: i64 = 3_600_000_000;
/// So many that are to be forgotten go with each new one: more than come, so that they do go.
const SWEEP_MAX: usize = 4;

/// Whether a name is one of the engine's own.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// What is counted by name, without the engine's own.
pub(crate) fn shown(mut counts: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    counts.retain(|name, _| !is_hidden(name));
    counts
}

/// A request that may come again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What tells it from all others.
    pub id: String,
    /// How long what it came to is remembered, in microseconds.
    pub kept_us: i64,
}

/// Whether requests are kept by a [clock of their own](Once::kept_clock). They are, but in cuts of earlier versions that
/// are executed again.
pub(crate) type HasClock = Arc<AtomicBool>;

/// Gives a program what requests need, if it has functions that are called.
///
/// # Errors
/// When it has names that are the engine's.
pub(crate) fn add(program: &mut Program) -> Result<HasClock> {
    let has_clock = HasClock::new(true.into());
    let tables = program.tables.iter().map(|t| ("table", &t.name, &t.at));
    let streams = program.streams.iter().map(|s| ("stream", &s.spec.name, &s.spec.at));
    if let Some((what, name, at)) = tables.chain(streams).find(|(_, name, _)| is_hidden(name)) {
        let what = format!("{what} {name}: names that begin with '{PREFIX}' are the engine's");
        return Err(Error::program(what).help("give it another name").at(at.to_string()));
    }
    let called = |handler: &usize| {
        let handler = &program.handlers[*handler];
        program.calls.contains(&handler.input) && matches!(handler.body, Body::Opaque(_))
    };
    let called: Vec<usize> = (0..program.handlers.len()).filter(called).collect();
    if called.is_empty() {
        return Ok(has_clock);
    }
    let requests = table(program, REQUESTS, 1, request_columns());
    let expiries = table(program, EXPIRIES, 2, expiry_columns());
    program.tables[expiries.index()].ordered = true;
    let answers = StreamId(program.streams.len() as u16);
    program.streams.push(Stream {
        spec: StreamSpec {
            name: ANSWERS.into(),
            schema: Schema::new(vec![
                Column::new("same", DataType::Bool),
                Column::new("reply", DataType::Bytes).nullable(),
            ])
            .into(),
            time: StreamTime::Arrival,
            late: Late::Side,
            at: String::new(),
        },
        origin: Origin::Emitted,
        batch: None,
    });
    program.forget();
    for handler in called {
        let handler = &mut program.handlers[handler];
        let calls = &mut program.streams[handler.input.index()].spec;
        let parameters = calls.schema.len();
        let mut columns = calls.schema.columns.clone();
        columns.push(Column::new(ID, DataType::Str).nullable());
        columns.push(Column::new(KEPT, DataType::Int).nullable());
        calls.schema = Schema::new(columns).into();
        if let Some(emits) = &mut handler.emits {
            emits.push(answers);
        }
        let Body::Opaque(function) = handler.body else { continue };
        // A stored program has lost its functions.
        let Some(function) = program.opaques.get_mut(function) else { continue };
        let output = handler.output.map(|stream| {
            let schema = program.streams[stream.index()].spec.schema.clone();
            (stream, schema)
        });
        *function = Arc::new(Once {
            function: function.clone(),
            procedure: handler.name.clone(),
            parameters,
            output,
            requests,
            expiries,
            answers,
            has_clock: has_clock.clone(),
        });
    }
    Ok(has_clock)
}

fn table(program: &mut Program, name: &str, key: usize, columns: Vec<Column>) -> TableId {
    let spec = TableSpec::new(name, (0..key).collect(), Schema::new(columns).into());
    program.tables.push(spec);
    TableId(program.tables.len() as u16 - 1)
}

fn request_columns() -> Vec<Column> {
    vec![
        Column::new("request", DataType::Str),
        // Of the procedure and its arguments.
        Column::new("hash", DataType::Bytes),
        // The row that it returned, if any.
        Column::new("reply", DataType::Bytes).nullable(),
        Column::new("until", DataType::Timestamp),
    ]
}

fn expiry_columns() -> Vec<Column> {
    vec![Column::new("until", DataType::Timestamp), Column::new("request", DataType::Str)]
}

/// How many columns of a stream of calls are parameters, and whether requests have ids there.
pub(crate) fn parameters(calls: &Schema) -> (usize, bool) {
    match calls.index_of(ID) {
        Some(parameters) => (parameters, true),
        None => (calls.len(), false),
    }
}

/// The columns of a stream's events as others see them: those of calls are the parameters.
pub(crate) fn without_own(stream: Arc<Schema>) -> Arc<Schema> {
    match parameters(&stream) {
        (parameters, true) => Schema::new(stream.columns[..parameters].to_vec()).into(),
        (_, false) => stream,
    }
}

/// The event of a call: what a stream of calls has beside the parameters.
///
/// # Errors
/// When its procedure takes no request ids.
pub(crate) fn event(
    calls: &Arc<Schema>,
    arguments: Batch,
    request: Option<Request>,
) -> Result<Batch> {
    let (_, takes_ids) = parameters(calls);
    if !takes_ids {
        return match request {
            None => Ok(arguments),
            Some(_) => Err(Error::input("this procedure takes no request ids")
                .help("call it without one; only procedures that are functions take them")),
        };
    }
    let Some(request) = request else { return Ok(without_ids(calls, arguments)) };
    let of_request = [Value::str(&request.id), Value::Int(request.kept_us)];
    let row: Vec<Value> = arguments.row(0).into_vec().into_iter().chain(of_request).collect();
    Ok(Batch::from_rows(calls.clone(), [&row[..]]))
}

/// Events of calls that nobody makes again, of their parameters; other batches, and those of streams that
/// are no calls, as they are.
pub(crate) fn without_ids(calls: &Arc<Schema>, given: Batch) -> Batch {
    let (columns, own) = (&calls.columns, given.schema().clone());
    let (count, takes_ids) = parameters(calls);
    if !takes_ids || own.len() != count || !columns.starts_with(&own.columns) {
        return given;
    }
    let missing = columns[own.len()..].iter();
    let missing = missing.map(|column| new_null_array(&inner_type(&column.ty), given.len()));
    let arrays = given.columns().iter().cloned().chain(missing).collect();
    Batch::new(calls.clone(), arrays, given.len())
}

/// Where a program answers requests that it knows.
pub(crate) fn answers(program: &Program) -> Option<StreamId> {
    let last = program.streams.len().checked_sub(1)?;
    (&*program.streams[last].spec.name == ANSWERS).then_some(StreamId(last as u16))
}

/// What an event of that stream says: the row that was returned, or that the request is another.
pub(crate) fn answer(output: Option<&Arc<Schema>>, event: &[Value]) -> Known {
    match event {
        [Value::Bool(true), Value::Bytes(reply)] => Known::Same(output.and_then(|schema| {
            let batch = take_columns(schema, 1, &mut &reply[..])?;
            Some(batch.row(0))
        })),
        [Value::Bool(true), _] => Known::Same(None),
        _ => Known::Other,
    }
}

/// What is known of a request.
pub(crate) enum Known {
    /// What it returned.
    Same(Option<Row>),
    /// The id is that of another call.
    Other,
}

/// The function of a procedure that is called, so that each request is executed once.
struct Once {
    function: Arc<dyn Opaque>,
    procedure: Arc<str>,
    /// Columns of the event that are the function's.
    parameters: usize,
    output: Option<(StreamId, Arc<Schema>)>,
    requests: TableId,
    expiries: TableId,
    answers: StreamId,
    has_clock: HasClock,
}

impl Opaque for Once {
    fn may_be_overdue(&self) -> bool {
        self.function.may_be_overdue()
    }

    fn has_one_lock(&self) -> bool {
        self.function.has_one_lock()
    }

    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let (arguments, request) = event.split_at(self.parameters);
        let [id @ Value::Str(_), Value::Int(kept_us)] = request else {
            return self.function.call(arguments, tx);
        };
        let now_us = self.kept_clock(tx)?;
        self.sweep(now_us, tx)?;
        let hash = self.hash(arguments);
        if let Some(row) = tx.get(self.requests, std::slice::from_ref(id))? {
            let [_, known, reply, until] = &row[..] else { unreachable!("it has four columns") };
            if matches!(until, Value::Timestamp(us) if *us > now_us) {
                let answer = match *known == hash {
                    true => [Value::Bool(true), reply.clone()],
                    false => [Value::Bool(false), Value::Null],
                };
                return tx.emit(self.answers, &answer);
            }
            tx.delete(self.expiries, &[until.clone(), id.clone()])?;
        }
        let mut watched = Watched { tx, of: self.output.as_ref(), reply: None };
        self.function.call(arguments, &mut watched)?;
        let reply = match (watched.reply, &self.output) {
            (Some(row), Some((_, schema))) => {
                let mut bytes = Vec::new();
                put_columns(&Batch::from_rows(schema.clone(), [&row[..]]), &mut bytes);
                Value::Bytes(bytes.into())
            }
            _ => Value::Null,
        };
        let until = Value::Timestamp(now_us.saturating_add(*kept_us));
        tx.put(self.requests, &[id.clone(), hash, reply, until.clone()])?;
        tx.put(self.expiries, &[until, id.clone()])
    }
}

impl Once {
    /// The clock by which ids are forgotten: that of the cuts, but between two requests an hour at most goes by. So one
    /// that was wrong once, and days ahead, does not make all ids forgotten. It is a row among those of requests.
    fn kept_clock(&self, tx: &mut dyn Tx) -> Result<i64, Abort> {
        let now_us = tx.now_us();
        if !self.has_clock.load(Ordering::Relaxed) {
            return Ok(now_us);
        }
        let key = Value::str(CLOCK);
        let known = tx.get(self.requests, std::slice::from_ref(&key))?;
        let clock_us = match known.as_deref() {
            Some([_, Value::Bytes(last), _, Value::Timestamp(clock_us)]) => {
                let last_us = <[u8; 8]>::try_from(&last[..]).map_or(now_us, i64::from_le_bytes);
                clock_us.saturating_add(now_us.saturating_sub(last_us).clamp(0, HOUR_US))
            }
            _ => now_us,
        };
        let last = Value::Bytes(now_us.to_le_bytes().as_slice().into());
        tx.put(self.requests, &[key, last, Value::Null, Value::Timestamp(clock_us)])?;
        Ok(clock_us)
    }

    /// Forgets some whose time is over.
    fn sweep(&self, now_us: i64, tx: &mut dyn Tx) -> Result<(), Abort> {
        for row in tx.scan(self.expiries, &[], &[Value::Timestamp(now_us)], SWEEP_MAX)? {
            tx.delete(self.requests, &row[1..])?;
            tx.delete(self.expiries, &row)?;
        }
        Ok(())
    }

    /// What tells this call from others with its id.
    fn hash(&self, arguments: &[Value]) -> Value {
        let mut bytes = Vec::with_capacity(64);
        encode::str(&self.procedure, &mut bytes);
        arguments.iter().for_each(|value| encode::value(value, &mut bytes));
        Value::Bytes(encode::hash128(&bytes).to_le_bytes().as_slice().into())
    }
}

/// A transaction of which somebody wants to know what it returns.
struct Watched<'a> {
    tx: &'a mut dyn Tx,
    of: Option<&'a (StreamId, Arc<Schema>)>,
    /// The last event of that stream, as it is stored there.
    reply: Option<Vec<Value>>,
}

impl Tx for Watched<'_> {
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        self.tx.get(table, key)
    }

    fn get_ints(&mut self, table: TableId, key: i64, row: &mut [i64]) -> Result<bool, Abort> {
        self.tx.get_ints(table, key, row)
    }

    fn window(
        &mut self,
        table: TableId,
        key: &[Value],
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        self.tx.window(table, key, window, column, aggregate)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        limit: usize,
    ) -> Result<Vec<Row>, Abort> {
        self.tx.scan(table, from, to, limit)
    }

    fn find(&mut self, table: TableId, leading: &[Value], limit: usize) -> Result<Vec<Row>, Abort> {
        self.tx.find(table, leading, limit)
    }

    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Abort> {
        self.tx.put(table, row)
    }

    fn put_ints(&mut self, table: TableId, row: &[i64]) -> Result<(), Abort> {
        self.tx.put_ints(table, row)
    }

    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        self.tx.delete(table, key)
    }

    fn will_write(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        self.tx.will_write(table, key)
    }

    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Abort> {
        self.tx.emit(stream, row)?;
        if let Some((_, schema)) = self.of.filter(|(of, _)| *of == stream) {
            let stored = row.iter().zip(&schema.columns).map(|(v, c)| rules::store(v, c));
            self.reply = Some(stored.collect::<Result<_, _>>()?);
        }
        Ok(())
    }

    fn window_insert(&mut self, window: WindowId, row: &[Value]) -> Result<(), Abort> {
        self.tx.window_insert(window, row)
    }

    fn window_advance(&mut self, window: WindowId) -> Result<(), Abort> {
        self.tx.window_advance(window)
    }

    fn window_rows(&mut self, window: WindowId) -> Result<Vec<Row>, Abort> {
        self.tx.window_rows(window)
    }

    fn window_groups(
        &mut self,
        window: WindowId,
        group: Option<&Value>,
    ) -> Result<Vec<Row>, Abort> {
        self.tx.window_groups(window, group)
    }

    fn time_us(&self) -> i64 {
        self.tx.time_us()
    }

    fn now_us(&self) -> i64 {
        self.tx.now_us()
    }

    fn random(&mut self) -> u128 {
        self.tx.random()
    }

    fn has_deadline(&self) -> bool {
        self.tx.has_deadline()
    }

    fn lookup(&mut self, question: &[u8], ask: &Ask) -> std::result::Result<Arc<[u8]>, Abort> {
        self.tx.lookup(question, ask)
    }
}
