//! Rows as JSON lines.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::Array;
use tidemill_core::{Batch, DataType, Schema};

use super::file::Encode;
use crate::json;
use crate::msgpack;

/// Encodes rows as JSON lines: all fields in the order of the columns, including null ones.
pub(crate) struct JsonlEncode {
    /// The text before each value: a brace or a comma, the name, a colon.
    heads: Vec<(Vec<u8>, DataType)>,
}

impl JsonlEncode {
    pub fn new(schema: &Arc<Schema>) -> JsonlEncode {
        let head = |(i, column): (usize, &tidemill_core::Column)| {
            let mut head = vec![if i == 0 { b'{' } else { b',' }];
            json::write_string(&column.name, &mut head);
            head.push(b':');
            (head, column.ty.clone())
        };
        JsonlEncode { heads: schema.columns.iter().enumerate().map(head).collect() }
    }

    /// Appends a row as an object, without a newline.
    pub fn row(&self, batch: &Batch, row: usize, out: &mut Vec<u8>) {
        for (i, ((head, ty), array)) in self.heads.iter().zip(batch.columns()).enumerate() {
            out.extend_from_slice(head);
            if array.is_null(row) {
                out.extend_from_slice(b"null");
                continue;
            }
            match ty {
                DataType::Int => {
                    json::write_int(array.as_primitive::<Int64Type>().value(row), out);
                }
                DataType::Float => {
                    json::write_float(array.as_primitive::<Float64Type>().value(row), out)
                }
                DataType::Str => json::write_string(array.as_string::<i32>().value(row), out),
                DataType::Any => msgpack::to_json(array.as_binary::<i32>().value(row), out),
                _ => json::write_value(&batch.value(i, row), out),
            }
        }
        out.push(b'}');
    }
}

impl Encode for JsonlEncode {
    fn header(&self, _out: &mut Vec<u8>) {}

    fn rows(&mut self, batch: &Batch, out: &mut Vec<u8>) {
        for row in 0..batch.len() {
            self.row(batch, row, out);
            out.push(b'\n');
        }
    }
}
