//! The bytes of parcels and reports between processes. All integers are little-endian.
//!
//! A parcel is its source (u32), stream (u16), batch, offsets (u64 each) and times (i64 each).
//! Numbers, texts and batches are encoded as in [`wire`], so a parcel can be read without the
//! program.
//!
//! These bytes exist only as long as a connection between processes of one build, so they have no
//! version.

use tidemill_core::wire::{self, put_bytes, put_u16, put_u32, put_u64};
use tidemill_core::{Error, LateRow, Result, SourceId, StreamId};

use crate::parcel::{Bad, Parcel, Report};

/// Appends a parcel.
pub(crate) fn encode_parcel(parcel: &Parcel, out: &mut Vec<u8>) {
    put_u32(parcel.source.0, out);
    put_u16(parcel.stream.0, out);
    wire::put_batch(&parcel.batch, out);
    parcel.offsets.iter().for_each(|offset| put_u64(*offset, out));
    parcel.times.iter().for_each(|time| put_u64(*time as u64, out));
}

/// Reads a parcel from the front of `input`.
pub(crate) fn decode_parcel(input: &mut &[u8]) -> Result<Parcel> {
    let source = SourceId(take_u32(input)?);
    let stream = StreamId(take_u16(input)?);
    let batch = wire::take_batch(input).ok_or_else(damaged)?;
    let rows = batch.len();
    let offsets = wire::take_u64s(rows, input).ok_or_else(damaged)?;
    let times = wire::take_u64s(rows, input).ok_or_else(damaged)?;
    let times = times.into_iter().map(|word| word as i64).collect();
    Ok(Parcel { source, stream, batch, offsets, times })
}

/// Appends a report.
pub(crate) fn encode_report(report: &Report, out: &mut Vec<u8>) {
    put_u32(report.source.0, out);
    put_u64(report.next_offset, out);
    put_u64(report.rows, out);
    out.push(u8::from(report.time_max.is_some()));
    put_u64(report.time_max.unwrap_or(0) as u64, out);
    put_u32(report.late.len() as u32, out);
    for LateRow { offset, time_us, bound_us } in &report.late {
        put_u64(*offset, out);
        put_u64(*time_us as u64, out);
        put_u64(*bound_us as u64, out);
    }
    out.push(u8::from(report.ended));
    put_u32(report.bad.len() as u32, out);
    for bad in &report.bad {
        put_u64(bad.offset, out);
        put_u64(bad.line, out);
        for text in [&*bad.origin, &bad.raw, &bad.reason] {
            put_bytes(text.as_bytes(), out);
        }
    }
}

/// Reads a report from the front of `input`.
pub(crate) fn decode_report(input: &mut &[u8]) -> Result<Report> {
    let source = SourceId(take_u32(input)?);
    let next_offset = take_u64(input)?;
    let rows = take_u64(input)?;
    let has_time = take_u8(input)? != 0;
    let time = take_u64(input)? as i64;
    let mut late = Vec::new();
    for _ in 0..take_u32(input)? {
        let (offset, time_us) = (take_u64(input)?, take_u64(input)? as i64);
        late.push(LateRow { offset, time_us, bound_us: take_u64(input)? as i64 });
    }
    let ended = take_u8(input)? != 0;
    let mut bad = Vec::new();
    for _ in 0..take_u32(input)? {
        bad.push(Bad {
            offset: take_u64(input)?,
            line: take_u64(input)?,
            origin: take_text(input)?.into(),
            raw: take_text(input)?.to_owned(),
            reason: take_text(input)?.to_owned(),
        });
    }
    let time_max = has_time.then_some(time);
    Ok(Report { source, next_offset, rows, time_max, late, ended, bad })
}

/// Returns the error for bytes that are not an encoding.
pub(crate) fn damaged() -> Error {
    Error::internal("another process sent data that can't be read")
}

/// Takes a number.
pub(crate) fn take_u8(input: &mut &[u8]) -> Result<u8> {
    wire::take_u8(input).ok_or_else(damaged)
}

fn take_u16(input: &mut &[u8]) -> Result<u16> {
    wire::take_u16(input).ok_or_else(damaged)
}

/// Takes a number.
pub(crate) fn take_u32(input: &mut &[u8]) -> Result<u32> {
    wire::take_u32(input).ok_or_else(damaged)
}

/// Takes a number.
pub(crate) fn take_u64(input: &mut &[u8]) -> Result<u64> {
    wire::take_u64(input).ok_or_else(damaged)
}

