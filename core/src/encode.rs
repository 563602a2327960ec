//! The canonical encoding of values: one byte string for each value.
//!
//! Within a type, the order of the byte strings is the order of the values. Keys and the hashes of
//! state and outputs are computed from it.
//!
//! | value | bytes |
//! | --- | --- |
//! | null | `00` |
//! | false, true | `01 00`, `01 01` |
//! | int, timestamp, decimal | `02`/`03`/`04`, then the integer big-endian with the sign flipped |
//! | float | `05`, then the bits big-endian: sign flipped for positives, all for negatives |
//! | str, bytes, any | `06`/`07`/`08`, then the bytes with `00` written as `00 ff`, then `00 01` |
//! | list | `09`, then `01` and the item for each item, then `00` |
//!
//! The scale of a decimal belongs to its column and is not encoded.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::types::DataType;
use crate::value::{canonical_f64, Value};

/// A buffer to append to: a vector, or one that is small enough to need no heap memory.
pub trait Bytes {
    /// Appends these bytes.
    fn extend(&mut self, bytes: &[u8]);
}

impl Bytes for Vec<u8> {
    #[inline]
    fn extend(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<const N: usize> Bytes for SmallVec<[u8; N]> {
    #[inline]
    fn extend(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Appends the encoding of `value`.
pub fn value(value: &Value, out: &mut impl Bytes) {
    match value {
        Value::Null => out.extend(&[0]),
        Value::Bool(b) => out.extend(&[1, u8::from(*b)]),
        Value::Int(i) => int(2, *i, out),
        Value::Timestamp(i) => int(3, *i, out),
        Value::Decimal(units, _) => int(4, *units, out),
        Value::Float(f) => float(*f, out),
        Value::Str(s) => str(s, out),
        Value::Bytes(b) => bytes(b, out),
        Value::Any(b) => any(b, out),
        Value::List(items) => {
            out.extend(&[9]);
            for item in items.iter() {
                out.extend(&[1]);
                self::value(item, out);
            }
            out.extend(&[0]);
        }
    }
}

/// Appends the encoding of `value` as part of a key: -0.0 becomes 0.0.
pub fn key(value: &Value, out: &mut impl Bytes) {
    match value {
        Value::Float(f) if *f == 0.0 => float(0.0, out),
        other => self::value(other, out),
    }
}

/// Appends the encoding of a word of type `ty` (see [`Value::word`]).
pub fn word(ty: &DataType, word: u64, out: &mut impl Bytes) {
    match ty {
        DataType::Bool => out.extend(&[1, word as u8]),
        DataType::Int => int(2, word as i64, out),
        DataType::Timestamp => int(3, word as i64, out),
        DataType::Decimal(_) => int(4, word as i64, out),
        DataType::Float => float(f64::from_bits(word), out),
        _ => unreachable!("{ty} is not one word"),
    }
}

fn int(tag: u8, i: i64, out: &mut impl Bytes) {
    tagged(tag, (i as u64) ^ (1 << 63), out);
}

fn float(f: f64, out: &mut impl Bytes) {
    let bits = canonical_f64(f).to_bits();
    let ordered = if bits >> 63 == 1 { !bits } else { bits ^ (1 << 63) };
    tagged(5, ordered, out);
}

fn tagged(tag: u8, ordered: u64, out: &mut impl Bytes) {
    let mut bytes = [tag; 9];
    bytes[1..].copy_from_slice(&ordered.to_be_bytes());
    out.extend(&bytes);
}

/// Appends the encoding of a text.
pub fn str(text: &str, out: &mut impl Bytes) {
    escaped(6, text.as_bytes(), out);
}

/// Appends the encoding of bytes.
pub fn bytes(bytes: &[u8], out: &mut impl Bytes) {
    escaped(7, bytes, out);
}

/// Appends the encoding of a msgpack value.
pub fn any(bytes: &[u8], out: &mut impl Bytes) {
    escaped(8, bytes, out);
}

fn escaped(tag: u8, bytes: &[u8], out: &mut impl Bytes) {
    out.extend(&[tag]);
    let mut rest = bytes;
    while let Some(zero) = rest.iter().position(|byte| *byte == 0) {
        out.extend(&rest[..=zero]);
        out.extend(&[0xff]);
        rest = &rest[zero + 1..];
    }
    out.extend(rest);
    out.extend(&[0, 1]);
}

/// Reads one value of type `ty` from the front of `input`, or returns `None` if it is not an
/// encoding.
pub fn decode(ty: &DataType, input: &mut &[u8]) -> Option<Value> {
    let (&tag, rest) = input.split_first()?;
    *input = rest;
    match (tag, ty) {
        (0, _) => Some(Value::Null),
        (1, DataType::Bool) => take::<1>(input).map(|b| Value::Bool(b[0] != 0)),
        (2, DataType::Int) => decode_int(input).map(Value::Int),
        (3, DataType::Timestamp) => decode_int(input).map(Value::Timestamp),
        (4, DataType::Decimal(scale)) => decode_int(input).map(|u| Value::Decimal(u, *scale)),
        (5, DataType::Float) => {
            let ordered = u64::from_be_bytes(take::<8>(input)?);
            let bits = if ordered >> 63 == 1 { ordered ^ (1 << 63) } else { !ordered };
            Some(Value::Float(f64::from_bits(bits)))
        }
        (6, DataType::Str) => {
            std::str::from_utf8(&decode_bytes(input)?).ok().map(|s| Value::Str(s.into()))
        }
        (7, DataType::Bytes) => decode_bytes(input).map(|b| Value::Bytes((*b).into())),
        (8, DataType::Any) => decode_bytes(input).map(|b| Value::Any((*b).into())),
        (9, DataType::List(inner)) => {
            let mut items = Vec::new();
            loop {
                match take::<1>(input)?[0] {
                    0 => return Some(Value::List(Arc::from(items))),
                    1 => items.push(decode(inner, input)?),
                    _ => return None,
                }
            }
        }
        _ => None,
    }
}

/// Reads one value of a one-word type from the front of `input`.
///
/// Returns its word (see [`Value::word`]), or `Some(None)` for null. Returns `None` if the bytes
/// are not an encoding, or differ from the bytes that [`word`] would write.
#[inline]
pub fn decode_word(ty: &DataType, input: &mut &[u8]) -> Option<Option<u64>> {
    let tag = match ty {
        DataType::Bool => 1,
        DataType::Int => 2,
        DataType::Timestamp => 3,
        DataType::Decimal(_) => 4,
        DataType::Float => 5,
        _ => return None,
    };
    let (&found, rest) = input.split_first()?;
    *input = rest;
    if found != tag {
        return (found == 0).then_some(None);
    }
    if tag == 1 {
        let [bit] = take::<1>(input)?;
        return (bit < 2).then_some(Some(u64::from(bit)));
    }
    let ordered = u64::from_be_bytes(take::<8>(input)?);
    if tag < 5 {
        return Some(Some(ordered ^ (1 << 63)));
    }
    let bits = if ordered >> 63 == 1 { ordered ^ (1 << 63) } else { !ordered };
    (canonical_f64(f64::from_bits(bits)).to_bits() == bits).then_some(Some(bits))
}

/// Skips one value of a type that a key column may have. Returns `None` if there is none.
pub fn skip_key(input: &mut &[u8]) -> Option<()> {
    match take::<1>(input)?[0] {
        1 => take::<1>(input).map(|_| ()),
        2..=5 => take::<8>(input).map(|_| ()),
        6 | 7 => loop {
            let zero = input.iter().position(|byte| *byte == 0)?;
            *input = &input[zero + 1..];
            match take::<1>(input)?[0] {
                0xff => {}
                1 => return Some(()),
                _ => return None,
            }
        },
        _ => None,
    }
}

#[inline]
fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = input.split_at_checked(N)?;
    *input = rest;
    head.try_into().ok()
}

fn decode_int(input: &mut &[u8]) -> Option<i64> {
    Some((u64::from_be_bytes(take::<8>(input)?) ^ (1 << 63)) as i64)
}

/// Returns the bytes up to their end, without the escapes after zeros. Most values have none.
fn decode_bytes<'a>(input: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let mut bytes = Cow::Borrowed(&[][..]);
    loop {
        let zero = input.iter().position(|byte| *byte == 0)?;
        let (piece, rest) = (&input[..zero], &input[zero + 1..]);
        let (&next, rest) = rest.split_first()?;
        *input = rest;
        match (next, &mut bytes) {
            (1, Cow::Borrowed(_)) => return Some(Cow::Borrowed(piece)),
            (1, Cow::Owned(bytes)) => {
                bytes.extend_from_slice(piece);
                return Some(Cow::Owned(std::mem::take(bytes)));
            }
            (0xff, bytes) => {
                let bytes = bytes.to_mut();
                bytes.extend_from_slice(piece);
                bytes.push(0);
            }
            _ => return None,
        }
    }
}

/// A [`hash128`] of bytes that arrive in pieces.
#[derive(Clone, Default)]
pub struct Hasher128(xxhash_rust::xxh3::Xxh3);

impl Hasher128 {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the hash of all bytes so far.
    pub fn digest(&self) -> u128 {
        self.0.digest128()
    }
}

/// Returns a hash of a canonical encoding. It is stable for ever.
pub fn hash128(bytes: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(v: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        value(v, &mut out);
        out
    }

    #[test]
    fn byte_order_is_value_order() {
        let ints = [i64::MIN, -5, -1, 0, 1, 7, i64::MAX].map(|i| encoded(&Value::Int(i)));
        assert!(ints.is_sorted());
        let floats = [f64::NEG_INFINITY, -1.5, -0.0, 0.0, 1e-300, 2.0, f64::INFINITY, f64::NAN]
            .map(|f| encoded(&Value::Float(f)));
        assert!(floats.is_sorted());
        let texts = ["", "\0", "\0a", "a", "a\0", "a\0b", "ab", "é", "\u{10ffff}"]
            .map(|s| encoded(&Value::str(s)));
        assert!(texts.is_sorted());
    }

    #[test]
    fn decodes_what_it_encoded() {
        let list = DataType::List(Box::new(DataType::Str));
        let cases = [
            (DataType::Int, Value::Int(-7)),
            (DataType::Float, Value::Float(-0.0)),
            (DataType::Bool, Value::Bool(true)),
            (DataType::Str, Value::str("a\0é")),
            (DataType::Bytes, Value::Bytes(vec![0, 0, 255].into())),
            (DataType::Timestamp, Value::Timestamp(i64::MIN)),
            (DataType::Decimal(2), Value::Decimal(12345, 2)),
            (list, Value::List(vec![Value::str("x"), Value::Null].into())),
            (DataType::Any, Value::Any(vec![0xc0].into())),
        ];
        for (ty, value) in cases {
            let bytes = encoded(&value);
            let mut input = &bytes[..];
            assert_eq!(decode(&ty, &mut input), Some(value.clone()));
            assert!(input.is_empty());
            let mut input = &bytes[..];
            let skipped = skip_key(&mut input).is_some_and(|()| input.is_empty());
            assert_eq!(skipped, ty.is_ordered());
            if ty.is_word() {
                let mut input = &bytes[..];
                assert_eq!(decode_word(&ty, &mut input), Some(value.word()));
                assert!(input.is_empty());
                assert_eq!(decode_word(&ty, &mut &[0][..]), Some(None));
            }
            // A prefix is never an encoding, so damage is found and not guessed around.
            for cut in 0..bytes.len() {
                assert_eq!(decode(&ty, &mut &bytes[..cut]), None);
                assert_eq!(decode_word(&ty, &mut &bytes[..cut]), None);
                assert_eq!(skip_key(&mut &bytes[..cut]), None);
            }
        }
    }

    #[test]
    fn zeros_are_one_key_and_nans_are_one_key() {
        let key = |f: f64| crate::Key::of([&Value::Float(f)]);
        assert_eq!(key(0.0), key(-0.0));
        assert_eq!(key(f64::NAN), key(-f64::NAN));
    }
}
