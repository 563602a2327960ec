//! Avro with the ids of a registry of schemas in front: one byte 0, the id of the writer's schema in four
//! bytes, then the record in Avro's binary encoding.
//!
//! Rows are read from the bytes by the writer's schema, with no tree of values between: most columns are one
//! number or one text. Bytes, and schemas, may be anything that others have sent: a length never makes room
//! before the bytes are there, and what a message may cost is a function of how long it is
//! ([`read`]), so that the same message is read or refused alike each time.
//!
//! How columns are written, and what they are read from:
//!
//! | type | written as | read also from |
//! | --- | --- | --- |
//! | int | long | int; times and dates by their numbers |
//! | float | double | float, long, int |
//! | bool | boolean | |
//! | str | string | bytes that are UTF-8, enum, uuid |
//! | bytes | bytes | fixed, string |
//! | timestamp | long, timestamp-micros | timestamp-millis and -nanos, local-timestamp-…, date; long, int and string by the column's format |
//! | decimal(s) | bytes, decimal(19, s) | any decimal, never rounded; long, int, float, double, string |
//! | list(T) | array of unions of null and T | array |
//! | any | bytes, with the logical type msgpack | anything: records and maps are maps; times, decimals and enums their text |

mod any;
mod decimal;
mod derive;
mod read;
mod rows;
mod schema;
mod write;

use std::fmt;
use std::sync::Arc;

pub use derive::derive;
pub(super) use rows::AvroRows;
pub use schema::AvroSchema;
pub use write::AvroValues;

/// Where the schemas of writers are to be had.
pub trait Schemas: fmt::Debug + Send + Sync {
    /// The schema of an id. Must not wait: whoever asks does so again.
    fn schema(&self, id: u32) -> Asked;
}

/// What is known of a schema.
#[derive(Clone, Debug)]
pub enum Asked {
    /// It is known.
    Found(Arc<AvroSchema>),
    /// It can't be had, and why: messages that were written by it are bad rows.
    Refused(String),
    /// Nobody has answered yet.
    Later,
}

/// The bytes in front of a record.
const HEAD: usize = 5;

/// The id of the schema and the record behind it.
fn split(value: &[u8]) -> Result<(u32, &[u8]), String> {
    match value.split_first_chunk::<HEAD>() {
        Some(([0, id @ ..], record)) => Ok((u32::from_be_bytes(*id), record)),
        Some(([first, ..], _)) => Err(format!(
            "the value does not begin with the byte 0 and the id of a schema, but with the byte {first}"
        )),
        None => Err(format!(
            "the value has {} bytes: too few for the byte 0 and the id of a schema",
            value.len()
        )),
    }
}

#[cfg(test)]
mod tests;
