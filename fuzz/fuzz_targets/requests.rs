//! Requests from outside: messages of topics, and lines to the socket of a running app.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_connect::Message;
use tidemill_engine::fuzz;
use tidemill_fuzz::Parts;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    match parts.u8() % 3 {
        0 => fuzz::line(parts.0),
        1 => {
            let id = parts.until(0);
            let headers = vec![("request-id", id)];
            fuzz::message(&Message { value: Some(parts.0), headers, ..Message::default() });
        }
        _ => {
            let headers = vec![("record", parts.0), ("version", b"7")];
            fuzz::message(&Message { value: Some(b"{}"), headers, ..Message::default() });
        }
    }
});
