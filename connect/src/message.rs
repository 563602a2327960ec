//! Messages of a topic as rows, and rows as messages.
//!
//! A message's value is an object whose fields are columns, in JSON, msgpack or Avro. Columns may
//! also hold data beside the value: its key, headers, time, partition and offset. A message that
//! can't be read becomes a bad row with the reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Batch, BatchBuilder, DataType, Error, Result, Schema};

use crate::files::UnknownFields;
use crate::jsonl::JsonObjects;
use crate::row::{rules, Rule, Scratch, Slot};
use crate::sink::jsonl::JsonlEncode;

mod avro;
mod metadata;
mod pack;
mod unpack;

use avro::AvroRows;
use metadata::Metadata;
use pack::Pack;
use unpack::Unpack;

pub use avro::{derive as derive_avro, Asked, AvroSchema, AvroValues, Schemas};

/// A message that was read.
#[derive(Clone, Debug, Default)]
pub struct Message<'a> {
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// The headers in their order, without those that have no value.
    pub headers: Vec<(&'a str, &'a [u8])>,
    /// The time at which it was created or appended, in milliseconds since 1970.
    pub timestamp_ms: Option<i64>,
    /// The partition.
    pub partition: u32,
    /// The offset in the partition.
    pub offset: u64,
}

impl Message<'_> {
    /// Returns the value of the last header with a name.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().rev().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }
}

/// The encoding of messages' values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageFormat {
    /// An object of JSON.
    #[default]
    Json,
    /// A map of msgpack.
    Msgpack,
    /// A record of Avro, after the id of its schema in a registry.
    Avro,
}

/// The settings by which messages become rows.
#[derive(Clone, Debug, Default)]
pub struct MessageSettings {
    /// The encoding of the values.
    pub format: MessageFormat,
    /// The columns of the stream whose names in the value differ, and those names.
    pub columns: BTreeMap<String, String>,
    /// The formats of timestamp columns, as in [`crate::FilesSettings::formats`].
    pub formats: BTreeMap<String, String>,
    /// The treatment of fields for which the stream has no column.
    pub unknown_fields: UnknownFields,
    /// The columns that hold other data instead of a field of the value: `key`, `value` (the whole
    /// value, unchanged), `timestamp`, `partition`, `offset`, or `header:` and a name.
    pub meta: BTreeMap<String, String>,
    /// The source of the writers' schemas; Avro needs it.
    pub schemas: Option<Arc<dyn Schemas>>,
}

/// Decodes messages.
pub struct MessageRows {
    body: Body,
    meta: Vec<(Metadata, Rule)>,
    /// The rules of all columns, in their order.
    rules: Vec<Rule>,
    /// The slot of each column, among those of the value followed by those beside it.
    places: Vec<usize>,
    scratch: Scratch,
    slots: Vec<Slot>,
}

enum Body {
    /// The value is not read, because all columns hold data beside it.
    Unread,
    Json(JsonObjects),
    Msgpack(Unpack),
    Avro(AvroRows),
}

