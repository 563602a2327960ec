//! Columns and values in the encoding of logs and snapshots.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_core::{encode, wire};
use tidemill_fuzz::{every_type, Parts};

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    let schema = every_type(true);
    let rows = parts.u32() as usize;
    let mut input = parts.0;
    if let Some(batch) = wire::take_columns(&schema, rows, &mut input) {
        assert_eq!(batch.len(), rows);
        let mut out = Vec::new();
        wire::put_columns(&batch, &mut out);
        let mut input = &out[..];
        let back = wire::take_columns(&schema, rows, &mut input).expect("they come back");
        assert!(input.is_empty());
        assert!(back.rows().eq(batch.rows()));
    }
    for column in &schema.columns {
        let mut input = bytes;
        if let Some(value) = encode::decode(&column.ty, &mut input) {
            let used = bytes.len() - input.len();
            let mut out = Vec::new();
            encode::value(&value, &mut out);
            assert_eq!(encode::decode(&column.ty, &mut &out[..]), Some(value.clone()));
            let mut rest = bytes;
            if let Some(Some(word)) = encode::decode_word(&column.ty, &mut rest) {
                assert_eq!(value.word(), Some(word));
                assert_eq!(out, bytes[..used], "a word has one encoding");
            }
        }
        let mut key = bytes;
        let _ = encode::skip_key(&mut key);
    }
});
