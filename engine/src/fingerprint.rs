//! What tells one program from another: whatever changes what a replay would come to.

use serde_json::Value;
use tidemill_core::encode::hash128;
use tidemill_txn::program::Program;

use crate::requests::REQUESTS;
use crate::stored::Stored;

/// Raised whenever the engine would come to another outcome on the same input and cuts.
const ENGINE: u16 = 1;
/// The same for programs with streams in event time: in earlier versions their events were late by the cuts.
const EVENT_TIME: u16 = 2;
/// The same for programs with windows by time: in earlier versions the row that came next ended them.
const WINDOWS_BY_TIME: u16 = 3;
/// Added to it where requests are kept by a clock of their own. Cuts from before are executed again without it.
const REQUEST_CLOCK: u16 = 1 << 8;

fn engine(program: &Value) -> u16 {
    let any = |of: &str, is: &dyn Fn(&Value) -> bool| {
        program[of].as_array().into_iter().flatten().any(is)
    };
    let outcome = match () {
        () if any("windows", &|window| window["extent"].get("time").is_some()) => WINDOWS_BY_TIME,
        () if any("streams", &|stream| stream["time"].get("event").is_some()) => EVENT_TIME,
        () => ENGINE,
    };
    match any("tables", &|table| table["name"] == REQUESTS) {
        true => outcome | REQUEST_CLOCK,
        false => outcome,
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
    let number = |of: u128| (of >> 112) as u16 & !REQUEST_CLOCK;
    number(fingerprint) == number(own)
}

/// Whether a cut with this fingerprint kept requests by a clock of their own.
pub(crate) fn has_request_clock(fingerprint: u128) -> bool {
    (fingerprint >> 112) as u16 & REQUEST_CLOCK != 0
}

/// Whether two fingerprints are of one program, whichever engine executed it.
pub(crate) fn is_same(one: u128, other: u128) -> bool {
    one << 16 == other << 16
}

/// Whether the app that a manifest keeps, with the meaning that it has today, is the one with
/// this fingerprint: what a program is written as may grow from version to version.
pub(crate) fn is_same_program(kept: &[u8], fingerprint: u128) -> bool {
    Stored::parse(kept).is_ok_and(|kept| is_same(of(&text(&kept.program)), fingerprint))
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
