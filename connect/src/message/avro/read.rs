//! Values of columns from Avro's binary encoding.

use tidemill_core::value::{canonical_f64, check_years};
use tidemill_core::{DataType, Value};

use super::decimal;
use super::schema::{AvroSchema, Kind, Logical, Node};
use crate::msgpack::{get, DEPTH_MAX};
use crate::row::{Rule, Scratch, Slot};
use crate::text::{self, quoted};
use crate::time::TimeFormat;

/// The reason for bytes that end too early, or are not Avro.
const DAMAGED: &str = "the value ends too early, or is not what its schema says";

/// The steps that reading any message may take, and those that each of its bytes adds. Without a
/// bound, a message could have any number of items without bytes, such as nulls.
const STEPS: u64 = 1 << 16;
const STEPS_A_BYTE: u64 = 4;
/// The largest size of the field names that a message may produce, in bytes. They are in its
/// schema, and may occur again for each item.
const NAMES_MAX: usize = 16 << 20;

const DAY_US: i64 = 86_400_000_000;

/// Reads the parts of a value from bytes. After an error the rest is meaningless.
pub(super) struct Reader<'a> {
    pub schema: &'a AvroSchema,
    input: &'a [u8],
    steps: u64,
    names: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader for the record in a message.
    pub fn new(schema: &'a AvroSchema, input: &'a [u8]) -> Reader<'a> {
        let steps = STEPS + STEPS_A_BYTE * input.len() as u64;
        Reader { schema, input, steps, names: NAMES_MAX }
    }

    /// Returns how many bytes are left.
    pub fn left(&self) -> usize {
        self.input.len()
    }

    /// Counts a step.
    pub fn step(&mut self) -> Result<(), String> {
        let left = self.steps.checked_sub(1);
        self.steps =
            left.ok_or("the value has more parts than a message of its length may have")?;
        Ok(())
    }

    /// Counts the bytes of names that are written.
    pub fn names(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.names.checked_sub(bytes);
        self.names = left.ok_or_else(|| {
            format!("the value has more than {} MiB of names of fields", NAMES_MAX >> 20)
        })?;
        Ok(())
    }

    /// Returns the number of a part of the schema that is not a union: the branch in the bytes, if
    /// it is one.
    pub fn branch(&mut self, at: usize) -> Result<usize, String> {
        match &self.schema.node(at).kind {
            Kind::Union(branches) => {
                let branch = self.long()?;
                let taken = usize::try_from(branch).ok().and_then(|branch| branches.get(branch));
                taken.copied().ok_or_else(|| {
                    format!("a union of {} types has no branch {branch}", branches.len())
                })
            }
            _ => Ok(at),
        }
    }

    /// Reads a number in its packed form.
    pub fn long(&mut self) -> Result<i64, String> {
        let (mut packed, mut shift) = (0u64, 0);
        loop {
            let [byte] = *get(&mut self.input, 1).ok_or(DAMAGED)? else {
                return Err(DAMAGED.into());
            };
            // The tenth byte has the last bit.
            if shift == 63 && byte > 1 {
                return Err("a number has more than 64 bits".into());
            }
            packed |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((packed >> 1) as i64 ^ -((packed & 1) as i64));
            }
            shift += 7;
        }
    }

    pub fn int(&mut self) -> Result<i64, String> {
        let long = self.long()?;
        match i32::try_from(long) {
            Ok(_) => Ok(long),
            Err(_) => Err(format!("{long} is out of range for an int of Avro")),
        }
    }

    pub fn bool(&mut self) -> Result<bool, String> {
        match get(&mut self.input, 1) {
            Some([0]) => Ok(false),
            Some([1]) => Ok(true),
            _ => Err(DAMAGED.into()),
        }
    }

    /// Reads a float or a double.
    pub fn float(&mut self, kind: &Kind) -> Result<f64, String> {
        let float = match kind {
            Kind::Float => {
                let bytes = self.fixed(4)?.first_chunk().ok_or(DAMAGED)?;
                f64::from(f32::from_le_bytes(*bytes))
            }
            _ => f64::from_le_bytes(*self.fixed(8)?.first_chunk().ok_or(DAMAGED)?),
        };
        Ok(canonical_f64(float))
    }

    pub fn fixed(&mut self, size: usize) -> Result<&'a [u8], String> {
        get(&mut self.input, size).ok_or_else(|| DAMAGED.into())
    }

    /// Reads bytes after their length.
    pub fn bytes(&mut self) -> Result<&'a [u8], String> {
        let len = self.long()?;
        let len = usize::try_from(len).map_err(|_| format!("{len} is no length"))?;
        self.fixed(len)
    }

    pub fn text(&mut self) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes()?).map_err(|_| "a string is not valid UTF-8".to_owned())
    }

    pub fn symbol(&mut self, symbols: &'a [String]) -> Result<&'a str, String> {
        let at = self.long()?;
        let symbol = usize::try_from(at).ok().and_then(|at| symbols.get(at));
        let symbol = symbol.map(String::as_str);
        symbol.ok_or_else(|| format!("an enum of {} symbols has no symbol {at}", symbols.len()))
    }

    /// Reads the number of items in the next block of an array or a map, and its size in bytes if
    /// it is given. The number is 0 after the last block.
    pub fn block(&mut self) -> Result<(u64, Option<usize>), String> {
        let items = self.long()?;
        if items >= 0 {
            return Ok((items as u64, None));
        }
        let bytes = self.long()?;
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= self.left() => Ok((items.unsigned_abs(), Some(bytes))),
            _ => {
                Err(format!("a block says that it has {bytes} bytes, and {} are left", self.left()))
            }
        }
    }

    /// Skips a value, with everything in it.
    pub fn skip(&mut self, at: usize, depth: usize) -> Result<(), String> {
        self.step()?;
        let at = self.branch(at)?;
        let schema = self.schema;
        match &schema.node(at).kind {
            Kind::Null => {}
            Kind::Bool => drop(self.bool()?),
            Kind::Int => drop(self.int()?),
            Kind::Long => drop(self.long()?),
            Kind::Float => drop(self.fixed(4)?),
            Kind::Double => drop(self.fixed(8)?),
            Kind::Bytes | Kind::Str => drop(self.bytes()?),
            Kind::Fixed(size) => drop(self.fixed(*size)?),
            Kind::Enum(symbols) => drop(self.symbol(symbols)?),
            Kind::Record(fields) => {
                let depth = deeper(depth)?;
                for field in fields {
                    self.skip(field.node, depth)?;
                }
            }
            kind @ (Kind::Array(item) | Kind::Map(item)) => {
                let depth = deeper(depth)?;
                loop {
                    let items = match self.block()? {
                        (0, _) => break,
                        (_, Some(bytes)) => {
                            self.fixed(bytes)?;
                            continue;
                        }
                        (items, None) => items,
                    };
                    for _ in 0..items {
                        if let Kind::Map(_) = kind {
                            self.bytes()?;
                        }
                        self.skip(*item, depth)?;
                    }
                }
            }
            Kind::Union(_) => return Err(DAMAGED.into()),
        }
        Ok(())
    }

    /// Reads a column's value.
    pub fn slot(&mut self, at: usize, rule: &Rule, scratch: &mut Scratch) -> Result<Slot, String> {
        let at = self.branch(at)?;
        let schema = self.schema;
        let node = schema.node(at);
        // The shortest path is for the most frequent columns.
        match (&node.kind, &rule.ty) {
            (Kind::Null, _) if rule.nullable => return Ok(Slot::Null),
            (Kind::Long, DataType::Int) => return self.long().map(Slot::Int),
            (Kind::Str, DataType::Str) => return Ok(scratch.copy(self.text()?)),
            (Kind::Double, DataType::Float) => return self.float(&node.kind).map(Slot::Float),
            (_, DataType::Any) => return scratch.write(|out| self.any(at, out, DEPTH_MAX)),
            (Kind::Null, _) => return Err("null, but the column may not be null".into()),
            _ => {}
        }
        scratch.value(&self.value(at, &rule.ty, &rule.time, DEPTH_MAX)?)
    }

    /// Reads a value of a type, or null, by a part of the schema that is not a union.
    fn value(
        &mut self,
        at: usize,
        ty: &DataType,
        time: &TimeFormat,
        depth: usize,
    ) -> Result<Value, String> {
        self.step()?;
        let schema = self.schema;
        let Node { kind, logical } = schema.node(at);
        Ok(match (ty, kind) {
            (_, Kind::Null) => Value::Null,
            (DataType::Any, _) => {
                let mut out = Vec::new();
                self.any(at, &mut out, depth)?;
                Value::Any(out.into())
            }
            (DataType::Int, Kind::Long) => Value::Int(self.long()?),
            (DataType::Int, Kind::Int) => Value::Int(self.int()?),
            (DataType::Float, Kind::Float | Kind::Double) => Value::Float(self.float(kind)?),
            (DataType::Float, Kind::Long) => Value::Float(self.long()? as f64),
            (DataType::Float, Kind::Int) => Value::Float(self.int()? as f64),
            (DataType::Bool, Kind::Bool) => Value::Bool(self.bool()?),
            (DataType::Str, Kind::Str | Kind::Bytes) if !matches!(logical, Logical::Decimal(_)) => {
                Value::str(self.text()?)
            }
            (DataType::Str, Kind::Enum(symbols)) => Value::str(self.symbol(symbols)?),
            (DataType::Str, Kind::Fixed(16)) if *logical == Logical::Uuid => {
                Value::str(&uuid(self.fixed(16)?))
            }
            (DataType::Bytes, Kind::Bytes | Kind::Str) => Value::Bytes(self.bytes()?.into()),
            (DataType::Bytes, Kind::Fixed(size)) => Value::Bytes(self.fixed(*size)?.into()),
            (DataType::Timestamp, _) => Value::Timestamp(self.timestamp(kind, *logical, time)?),
            (DataType::Decimal(scale), _) => {
                Value::Decimal(self.decimal(kind, *logical, *scale)?, *scale)
            }
            (DataType::List(item), Kind::Array(node)) => {
                let depth = deeper(depth)?;
                let mut items = Vec::new();
                loop {
                    let (count, _) = self.block()?;
                    if count == 0 {
                        break;
                    }
                    for _ in 0..count {
                        let taken = self.branch(*node)?;
                        let value = self.value(taken, item, time, depth);
                        items.push(value.map_err(|why| format!("item {}: {why}", items.len()))?);
                    }
                }
                Value::List(items.into())
            }
            (ty, kind) => return Err(unfit(ty, kind)),
        })
    }

    /// Reads the microseconds of a logical type, or of a value in the column's format.
    fn timestamp(
        &mut self,
        kind: &Kind,
        logical: Logical,
        time: &TimeFormat,
    ) -> Result<i64, String> {
        if let Some(us) = self.instant(logical)? {
            return check_years(us);
        }
        let number = match kind {
            Kind::Long => self.long()?,
            Kind::Int => self.int()?,
            Kind::Str => return time.read(self.text()?),
            kind => return Err(unfit(&DataType::Timestamp, kind)),
        };
        match time {
            TimeFormat::Unix(_) => time.read(&number.to_string()),
            _ => check_years(number),
        }
    }

    /// Reads the microseconds of a date or a time of a logical type. For other types it reads and
    /// returns nothing.
    pub fn instant(&mut self, logical: Logical) -> Result<Option<i64>, String> {
        let wide = |number: i64, unit: i64| {
            let us = number.checked_mul(unit);
            us.ok_or_else(|| format!("{number} is out of range for a timestamp"))
        };
        Ok(Some(match logical {
            Logical::Micros => self.long()?,
            Logical::Millis => wide(self.long()?, 1000)?,
            Logical::Date => wide(self.int()?, DAY_US)?,
            Logical::Nanos => match self.long()? {
                nanos if nanos % 1000 == 0 => nanos / 1000,
                _ => return Err("the timestamp is finer than microseconds".into()),
            },
            _ => return Ok(None),
        }))
    }

    /// Reads the units of a decimal of a scale.
    fn decimal(&mut self, kind: &Kind, logical: Logical, scale: u8) -> Result<i64, String> {
        match (kind, logical) {
            (Kind::Bytes, Logical::Decimal(from)) => decimal::units(self.bytes()?, from, scale),
            (Kind::Fixed(size), Logical::Decimal(from)) => {
                decimal::units(self.fixed(*size)?, from, scale)
            }
            (Kind::Long, _) => text::decimal(&self.long()?.to_string(), scale),
            (Kind::Int, _) => text::decimal(&self.int()?.to_string(), scale),
            (Kind::Float, _) => {
                // The float's own digits are used. The double that it widens to has more digits
                // than were meant.
                let bytes = self.fixed(4)?.first_chunk().ok_or(DAMAGED)?;
                text::decimal(&format!("{:?}", f32::from_le_bytes(*bytes)), scale)
            }
            (Kind::Double, _) => text::decimal(&format!("{:?}", self.float(kind)?), scale),
            (Kind::Str, _) => text::decimal(self.text()?, scale),
            (kind, _) => Err(unfit(&DataType::Decimal(scale), kind)),
        }
    }
}

/// Returns the depth one level down.
pub(super) fn deeper(depth: usize) -> Result<usize, String> {
    depth.checked_sub(1).ok_or_else(|| format!("nested more than {DEPTH_MAX} deep"))
}

fn unfit(ty: &DataType, kind: &Kind) -> String {
    format!("expected {ty}, and the schema says {}", kind.name())
}

/// Returns a UUID in its usual form.
pub(super) fn uuid(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(36);
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Returns the reason for bytes after a record.
pub(super) fn trailing(left: usize) -> String {
    format!(
        "{left} bytes follow behind the record: it was written by another schema, or is damaged"
    )
}

/// Returns the reason for a field without a column.
pub(super) fn unknown(field: &str) -> String {
    format!("the stream has no column {}", quoted(field))
}
