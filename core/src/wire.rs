//! Numbers, texts and columns as little-endian bytes, for logs, snapshots and messages.
//!
//! This module has only the encoding of the parts. A format that uses them has its own version
//! number.
//!
//! - A number is its bytes. Bytes and a text are their length (u32) and the bytes.
//! - Columns have a known schema and number of rows, and follow each other. A column begins with a
//!   byte. It is 1 if there are nulls. Then a byte for each row follows (1: a value). Otherwise it
//!   is 0. Then come the values of all rows: eight bytes for a number, one for a boolean, length and
//!   bytes for the rest. The value at a null means nothing. The byte is 2, 3 or 5 if the column has
//!   integers without nulls: the least one (8 bytes) and the differences to it follow, in 1, 2 or 4
//!   bytes each.
//! - A batch is its number of rows (u32), its schema and its columns, so it can be read without the
//!   program. The schema is the number of columns (u16), and for each column its name, its type, a
//!   byte that says whether it may be null (1) and has a default (2), and the default as
//!   [`encode::value`] writes it.
//!
//! Readers return `None` for bytes in any other form. They never panic, and take no more memory
//! than there are bytes.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Float64Array, Int64Array, StringArray,
};
use arrow_buffer::ScalarBuffer;

use crate::batch::{Batch, BatchBuilder, ColumnBuilder};
use crate::encode;
use crate::schema::{Column, Schema};
use crate::types::DataType;

