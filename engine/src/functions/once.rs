//! Requests that clients may repeat. Each is executed once, whichever client or process sends it.
//!
//! A request with an id is a call of its own, on a row of a table that the engine adds. It checks
//! whether the id is known, calls the function, and stores the reply, all in one transaction. Ids
//! are in buckets, so that new ids find the expired ones of their bucket. A sole owner of all rows
//! does the same in its tables, before and after it executes a request.

use std::convert::Infallible;
use std::sync::Arc;

use tidemill_cluster::wire::{put_value, take_value};
use tidemill_core::{
    encode, Column, DataType, Key, Row, Schema, StreamId, TableId, TableSpec, Value,
};
use tidemill_function::{Activation, Call, Context, Handle, Step, Stop, Target};
use tidemill_table::{Seq, Table};
use tidemill_txn::program::{Abort, AbortKind, Handler, Program, Take};

use super::handler_of;
use crate::requests::{self, call_hash, Request, ABORTED, EXPIRIES, REQUESTS};

/// The number of buckets of ids. It must never change in the life of a log.
const BUCKETS: u128 = 1024;
/// The most expired ids that a new one removes.
const SWEPT: u32 = 4;
/// The refusal of a request whose id belongs to a different call.
const OTHER: &str = "the request id is that of another call";

/// The tables of requests, and the functions that requests call.
#[derive(Clone)]
pub(super) struct Requests {
    requests: TableId,
    expiries: TableId,
    /// The functions, in the order of the handlers.
    functions: Arc<[Called]>,
}

/// A function that requests call.
struct Called {
    name: Arc<str>,
    /// Whether a call's key is a part of its arguments.
    has_entity: bool,
    /// The columns of its return value.
    output: Option<Arc<Schema>>,
}

/// Returns the bucket of a request's id.
pub(crate) fn bucket_of(id: &str) -> Value {
    Value::Int((encode::hash128(id.as_bytes()) % BUCKETS) as i64)
}

impl Requests {
    /// The target of a request's call.
    pub const TARGET: Target = Target::Function(u32::MAX - 1);

    /// Adds the tables to a program. `entities` has the table of each handler that is a function of
    /// an entity.
    pub fn add(program: &mut Program, entities: &[Option<TableId>]) -> Requests {
        let called = |(number, handler): (usize, &Handler)| Called {
            name: handler.name.clone(),
            has_entity: entities.get(number).is_some_and(Option::is_some),
            output: handler.output.map(|of| program.streams[of.index()].spec.schema.clone()),
        };
        let functions = program.handlers.iter().enumerate().map(called).collect();
        let mut table = |name: &str, key: usize, columns: Vec<Column>| {
            let mut spec = TableSpec::new(name, (0..key).collect(), Schema::new(columns).into());
            (spec.ordered, spec.partition_prefix) = (true, Some(1));
            program.tables.push(spec);
            TableId(program.tables.len() as u16 - 1)
        };
        let bucket = || Column::new("bucket", DataType::Int);
        let requests = vec![
            bucket(),
            Column::new("request", DataType::Str),
            Column::new("hash", DataType::Bytes),
            Column::new("reply", DataType::Bytes),
            Column::new("until", DataType::Timestamp),
        ];
        let expiries = vec![
            bucket(),
            Column::new("until", DataType::Timestamp),
            Column::new("request", DataType::Str),
        ];
        let requests = table(REQUESTS, 2, requests);
        let expiries = table(EXPIRIES, 3, expiries);
        program.forget();
        Requests { requests, expiries, functions }
    }

    /// Creates the call of a request, which executes `inner` once.
    pub fn call(&self, inner: Call, request: &Request) -> Call {
        let key = [bucket_of(&request.id), Value::str(&request.id)];
        let Target::Function(number) = inner.target else {
            unreachable!("requests are calls of functions")
        };
        let head = [
            Value::Int(request.kept_us),
            Value::Int(number.into()),
            Value::Int(inner.table.0.into()),
            Value::List(inner.key),
            Value::List(inner.args),
        ];
        Call { target: Requests::TARGET, table: self.requests, key: key.into(), args: head.into() }
    }

