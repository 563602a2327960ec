//! Requests and outputs as messages of Kafka.
//!
//! **Requests.** The value is JSON: `{"call": "account.transfer", "args": {"id": 1, "to": 2}}`
//! calls a function or a procedure, and `{"event": "payments", "row": {...}}` is an event of a
//! stream. The header `request-id`, or the field of that name, comes back with the reply. A list of
//! such objects is as many requests, which are in the same epoch. Events of one stream without ids are
//! taken by column. An unreadable request is refused,
//! with the reason. Requests of the coordinator's own clients are in Tidemill's encoding, in the
//! header `record`, for the version of the app that the header `version` names.
//!
//! **Outputs.** The value is JSON. It is `{"reply": ...}` or `{"aborted": "why"}` with the header
//! `request-id`, or an event's row with the header `stream`. The header `id` is unique, for readers
//! that remember which outputs they have seen.
//!
//! If several outputs are in one message, the value is a list of objects, either replies or events
//! of one stream. Each has the headers of a single output as fields, and an event has its row in the
//! field `row`. The header `record` has the outputs in Tidemill's encoding. A message without a value
//! is no output: it begins a generation, or has an answer from outside to a function.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tidemill_cluster::wire::{put_record, take_record};
use tidemill_cluster::{Emitted, Events, Output, Record, Request, RequestId};
use tidemill_connect::{values, Message};
use tidemill_core::{BatchBuilder, Row, Schema, StreamId, Value};
use tidemill_function::{Call, Functions as _, Tid};
use tidemill_kafka::{Format, Outgoing};
use tidemill_txn::program::Abort;

use crate::functions::AppFunctions;

const REQUEST_ID: &str = "request-id";
const RECORD: &str = "record";
const VERSION: &str = "version";
const STREAM: &str = "stream";
const ID: &str = "id";
/// The id of a request that is not text, in hexadecimal digits.
const REQUEST_ID_HEX: &str = "request-id-hex";

/// The refusal of a request of the coordinator's clients that was made for another version.
const OTHER_VERSION: &str = "it was asked of another version of the app: ask again";
/// The most requests in one message.
const TOGETHER_MAX: usize = 1000;
/// The longest request id, in bytes.
const ID_BYTES_MAX: usize = 256;

/// The messages of an app.
pub(super) struct Json {
    functions: Arc<AppFunctions>,
    /// The version of the app, in hexadecimal digits.
    version: String,
}

/// A request as a client writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'a> {
    #[serde(borrow)]
    call: Option<Cow<'a, str>>,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
    #[serde(borrow)]
    event: Option<Cow<'a, str>>,
    #[serde(borrow)]
    row: Option<&'a RawValue>,
    #[serde(borrow, rename = "request-id")]
    id: Option<Cow<'a, str>>,
}

/// The id of a request that can't be read.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow, rename = "request-id")]
    id: Option<Cow<'a, str>>,
}

impl Json {
    /// Creates the format of an app with this fingerprint.
    pub fn new(functions: Arc<AppFunctions>, fingerprint: u128) -> Json {
        Json { functions, version: format!("{fingerprint:032x}") }
    }

    /// Parses the requests of a message; `id` is the id in its headers, for a single request.
    fn record(&self, value: Option<&[u8]>, id: &[u8]) -> Result<Record, String> {
        let value = value.ok_or("the message has no value")?;
        let text = std::str::from_utf8(value).map_err(|_| "the message is no text")?;
        if !text.trim_ascii_start().starts_with('[') {
            return Ok(Record::Requests(vec![self.read(text, id, None)]));
        }
        let list: Vec<&RawValue> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if list.is_empty() || list.len() > TOGETHER_MAX {
            return Err(too_many(list.len()));
        }
        if let Some(events) = self.events(&list) {
            return Ok(Record::Events(events));
        }
        let list = list.into_iter().enumerate();
        let requests = list.map(|(nth, one)| self.read(one.get(), &[], Some(nth)));
        Ok(Record::Requests(requests.collect()))
    }