/// Appends a number.
pub fn put_u16(number: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a number.
pub fn put_u32(number: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a number.
pub fn put_u64(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a number.
pub fn put_u128(number: u128, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends bytes with their length.
///
/// # Panics
/// When there are 4 GiB of them.
pub fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_u32(u32::try_from(bytes.len()).expect("less than 4 GiB"), out);
    out.extend_from_slice(bytes);
}

/// Takes `len` bytes off the front.
pub fn take_slice<'a>(len: usize, input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (head, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(head)
}

fn take_array<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    take_slice(N, input)?.try_into().ok()
}

/// Takes a number.
pub fn take_u8(input: &mut &[u8]) -> Option<u8> {
    take_array::<1>(input).map(|bytes| bytes[0])
}

/// Takes a number.
pub fn take_u16(input: &mut &[u8]) -> Option<u16> {
    take_array(input).map(u16::from_le_bytes)
}

/// Takes a number.
pub fn take_u32(input: &mut &[u8]) -> Option<u32> {
    take_array(input).map(u32::from_le_bytes)
}

/// Takes a number.
pub fn take_u64(input: &mut &[u8]) -> Option<u64> {
    take_array(input).map(u64::from_le_bytes)
}

/// Takes a number.
pub fn take_u128(input: &mut &[u8]) -> Option<u128> {
    take_array(input).map(u128::from_le_bytes)
}

/// Takes `count` numbers.
pub fn take_u64s(count: usize, input: &mut &[u8]) -> Option<Vec<u64>> {
    let bytes = take_slice(count.checked_mul(8)?, input)?;
    Some(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// Takes bytes with their length.
pub fn take_bytes<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_u32(input)? as usize;
    take_slice(len, input)
}

/// Takes a text.
pub fn take_text<'a>(input: &mut &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(take_bytes(input)?).ok()
}

/// Appends a batch with its schema.
pub fn put_batch(batch: &Batch, out: &mut Vec<u8>) {
    put_u32(batch.len() as u32, out);
    put_schema(batch.schema(), out);
    put_columns(batch, out);
}

/// Takes a batch with its schema.
pub fn take_batch(input: &mut &[u8]) -> Option<Batch> {
    let rows = take_u32(input)? as usize;
    let schema = take_schema(input)?;
    take_columns(&Arc::new(schema), rows, input)
}

fn put_schema(schema: &Schema, out: &mut Vec<u8>) {
    put_u16(schema.len() as u16, out);
    for column in &schema.columns {
        put_bytes(column.name.as_bytes(), out);
        put_type(&column.ty, out);
        out.push(u8::from(column.nullable) | u8::from(column.default.is_some()) << 1);
        if let Some(default) = &column.default {
            encode::value(default, out);
        }
    }
}

fn take_schema(input: &mut &[u8]) -> Option<Schema> {
    let mut columns = Vec::new();
    for _ in 0..take_u16(input)? {
        let name = take_text(input)?.into();
        let ty = take_type(input, 0)?;
        let flags = take_u8(input)?;
        let default = match flags & 2 {
            0 => None,
            _ => Some(encode::decode(&ty, input)?),
        };
        columns.push(Column { name, ty, nullable: flags & 1 != 0, default });
    }
    Some(Schema::new(columns))
}

fn put_type(ty: &DataType, out: &mut Vec<u8>) {
    match ty {
        DataType::Int => out.push(0),
        DataType::Float => out.push(1),
        DataType::Bool => out.push(2),
        DataType::Str => out.push(3),
        DataType::Bytes => out.push(4),
        DataType::Timestamp => out.push(5),
        DataType::Decimal(scale) => out.extend_from_slice(&[6, *scale]),
        DataType::List(inner) => {
            out.push(7);
            put_type(inner, out);
        }
        DataType::Any => out.push(8),
    }
}

/// The maximum depth of list types, deeper than any program needs. Damaged bytes must not exhaust
/// the stack.
const DEPTH_MAX: usize = 64;

fn take_type(input: &mut &[u8], depth: usize) -> Option<DataType> {
    Some(match take_u8(input)? {
        0 => DataType::Int,
        1 => DataType::Float,
        2 => DataType::Bool,
        3 => DataType::Str,
        4 => DataType::Bytes,
        5 => DataType::Timestamp,
        6 => DataType::Decimal(take_u8(input)?),
        7 if depth < DEPTH_MAX => DataType::List(Box::new(take_type(input, depth + 1)?)),
        8 => DataType::Any,
        _ => return None,
    })
}

/// The least number of rows for which integers are narrowed.
const NARROW_ROWS_MIN: usize = 16;

/// Appends integers as their least one and the differences to it, in 1, 2 or 4 bytes each, if these
/// suffice. Returns whether they do. The tag is 1 more than the number of bytes.
fn put_narrow(ints: &[i64], out: &mut Vec<u8>) -> bool {
    if ints.len() < NARROW_ROWS_MIN {
        return false;
    }
    // Without branches, so that it is done in blocks.
    let (least, most) =
        ints.iter().fold((i64::MAX, i64::MIN), |(least, most), i| (least.min(*i), most.max(*i)));
    let range = most.wrapping_sub(least) as u64;
    let by = |i: &i64| i.wrapping_sub(least) as u64;
    match range {
        0..=0xff => {
            out.push(2);
            put_u64(least as u64, out);
            out.extend(ints.iter().map(|i| by(i) as u8));
        }
        0x100..=0xffff => {
            out.push(3);
            put_u64(least as u64, out);
            out.extend(ints.iter().flat_map(|i| (by(i) as u16).to_le_bytes()));
        }
        0x1_0000..=0xffff_ffff => {
            out.push(5);
            put_u64(least as u64, out);
            out.extend(ints.iter().flat_map(|i| (by(i) as u32).to_le_bytes()));
        }
        _ => return false,
    }
    true
}

/// Takes integers with this tag.
fn take_narrow(tag: u8, rows: usize, input: &mut &[u8]) -> Option<Vec<i64>> {
    let least = take_u64(input)? as i64;
    let bytes = take_slice(rows.checked_mul(usize::from(tag - 1))?, input)?;
    let from = |by: u64| least.wrapping_add(by as i64);
    Some(match tag {
        2 => bytes.iter().map(|by| from(u64::from(*by))).collect(),
        3 => {
            let by = bytes.as_chunks::<2>().0.iter();
            by.map(|by| from(u64::from(u16::from_le_bytes(*by)))).collect()
        }
        _ => {
            let by = bytes.as_chunks::<4>().0.iter();
            by.map(|by| from(u64::from(u32::from_le_bytes(*by)))).collect()
        }
    })
}

/// Appends a batch's columns, without its schema and number of rows.
pub fn put_columns(batch: &Batch, out: &mut Vec<u8>) {
    batch.columns().iter().for_each(|column| put_column(column, out));
}

/// Returns about the most bytes that [`put_columns`] appends.
pub fn columns_bytes(batch: &Batch) -> usize {
    let bytes = |array: &ArrayRef| {
        let rows = array.len();
        let any = array.as_any();
        let within = |offsets: &[i32]| (offsets[rows] - offsets[0]) as usize + 4 * rows;
        if let Some(texts) = any.downcast_ref::<StringArray>() {
            within(texts.value_offsets())
        } else if let Some(values) = any.downcast_ref::<BinaryArray>() {
            within(values.value_offsets())
        } else {
            8 * rows
        }
    };
    batch.columns().iter().map(bytes).sum()
}

/// Takes the columns of a batch.
pub fn take_columns(schema: &Arc<Schema>, rows: usize, input: &mut &[u8]) -> Option<Batch> {
    // Each row of each column has at least one byte. Rows without columns take no memory.
    if rows > input.len() && !schema.columns.is_empty() {
        return None;
    }
    let has_words = |ty: &DataType| {
        matches!(ty, DataType::Int | DataType::Timestamp | DataType::Decimal(_) | DataType::Float)
    };
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(schema.len());
    for column in &schema.columns {
        let array = match input.first()? {
            // The usual case, in a block.
            0 if has_words(&column.ty) => {
                *input = &input[1..];
                let words = take_u64s(rows, input)?;
                match column.ty {
                    DataType::Float => {
                        let floats = words.into_iter().map(f64::from_bits).collect::<Vec<_>>();
                        Arc::new(Float64Array::new(ScalarBuffer::from(floats), None)) as ArrayRef
                    }
                    _ => {
                        let ints = words.into_iter().map(|word| word as i64).collect::<Vec<_>>();
                        Arc::new(Int64Array::new(ScalarBuffer::from(ints), None))
                    }
                }
            }
            tag @ (2 | 3 | 5) if has_words(&column.ty) && column.ty != DataType::Float => {
                *input = &input[1..];
                let ints = take_narrow(*tag, rows, input)?;
                Arc::new(Int64Array::new(ScalarBuffer::from(ints), None))
            }
            _ => {
                let one = Arc::new(Schema::new(vec![column.clone()]));
                let mut builder = BatchBuilder::new(one);
                take_column(&mut builder.columns_mut()[0], rows, input)?;
                builder.advance(rows);
                builder.finish().columns()[0].clone()
            }
        };
        columns.push(array);
    }
    Some(Batch::new(schema.clone(), columns, rows))
}

fn put_column(array: &ArrayRef, out: &mut Vec<u8>) {
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    if nulls.is_none() {
        if let Some(ints) = array.as_any().downcast_ref::<Int64Array>() {
            if put_narrow(ints.values(), out) {
                return;
            }
        }
    }
    out.push(u8::from(nulls.is_some()));
    if let Some(nulls) = nulls {
        out.extend(nulls.iter().map(u8::from));
    }
    let array = array.as_any();
    let words = |bytes: &[u8], out: &mut Vec<u8>| {
        if cfg!(target_endian = "little") {
            out.extend_from_slice(bytes);
        } else {
            out.extend(bytes.as_chunks::<8>().0.iter().flat_map(|word| word.iter().rev()));
        }
    };
    if let Some(ints) = array.downcast_ref::<Int64Array>() {
        words(ints.values().inner().as_slice(), out);
    } else if let Some(floats) = array.downcast_ref::<Float64Array>() {
        words(floats.values().inner().as_slice(), out);
    } else if let Some(bools) = array.downcast_ref::<BooleanArray>() {
        out.extend(bools.values().iter().map(u8::from));
    } else if let Some(texts) = array.downcast_ref::<StringArray>() {
        (0..texts.len()).for_each(|row| put_bytes(texts.value(row).as_bytes(), out));
    } else if let Some(values) = array.downcast_ref::<BinaryArray>() {
        (0..values.len()).for_each(|row| put_bytes(values.value(row), out));
    } else {
        unreachable!("a batch has no other arrays inside");
    }
}

fn take_column(column: &mut ColumnBuilder, rows: usize, input: &mut &[u8]) -> Option<()> {
    let present = match take_u8(input)? {
        0 => None,
        _ => Some(take_slice(rows, input)?),
    };
    let is_there = |row: usize| present.is_none_or(|present| present[row] != 0);
    match column {
        ColumnBuilder::Int(ints) => {
            for (row, word) in take_u64s(rows, input)?.into_iter().enumerate() {
                ints.append_option(is_there(row).then_some(word as i64));
            }
        }
        ColumnBuilder::Float(floats) => {
            for (row, word) in take_u64s(rows, input)?.into_iter().enumerate() {
                floats.append_option(is_there(row).then(|| f64::from_bits(word)));
            }
        }
        ColumnBuilder::Bool(bools) => {
            for (row, byte) in take_slice(rows, input)?.iter().enumerate() {
                bools.append_option(is_there(row).then_some(*byte != 0));
            }
        }
        ColumnBuilder::Str(texts) => {
            for row in 0..rows {
                let text = take_text(input)?;
                texts.append_option(is_there(row).then_some(text));
            }
        }
        ColumnBuilder::Bytes(values) => {
            for row in 0..rows {
                let bytes = take_bytes(input)?;
                values.append_option(is_there(row).then_some(bytes));
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Column;

    /// Returns the bytes of a column of integers, and the column that comes back.
    fn there_and_back(ints: &[i64]) -> (usize, Vec<i64>) {
        let schema = Arc::new(Schema::new(vec![Column::new("n", DataType::Int)]));
        let column = Arc::new(Int64Array::from(ints.to_vec())) as ArrayRef;
        let batch = Batch::new(schema.clone(), vec![column], ints.len());
        let mut bytes = Vec::new();
        put_columns(&batch, &mut bytes);
        for cut in 0..bytes.len() {
            assert!(take_columns(&schema, ints.len(), &mut &bytes[..cut]).is_none());
        }
        let mut input = &bytes[..];
        let back = take_columns(&schema, ints.len(), &mut input).expect("it comes back");
        assert!(input.is_empty());
        (bytes.len(), back.ints(0).expect("ints").to_vec())
    }

    #[test]
    fn integers_take_the_bytes_of_their_range() {
        let cases = [
            (0, 1),
            (0xff, 1),
            (0x100, 2),
            (0xffff, 2),
            (0x1_0000, 4),
            (0xffff_ffff, 4),
            (0x1_0000_0000, 8),
            (u64::MAX, 8),
        ];
        for (range, bytes) in cases {
            for least in [i64::MIN, -3, 0, i64::MAX.wrapping_sub(range as i64)] {
                let Some(most) = least.checked_add_unsigned(range) else { continue };
                let ints: Vec<i64> =
                    (0..40).map(|nth| [least, most, most - (range / 3) as i64][nth % 3]).collect();
                let (len, back) = there_and_back(&ints);
                assert_eq!(back, ints, "{least} and {range}");
                let least_bytes = if bytes < 8 { 8 } else { 0 };
                assert_eq!(len, 1 + least_bytes + 40 * bytes, "{least} and {range}");
            }
        }
        assert_eq!(there_and_back(&[7; 15]), (1 + 8 * 15, vec![7; 15]));
    }
}
