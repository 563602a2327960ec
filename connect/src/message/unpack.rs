//! Maps of msgpack as rows.

use tidemill_core::msgpack::{check, timestamp};
use tidemill_core::value::check_years;
use tidemill_core::{DataType, Value};

use crate::files::UnknownFields;
use crate::msgpack::{get, length, unsigned, DEPTH_MAX};
use crate::row::{Rule, Scratch, Slot};
use crate::text::{self, quoted};
use crate::time::TimeFormat;

/// Maps whose fields are the columns.
pub(super) struct Unpack {
    pub rules: Vec<Rule>,
    pub unknown: UnknownFields,
}

/// The reason for bytes that end too early, or are not msgpack.
const DAMAGED: &str = "the value is not one map of msgpack";

impl Unpack {
    /// Appends a slot for each column.
    pub fn slots(&self, value: &[u8], scratch: &mut Scratch) -> Result<(), String> {
        let mut input = value;
        let mut found: Vec<Option<&[u8]>> = vec![None; self.rules.len()];
        let fields = match take(&mut input).ok_or(DAMAGED)? {
            Token::Map(fields) => fields,
            _ => return Err("the value is not a map".into()),
        };
        for _ in 0..fields {
            let Some(Token::Str(name)) = take(&mut input) else {
                return Err("a field's name is not a string".into());
            };
            let start = input;
            skip(&mut input, DEPTH_MAX).ok_or(DAMAGED)?;
            let raw = &start[..start.len() - input.len()];
            match self.rules.iter().position(|rule| rule.field.as_bytes() == name) {
                Some(index) if found[index].is_some() => {
                    return Err(format!("the field '{}' is there twice", self.rules[index].field));
                }
                Some(index) => found[index] = Some(raw),
                None if self.unknown == UnknownFields::Refuse => {
                    let name = String::from_utf8_lossy(name);
                    return Err(format!("the stream has no column {}", quoted(&name)));
                }
                None => {}
            }
        }
        if !input.is_empty() {
            return Err(format!("{} bytes follow behind the map", input.len()));
        }
        for (rule, raw) in self.rules.iter().zip(found) {
            let slot = match raw {
                Some(raw) => slot(raw, rule, scratch),
                None if rule.optional => Ok(Slot::Default),
                None => Err("the field is missing".into()),
            };
            let slot = slot.map_err(|why| format!("column '{}': {why}", rule.field))?;
            scratch.slots.push(slot);
        }
        Ok(())
    }
}

/// The next token. For an array or a map it is the head.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Nil,
    Bool(bool),
    /// An integer. The type is wide enough for msgpack's signed and unsigned numbers.
    Int(i128),
    Float(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Ext(u8, &'a [u8]),
    Array(usize),
    Map(usize),
}

fn take<'a>(input: &mut &'a [u8]) -> Option<Token<'a>> {
    let tag = get(input, 1)?[0];
    Some(match tag {
        0x00..=0x7f => Token::Int(i128::from(tag)),
        0xe0..=0xff => Token::Int(i128::from(tag as i8)),
        0x80..=0x8f => Token::Map(usize::from(tag & 15)),
        0x90..=0x9f => Token::Array(usize::from(tag & 15)),
        0xa0..=0xbf => Token::Str(get(input, usize::from(tag & 31))?),
        0xc0 => Token::Nil,
        0xc1 => return None,
        0xc2 => Token::Bool(false),
        0xc3 => Token::Bool(true),
        0xc4..=0xc6 => {
            let len = length(input, 1 << (tag - 0xc4))?;
            Token::Bin(get(input, len)?)
        }
        0xc7..=0xc9 => {
            let len = length(input, 1 << (tag - 0xc7))?;
            Token::Ext(get(input, 1)?[0], get(input, len)?)
        }
        0xca => Token::Float(f64::from(f32::from_bits(unsigned(input, 4)? as u32))),
        0xcb => Token::Float(f64::from_bits(unsigned(input, 8)?)),
        0xcc..=0xcf => Token::Int(i128::from(unsigned(input, 1 << (tag - 0xcc))?)),
        0xd0..=0xd3 => {
            let len = 1 << (tag - 0xd0);
            let shift = 64 - 8 * len;
            Token::Int(i128::from((unsigned(input, len)? << shift) as i64 >> shift))
        }
        0xd4..=0xd8 => Token::Ext(get(input, 1)?[0], get(input, 1 << (tag - 0xd4))?),
        0xd9..=0xdb => {
            let len = length(input, 1 << (tag - 0xd9))?;
            Token::Str(get(input, len)?)
        }
        0xdc | 0xdd => Token::Array(length(input, 2 << (tag - 0xdc))?),
        0xde | 0xdf => Token::Map(length(input, 2 << (tag - 0xde))?),
    })
}

