//! Requests and outputs as messages of Kafka.
//!
//! **Requests.** The value is JSON: `{"call": "account.transfer", "args": {"id": 1, "to": 2}}` calls a function
//! or a procedure, `{"event": "payments", "row": {...}}` is an event of a stream. The header `request-id` comes
//! back with the reply. What can't be read is a request that is refused, with the reason. What the
//! coordinator's own clients ask is written in Tidemill's bytes, as its header `record` says.
//!
//! **Outputs.** The value is JSON: `{"reply": ...}` or `{"aborted": "why"}` with the header `request-id`, and an
//! event's row with the header `stream`. The header `id` tells each from all others, for who keeps track of what
//! has been seen. The header `record` has the output in Tidemill's bytes.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tidemill_cluster::wire::{put_record, take_record};
use tidemill_cluster::{Output, Record, RequestId};
use tidemill_connect::{values, Message};
use tidemill_core::{Schema, Value};
use tidemill_function::Call;
use tidemill_kafka::{Format, Outgoing};

use crate::functions::AppFunctions;

const REQUEST_ID: &str = "request-id";
const RECORD: &str = "record";
const STREAM: &str = "stream";
const ID: &str = "id";

/// The messages of an app.
pub(super) struct Json(pub Arc<AppFunctions>);

/// What a client writes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'a> {
    call: Option<String>,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
    event: Option<String>,
    #[serde(borrow)]
    row: Option<&'a RawValue>,
}

impl Json {
    /// What a message asks for, or why it can't be read.
    fn asked(&self, value: Option<&[u8]>) -> Result<Call, String> {
        let value = value.ok_or("the message has no value")?;
        let text = std::str::from_utf8(value).map_err(|_| "the message is no text")?;
        let asked: Asked<'_> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let row = |raw: Option<&RawValue>, schema: &Schema| {
            values::read_row(raw.map_or("{}", |raw| raw.get()), schema)
        };
        let refused = |error: tidemill_core::Error| error.what;
        match asked {
            Asked { call: Some(name), args, event: None, row: None } => {
                let schema = self.0.parameters(&name).map_err(refused)?;
                self.0.call(&name, &row(args, &schema)?).map_err(refused)
            }
            Asked { call: None, args: None, event: Some(name), row: event } => {
                let schema = self.0.columns(&name).map_err(refused)?;
                self.0.only_event(&name, &row(event, &schema)?).map_err(refused)
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

impl Format for Json {
    fn request(&self, message: &Message<'_>) -> Record {
        if let Some(record @ Record::Request { .. }) = own(message) {
            return record;
        }
        let id = message.header(REQUEST_ID).or(message.key).unwrap_or_default();
        let call = self.asked(message.value);
        let call = call.unwrap_or_else(|why| self.0.unreadable(&why));
        Record::Request { id: RequestId::from(id), call }
    }

    fn encode(&self, record: &Record) -> Outgoing {
        let mut bytes = Vec::new();
        put_record(record, &mut bytes);
        let mut headers = vec![(RECORD.to_owned(), bytes)];
        let mut value = Vec::new();
        let mut key = None;
        match record {
            Record::Output(output) => {
                let (tid, path) = output.id();
                let place: Vec<String> = path.iter().flatten().map(u32::to_string).collect();
                let id = format!("{}/{}", tid.0, place.join("."));
                headers.push((ID.into(), id.into_bytes()));
                match output {
                    Output::Reply { id, outcome, .. } => {
                        headers.push((REQUEST_ID.into(), id.to_vec()));
                        key = Some(id.to_vec());
                        match outcome {
                            Ok(reply) => {
                                value.extend_from_slice(b"{\"reply\":");
                                values::write(reply, &mut value);
                            }
                            Err(abort) => {
                                value.extend_from_slice(b"{\"aborted\":");
                                values::write(&Value::str(&abort.reason), &mut value);
                            }
                        }
                        value.push(b'}');
                    }
                    Output::Event { stream, row, .. } => {
                        if let Some((name, schema)) = self.0.stream(*stream) {
                            headers.push((STREAM.into(), name.as_bytes().to_vec()));
                            values::write_row(&schema, row, &mut value);
                        }
                    }
                }
            }
            // For people, who see that there is something.
            Record::Request { id, .. } => {
                key = Some(id.to_vec());
                value.extend_from_slice(b"{}");
            }
            Record::Generation { .. } | Record::Cut(_) | Record::Snapshot(_) => {}
        }
        Outgoing { key, value, headers }
    }

    fn decode(&self, message: &Message<'_>) -> Option<Record> {
        own(message).filter(|record| matches!(record, Record::Output(_)))
    }
}
