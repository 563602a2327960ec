//! Requests that clients may repeat. Each is executed once, whichever client or process sends it.
//!
//! A request with an id is a call of its own, on a row of a table that the engine adds. It checks
//! whether the id is known, calls the function, and stores the reply, all in one transaction. Ids
//! are in buckets, so that new ids find the expired ones of their bucket.

use std::sync::Arc;

use tidemill_cluster::wire::{put_value, take_value};
use tidemill_core::{encode, Column, DataType, Schema, StreamId, TableId, TableSpec, Value};
use tidemill_function::{Activation, Call, Context, Handle, Step, Stop, Target};
use tidemill_txn::program::{Abort, AbortKind, Program, Take};

use super::results;
use crate::requests::{Request, EXPIRIES, REQUESTS};

/// The number of buckets of ids. It must never change in the life of a log.
const BUCKETS: u128 = 1024;
/// The most expired ids that a new one removes.
const SWEPT: Take = Take::First(4);
/// The first byte of a stored reply that is the reason of an abort which a handler has taken. No
/// encoded value begins with it.
const ABORTED: u8 = 0xff;
/// The refusal of a request whose id belongs to a different call.
const OTHER: &str = "the request id is that of another call";

/// The tables of requests.
#[derive(Clone, Copy)]
pub(super) struct Requests {
    requests: TableId,
    expiries: TableId,
}

impl Requests {
    /// The target of a request's call.
    pub const TARGET: Target = Target::Function(u32::MAX - 1);

    /// Adds the tables to a program.
    pub fn add(program: &mut Program) -> Requests {
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
        Requests { requests, expiries }
    }

    /// Creates the call of a request, which executes `inner` once.
    pub fn call(&self, inner: Call, request: &Request) -> Call {
        let hash = encode::hash128(request.id.as_bytes());
        let key = [Value::Int((hash % BUCKETS) as i64), Value::str(&request.id)];
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

    /// Returns the inner call of a request; `None` when the arguments do not form one.
    pub fn inner(call: &Call) -> Option<Call> {
        match &call.args[..] {
            [_, Value::Int(number), Value::Int(table), Value::List(key), Value::List(args)] => {
                let target = Target::Function(u32::try_from(*number).ok()?);
                let table = TableId(u16::try_from(*table).ok()?);
                Some(Call { target, table, key: key.clone(), args: args.clone() })
            }
            _ => None,
        }
    }

    /// Begins a request. `wanted` says how the program uses the result of its inner call.
    pub fn begin(
        &self,
        call: &Call,
        wanted: impl Fn(&Call) -> Wanted,
    ) -> Result<Box<dyn Activation>, Abort> {
        let refused = || Abort::refused("this is no request");
        let inner = Requests::inner(call).ok_or_else(refused)?;
        let [Value::Int(kept_us), ..] = call.args[..] else { return Err(refused()) };
        if inner.target == Requests::TARGET {
            return Err(refused());
        }
        let (of, key, called, wanted) = (*self, call.key.clone(), None, wanted(&inner));
        Ok(Box::new(Once { of, key, inner, kept_us, called, wanted }))
    }

    /// Whether a request was refused because its id belongs to a different call.
    pub fn is_other(abort: &Abort) -> bool {
        abort.kind == AbortKind::Fault && abort.reason == OTHER
    }
}

/// The uses of a call's result beside its reply.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// The stream of its return value, where that is written to a sink.
    pub returned: Option<StreamId>,
    /// Whether a handler takes its aborts.
    pub takes_aborts: bool,
}

struct Once {
    of: Requests,
    /// Bucket and id.
    key: Arc<[Value]>,
    inner: Call,
    kept_us: i64,
    called: Option<Handle>,
    wanted: Wanted,
}

impl Once {
    /// A hash that distinguishes this call from others with its id.
    fn hash(&self) -> Value {
        let Call { target, table, key, args } = &self.inner;
        let mut bytes = format!("{target:?}{table:?}").into_bytes();
        key.iter().chain(args.iter()).for_each(|value| encode::value(value, &mut bytes));
        Value::Bytes(encode::hash128(&bytes).to_le_bytes().as_slice().into())
    }

    /// Returns the stored reply. An earlier version of the program may have stored it.
    fn remembered(&self, mut reply: &[u8]) -> Result<Step, Stop> {
        if let [ABORTED, reason @ ..] = reply {
            let reason = String::from_utf8_lossy(reason);
            return match self.wanted.takes_aborts {
                true => Ok(Step::Done(results::aborted(Value::str(&reason)))),
                false => Err(Abort::refused(reason).into()),
            };
        }
        let value = take_value(&mut reply).unwrap_or(Value::Null);
        Ok(Step::Done(if self.wanted.takes_aborts { results::returned(value) } else { value }))
    }

    /// Checks whether the request is known, and calls the function if it is not.
    fn ask(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let Requests { requests, expiries } = self.of;
        let now_us = context.now_us();
        let [bucket, id] = &self.key[..] else { unreachable!("the key has two columns") };
        if let Some(row) = context.get(requests, &self.key)? {
            let [_, _, hash, reply, until] = &row[..] else { unreachable!("it has five columns") };
            let Value::Timestamp(until_us) = *until else { unreachable!("it is a time") };
            if until_us > now_us {
                let Value::Bytes(reply) = reply else { unreachable!("they are bytes") };
                return match *hash == self.hash() {
                    true => self.remembered(reply),
                    false => Err(Abort { kind: AbortKind::Fault, reason: OTHER.into() }.into()),
                };
            }
            context.delete(expiries, &[bucket.clone(), until.clone(), id.clone()])?;
        }
        for row in context.find(expiries, std::slice::from_ref(bucket), SWEPT)? {
            if matches!(row[1], Value::Timestamp(until_us) if until_us <= now_us) {
                context.delete(expiries, &row)?;
                context.delete(requests, &[bucket.clone(), row[2].clone()])?;
            }
        }
        let handle = context.call(self.inner.clone(), true)?;
        self.called = Some(handle);
        Ok(Step::Wait(vec![handle]))
    }
}

impl Activation for Once {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let Some(handle) = self.called else { return self.ask(context) };
        let reply = context.settled(handle)?.clone();
        let Wanted { returned, takes_aborts } = self.wanted;
        let outcome =
            if takes_aborts { results::settled(reply.clone()) } else { Ok(reply.clone()) };
        let mut bytes = Vec::new();
        match &outcome {
            Ok(value) => put_value(value, &mut bytes),
            Err(reason) => {
                bytes.push(ABORTED);
                bytes.extend_from_slice(reason.as_bytes());
            }
        }
        let until = Value::Timestamp(context.now_us().saturating_add(self.kept_us));
        let [bucket, id] = &self.key[..] else { unreachable!("the key has two columns") };
        let row =
            [bucket.clone(), id.clone(), self.hash(), Value::Bytes(bytes.into()), until.clone()];
        context.put(self.of.requests, &row)?;
        context.put(self.of.expiries, &[bucket.clone(), until, id.clone()])?;
        // A repeated request does not emit it again.
        if let (Some(stream), Some(value)) = (returned, outcome.ok().filter(|v| *v != Value::Null))
        {
            context.emit(stream, &[value])?;
        }
        Ok(Step::Done(reply))
    }
}
