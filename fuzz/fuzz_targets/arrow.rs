//! Arrow arrays of other programs, which may be invalid.
#![no_main]

use std::sync::Arc;

use arrow_array::{make_array, ArrayRef};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{DataType as ArrowType, Field, TimeUnit};
use libfuzzer_sys::fuzz_target;
use tidemill_core::Batch;
use tidemill_fuzz::{every_type, Parts};

const ROWS: usize = 5;

/// Creates an array of a type. Its buffers are as long as importers make them, by the last offset.
fn array(ty: &ArrowType, rows: usize, parts: &mut Parts<'_>) -> Option<ArrayData> {
    let fixed = |bytes: usize, parts: &mut Parts<'_>| {
        let mut buffer = vec![0; bytes * (rows + 1)];
        let found = parts.bytes(buffer.len());
        buffer[..found.len()].copy_from_slice(found);
        Buffer::from_vec(
            buffer
                .as_chunks::<8>()
                .0
                .iter()
                .map(|c| u64::from_le_bytes(*c))
                .chain([0; 4])
                .collect::<Vec<_>>(),
        )
    };
    let offsets = |wide: usize, parts: &mut Parts<'_>| {
        let mut offsets = vec![0_u8; wide * (rows + 1)];
        let mut last = 0_usize;
        for offset in offsets.chunks_exact_mut(wide) {
            let at = parts.u8();
            offset[0] = at;
            if at & 0xc0 == 0xc0 {
                offset[wide - 1] = at;
            }
            last = at.into();
        }
        (
            Buffer::from_vec(
                offsets
                    .chunks_exact(4)
                    .map(|c| u32::from_le_bytes(c.try_into().unwrap()))
                    .collect::<Vec<_>>(),
            ),
            last,
        )
    };
    let mut data = ArrayData::builder(ty.clone()).len(rows);
    if parts.u8() & 1 == 1 {
        data = data.null_bit_buffer(Some(Buffer::from_vec(vec![parts.u8(); 32])));
    }
    data = match ty {
        ArrowType::Null => ArrayData::builder(ArrowType::Null).len(rows),
        ArrowType::Utf8 | ArrowType::Binary | ArrowType::LargeUtf8 | ArrowType::LargeBinary => {
            let wide = if matches!(ty, ArrowType::Utf8 | ArrowType::Binary) { 4 } else { 8 };
            let (offsets, last) = offsets(wide, parts);
            let mut values = parts.bytes(last).to_vec();
            values.resize(last, b'x');
            data.add_buffer(offsets).add_buffer(Buffer::from_vec(values))
        }
        ArrowType::List(item) => {
            let (offsets, last) = offsets(4, parts);
            let items = array(item.data_type(), last, parts)?;
            data.add_buffer(offsets).add_child_data(items)
        }
        ArrowType::Struct(fields) => {
            for field in fields {
                data = data.add_child_data(array(field.data_type(), rows, parts)?);
            }
            data
        }
        ArrowType::Dictionary(_, values) => {
            let keys = fixed(1, parts);
            data.add_buffer(keys).add_child_data(array(values, 3, parts)?)
        }
        ArrowType::Decimal256(..) => data.add_buffer(fixed(32, parts)),
        ArrowType::Decimal128(..) => data.add_buffer(fixed(16, parts)),
        ArrowType::FixedSizeBinary(len) => data.add_buffer(fixed(*len as usize, parts)),
        _ => data.add_buffer(fixed(8, parts)),
    };
    // SAFETY: It is not valid, as little as arrays of other programs are. Its buffers are long
    // enough for what is read before it is checked.
    Some(unsafe { data.build_unchecked() })
}

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    let item = |ty| Arc::new(Field::new("item", ty, true));
    let precision = parts.u8();
    let scale = parts.u8() as i8;
    let types = [
        ArrowType::Null,
        ArrowType::Boolean,
        ArrowType::Int8,
        ArrowType::UInt64,
        ArrowType::Float16,
        ArrowType::Float32,
        ArrowType::Float64,
        ArrowType::Utf8,
        ArrowType::LargeUtf8,
        ArrowType::Binary,
        ArrowType::LargeBinary,
        ArrowType::FixedSizeBinary(4),
        ArrowType::Date32,
        ArrowType::Date64,
        ArrowType::Time64(TimeUnit::Nanosecond),
        ArrowType::Timestamp(TimeUnit::Second, None),
        ArrowType::Timestamp(TimeUnit::Nanosecond, Some("+01:00".into())),
        ArrowType::Decimal128(
            precision.clamp(1, 38),
            scale.clamp(-38, precision.clamp(1, 38) as i8),
        ),
        ArrowType::Decimal256(
            precision.clamp(1, 76),
            scale.clamp(-76, precision.clamp(1, 76) as i8),
        ),
        ArrowType::List(item(ArrowType::Utf8)),
        ArrowType::List(item(ArrowType::List(item(ArrowType::Int64)))),
        ArrowType::Dictionary(Box::new(ArrowType::Int8), Box::new(ArrowType::Utf8)),
        ArrowType::Struct(
            vec![Field::new("x", ArrowType::Utf8, true), Field::new("y", ArrowType::Float64, true)]
                .into(),
        ),
    ];
    let ty = &types[usize::from(parts.u8()) % types.len()];
    let Some(data) = array(ty, ROWS, &mut parts) else { return };
    let array: ArrayRef = make_array(data);
    let field = Field::new("x", ty.clone(), true);
    for column in &every_type(true).columns {
        if let Ok(made) = Batch::column_from_arrow(&array, &field, column, 0) {
            assert_eq!(made.len(), ROWS);
            made.to_data().validate_full().expect("a column is valid");
            let schema = tidemill_core::Schema::new(vec![column.clone()]).into();
            let batch = Batch::new(schema, vec![made], ROWS);
            assert_eq!(batch.rows().count(), ROWS);
        }
    }
});