impl MessageRows {
    /// Creates a decoder for rows of a schema.
    ///
    /// # Errors
    /// If a setting does not fit the schema.
    pub fn new(schema: &Schema, settings: &MessageSettings) -> Result<MessageRows> {
        for name in settings.meta.keys() {
            let found = schema.find("setting 'meta': the stream", name);
            found.map_err(|error| Error { kind: tidemill_core::Kind::Setting, ..error })?;
            if settings.columns.contains_key(name) || settings.formats.contains_key(name) {
                return Err(Error::setting(format!(
                    "column '{name}' is in meta, but also in columns or formats"
                ))
                .help("leave it in one: a column holds a field of the value, or metadata of the message"));
            }
        }
        let all = rules(schema, &settings.columns, &settings.formats)?;
        let (mut body, mut meta, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let in_body = schema.columns.len() - settings.meta.len();
        for (rule, column) in
            rules(schema, &settings.columns, &settings.formats)?.into_iter().zip(&schema.columns)
        {
            match settings.meta.get(&*column.name) {
                Some(from) => {
                    places.push(in_body + meta.len());
                    meta.push((Metadata::parse(from, &rule)?, rule));
                }
                None => {
                    places.push(body.len());
                    body.push(rule);
                }
            }
        }
        let unknown = settings.unknown_fields;
        let body = match (body.is_empty() && !meta.is_empty(), settings.format) {
            (true, _) => Body::Unread,
            (_, MessageFormat::Json) => Body::Json(JsonObjects { rules: body, unknown }),
            (_, MessageFormat::Msgpack) => Body::Msgpack(Unpack { rules: body, unknown }),
            (_, MessageFormat::Avro) => {
                let schemas = settings.schemas.clone().ok_or_else(without_schema)?;
                Body::Avro(AvroRows::new(body, unknown, schemas))
            }
        };
        let (scratch, slots) = Default::default();
        Ok(MessageRows { body, meta, rules: all, places, scratch, slots })
    }

    /// Whether everything needed to decode a message is known. If not, this asks for it. Until it
    /// is known, this message and those after it must wait.
    pub fn is_ready(&mut self, message: &Message<'_>) -> bool {
        match (&mut self.body, message.value) {
            (Body::Avro(records), Some(value)) => records.is_ready(value),
            _ => true,
        }
    }

    /// Appends a message as a row, or appends nothing and returns the reason. The message must be
    /// [ready](MessageRows::is_ready).
    ///
    /// # Errors
    /// The reason, with the column's name if a column is the cause.
    pub fn decode(&mut self, message: &Message<'_>, rows: &mut BatchBuilder) -> Result<(), String> {
        let scratch = &mut self.scratch;
        scratch.clear();
        let value = || message.value.ok_or("the message has no value (it is a tombstone)");
        match &self.body {
            Body::Unread => {}
            Body::Json(objects) => objects.slots(value()?, scratch)?,
            Body::Msgpack(maps) => maps.slots(value()?, scratch)?,
            Body::Avro(records) => records.slots(value()?, scratch)?,
        }
        for (beside, rule) in &self.meta {
            let slot = beside
                .slot(message, rule, scratch)
                .map_err(|why| format!("column '{}': {why}", rule.name))?;
            scratch.slots.push(slot);
        }
        self.slots.clear();
        self.slots.extend(self.places.iter().map(|place| scratch.slots[*place]));
        std::mem::swap(&mut self.slots, &mut scratch.slots);
        scratch.bound(&self.rules)?;
        scratch.push("", &self.rules, rows);
        Ok(())
    }
}

/// Encodes rows as values of messages.
pub struct MessageValues {
    format: Values,
    /// The columns of the key.
    key: Vec<usize>,
    types: Vec<DataType>,
}

enum Values {
    Json(JsonlEncode),
    Msgpack(Pack),
    Avro(AvroValues),
}

/// Returns the error that Avro can't be read or written without a registry.
fn without_schema() -> Error {
    Error::setting("messages in Avro need a schema registry")
        .help("say registry=\"http://host:8081\"")
}

impl MessageValues {
    /// Creates an encoder for rows of a schema. `key` are the columns of the key, which are also in
    /// the value. For Avro there is [another constructor](MessageValues::avro).
    ///
    /// # Errors
    /// If the schema has no such column.
    pub fn new(
        schema: &Arc<Schema>,
        format: MessageFormat,
        key: &[String],
    ) -> Result<MessageValues> {
        let format = match format {
            MessageFormat::Json => Values::Json(JsonlEncode::new(schema)),
            MessageFormat::Msgpack => Values::Msgpack(Pack::new(schema)),
            MessageFormat::Avro => return Err(without_schema()),
        };
        MessageValues::of(schema, format, key)
    }

    /// Creates an encoder for rows of a schema as records of Avro.
    ///
    /// # Errors
    /// If the schema lacks a column of the key.
    pub fn avro(
        schema: &Arc<Schema>,
        records: AvroValues,
        key: &[String],
    ) -> Result<MessageValues> {
        MessageValues::of(schema, Values::Avro(records), key)
    }

    fn of(schema: &Arc<Schema>, format: Values, key: &[String]) -> Result<MessageValues> {
        let find = |name: &String| {
            let found = schema.find("setting 'key': the stream", name);
            found.map_err(|error| Error { kind: tidemill_core::Kind::Setting, ..error })
        };
        let key = key.iter().map(find).collect::<Result<Vec<_>>>()?;
        let types = key.iter().map(|column| schema.columns[*column].ty.clone()).collect();
        Ok(MessageValues { format, key, types })
    }

    /// Appends the value of a row.
    pub fn value(&self, batch: &Batch, row: usize, out: &mut Vec<u8>) {
        match &self.format {
            Values::Json(json) => json.row(batch, row, out),
            Values::Msgpack(pack) => pack.row(batch, row, out),
            Values::Avro(records) => records.row(batch, row, out),
        }
    }

    /// Appends the key of a row. Returns `false` if it has none: there are no columns for it, or
    /// its only column is null.
    ///
    /// A single column is its text as in CSV, or its bytes. Several columns are an array of JSON.
    pub fn key(&self, batch: &Batch, row: usize, out: &mut Vec<u8>) -> bool {
        match &self.key[..] {
            [] => false,
            [column] => metadata::key_text(&batch.value(*column, row), &self.types[0], out),
            columns => {
                for (i, column) in columns.iter().enumerate() {
                    out.push(if i == 0 { b'[' } else { b',' });
                    crate::json::write_value(&batch.value(*column, row), out);
                }
                out.push(b']');
                true
            }
        }
    }
}

#[cfg(test)]
mod tests;
