//! Rows as maps of msgpack.

use std::sync::Arc;

use tidemill_core::value::format_decimal;
use tidemill_core::{Batch, Schema, Value};

use crate::msgpack::{put_bytes, put_float, put_int, put_str, put_timestamp};

/// Encodes rows as maps: all fields in the order of the columns, including null ones.
///
/// Timestamps are msgpack's extension -1, decimals their text, and values of `any` columns
/// unchanged.
pub(super) struct Pack {
    names: Vec<String>,
}

impl Pack {
    pub fn new(schema: &Arc<Schema>) -> Pack {
        Pack { names: schema.columns.iter().map(|column| column.name.to_string()).collect() }
    }

    pub fn row(&self, batch: &Batch, row: usize, out: &mut Vec<u8>) {
        head(self.names.len(), 0x80, 0xde, out);
        for (column, name) in self.names.iter().enumerate() {
            put_str(name, out);
            put(&batch.value(column, row), out);
        }
    }
}

/// Appends the head of an array or a map.
fn head(len: usize, short: u8, long: u8, out: &mut Vec<u8>) {
    match len {
        0..16 => out.push(short | len as u8),
        16..0x1_0000 => {
            out.push(long);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        // A row is far shorter than so many items.
        _ => {
            out.push(long + 1);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

fn put(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(bool) => out.push(if *bool { 0xc3 } else { 0xc2 }),
        Value::Int(int) => put_int(*int, out),
        Value::Float(float) => put_float(*float, out),
        Value::Str(text) => put_str(text, out),
        Value::Bytes(bytes) => put_bytes(bytes, out),
        Value::Timestamp(us) => put_timestamp(*us, out),
        Value::Decimal(units, scale) => put_str(&format_decimal(*units, *scale), out),
        Value::Any(bytes) => out.extend_from_slice(bytes),
        Value::List(items) => {
            head(items.len(), 0x90, 0xdc, out);
            items.iter().for_each(|item| put(item, out));
        }
    }
}