    /// Returns the rows of a request that was executed before and returned nothing.
    pub fn executed(&self, call: &Call, now_us: i64) -> Vec<(TableId, Row)> {
        let mut rows = MadeRows(Vec::new());
        if let Some(of) = RequestCall::read(call) {
            let Ok(()) = self.store(&of, Ok(&Value::Null), now_us, &mut rows);
        }
        rows.0
    }

    /// Returns the inner call of a request; `None` when the arguments do not form one.
    pub fn inner(call: &Call) -> Option<Call> {
        match &call.args[..] {
            [_, Value::Int(number), Value::Int(table), Value::List(key), Value::List(args)] => {
                let target = Target::Function(u32::try_from(*number).ok()?);
                let table = TableId(u16::try_from(*table).ok()?);
                let is_request = target == Requests::TARGET;
                (!is_request).then(|| Call { target, table, key: key.clone(), args: args.clone() })
            }
            _ => None,
        }
    }

    /// Begins a request. `returned` is the stream of the inner call's return value, where that is
    /// written to a sink.
    pub fn begin(
        &self,
        call: &Call,
        returned: impl Fn(&Call) -> Option<StreamId>,
    ) -> Result<Box<dyn Activation>, Abort> {
        let of = RequestCall::read(call).ok_or_else(not_a_request)?;
        let (requests, called, returned) = (self.clone(), None, returned(&of.inner));
        Ok(Box::new(Once { requests, of, called, returned }))
    }

    /// Returns the identity of a request.
    pub fn id(call: &Call) -> Option<Key> {
        RequestCall::read(call).map(|of| Key::of(&of.key[..]))
    }

    /// Returns the result of a request from tables that have all rows, if it is known.
    pub fn known(
        &self,
        call: &Call,
        tables: &[Table],
        now_us: i64,
    ) -> Option<Result<Value, Abort>> {
        let of = RequestCall::read(call)?;
        let row = tables[self.requests.index()].get_by_key::<Row>(&Key::of(&of.key[..]));
        self.stored(&of, row.as_deref(), now_us)
    }

    /// Stores the result of a request in such tables. `is_kept` says whether the reason of an abort is
    /// stored, too.
    pub fn remember(
        &self,
        call: &Call,
        result: &Result<Value, Abort>,
        is_kept: impl Fn(&Call) -> bool,
        (tables, seq): (&mut [Table], Seq),
        now_us: i64,
    ) {
        let Some(of) = RequestCall::read(call) else { return };
        let result = match result {
            Ok(value) => Ok(value),
            Err(abort) if is_kept(&of.inner) => Err(abort),
            Err(_) => return,
        };
        let mut rows = InTables { tables, seq };
        let before = rows.tables[self.requests.index()].get_by_key::<Row>(&Key::of(&of.key[..]));
        let Ok(()) = self.forget(&of, before.as_deref(), now_us, &mut rows);
        let Ok(()) = self.store(&of, result, now_us, &mut rows);
    }

    /// Removes what is stored of an expired request with the same id, and some other expired ones.
    fn forget<E>(
        &self,
        of: &RequestCall,
        before: Option<&[Value]>,
        now_us: i64,
        rows: &mut dyn Stored<E>,
    ) -> Result<(), E> {
        let Requests { requests, expiries, .. } = *self;
        let [bucket, id] = &of.key[..] else { unreachable!("the key has two columns") };
        if let Some([.., until]) = before {
            rows.remove(expiries, &[bucket.clone(), until.clone(), id.clone()])?;
        }
        for row in rows.first(expiries, bucket, SWEPT)? {
            if matches!(row[1], Value::Timestamp(until_us) if until_us <= now_us) {
                rows.remove(expiries, &row)?;
                rows.remove(requests, &[bucket.clone(), row[2].clone()])?;
            }
        }
        Ok(())
    }

