//! Avro with the ids of a schema registry: one byte 0, the id of the writer's schema in four bytes,
//! then the record in Avro's binary encoding.
//!
//! Rows are read from the bytes by the writer's schema, without a tree of values, because most
//! columns are one number or one text. Bytes and schemas may be anything that other programs have
//! sent. A length reserves no memory before its bytes are there. The cost of a message is bounded
//! by a function of its length ([`read`]), so the same message is always read or refused alike.
//!
//! The encodings of columns:
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

/// A source of the writers' schemas.
pub trait Schemas: fmt::Debug + Send + Sync {
    /// Returns the schema of an id. Must not block: callers ask again.
    fn schema(&self, id: u32) -> Asked;
}

/// The state of a schema.
#[derive(Clone, Debug)]
pub enum Asked {
    /// It is known.
    Found(Arc<AvroSchema>),
    /// It is not available, for this reason. Messages that were written with it are bad rows.
    Refused(String),
    /// There is no answer yet.
    Later,
}

/// The number of bytes before a record.
const HEAD: usize = 5;

/// Splits a value into the id of the schema and the record.
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
