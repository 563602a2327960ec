//! Times by a pattern: a pattern, a zero, and a text. Also times in ISO 8601.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tidemill_connect::{values, MessageRows, MessageSettings};
use tidemill_core::value::format_timestamp;
use tidemill_core::{Column, DataType, Schema, Value};
use tidemill_fuzz::{row_of, Parts};

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    let pattern = std::str::from_utf8(parts.until(0)).unwrap_or("%s");
    let Ok(text) = std::str::from_utf8(parts.0) else { return };
    let schema = Arc::new(Schema::new(vec![Column::new("t", DataType::Timestamp)]));
    let mut settings = MessageSettings::default();
    settings.formats.insert("t".into(), pattern.into());
    let text = serde_json::Value::from(text).to_string();
    if let Ok(mut decoder) = MessageRows::new(&schema, &settings) {
        let _ = row_of(&mut decoder, &schema, format!("{{\"t\":{text}}}").as_bytes());
    }
    let column = &schema.columns[0];
    if let Ok(time) = values::read(&text, column) {
        let Value::Timestamp(us) = time else { panic!("{time:?} is no time") };
        let again = serde_json::Value::from(format_timestamp(us)).to_string();
        assert_eq!(values::read(&again, column), Ok(time));
    }
});