    /// Parses a list by column, if it has events of one stream, of which nobody waits for the
    /// result, and which can be executed by column.
    fn events(&self, list: &[&RawValue]) -> Option<Events> {
        let mut found: Option<(Cow<'_, str>, StreamId, Arc<Schema>, BatchBuilder)> = None;
        for one in list {
            let asked: Asked<'_> = serde_json::from_str(one.get()).ok()?;
            let Asked { call: None, args: None, event: Some(name), row, id: None } = asked else {
                return None;
            };
            let row = row.map_or("{}", |row| row.get());
            match &mut found {
                Some((of, _, schema, rows)) if *of == name => {
                    rows.push(&values::read_row(row, schema).ok()?);
                }
                Some(_) => return None,
                None => {
                    let schema = self.functions.columns(&name).ok()?;
                    let row = values::read_row(row, &schema).ok()?;
                    // This refuses streams whose events no client sends.
                    self.functions.only_event(&name, &row).ok()?;
                    let stream = self.functions.taken(&name).ok()?;
                    self.functions.by_column(stream)?;
                    let mut rows = BatchBuilder::new(schema.clone());
                    rows.push(&row);
                    found = Some((name, stream, schema, rows));
                }
            }
        }
        let (_, stream, _, mut rows) = found?;
        Some(Events { stream, from: None, is_run: false, batch: rows.finish() })
    }

    /// Parses one request. An unreadable one becomes a request that will be refused.
    fn read(&self, text: &str, id: &[u8], nth: Option<usize>) -> Request {
        let own = |own: Option<Cow<'_, str>>| own.map_or(id.into(), |own| own.as_bytes().into());
        let (id, call): (RequestId, _) = match serde_json::from_str::<Asked<'_>>(text) {
            Ok(asked) => (own(asked.id.clone()), self.asked(&asked)),
            Err(error) => {
                let named = serde_json::from_str(text).ok().and_then(|named: Named<'_>| named.id);
                (own(named), Err(error.to_string()))
            }
        };
        // In a list, an element without an id can only be identified by its place.
        let of = |why: String| match nth.filter(|_| id.is_empty()) {
            Some(nth) => format!("element {nth} of the list: {why}"),
            None => why,
        };
        let call = call.unwrap_or_else(|why| self.functions.unreadable(&of(why)));
        self.named(Request { id, call })
    }

    /// Refuses a request whose id is too long to come back with its reply.
    fn named(&self, request: Request) -> Request {
        match request.id.len() {
            0..=ID_BYTES_MAX => request,
            bytes => {
                let why = format!(
                    "its request-id has {bytes} bytes, and may have {ID_BYTES_MAX}: these are the first"
                );
                let call = self.functions.unreadable(&why);
                Request { id: request.id[..ID_BYTES_MAX].into(), call }
            }
        }
    }

    /// Creates the call of a request, or returns why it can't be read.
    fn asked(&self, asked: &Asked<'_>) -> Result<Call, String> {
        let row = |raw: Option<&RawValue>, schema: &Schema| {
            values::read_row(raw.map_or("{}", |raw| raw.get()), schema)
        };
        let refused = |error: tidemill_core::Error| error.what;
        match asked {
            Asked { call: Some(name), args, event: None, row: None, .. } => {
                let schema = self.functions.parameters(name).map_err(refused)?;
                let row = row(*args, &schema)?;
                self.functions.check_caller(name, &row).map_err(refused)?;
                self.functions.call(name, &row).map_err(refused)
            }
            Asked { call: None, args: None, event: Some(name), row: event, .. } => {
                let schema = self.functions.columns(name).map_err(refused)?;
                self.functions.only_event(name, &row(*event, &schema)?).map_err(refused)
            }
            _ => Err(
                "it is neither {\"call\": ..., \"args\": ...} nor {\"event\": ..., \"row\": ...}"
                    .into(),
            ),
        }
    }
}

fn own(message: &Message<'_>) -> Option<Record> {
    let mut bytes = message.header(RECORD)?;
    take_record(&mut bytes).filter(|_| bytes.is_empty())
}

/// Returns why a list is refused.
fn too_many(count: usize) -> String {
    format!("it is a list of {count}: give 1 to {TOGETHER_MAX} together")
}

/// The id of an output.
fn place(output: &Output) -> String {
    let (tid, path) = output.id();
    let path: Vec<String> = path.iter().flatten().map(u32::to_string).collect();
    format!("{}/{}", tid.0, path.join("."))
}

/// Writes `"reply":...` or `"aborted":"why"`.
fn write_outcome(outcome: &Result<Value, Abort>, out: &mut Vec<u8>) {
    match outcome {
        Ok(reply) => {
            out.extend_from_slice(b"\"reply\":");
            values::write(reply, out);
        }
        Err(abort) => {
            out.extend_from_slice(b"\"aborted\":");
            values::write(&Value::str(&abort.public_reason()), out);
        }
    }
}

/// Writes `"name":"text"`.
fn write_text(name: &str, text: &str, out: &mut Vec<u8>) {
    values::write(&Value::str(name), out);
    out.push(b':');
    values::write(&Value::str(text), out);
}

impl Json {
    /// Writes the message of a single output.
    fn alone(&self, output: &Output, outgoing: &mut Outgoing) {
        let (headers, value) = (&mut outgoing.headers, &mut outgoing.value);
        headers.push((ID.into(), place(output).into_bytes()));
        match output {
            Output::Reply { id, outcome, .. } => {
                headers.push((REQUEST_ID.into(), id.to_vec()));
                outgoing.key = Some(id.to_vec());
                value.push(b'{');
                write_outcome(outcome, value);
                value.push(b'}');
            }
            Output::Event { stream, row, .. } => {
                if let Some((name, schema)) = self.functions.stream(*stream) {
                    headers.push((STREAM.into(), name.as_bytes().to_vec()));
                    values::write_row(&schema, row, value);
                }
            }
        }
    }

