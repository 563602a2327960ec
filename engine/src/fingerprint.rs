//! What tells one program from another: whatever changes what a replay would come to.

use serde_json::Value;
use tidemill_core::encode::hash128;
use tidemill_txn::program::Program;

use crate::stored::Stored;

/// Raised whenever the engine would come to another outcome on the same input and cuts.
const ENGINE: u16 = 1;
/// The same for programs with streams in event time: in earlier versions their events were late by the cuts.
const EVENT_TIME: u16 = 2;

fn engine(program: &Value) -> u16 {
    let mut streams = program["streams"].as_array().into_iter().flatten();
    match streams.any(|stream| stream["time"].get("event").is_some()) {
        true => EVENT_TIME,
        false => ENGINE,
    }
}

/// The program as its fingerprint is taken of it.
pub(crate) fn text(program: &Program) -> String {
    serde_json::to_string(program).expect("a program is JSON")
}

/// The fingerprint of a program's [`text`] and of the engine, whose number are the highest 16 bits.
/// Where in the user's files things stand does not count.
pub(crate) fn of(text: &str) -> u128 {
    let mut program: Value = serde_json::from_str(text).expect("it was JSON before");
    forget_lines(&mut program);
    u128::from(engine(&program)) << 112 | hash128(program.to_string().as_bytes()) >> 16
}

/// Whether a fingerprint is of an engine that comes to the same on the same input and cuts as this one, which gives a program
/// the fingerprint `own`.
pub(crate) fn is_of_this_engine(fingerprint: u128, own: u128) -> bool {
    fingerprint >> 112 == own >> 112
}

/// Whether the app that a manifest keeps, with the meaning that it has today, is the one with
/// this fingerprint: what a program is written as may grow from version to version.
pub(crate) fn is_same_program(kept: &[u8], fingerprint: u128) -> bool {
    Stored::parse(kept).is_ok_and(|kept| of(&text(&kept.program)) << 16 == fingerprint << 16)
}

/// Takes the lines of the user's files out.
pub(crate) fn forget_lines(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("at").is_some_and(Value::is_string) {
                fields.remove("at");
            }
            fields.values_mut().for_each(forget_lines);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_lines),
        _ => {}
    }
}
