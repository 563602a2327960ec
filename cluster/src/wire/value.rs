//! Values, bit for bit.

use std::sync::Arc;

use tidemill_core::wire::{put_bytes, put_u64, take_bytes, take_text, take_u64, take_u8};
use tidemill_core::Value;

use super::{put_bool, put_i64, put_list, take_bool, take_i64, take_list};

pub(super) fn put(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(0),
        Value::Bool(flag) => {
            out.push(1);
            put_bool(*flag, out);
        }
        Value::Int(number) => {
            out.push(2);
            put_i64(*number, out);
        }
        Value::Float(number) => {
            out.push(3);
            put_u64(number.to_bits(), out);
        }
        Value::Str(text) => {
            out.push(4);
            put_bytes(text.as_bytes(), out);
        }
        Value::Bytes(bytes) => {
            out.push(5);
            put_bytes(bytes, out);
        }
        Value::Timestamp(us) => {
            out.push(6);
            put_i64(*us, out);
        }
        Value::Decimal(units, scale) => {
            out.extend_from_slice(&[7, *scale]);
            put_i64(*units, out);
        }
        Value::List(items) => {
            out.push(8);
            put_list(items, out, put);
        }
        Value::Any(bytes) => {
            out.push(9);
            put_bytes(bytes, out);
        }
    }
}

pub(super) fn take(input: &mut &[u8], depth: usize) -> Option<Value> {
    Some(match take_u8(input)? {
        0 => Value::Null,
        1 => Value::Bool(take_bool(input)?),
        2 => Value::Int(take_i64(input)?),
        3 => Value::Float(f64::from_bits(take_u64(input)?)),
        4 => Value::Str(take_text(input)?.into()),
        5 => Value::Bytes(take_bytes(input)?.into()),
        6 => Value::Timestamp(take_i64(input)?),
        7 => {
            let scale = take_u8(input)?;
            Value::Decimal(take_i64(input)?, scale)
        }
        8 => {
            let depth = depth.checked_sub(1)?;
            Value::List(Arc::from(take_list(input, |input| take(input, depth))?))
        }
        9 => Value::Any(take_bytes(input)?.into()),
        _ => return None,
    })
}
