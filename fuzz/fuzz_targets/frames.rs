//! Messages in the stream of bytes of a connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidemill_mesh::fuzz::frames(bytes, 1 << 16));
