//! Rows as records, by a schema against which the columns have been checked.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::Array;
use tidemill_core::{Batch, DataType, Error, Result, Schema, Value};

use super::decimal;
use super::schema::{AvroSchema, Kind, Logical, Node};

/// Encodes rows as records after the id of their schema.
#[derive(Debug)]
pub struct AvroValues {
    head: [u8; super::HEAD],
    fields: Vec<Field>,
}

/// The origin of a field's value.
#[derive(Debug)]
enum Field {
    /// A column, and its encoding.
    Column(usize, Shape),
    /// No column: the branch of null.
    Null(u8),
}

/// The encoding of a value.
#[derive(Debug)]
struct Shape {
    /// In a union, the branch of null, if it has one, and the branch of the value.
    branches: Option<(Option<u8>, u8)>,
    ty: DataType,
    /// The number of bytes of a decimal in a fixed.
    size: Option<usize>,
    /// The encoding of a list's items.
    item: Option<Box<Shape>>,
}

impl AvroValues {
    /// Creates an encoder for rows of a schema, as records of the Avro schema with this id.
    ///
    /// # Errors
    /// If the columns and the fields do not fit. The error names one of them.
    pub fn new(schema: &Arc<Schema>, id: u32, avro: &AvroSchema) -> Result<AvroValues> {
        let refused = |what: String, help: &str| {
            let what = format!("the schema {id} does not fit the stream: {what}");
            Err(Error::setting(what).help(help.to_owned()))
        };
        let Kind::Record(record) = &avro.node(avro.root()).kind else {
            let what = format!("it is not a record, but {}", avro.node(avro.root()).kind.name());
            return refused(what, "a row is a record whose fields are the columns");
        };
        let missing = |column: &&tidemill_core::Column| {
            !record.iter().any(|field| *field.name == *column.name)
        };
        if let Some(column) = schema.columns.iter().find(missing) {
            let what = format!("it has no field for column '{}'", column.name);
            return refused(what, "map the stream to one without it, or leave schema= out");
        }
        let mut fields = Vec::with_capacity(record.len());
        for field in record {
            match schema.index_of(&field.name) {
                Some(at) => {
                    let column = &schema.columns[at];
                    match shape(avro, field.node, &column.ty, column.nullable) {
                        Ok(shape) => fields.push(Field::Column(at, shape)),
                        Err(why) => {
                            return refused(
                                format!("column '{}': {why}", column.name),
                                "give the column the type that the schema says, or leave schema= \
                                 out: then one is derived from the columns",
                            );
                        }
                    }
                }
                None => match null_branch(avro, field.node) {
                    Some(branch) => fields.push(Field::Null(branch)),
                    None => {
                        let what = format!("there is no column for its field '{}'", field.name);
                        return refused(
                            what,
                            "fields without a column have to be unions with null",
                        );
                    }
                },
            }
        }
        let mut head = [0; super::HEAD];
        head[1..].copy_from_slice(&id.to_be_bytes());
        Ok(AvroValues { head, fields })
    }

    /// Appends a row.
    pub(in crate::message) fn row(&self, batch: &Batch, row: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        for field in &self.fields {
            match field {
                Field::Null(branch) => put_long(i64::from(*branch), out),
                Field::Column(at, shape) => column(batch, *at, row, shape, out),
            }
        }
    }
}

/// Returns the encoding of a type's values by a part of a schema, or why there is none.
fn shape(avro: &AvroSchema, at: usize, ty: &DataType, nullable: bool) -> Result<Shape, String> {
    let Node { kind, logical } = avro.node(at);
    if let Kind::Union(branches) = kind {
        let null = null_branch(avro, at);
        if nullable && null.is_none() {
            return Err("it may be null, and the union has no null".into());
        }
        let mut why = None;
        for (number, branch) in branches.iter().enumerate() {
            let number = u8::try_from(number).map_err(|_| "the union has too many types")?;
            if Some(number) == null {
                continue;
            }
            match shape(avro, *branch, ty, false) {
                Ok(shape) => return Ok(Shape { branches: Some((null, number)), ..shape }),
                Err(unfit) => why = why.or(Some(unfit)),
            }
        }
        return Err(why.unwrap_or_else(|| "the union has no type but null".into()));
    }
    if nullable {
        return Err(format!("it may be null, and the schema says {} without null", kind.name()));
    }
    let mut made = Shape { branches: None, ty: ty.clone(), size: None, item: None };
    let fits = match (ty, kind, logical) {
        (DataType::Int, Kind::Long, Logical::None)
        | (DataType::Float, Kind::Double, _)
        | (DataType::Bool, Kind::Bool, _)
        | (DataType::Str, Kind::Str, Logical::None)
        | (DataType::Bytes, Kind::Bytes, Logical::None)
        | (DataType::Timestamp, Kind::Long, Logical::Micros)
        | (DataType::Any, Kind::Bytes, Logical::Msgpack) => true,
        (DataType::Decimal(scale), Kind::Bytes, Logical::Decimal(of)) => u32::from(*scale) == *of,
        (DataType::Decimal(scale), Kind::Fixed(size), Logical::Decimal(of)) => {
            made.size = Some(*size);
            // Any 64 bits fit, and a message is not filled with sign bytes.
            u32::from(*scale) == *of && (8..=64).contains(size)
        }
        (DataType::List(ty), Kind::Array(item), _) => {
            let item = shape(avro, *item, ty, true).map_err(|why| format!("an item: {why}"))?;
            made.item = Some(Box::new(item));
            true
        }
        _ => false,
    };
    match fits {
        true => Ok(made),
        false => {
            Err(format!("it is of type {ty}, and the schema says {}", description(kind, *logical)))
        }
    }
}