    /// Stores the result of a request.
    fn store<E>(
        &self,
        of: &RequestCall,
        result: Result<&Value, &Abort>,
        now_us: i64,
        rows: &mut dyn Stored<E>,
    ) -> Result<(), E> {
        let mut bytes = Vec::new();
        match result {
            Ok(value) => put_value(value, &mut bytes),
            Err(abort) => {
                bytes.push(ABORTED);
                bytes.extend_from_slice(abort.public_reason().as_bytes());
            }
        }
        let until = Value::Timestamp(now_us.saturating_add(of.kept_us));
        let [bucket, id] = &of.key[..] else { unreachable!("the key has two columns") };
        let row =
            [bucket.clone(), id.clone(), self.hash(of), Value::Bytes(bytes.into()), until.clone()];
        rows.write(self.requests, &row)?;
        rows.write(self.expiries, &[bucket.clone(), until, id.clone()])
    }

    /// Returns a hash that distinguishes a request's call from others with its id. It is that of one
    /// process.
    fn hash(&self, of: &RequestCall) -> Value {
        let function = handler_of(of.inner.target).and_then(|(nth, _)| self.functions.get(nth));
        // Calls of the engine itself have ids that no client can send.
        let Some(Called { name, has_entity, .. }) = function else { return of.hash_of_before() };
        let key = if *has_entity { &of.inner.key[..] } else { &[] };
        call_hash(name, key.iter().chain(of.inner.args.iter()))
    }

    /// Returns the stored result of a request, if it has not expired. One process or an earlier version
    /// of the program may have stored it.
    fn stored(
        &self,
        of: &RequestCall,
        row: Option<&[Value]>,
        now_us: i64,
    ) -> Option<Result<Value, Abort>> {
        let [_, _, hash, Value::Bytes(reply), Value::Timestamp(until_us)] = row? else {
            unreachable!("it has five columns")
        };
        if *until_us <= now_us {
            return None;
        }
        if *hash != self.hash(of) && *hash != of.hash_of_before() {
            return Some(Err(Abort { kind: AbortKind::Fault, reason: OTHER.into() }));
        }
        let function = handler_of(of.inner.target).and_then(|(nth, _)| self.functions.get(nth));
        let output = function.and_then(|function| function.output.as_ref());
        Some(match &reply[..] {
            [ABORTED, reason @ ..] => Err(Abort::refused(String::from_utf8_lossy(reason))),
            [requests::OF_ONE, columns @ ..] => {
                let row = requests::row_of(output, columns);
                Ok(row.and_then(|row| row.first().cloned()).unwrap_or(Value::Null))
            }
            mut reply => Ok(take_value(&mut reply).unwrap_or(Value::Null)),
        })
    }

    /// Whether a request was refused because its id belongs to a different call.
    pub fn is_other(abort: &Abort) -> bool {
        abort.kind == AbortKind::Fault && abort.reason == OTHER
    }
}

/// Returns the abort of a call that is no request.
pub(super) fn not_a_request() -> Abort {
    Abort::refused("this is no request")
}

/// The rows of requests, which keys begin.
trait Stored<E> {
    fn first(&mut self, table: TableId, bucket: &Value, most: u32) -> Result<Vec<Row>, E>;
    fn write(&mut self, table: TableId, row: &[Value]) -> Result<(), E>;
    fn remove(&mut self, table: TableId, key: &[Value]) -> Result<(), E>;
}

impl Stored<Stop> for &mut dyn Context {
    fn first(&mut self, table: TableId, bucket: &Value, most: u32) -> Result<Vec<Row>, Stop> {
        let rows = self.find(table, std::slice::from_ref(bucket), Take::First(most))?;
        Ok(rows.iter().map(|row| row[..].into()).collect())
    }

    fn write(&mut self, table: TableId, row: &[Value]) -> Result<(), Stop> {
        self.put(table, row)
    }

    fn remove(&mut self, table: TableId, key: &[Value]) -> Result<(), Stop> {
        self.delete(table, key)
    }
}

