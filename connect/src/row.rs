//! One decoded row, before it goes into a batch. A row whose last column fails must leave nothing.

use std::collections::BTreeMap;

use tidemill_core::batch::ColumnBuilder;
use tidemill_core::rules::VALUE_BYTES_MAX;
use tidemill_core::{encode, BatchBuilder, Column, DataType, Error, Result, Schema, Value};

use crate::time::TimeFormat;

/// A decoded value. Texts and bytes are ranges of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    Null,
    /// The column's default.
    Default,
    Int(i64),
    Float(f64),
    Bool(bool),
    /// A range of the record.
    Text(usize, usize),
    /// A range of [`Scratch::text`].
    Copied(usize, usize),
    /// A range of [`Scratch::bytes`].
    Bytes(usize, usize),
}

/// A row's values and their buffers, which are reused for every row.
#[derive(Default)]
pub(crate) struct Scratch {
    pub slots: Vec<Slot>,
    pub text: String,
    pub bytes: Vec<u8>,
}

impl Scratch {
    pub fn clear(&mut self) {
        self.slots.clear();
        self.text.clear();
        self.bytes.clear();
    }

    /// Stores a text that is not part of the record.
    pub fn copy(&mut self, text: &str) -> Slot {
        let start = self.text.len();
        self.text.push_str(text);
        Slot::Copied(start, self.text.len())
    }

    /// Stores the bytes that `write` appends.
    pub fn write(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), String>,
    ) -> Result<Slot, String> {
        let start = self.bytes.len();
        write(&mut self.bytes)?;
        Ok(Slot::Bytes(start, self.bytes.len()))
    }

    /// Stores a list in its encoding.
    pub fn list(&mut self, list: &Value) -> Result<Slot, String> {
        self.write(|out| {
            encode::value(list, out);
            Ok(())
        })
    }

    /// Stores a value of a column's type, or null.
    pub fn value(&mut self, value: &Value) -> Result<Slot, String> {
        Ok(match value {
            Value::Null => Slot::Null,
            Value::Int(int) | Value::Timestamp(int) | Value::Decimal(int, _) => Slot::Int(*int),
            Value::Float(float) => Slot::Float(*float),
            Value::Bool(bool) => Slot::Bool(*bool),
            Value::Str(text) => self.copy(text),
            Value::Bytes(bytes) | Value::Any(bytes) => self.write(|out| {
                out.extend_from_slice(bytes);
                Ok(())
            })?,
            Value::List(_) => self.list(value)?,
        })
    }

    /// Refuses a value that is longer than values may be.
    pub fn bound(&self, rules: &[Rule]) -> Result<(), String> {
        for (slot, rule) in self.slots.iter().zip(rules) {
            let len = match slot {
                Slot::Text(from, to) | Slot::Copied(from, to) | Slot::Bytes(from, to) => to - from,
                _ => 0,
            };
            if len > VALUE_BYTES_MAX {
                return Err(format!("column '{}': {}", rule.field, too_long(len)));
            }
        }
        Ok(())
    }

    /// Appends the row.
    pub fn push(&self, record: &str, rules: &[Rule], rows: &mut BatchBuilder) {
        for ((slot, builder), rule) in self.slots.iter().zip(rows.columns_mut()).zip(rules) {
            match (*slot, builder) {
                (Slot::Int(i), ColumnBuilder::Int(b)) => b.append_value(i),
                (Slot::Float(f), ColumnBuilder::Float(b)) => b.append_value(f),
                (Slot::Bool(v), ColumnBuilder::Bool(b)) => b.append_value(v),
                (Slot::Text(from, to), ColumnBuilder::Str(b)) => b.append_value(&record[from..to]),
                (Slot::Copied(from, to), ColumnBuilder::Str(b)) => {
                    b.append_value(&self.text[from..to])
                }
                (Slot::Bytes(from, to), ColumnBuilder::Bytes(b)) => {
                    b.append_value(&self.bytes[from..to])
                }
                (Slot::Default, builder) => builder.push(&rule.default),
                (Slot::Null, builder) => builder.push_null(),
                (slot, builder) => unreachable!("{slot:?} does not fit {builder:?}"),
            }
        }
        rows.advance(1);
    }
}

/// Returns the reason for a value of this many bytes.
pub(crate) fn too_long(bytes: usize) -> String {
    format!("a value of {bytes} bytes, which may have {VALUE_BYTES_MAX}")
}

/// The properties of a column that formats need.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The name in the schema.
    pub name: String,
    /// The name in the file.
    pub field: String,
    pub ty: DataType,
    pub nullable: bool,
    /// Whether a missing field is the default, or null.
    pub optional: bool,
    /// The default, or null.
    pub default: Value,
    pub time: TimeFormat,
}

/// A text for each column that has one.
pub(crate) type ByColumn = BTreeMap<String, String>;

/// Returns the rules for the columns of `schema`, or an error for a setting that does not fit them.
/// `columns` has their names in the input, and `formats` those of timestamps.
pub(crate) fn rules(schema: &Schema, columns: &ByColumn, formats: &ByColumn) -> Result<Vec<Rule>> {
    for (setting, names) in [("columns", columns), ("formats", formats)] {
        for name in names.keys() {
            schema.find(&format!("setting '{setting}': the stream"), name).map_err(as_setting)?;
        }
    }
    schema.columns.iter().map(|column| rule(column, columns, formats)).collect()
}

fn as_setting(mut error: Error) -> Error {
    error.kind = tidemill_core::Kind::Setting;
    error
}

fn rule(column: &Column, columns: &ByColumn, formats: &ByColumn) -> Result<Rule> {
    let time = match formats.get(&*column.name) {
        None => TimeFormat::Iso,
        Some(format) if column.ty == DataType::Timestamp => TimeFormat::parse(format)
            .map_err(|why| Error::setting(format!("format of column '{}': {why}", column.name)))?,
        Some(_) => {
            let (name, ty) = (&column.name, &column.ty);
            return Err(Error::setting(format!(
                "column '{name}' has a format, but is of type {ty}; only timestamps have formats"
            )));
        }
    };
    let default = match &column.default {
        Some(default) => tidemill_core::rules::store(default, column)
            .map_err(|why| Error::program(format!("default of '{}': {why}", column.name)))?,
        None => Value::Null,
    };
    Ok(Rule {
        name: column.name.to_string(),
        field: columns.get(&*column.name).map_or(&*column.name, String::as_str).into(),
        ty: column.ty.clone(),
        nullable: column.nullable,
        optional: column.nullable || column.default.is_some(),
        default,
        time,
    })
}