    /// Writes the message of emitted events. It is that of the same single outputs.
    fn emitted(&self, emitted: &Emitted, outgoing: &mut Outgoing) {
        let Emitted { stream, batch, .. } = emitted;
        let event = |((tid, ordinal), row): ((u64, u32), Row)| {
            let (tid, path) = (Tid(tid), [ordinal].as_slice().into());
            Output::Event { tid, path, stream: *stream, row }
        };
        let events: Vec<Output> = emitted.ids().zip(batch.rows()).map(event).collect();
        self.outputs(&events, outgoing);
    }

    /// Writes the message of outputs.
    fn outputs(&self, outputs: &[Output], outgoing: &mut Outgoing) {
        if let [output] = outputs {
            return self.alone(output, outgoing);
        }
        for (nth, output) in outputs.iter().enumerate() {
            outgoing.value.push(if nth == 0 { b'[' } else { b',' });
            self.one_of(output, &mut outgoing.value);
        }
        outgoing.value.push(b']');
    }

    /// Writes one of several outputs in a message.
    fn one_of(&self, output: &Output, out: &mut Vec<u8>) {
        out.push(b'{');
        write_text(ID, &place(output), out);
        match output {
            Output::Reply { id, outcome, .. } => {
                out.push(b',');
                match std::str::from_utf8(id) {
                    Ok(text) => write_text(REQUEST_ID, text, out),
                    Err(_) => {
                        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
                        write_text(REQUEST_ID_HEX, &hex, out);
                    }
                }
                out.push(b',');
                write_outcome(outcome, out);
            }
            Output::Event { stream, row, .. } => {
                if let Some((name, schema)) = self.functions.stream(*stream) {
                    out.push(b',');
                    write_text(STREAM, &name, out);
                    out.extend_from_slice(b",\"row\":");
                    values::write_row(&schema, row, out);
                }
            }
        }
        out.push(b'}');
    }
}

impl Format for Json {
    fn requests(&self, message: &Message<'_>) -> Record {
        let id = message.header(REQUEST_ID).or(message.key).unwrap_or_default();
        let refused = |why: &str| {
            let call = self.functions.unreadable(why);
            Record::Requests(vec![self.named(Request { id: RequestId::from(id), call })])
        };
        // Handlers and streams are numbers, which differ between versions.
        let version = message.header(VERSION);
        let is_other = version.is_some_and(|version| version != self.version.as_bytes());
        match own(message) {
            // Any client can write that header.
            Some(Record::Requests(requests))
                if requests.is_empty() || requests.len() > TOGETHER_MAX =>
            {
                return refused(&too_many(requests.len()));
            }
            Some(Record::Requests(mut requests)) => {
                for Request { call, .. } in requests.iter_mut().filter(|_| is_other) {
                    *call = self.functions.unreadable(OTHER_VERSION);
                }
                let requests = requests.into_iter().map(|request| self.named(request));
                return Record::Requests(requests.collect());
            }
            Some(Record::Events(_)) if is_other => return refused(OTHER_VERSION),
            // A message has one offset.
            Some(Record::Events(events)) => {
                return Record::Events(Events { is_run: false, from: None, ..events })
            }
            _ => {}
        }
        self.record(message.value, id).unwrap_or_else(|why| refused(&why))
    }

    fn encode(&self, record: &Record) -> Outgoing {
        let mut bytes = Vec::new();
        put_record(record, &mut bytes);
        let mut outgoing =
            Outgoing { headers: vec![(RECORD.to_owned(), bytes)], ..Outgoing::default() };
        match record {
            Record::Outputs(outputs) => self.outputs(outputs, &mut outgoing),
            Record::Emitted(emitted) => self.emitted(emitted, &mut outgoing),
            // The value is only for people who look at the topic.
            Record::Requests(requests) => {
                outgoing.key = requests.first().map(|request| request.id.to_vec());
                outgoing.value.extend_from_slice(b"{}");
                outgoing.headers.push((VERSION.into(), self.version.clone().into_bytes()));
            }
            Record::Events(_) => {
                outgoing.value.extend_from_slice(b"{}");
                outgoing.headers.push((VERSION.into(), self.version.clone().into_bytes()));
            }
            // Readers of outputs ignore answers.
            Record::Answer { .. } => {}
            Record::Generation { .. }
            | Record::End
            | Record::Cut(_)
            | Record::Withdrawn { .. }
            | Record::Snapshot(_) => {}
        }
        outgoing
    }

    fn decode(&self, message: &Message<'_>) -> Option<Record> {
        let is_output = |of: &Record| {
            matches!(of, Record::Outputs(_) | Record::Emitted(_) | Record::Answer { .. })
        };
        own(message).filter(is_output)
    }
}

#[cfg(test)]
mod tests;
