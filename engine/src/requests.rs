//! Requests: calls that are executed once, however often they arrive.
//!
//! A client over a network that gets no reply does not know whether the call was executed. So it
//! calls again, with the same *request id*. The result of a request is a row of an internal table,
//! which the transaction of the call itself writes. So the row exists exactly when the call was
//! executed, after any crash. It is in snapshots and upgrades as all tables are.
//!
//! [`add`] gives a program the necessary parts: two more columns in the streams of calls, the
//! tables, a stream of answers that is no output of the procedure, and wrappers around the
//! functions of procedures. Only functions can be wrapped. Declared or native procedures take no
//! ids.
//!
//! An aborted call leaves nothing, as everywhere: the same request runs again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use arrow_array::new_null_array;
use tidemill_cluster::wire::{put_value, take_value};
use tidemill_core::batch::inner_type;
use tidemill_core::wire::{put_columns, take_columns};
use tidemill_core::{
    encode, rules, Batch, Column, DataType, Error, Late, Result, Row, Schema, StreamId, StreamSpec,
    StreamTime, TableId, TableSpec, Value,
};
use tidemill_txn::program::{
    Abort, Aggregate, Asker, Body, Opaque, Origin, Program, Stream, Take, Tx, Window, WindowId,
};

use crate::functions::bucket_of;

/// The prefix of all names that the engine adds to a program. No other names have it.
const PREFIX: &str = "tidemill.";
/// Columns of calls: the request's id, and how long it is retained.
const ID: &str = "tidemill.request";
const KEPT: &str = "tidemill.kept_us";
/// The tables: the results of requests, and the time when each expires.
pub(crate) const REQUESTS: &str = "tidemill.requests";
pub(crate) const EXPIRIES: &str = "tidemill.expiries";
/// The stream of answers to known requests.
const ANSWERS: &str = "tidemill.answers";
/// The id of the row with the clock by which requests expire. No client can send it.
const CLOCK: &str = "\u{1}clock";
/// The most time that this clock advances between two requests, in microseconds.
const HOUR_US: i64 = 3_600_000_000;
/// The number of expired requests that a new one removes. It is more than one, so that they do not
/// accumulate.
const SWEPT: Take = Take::First(4);

/// First bytes of stored replies, which no encoded reply has. After the first one comes the reason of
/// an abort that a handler has taken (`functions/once.rs`). The others are of replies that were
/// stored in the other way to run: in one process as columns, on several as a value.
pub(crate) const ABORTED: u8 = 0xff;
pub(crate) const OF_ONE: u8 = 0xfe;
const OF_SEVERAL: u8 = 0xfd;

/// Whether a name is one of the engine's own.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Counts by name, without the engine's own names.
pub(crate) fn shown(mut counts: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    counts.retain(|name, _| !is_hidden(name));
    counts
}

/// A request that a client may repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its unique id.
    pub id: String,
    /// How long its result is retained, in microseconds.
    pub kept_us: i64,
}

/// Whether requests have a [clock of their own](Once::expiry_clock). They do, except in replayed
/// cuts of earlier versions.
pub(crate) type HasClock = Arc<AtomicBool>;

/// Adds to a program the parts for requests, if it has functions that clients call.
///
/// # Errors
/// When it has names that are reserved for the engine.
pub(crate) fn add(program: &mut Program) -> Result<HasClock> {
    let has_clock = HasClock::new(true.into());
    let tables = program.tables.iter().map(|t| ("table", &t.name, &t.at));
    let streams = program.streams.iter().map(|s| ("stream", &s.spec.name, &s.spec.at));
    if let Some((what, name, at)) = tables.chain(streams).find(|(_, name, _)| is_hidden(name)) {
        let what = format!("{what} {name}: names that begin with '{PREFIX}' are reserved");
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
        // The hash of the procedure and its arguments.
        Column::new("hash", DataType::Bytes),
        // The row that it returned, if any.
        Column::new("reply", DataType::Bytes).nullable(),
        Column::new("until", DataType::Timestamp),
    ]
}

fn expiry_columns() -> Vec<Column> {
    vec![Column::new("until", DataType::Timestamp), Column::new("request", DataType::Str)]
}

/// The number of parameters of a stream of calls, and whether its calls have request ids.
pub(crate) fn parameters(calls: &Schema) -> (usize, bool) {
    match calls.index_of(ID) {
        Some(parameters) => (parameters, true),
        None => (calls.len(), false),
    }
}

/// The columns of a stream's events as others see them. Those of calls are the parameters.
pub(crate) fn without_own(stream: Arc<Schema>) -> Arc<Schema> {
    match parameters(&stream) {
        (parameters, true) => Schema::new(stream.columns[..parameters].to_vec()).into(),
        (_, false) => stream,
    }
}

/// Builds the event of a call: the parameters, and the further columns of the stream of calls.
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

/// Builds the events of calls without ids from their parameters. Returns other batches, and those
/// of other streams, unchanged.
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