fn take_text<'a>(input: &mut &'a [u8]) -> Result<&'a str> {
    wire::take_text(input).ok_or_else(damaged)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use tidemill_core::{Batch, Column, DataType, Schema, Value};

    use super::*;

    fn schema() -> Arc<Schema> {
        let list = DataType::List(Box::new(DataType::Str));
        let mut columns = vec![
            Column::new("i", DataType::Int),
            Column::new("f", DataType::Float),
            Column::new("b", DataType::Bool),
            Column::new("s", DataType::Str),
            Column::new("y", DataType::Bytes),
            Column::new("t", DataType::Timestamp),
            Column::new("d", DataType::Decimal(2)).default(Value::Decimal(150, 2)),
            Column::new("l", list),
            Column::new("a", DataType::Any),
        ];
        columns.iter_mut().for_each(|column| column.nullable = true);
        Arc::new(Schema::new(columns))
    }

    fn row() -> impl Strategy<Value = Vec<Value>> {
        let text = ".{0,12}";
        let bytes = || proptest::collection::vec(any::<u8>(), 0..12);
        let values = (
            any::<i64>().prop_map(Value::Int),
            any::<f64>().prop_map(Value::Float),
            any::<bool>().prop_map(Value::Bool),
            text.prop_map(|s| Value::str(&s)),
            bytes().prop_map(|b| Value::Bytes(b.into())),
            any::<i64>().prop_map(Value::Timestamp),
            any::<i64>().prop_map(|u| Value::Decimal(u, 2)),
            proptest::collection::vec(text.prop_map(|s| Value::str(&s)), 0..3)
                .prop_map(|l| Value::List(l.into())),
            bytes().prop_map(|b| Value::Any(b.into())),
        );
        (values, any::<u16>()).prop_map(|((i, f, b, s, y, t, d, l, a), nulls)| {
            let mut row = vec![i, f, b, s, y, t, d, l, a];
            // Nulls are rare, so that columns without any are tested, too.
            for (at, value) in row.iter_mut().enumerate() {
                if nulls >> at & 0x81 == 0x81 {
                    *value = Value::Null;
                }
            }
            row
        })
    }

    proptest! {
        #[test]
        fn parcels_come_back(
            rows in proptest::collection::vec(row(), 0..20),
            skip in 0..3usize,
            damage in any::<prop::sample::Index>(),
        ) {
            let batch = Batch::from_rows(schema(), rows.iter().map(|r| &r[..]));
            // A slice, whose arrays do not begin where their buffers do.
            let skip = skip.min(rows.len());
            let batch = batch.slice(skip, rows.len() - skip);
            let offsets: Vec<u64> = (0..batch.len() as u64).map(|i| 3 * i + 1).collect();
            let times = offsets.iter().map(|o| -(*o as i64)).collect();
            let parcel =
                Parcel { source: SourceId(70_000), stream: StreamId(9), batch, offsets, times };
            let mut bytes = Vec::new();
            encode_parcel(&parcel, &mut bytes);
            let mut input = &bytes[..];
            let back = decode_parcel(&mut input).unwrap();
            prop_assert!(input.is_empty());
            prop_assert_eq!(back.batch.schema(), parcel.batch.schema());
            let values = |p: &Parcel| p.batch.rows().collect::<Vec<_>>();
            prop_assert_eq!(values(&back), values(&parcel));
            prop_assert_eq!((back.source, back.stream), (parcel.source, parcel.stream));
            prop_assert_eq!((back.offsets, back.times), (parcel.offsets, parcel.times));
            // A prefix is not a parcel, and other damage at least causes no panic.
            let at = damage.index(bytes.len());
            prop_assert!(decode_parcel(&mut &bytes[..at]).is_err());
            bytes[at] ^= 0x55;
            let _ = decode_parcel(&mut &bytes[..]);
        }
    }

    #[test]
    fn reports_come_back() {
        let bad = Bad {
            offset: 4,
            origin: "a.csv".into(),
            line: 5,
            raw: "1;é".into(),
            reason: "no number".into(),
        };
        for time_max in [None, Some(i64::MIN)] {
            let report = Report {
                source: SourceId(1),
                next_offset: u64::MAX,
                rows: 6,
                time_max,
                late: vec![LateRow { offset: 5, time_us: i64::MIN, bound_us: -1 }; 3],
                ended: time_max.is_none(),
                bad: vec![bad.clone(); 2],
            };
            let mut bytes = Vec::new();
            encode_report(&report, &mut bytes);
            let mut input = &bytes[..];
            assert_eq!(decode_report(&mut input).unwrap(), report);
            assert!(input.is_empty());
            for cut in 0..bytes.len() {
                assert!(decode_report(&mut &bytes[..cut]).is_err());
            }
        }
    }
}