/// Returns a part of a schema in words.
fn description(kind: &Kind, logical: Logical) -> String {
    let of = |name: &str| format!("{} ({name})", kind.name());
    match logical {
        Logical::None => kind.name().into(),
        Logical::Date => of("date"),
        Logical::Millis => of("timestamp-millis"),
        Logical::Micros => of("timestamp-micros"),
        Logical::Nanos => of("timestamp-nanos"),
        Logical::Decimal(scale) => of(&format!("decimal with scale {scale}")),
        Logical::Uuid => of("uuid"),
        Logical::Msgpack => of("msgpack"),
    }
}

/// Returns the branch of a union that is null.
fn null_branch(avro: &AvroSchema, at: usize) -> Option<u8> {
    let Kind::Union(branches) = &avro.node(at).kind else { return None };
    let null = branches.iter().position(|branch| matches!(avro.node(*branch).kind, Kind::Null));
    null.and_then(|at| u8::try_from(at).ok())
}

/// Appends a number in Avro's packed form.
fn put_long(long: i64, out: &mut Vec<u8>) {
    let mut packed = (long << 1 ^ long >> 63) as u64;
    while packed >= 0x80 {
        out.push(packed as u8 | 0x80);
        packed >>= 7;
    }
    out.push(packed as u8);
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_long(bytes.len() as i64, out);
    out.extend_from_slice(bytes);
}

fn column(batch: &Batch, at: usize, row: usize, shape: &Shape, out: &mut Vec<u8>) {
    let array = &batch.columns()[at];
    let is_null = array.is_null(row);
    if is_null || matches!(shape.ty, DataType::Decimal(_) | DataType::List(_)) {
        return put(&batch.value(at, row), shape, out);
    }
    branch(shape, out);
    match shape.ty {
        DataType::Int | DataType::Timestamp => {
            put_long(array.as_primitive::<Int64Type>().value(row), out);
        }
        DataType::Float => {
            let float = array.as_primitive::<Float64Type>().value(row);
            out.extend_from_slice(&float.to_le_bytes());
        }
        DataType::Bool => out.push(u8::from(array.as_boolean().value(row))),
        DataType::Str => put_bytes(array.as_string::<i32>().value(row).as_bytes(), out),
        _ => put_bytes(array.as_binary::<i32>().value(row), out),
    }
}

/// Appends the number of the branch before a value in a union.
fn branch(shape: &Shape, out: &mut Vec<u8>) {
    if let Some((_, branch)) = shape.branches {
        put_long(i64::from(branch), out);
    }
}

fn put(value: &Value, shape: &Shape, out: &mut Vec<u8>) {
    if let Value::Null = value {
        // Every column that may be null was checked to have a branch for it.
        let null = shape.branches.and_then(|(null, _)| null);
        return put_long(i64::from(null.unwrap_or(0)), out);
    }
    branch(shape, out);
    match value {
        Value::Null => {}
        Value::Int(long) | Value::Timestamp(long) => put_long(*long, out),
        Value::Float(float) => out.extend_from_slice(&float.to_le_bytes()),
        Value::Bool(bool) => out.push(u8::from(*bool)),
        Value::Str(text) => put_bytes(text.as_bytes(), out),
        Value::Bytes(bytes) | Value::Any(bytes) => put_bytes(bytes, out),
        Value::Decimal(units, _) => match shape.size {
            None => put_bytes(decimal::bytes(*units).as_ref(), out),
            Some(size) => {
                let fill = if *units < 0 { 0xff } else { 0 };
                out.resize(out.len() + size - 8, fill);
                out.extend_from_slice(&units.to_be_bytes());
            }
        },
        Value::List(items) => {
            if let (Some(item), false) = (&shape.item, items.is_empty()) {
                put_long(items.len() as i64, out);
                items.iter().for_each(|value| put(value, item, out));
            }
            put_long(0, out);
        }
    }
}
