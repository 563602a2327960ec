//! Messages between processes: packets, and requests to the log of a coordinator.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidemill_host::fuzz::message(bytes));