/// Skips one value, with everything in it.
pub(super) fn skip(input: &mut &[u8], depth: usize) -> Option<()> {
    let items = match take(input)? {
        Token::Array(items) => items,
        Token::Map(fields) => fields.checked_mul(2)?,
        _ => 0,
    };
    // Each item has at least a byte, so a wrong length ends soon.
    (depth > 0 && items <= input.len()).then_some(())?;
    (0..items).try_for_each(|_| skip(input, depth - 1))
}

/// Decodes a column's value from one value of msgpack.
fn slot(raw: &[u8], rule: &Rule, scratch: &mut Scratch) -> Result<Slot, String> {
    if rule.nullable && raw == [0xc0] {
        return Ok(Slot::Null);
    }
    if rule.ty == DataType::Any {
        check(raw)?;
        return scratch.write(|out| {
            out.extend_from_slice(raw);
            Ok(())
        });
    }
    let mut input = raw;
    match value(&mut input, &rule.ty, &rule.time)? {
        Value::Null => Err("null, but the column may not be null".into()),
        value => scratch.value(&value),
    }
}

fn value(input: &mut &[u8], ty: &DataType, time: &TimeFormat) -> Result<Value, String> {
    if *ty == DataType::Any {
        let start = *input;
        skip(input, DEPTH_MAX).ok_or(DAMAGED)?;
        let raw = &start[..start.len() - input.len()];
        check(raw)?;
        return Ok(Value::Any(raw.into()));
    }
    let token = take(input).ok_or(DAMAGED)?;
    let int = |int: i128| i64::try_from(int).map_err(|_| format!("{int} is out of range for int"));
    let string = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec()).map_err(|_| "a string is not valid UTF-8".to_owned())
    };
    Ok(match (ty, token) {
        (_, Token::Nil) => Value::Null,
        (DataType::Int, Token::Int(found)) => Value::Int(int(found)?),
        (DataType::Float, Token::Float(found)) => {
            Value::Float(tidemill_core::value::canonical_f64(found))
        }
        (DataType::Float, Token::Int(found)) => Value::Float(found as f64),
        (DataType::Bool, Token::Bool(found)) => Value::Bool(found),
        (DataType::Str, Token::Str(found)) => Value::Str(string(found)?.as_str().into()),
        (DataType::Bytes, Token::Bin(found)) => Value::Bytes(found.into()),
        (DataType::Timestamp, Token::Ext(0xff, found)) => {
            Value::Timestamp(check_years(timestamp(found)?)?)
        }
        (DataType::Timestamp, Token::Int(found)) => Value::Timestamp(match time {
            TimeFormat::Unix(_) => time.read(&found.to_string())?,
            _ => check_years(int(found)?)?,
        }),
        (DataType::Timestamp, Token::Str(found)) => Value::Timestamp(time.read(&string(found)?)?),
        (DataType::Decimal(scale), Token::Int(found)) => {
            Value::Decimal(text::decimal(&found.to_string(), *scale)?, *scale)
        }
        (DataType::Decimal(scale), Token::Float(found)) => {
            Value::Decimal(text::decimal(&format!("{found:?}"), *scale)?, *scale)
        }
        (DataType::Decimal(scale), Token::Str(found)) => {
            Value::Decimal(text::decimal(&string(found)?, *scale)?, *scale)
        }
        (DataType::List(item), Token::Array(items)) => {
            // The bytes have been walked over, so there are this many items.
            let item = |i| value(input, item, time).map_err(|why| format!("item {i}: {why}"));
            Value::List((0..items).map(item).collect::<Result<_, _>>()?)
        }
        (ty, token) => return Err(format!("expected {ty}, found {}", description(&token))),
    })
}

fn description(token: &Token<'_>) -> String {
    match token {
        Token::Nil => "null".into(),
        Token::Bool(found) => found.to_string(),
        Token::Int(found) => found.to_string(),
        Token::Float(found) => format!("{found:?}"),
        Token::Str(found) => quoted(&String::from_utf8_lossy(found)),
        Token::Bin(found) => format!("{} bytes", found.len()),
        Token::Ext(kind, _) => format!("an extension of type {}", *kind as i8),
        Token::Array(items) => format!("an array of {items}"),
        Token::Map(fields) => format!("a map of {fields}"),
    }
}
