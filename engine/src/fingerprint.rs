//! What tells one program from another: whatever changes what a replay would come to.

use serde_json::Value;
use tidemill_core::encode::hash128;
use tidemill_txn::program::Program;

/// Raised whenever the engine would come to another outcome on the same input and cuts.
const ENGINE: u32 = 2;

/// The program as a manifest keeps it.
pub(crate) fn text(program: &Program) -> String {
    serde_json::to_string(program).expect("a program is JSON")
}

/// The fingerprint of a program's [`text`] and of the engine. Where in the user's files things stand
/// does not count.
pub(crate) fn of(text: &str) -> u128 {
    let mut program: Value = serde_json::from_str(text).expect("it was JSON before");
    forget_lines(&mut program);
    hash128(format!("{ENGINE} {program}").as_bytes())
}

/// Takes the lines of the user's files out.
fn forget_lines(value: &mut Value) {
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
