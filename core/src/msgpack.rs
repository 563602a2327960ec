//! Msgpack values, as columns of type `any` hold them.
//!
//! Integers have their shortest form and floats have 64 bits. So equal values have equal bytes.
//! Times are msgpack's own extension, and decimals are an extension of Tidemill.

use crate::rules::is_number;
use crate::value::{canonical_f64, format_decimal, Value};

/// The most levels of nesting that are read and written. Deeper values are refused.
pub const DEPTH_MAX: usize = 128;

/// The extension type of times.
pub const TIMESTAMP: i8 = -1;
/// The extension type of decimals: the number as text, as Python writes it.
pub const DECIMAL: i8 = 1;

/// A known extension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extension<'a> {
    /// A time, in microseconds since 1970.
    Timestamp(i64),
    /// A decimal as text. It may have any number of digits, and an exponent.
    Decimal(&'a str),
}

impl<'a> Extension<'a> {
    /// Returns the extension of this kind, if the kind is known and the bytes are valid.
    pub fn read(kind: i8, bytes: &'a [u8]) -> Option<Extension<'a>> {
        match kind {
            TIMESTAMP => timestamp(bytes).ok().map(Extension::Timestamp),
            DECIMAL => {
                let text = std::str::from_utf8(bytes).ok();
                text.filter(|text| is_number(text)).map(Extension::Decimal)
            }
            _ => None,
        }
    }
}

/// Returns the microseconds of the extension of times.
pub fn timestamp(bytes: &[u8]) -> Result<i64, String> {
    let mut input = bytes;
    let parts = match bytes.len() {
        4 => unsigned(&mut input, 4).map(|seconds| (seconds as i64, 0)),
        8 => unsigned(&mut input, 8).map(|both| ((both & ((1 << 34) - 1)) as i64, both >> 34)),
        12 => unsigned(&mut input, 4)
            .and_then(|nanos| unsigned(&mut input, 8).map(|seconds| (seconds as i64, nanos))),
        _ => None,
    };
    let (seconds, nanos) = parts.ok_or("a timestamp of msgpack has 4, 8 or 12 bytes")?;
    if !nanos.is_multiple_of(1000) {
        return Err("the timestamp is finer than microseconds".into());
    }
    let us = i128::from(seconds) * 1_000_000 + i128::from(nanos / 1000);
    i64::try_from(us).map_err(|_| "the timestamp is out of range".into())
}

/// Appends a time as seconds and nanoseconds, in the 64-bit form if it fits.
pub fn put_timestamp(us: i64, out: &mut Vec<u8>) {
    let (seconds, nanos) = (us.div_euclid(1_000_000), us.rem_euclid(1_000_000) as u64 * 1000);
    match u64::try_from(seconds) {
        Ok(seconds) if seconds < 1 << 34 => {
            out.extend_from_slice(&[0xd7, TIMESTAMP as u8]);
            out.extend_from_slice(&(nanos << 34 | seconds).to_be_bytes());
        }
        _ => {
            out.extend_from_slice(&[0xc7, 12, TIMESTAMP as u8]);
            out.extend_from_slice(&(nanos as u32).to_be_bytes());
            out.extend_from_slice(&seconds.to_be_bytes());
        }
    }
}

/// Appends a decimal, given as text.
pub fn put_decimal(text: &str, out: &mut Vec<u8>) {
    match text.len() {
        len @ 0..256 => out.extend_from_slice(&[0xc7, len as u8]),
        len @ 256..0x1_0000 => {
            out.push(0xc8);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(0xc9);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    out.push(DECIMAL as u8);
    out.extend_from_slice(text.as_bytes());
}

/// Appends a value.
pub fn put(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(bool) => out.push(if *bool { 0xc3 } else { 0xc2 }),
        Value::Int(int) => put_int(*int, out),
        Value::Float(float) => put_float(canonical_f64(*float), out),
        Value::Str(text) => put_str(text, out),
        Value::Bytes(bytes) => put_bytes(bytes, out),
        Value::Timestamp(us) => put_timestamp(*us, out),
        Value::Decimal(units, scale) => put_decimal(&format_decimal(*units, *scale), out),
        Value::Any(bytes) => out.extend_from_slice(bytes),
        Value::List(items) => {
            let start = out.len();
            items.iter().for_each(|item| put(item, out));
            // A list has far fewer than 2^32 items.
            let _ = insert_head(out, start, items.len(), 0x90, 0xdc);
        }
    }
}

/// Checks that the bytes are one msgpack value, with valid texts in it.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    let mut input = bytes;
    match walk(&mut input, DEPTH_MAX) {
        Some(()) if input.is_empty() => Ok(()),
        _ => Err("the bytes are not one value of msgpack".into()),
    }
}

fn walk(input: &mut &[u8], depth: usize) -> Option<()> {
    let tag = get(input, 1)?[0];
    let (bytes, items) = match tag {
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (0, 0),
        0x80..=0x8f => (0, 2 * usize::from(tag & 15)),
        0x90..=0x9f => (0, usize::from(tag & 15)),
        0xa0..=0xbf => return text(input, usize::from(tag & 31)),
        0xc1 => return None,
        0xc4..=0xc6 => (length(input, 1 << (tag - 0xc4))?, 0),
        0xc7..=0xc9 => (length(input, 1 << (tag - 0xc7))?.checked_add(1)?, 0),
        0xca..=0xcb => (4 << (tag - 0xca), 0),
        0xcc..=0xcf => (1 << (tag - 0xcc), 0),
        0xd0..=0xd3 => (1 << (tag - 0xd0), 0),
        0xd4..=0xd8 => (1 + (1 << (tag - 0xd4)), 0),
        0xd9..=0xdb => {
            let len = length(input, 1 << (tag - 0xd9))?;
            return text(input, len);
        }
        0xdc | 0xdd => (0, length(input, 2 << (tag - 0xdc))?),
        0xde | 0xdf => (0, length(input, 2 << (tag - 0xde))?.checked_mul(2)?),
    };
    get(input, bytes)?;
    // Each item has at least one byte, so that a wild length ends soon.
    (depth > 0 && items <= input.len()).then_some(())?;
    (0..items).try_for_each(|_| walk(input, depth - 1))
}

fn text(input: &mut &[u8], len: usize) -> Option<()> {
    std::str::from_utf8(get(input, len)?).ok().map(|_| ())
}

/// Inserts the head of an array or a map before its content, which begins at `start`.
pub fn insert_head(
    out: &mut Vec<u8>,
    start: usize,
    len: usize,
    short: u8,
    long: u8,
) -> Result<(), String> {
    let mut head = Vec::with_capacity(5);
    match len {
        0..16 => head.push(short | len as u8),
        16..0x1_0000 => {
            head.push(long);
            head.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            head.push(long + 1);
            let len = u32::try_from(len).map_err(|_| "too many items".to_string())?;
            head.extend_from_slice(&len.to_be_bytes());
        }
    }
    out.splice(start..start, head);
    Ok(())
}

/// Appends a text.
pub fn put_str(text: &str, out: &mut Vec<u8>) {
    match text.len() {
        len @ 0..32 => out.push(0xa0 | len as u8),
        len @ 32..256 => out.extend_from_slice(&[0xd9, len as u8]),
        len @ 256..0x1_0000 => {
            out.push(0xda);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        // A record is far shorter than 4 GiB.
        len => {
            out.push(0xdb);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(text.as_bytes());
}

/// Appends an integer that is not negative, in its shortest form.
pub fn put_unsigned(int: u64, out: &mut Vec<u8>) {
    let bytes = int.to_be_bytes();
    let (tag, len) = match int {
        0..0x80 => return out.push(int as u8),
        0x80..0x100 => (0xcc, 1),
        0x100..0x1_0000 => (0xcd, 2),
        0x1_0000..0x1_0000_0000 => (0xce, 4),
        _ => (0xcf, 8),
    };
    out.push(tag);
    out.extend_from_slice(&bytes[8 - len..]);
}

/// Appends a negative integer, in its shortest form.
pub fn put_negative(int: i64, out: &mut Vec<u8>) {
    let bytes = int.to_be_bytes();
    let (tag, len) = match int {
        -32.. => return out.push(int as u8),
        -0x80..-32 => (0xd0, 1),
        -0x8000..-0x80 => (0xd1, 2),
        -0x8000_0000..-0x8000 => (0xd2, 4),
        _ => (0xd3, 8),
    };
    out.push(tag);
    out.extend_from_slice(&bytes[8 - len..]);
}

/// Appends an integer, in its shortest form.
pub fn put_int(int: i64, out: &mut Vec<u8>) {
    match int {
        ..0 => put_negative(int, out),
        _ => put_unsigned(int as u64, out),
    }
}

/// Appends a 64-bit float.
pub fn put_float(float: f64, out: &mut Vec<u8>) {
    out.push(0xcb);
    out.extend_from_slice(&float.to_bits().to_be_bytes());
}

/// Appends bytes.
pub fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    match bytes.len() {
        len @ 0..256 => out.extend_from_slice(&[0xc4, len as u8]),
        len @ 256..0x1_0000 => {
            out.push(0xc5);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(0xc6);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

/// Returns the next `len` bytes.
pub fn get<'a>(input: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(head)
}

/// Reads a big-endian number of `len` bytes, at most 8.
pub fn unsigned(input: &mut &[u8], len: usize) -> Option<u64> {
    Some(get(input, len)?.iter().fold(0, |n, b| n << 8 | u64::from(*b)))
}

/// Reads a length of `len` bytes.
pub fn length(input: &mut &[u8], len: usize) -> Option<usize> {
    usize::try_from(unsigned(input, len)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_one_value() {
        let value = Value::List(
            vec![
                Value::Null,
                Value::Int(-70_000),
                Value::Float(f64::NAN),
                Value::str("é"),
                Value::Bytes(vec![255].into()),
                Value::Timestamp(-1),
                Value::Timestamp(1_700_000_000_000_001),
                Value::Decimal(-1250, 2),
                Value::List((0..70).map(Value::Int).collect()),
            ]
            .into(),
        );
        let mut bytes = Vec::new();
        put(&value, &mut bytes);
        assert_eq!(check(&bytes), Ok(()));
        for len in 0..bytes.len() {
            assert!(check(&bytes[..len]).is_err(), "{len}");
        }
        assert!(check(&[bytes, vec![0xc0]].concat()).is_err());
        for broken in [&[0xa1, 0xff][..], &[0xc1], &[0xdd, 255, 255, 255, 255], &[0x91; 200]] {
            assert!(check(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn extensions_come_back() {
        for us in [0, -1, 1_700_000_000_123_456, i64::MIN, i64::MAX] {
            let mut bytes = Vec::new();
            put_timestamp(us, &mut bytes);
            let behind = if bytes[0] == 0xd7 { 2 } else { 3 };
            assert_eq!(timestamp(&bytes[behind..]), Ok(us));
        }
        for text in ["1.50", "-0", "1E+40", "1E-999999"] {
            assert_eq!(Extension::read(DECIMAL, text.as_bytes()), Some(Extension::Decimal(text)));
        }
        for (kind, bytes) in [(DECIMAL, &b"NaN"[..]), (DECIMAL, b""), (TIMESTAMP, b"1"), (7, b"1")]
        {
            assert_eq!(Extension::read(kind, bytes), None);
        }
    }
}