/// The stream of answers to known requests.
pub(crate) fn answers(program: &Program) -> Option<StreamId> {
    let last = program.streams.len().checked_sub(1)?;
    (&*program.streams[last].spec.name == ANSWERS).then_some(StreamId(last as u16))
}

/// Decodes an event of the stream of answers.
pub(crate) fn answer(output: Option<&Arc<Schema>>, event: &[Value]) -> Known {
    match event {
        [Value::Bool(true), Value::Bytes(reply)] => Known::Same(match &reply[..] {
            [OF_SEVERAL, value @ ..] => {
                let value = take_value(&mut &value[..]).filter(|value| *value != Value::Null);
                value.map(|value| [value].into())
            }
            columns => row_of(output, columns),
        }),
        [Value::Bool(true), _] => Known::Same(None),
        _ => Known::Other,
    }
}

/// Decodes a row that was returned, if any.
pub(crate) fn row_of(output: Option<&Arc<Schema>>, mut columns: &[u8]) -> Option<Row> {
    let batch = take_columns(output?, 1, &mut columns)?;
    Some(batch.row(0))
}

/// Returns a hash that distinguishes a call from others with its id.
pub(crate) fn call_hash<'v>(procedure: &str, arguments: impl Iterator<Item = &'v Value>) -> Value {
    let mut bytes = Vec::with_capacity(64);
    encode::str(procedure, &mut bytes);
    arguments.for_each(|value| encode::value(value, &mut bytes));
    Value::Bytes(encode::hash128(&bytes).to_le_bytes().as_slice().into())
}

/// Converts the row of a request in one process into its rows on several: those of the request and
/// of its expiry. Returns `None` for the row with the clock.
pub(crate) fn to_several(row: &[Value]) -> Option<[Row; 2]> {
    let [id @ Value::Str(name), hash, reply, until @ Value::Timestamp(_)] = row else {
        return None;
    };
    if **name == *CLOCK {
        return None;
    }
    let mut bytes = match reply {
        Value::Bytes(reply) => match &reply[..] {
            [OF_SEVERAL, value @ ..] => value.to_vec(),
            columns => [&[OF_ONE], columns].concat(),
        },
        _ => Vec::new(),
    };
    if bytes.is_empty() {
        put_value(&Value::Null, &mut bytes);
    }
    let (bucket, reply) = (bucket_of(name), Value::Bytes(bytes.into()));
    let expiry = [bucket.clone(), until.clone(), id.clone()].into();
    Some([[bucket, id.clone(), hash.clone(), reply, until.clone()].into(), expiry])
}

/// Converts the row of a request on several processes into its rows in one. Returns `None` for what
/// one process does not store: aborted requests, and requests of the engine itself.
pub(crate) fn to_one(row: &[Value]) -> Option<[Row; 2]> {
    let [_, id @ Value::Str(name), hash, Value::Bytes(reply), until] = row else { return None };
    let reply = match &reply[..] {
        _ if name.starts_with('\u{1}') => return None,
        [ABORTED, ..] => return None,
        [OF_ONE, columns @ ..] => columns.to_vec(),
        value => [&[OF_SEVERAL], value].concat(),
    };
    let reply = Value::Bytes(reply.into());
    let expiry = [until.clone(), id.clone()].into();
    Some([[id.clone(), hash.clone(), reply, until.clone()].into(), expiry])
}

/// The answer to a known request.
pub(crate) enum Known {
    /// The row that the request returned.
    Same(Option<Row>),
    /// The id belongs to a different call.
    Other,
}

/// The wrapper of a procedure's function, which executes each request once.
struct Once {
    function: Arc<dyn Opaque>,
    procedure: Arc<str>,
    /// The number of the event's columns that belong to the function.
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
        let now_us = self.expiry_clock(tx)?;
        self.sweep(now_us, tx)?;
        let hash = call_hash(&self.procedure, arguments.iter());
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
    /// Returns the clock by which ids expire. It is the cuts' clock, but it advances by an hour at
    /// most between two requests. So a clock that was once wrong by days does not make all ids
    /// expire. It is a row among those of requests.
    fn expiry_clock(&self, tx: &mut dyn Tx) -> Result<i64, Abort> {
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

    /// Removes some expired requests.
    fn sweep(&self, now_us: i64, tx: &mut dyn Tx) -> Result<(), Abort> {
        for row in tx.scan(self.expiries, &[], &[Value::Timestamp(now_us)], SWEPT)? {
            tx.delete(self.requests, &row[1..])?;
            tx.delete(self.expiries, &row)?;
        }
        Ok(())
    }
}

/// A transaction whose return value is watched.
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
        take: Take,
    ) -> Result<Vec<Row>, Abort> {
        self.tx.scan(table, from, to, take)
    }

    fn find(&mut self, table: TableId, leading: &[Value], take: Take) -> Result<Vec<Row>, Abort> {
        self.tx.find(table, leading, take)
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

    fn lookup(&mut self, question: &[u8], ask: &Asker) -> std::result::Result<Arc<[u8]>, Abort> {
        self.tx.lookup(question, ask)
    }
}
