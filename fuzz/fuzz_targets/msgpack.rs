//! Messages in msgpack, and values of msgpack in columns of any type.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_connect::{values, MessageFormat, MessageRows, MessageSettings, MessageValues};
use tidemill_core::{msgpack, Value};
use tidemill_fuzz::{comes_back, every_type, row_of};

fuzz_target!(|bytes: &[u8]| {
    let schema = every_type(true);
    let format = MessageFormat::Msgpack;
    let settings = MessageSettings { format, ..MessageSettings::default() };
    let mut decoder = MessageRows::new(&schema, &settings).unwrap();
    if let Ok(row) = row_of(&mut decoder, &schema, bytes) {
        let encoder = MessageValues::new(&schema, format, &[]).unwrap();
        comes_back(&mut decoder, &encoder, &schema, &row);
        for value in &row {
            if let Value::Any(any) = value {
                assert_eq!(msgpack::check(any), Ok(()), "what is stored is msgpack");
            }
        }
    }
    // Other bytes are shown as bytes.
    let mut json = Vec::new();
    values::write(&Value::Any(bytes.into()), &mut json);
    serde_json::from_slice::<serde::de::IgnoredAny>(&json).expect("it is JSON");
});
