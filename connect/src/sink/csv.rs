//! Rows as CSV that reads back as the same rows: null is an empty field, the empty text is `""`.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::Array;
use tidemill_core::value::{format_decimal, format_timestamp};
use tidemill_core::{Batch, DataType, Error, Result, Schema};

use super::file::Encode;
use crate::csv::Dialect;
use crate::json;
use crate::msgpack;

const QUOTE: u8 = b'"';

/// Encodes rows as CSV.
pub(super) struct CsvEncode {
    schema: Arc<Schema>,
    delimiter: u8,
    null: Vec<u8>,
    header: bool,
    /// Whether integers never need quotes.
    plain_ints: bool,
    cell: Vec<u8>,
}

impl CsvEncode {
    pub fn new(
        path: &Path,
        schema: &Arc<Schema>,
        dialect: Dialect,
        null: String,
        header: bool,
    ) -> Result<CsvEncode> {
        let special = |b: u8| b == dialect.delimiter || matches!(b, QUOTE | b'\n' | b'\r');
        if null.bytes().any(special) {
            let path = path.display();
            return Err(Error::setting(format!(
                "{path}: null={null:?} has a delimiter, a quote or a newline in it"
            ))
            .help("choose a text without them, such as null=\"NA\""));
        }
        if let ([column], true) = (&schema.columns[..], null.is_empty()) {
            if column.nullable && column.ty == DataType::Str {
                return Err(Error::setting(format!(
                    "{}: with '{}' as its only column a row that is null would be a blank line",
                    path.display(),
                    column.name
                ))
                .help("say null=\"\\\\N\", or write a .jsonl file"));
            }
        }
        let of_int = |b: &u8| b.is_ascii_digit() || *b == b'-';
        // An empty text for null is no integer.
        let is_int = !null.is_empty() && null.bytes().all(|b| of_int(&b));
        let plain_ints = !of_int(&dialect.delimiter) && !is_int;
        Ok(CsvEncode {
            schema: schema.clone(),
            delimiter: dialect.delimiter,
            null: null.into_bytes(),
            header,
            plain_ints,
            cell: Vec::new(),
        })
    }

    /// Whether a cell needs quotes.
    fn needs_quotes(&self, cell: &[u8]) -> bool {
        cell.is_empty()
            || cell == self.null
            || cell.iter().any(|&b| b == self.delimiter || matches!(b, QUOTE | b'\n' | b'\r'))
            // At the beginning of a file it would be a byte order mark.
            || cell.starts_with("\u{feff}".as_bytes())
    }

    fn put(&self, cell: &[u8], out: &mut Vec<u8>) {
        if !self.needs_quotes(cell) {
            return out.extend_from_slice(cell);
        }
        out.push(QUOTE);
        for &byte in cell {
            out.push(byte);
            if byte == QUOTE {
                out.push(QUOTE);
            }
        }
        out.push(QUOTE);
    }

    fn put_null(&self, out: &mut Vec<u8>) {
        // An empty line would not be a record. Only a text distinguishes quotes from nothing.
        if self.null.is_empty() && self.schema.len() == 1 {
            out.extend_from_slice(b"\"\"");
        }
        out.extend_from_slice(&self.null);
    }
}

impl Encode for CsvEncode {
    fn header(&self, out: &mut Vec<u8>) {
        if !self.header {
            return;
        }
        for (i, column) in self.schema.columns.iter().enumerate() {
            if i > 0 {
                out.push(self.delimiter);
            }
            // White space around an unquoted name is not part of it.
            if column.name.trim() != &*column.name && !self.needs_quotes(column.name.as_bytes()) {
                out.push(QUOTE);
                out.extend_from_slice(column.name.as_bytes());
                out.push(QUOTE);
            } else {
                self.put(column.name.as_bytes(), out);
            }
        }
        out.push(b'\n');
    }

    fn rows(&mut self, batch: &Batch, out: &mut Vec<u8>) {
        let mut cell = std::mem::take(&mut self.cell);
        let schema = self.schema.clone();
        for row in 0..batch.len() {
            for (i, (column, array)) in schema.columns.iter().zip(batch.columns()).enumerate() {
                if i > 0 {
                    out.push(self.delimiter);
                }
                if array.is_null(row) {
                    self.put_null(out);
                    continue;
                }
                match column.ty {
                    DataType::Str => {
                        self.put(array.as_string::<i32>().value(row).as_bytes(), out);
                        continue;
                    }
                    DataType::Int if self.plain_ints => {
                        json::write_int(array.as_primitive::<Int64Type>().value(row), out);
                        continue;
                    }
                    _ => {}
                }
                cell.clear();
                write_cell(batch, &column.ty, i, row, &mut cell);
                self.put(&cell, out);
            }
            out.push(b'\n');
        }
        self.cell = cell;
    }
}

fn write_cell(batch: &Batch, ty: &DataType, column: usize, row: usize, cell: &mut Vec<u8>) {
    let array = &batch.columns()[column];
    let int = || array.as_primitive::<Int64Type>().value(row);
    let bytes = || array.as_binary::<i32>().value(row);
    match ty {
        DataType::Int => json::write_int(int(), cell),
        DataType::Decimal(scale) => {
            cell.extend_from_slice(format_decimal(int(), *scale).as_bytes())
        }
        DataType::Timestamp => cell.extend_from_slice(format_timestamp(int()).as_bytes()),
        DataType::Float => json::float_text(array.as_primitive::<Float64Type>().value(row), cell),
        DataType::Bool => {
            let text = if array.as_boolean().value(row) { "true" } else { "false" };
            cell.extend_from_slice(text.as_bytes());
        }
        DataType::Str => cell.extend_from_slice(array.as_string::<i32>().value(row).as_bytes()),
        DataType::Bytes => json::bytes_text(bytes(), cell),
        DataType::Any => msgpack::to_json(bytes(), cell),
        DataType::List(_) => json::write_value(&batch.value(column, row), cell),
    }
}