/// Tables that have all rows.
struct InTables<'t> {
    tables: &'t mut [Table],
    /// The number of the new versions.
    seq: Seq,
}

impl Stored<Infallible> for InTables<'_> {
    fn first(&mut self, table: TableId, bucket: &Value, most: u32) -> Result<Vec<Row>, Infallible> {
        let table = &self.tables[table.index()];
        let from = Key::of([bucket]);
        let to = from.prefix_end();
        let row = |key: &Key| table.get_by_key(key).expect("it is in the order of keys");
        Ok(table.keys(&from, &to).take(most as usize).map(row).collect())
    }

    fn write(&mut self, table: TableId, row: &[Value]) -> Result<(), Infallible> {
        let table = &mut self.tables[table.index()];
        let key = Key::of(&row[..table.spec().key.len()]);
        table.put_by_key(&key, Some(row), self.seq);
        Ok(())
    }

    fn remove(&mut self, table: TableId, key: &[Value]) -> Result<(), Infallible> {
        self.tables[table.index()].put_by_key(&Key::of(key), None, self.seq);
        Ok(())
    }
}

/// Rows for tables that are made elsewhere.
struct MadeRows(Vec<(TableId, Row)>);

impl Stored<Infallible> for MadeRows {
    fn first(&mut self, _: TableId, _: &Value, _: u32) -> Result<Vec<Row>, Infallible> {
        Ok(Vec::new())
    }

    fn write(&mut self, table: TableId, row: &[Value]) -> Result<(), Infallible> {
        self.0.push((table, row.into()));
        Ok(())
    }

    fn remove(&mut self, _: TableId, _: &[Value]) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A request.
struct RequestCall {
    /// Bucket and id.
    key: Arc<[Value]>,
    inner: Call,
    kept_us: i64,
}

impl RequestCall {
    /// Reads a request from its call. Any client may have written it into the log.
    fn read(call: &Call) -> Option<RequestCall> {
        if call.target != Requests::TARGET {
            return None;
        }
        let (inner, key) = (Requests::inner(call)?, call.key.clone());
        match (&key[..], &call.args[..]) {
            ([Value::Int(_), Value::Str(_)], [Value::Int(kept_us), ..]) => {
                Some(RequestCall { key, inner, kept_us: *kept_us })
            }
            _ => None,
        }
    }

    /// The hash that earlier versions stored.
    fn hash_of_before(&self) -> Value {
        let Call { target, table, key, args } = &self.inner;
        let mut bytes = format!("{target:?}{table:?}").into_bytes();
        key.iter().chain(args.iter()).for_each(|value| encode::value(value, &mut bytes));
        Value::Bytes(encode::hash128(&bytes).to_le_bytes().as_slice().into())
    }
}

/// A request as a function.
struct Once {
    requests: Requests,
    of: RequestCall,
    called: Option<Handle>,
    /// The stream of the return value, where that is written to a sink.
    returned: Option<StreamId>,
}

impl Activation for Once {
    fn resume(&mut self, mut context: &mut dyn Context) -> Result<Step, Stop> {
        let now_us = context.now_us();
        let Some(handle) = self.called else {
            let row = context.get(self.requests.requests, &self.of.key)?;
            if let Some(known) = self.requests.stored(&self.of, row.as_deref(), now_us) {
                return Ok(Step::Done(known?));
            }
            self.requests.forget(&self.of, row.as_deref(), now_us, &mut context)?;
            let handle = context.call(self.of.inner.clone(), true)?;
            self.called = Some(handle);
            return Ok(Step::Wait(vec![handle]));
        };
        let reply = context.settled(handle)?.clone();
        self.requests.store(&self.of, Ok(&reply), now_us, &mut context)?;
        // A repeated request does not emit it again.
        if let Some(stream) = self.returned.filter(|_| reply != Value::Null) {
            context.emit(stream, std::slice::from_ref(&reply))?;
        }
        Ok(Step::Done(reply))
    }
}
