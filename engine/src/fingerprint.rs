//! Fingerprints of programs. They differ where a replay could give other results.

use serde_json::Value;
use tidemill_core::encode::hash128;
use tidemill_txn::program::Program;

use crate::requests::REQUESTS;
use crate::stored::Stored;

/// The engine's number. It is raised when the engine gives other results for the same input and
/// cuts.
const ENGINE: u16 = 1;
/// The number for programs with event time. Earlier versions decided by the cuts which events were
/// late.
const EVENT_TIME: u16 = 2;
/// The number for programs with windows by time. In earlier versions the next row ended them.
const WINDOWS_BY_TIME: u16 = 3;
/// A bit that is added where requests have a clock of their own. Earlier cuts are replayed without
/// it.
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

/// The text of a program that its fingerprint is taken of.
pub(crate) fn text(program: &Program) -> String {
    serde_json::to_string(program).expect("a program is JSON")
}

/// The fingerprint of a program's [`text`] and of the engine, whose number is in the highest 16
/// bits. The user's lines do not count.
pub(crate) fn of(text: &str) -> u128 {
    let mut program: Value = serde_json::from_str(text).expect("it was JSON before");
    forget_lines(&mut program);
    u128::from(engine(&program)) << 112 | hash128(program.to_string().as_bytes()) >> 16
}

/// The fingerprint of a program.
pub(crate) fn of_program(program: &Program) -> u128 {
    of(&text(program))
}

/// Whether the engine of a fingerprint gives the same results as this one, for the same input and
/// cuts. `own` is the fingerprint that this engine gives the program.
pub(crate) fn is_of_this_engine(fingerprint: u128, own: u128) -> bool {
    let number = |of: u128| (of >> 112) as u16 & !REQUEST_CLOCK;
    number(fingerprint) == number(own)
}

/// Whether requests have a clock of their own in a cut with this fingerprint.
pub(crate) fn has_request_clock(fingerprint: u128) -> bool {
    (fingerprint >> 112) as u16 & REQUEST_CLOCK != 0
}

/// Whether two fingerprints are of one program, whichever engine executed it.
pub(crate) fn is_same(one: u128, other: u128) -> bool {
    one << 16 == other << 16
}

/// Whether the app in a manifest, with its present meaning, has this fingerprint. The text of a
/// program may grow from version to version.
pub(crate) fn is_same_program(stored: &[u8], fingerprint: u128) -> bool {
    Stored::parse(stored).is_ok_and(|stored| is_same(of_program(&stored.program), fingerprint))
}

/// Removes the user's lines.
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
