//! Messages in JSON, and rows from clients.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_connect::{values, MessageFormat, MessageRows, MessageSettings, MessageValues};
use tidemill_fuzz::{comes_back, every_type, row_of};

fuzz_target!(|bytes: &[u8]| {
    let schema = every_type(true);
    let settings = MessageSettings::default();
    let mut decoder = MessageRows::new(&schema, &settings).unwrap();
    if let Ok(row) = row_of(&mut decoder, &schema, bytes) {
        let encoder = MessageValues::new(&schema, MessageFormat::Json, &[]).unwrap();
        comes_back(&mut decoder, &encoder, &schema, &row);
        let settings = MessageSettings { format: MessageFormat::Msgpack, ..settings };
        let mut decoder = MessageRows::new(&schema, &settings).unwrap();
        let encoder = MessageValues::new(&schema, MessageFormat::Msgpack, &[]).unwrap();
        comes_back(&mut decoder, &encoder, &schema, &row);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(row) = values::read_row(text, &schema) {
        let mut json = Vec::new();
        values::write_row(&schema, &row, &mut json);
        let json = String::from_utf8(json).expect("JSON is text");
        assert_eq!(values::read_row(&json, &schema).as_ref(), Ok(&row), "of {json}");
    }
});
