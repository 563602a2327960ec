//! The abort reasons of the engine itself. Each has one text, whichever path a transaction takes.

use tidemill_core::{TableSpec, Value};

use super::handler::{Abort, AbortKind, OPERATIONS_MAX};
use super::hooks::DEPTH_MAX;

fn row(table: &TableSpec, key: &[Value]) -> String {
    let key: Vec<String> = key.iter().map(ToString::to_string).collect();
    format!("{}[{}]", table.name, key.join(", "))
}

/// An insert of a row that exists.
pub fn exists(table: &TableSpec, key: &[Value]) -> Abort {
    Abort::refused(format!("{} exists already", row(table, key)))
}

/// An update of a row that does not exist, or a read of one whose columns need values.
pub fn missing(table: &TableSpec, key: &[Value]) -> Abort {
    Abort::refused(format!("{} is missing", row(table, key)))
}

/// A new row without a value for a column that needs one.
pub fn no_value(table: &TableSpec, key: &[Value], column: usize) -> Abort {
    let column = &table.schema.columns[column].name;
    let reason = format!("{} has no value for column '{column}'", row(table, key));
    Abort { kind: AbortKind::Fault, reason }
}

/// A panic of a function, with its text.
pub fn panicked(panic: &(dyn std::any::Any + Send)) -> Abort {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.map_or_else(String::new, |text| format!(": {text}"));
    Abort { kind: AbortKind::Raised, reason: format!("the function panicked{text}") }
}

/// An error that the program's check would have found, had the access been known then.
pub fn refused(error: &tidemill_core::Error) -> Abort {
    Abort { kind: AbortKind::Fault, reason: error.what.clone() }
}

/// A write to a table that the engine keeps.
pub fn is_of_engine(table: &TableSpec) -> Abort {
    let reason = format!("table {} is kept by the engine: programs can't write it", table.name);
    Abort { kind: AbortKind::Fault, reason }
}

/// An access to the rows of another handler's window.
pub fn is_hidden(table: &TableSpec) -> Abort {
    let reason = format!("table {} is a window's, which only its owner sees", table.name);
    Abort { kind: AbortKind::Fault, reason }
}

/// Triggers that fire each other without end.
pub fn too_deep(trigger: &str) -> Abort {
    Abort::refused(format!(
        "triggers set each other off more than {} deep, {trigger} among them",
        DEPTH_MAX
    ))
}

/// A row that a trigger puts into the window that has fired it.
pub fn is_sliding(window: &str) -> Abort {
    let reason =
        format!("window {window} takes a row or slides: its triggers can't put rows into it");
    Abort { kind: AbortKind::Fault, reason }
}

/// A range of a table without an order of keys.
pub fn not_ordered(table: &TableSpec) -> Abort {
    let reason = format!("table {} is not ordered: it has no ranges", table.name);
    Abort { kind: AbortKind::Fault, reason }
}

/// A key with a null.
pub fn null_key(table: &TableSpec) -> Abort {
    Abort { kind: AbortKind::Fault, reason: format!("null in the key of {}", table.name) }
}

/// A cycle of opaque handlers. Declared handlers are checked when the program is built, but
/// opaque ones only show what they emit when they run. A cascade longer than the chain of all
/// handlers is a cycle.
pub fn endless() -> Abort {
    Abort::refused("the outputs of opaque handlers feed each other without end")
}

/// Counts operations of a function; aborts if there are too many.
pub fn count(operations: &mut usize, more: usize) -> Result<(), Abort> {
    *operations = operations.saturating_add(more);
    match *operations > OPERATIONS_MAX {
        true => {
            Err(Abort::refused(format!("a transaction has at most {} operations", OPERATIONS_MAX)))
        }
        false => Ok(()),
    }
}

/// The longest reason of an abort that leaves, in bytes.
pub const REASON_BYTES_MAX: usize = 4096;

/// Shortens the reason of an abort, which may contain data that a client has sent.
pub fn shortened(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        let mut end = REASON_BYTES_MAX;
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        reason.truncate(end);
        reason.push_str(" ...");
    }
    reason
}

/// An answer from outside that is too long.
pub fn long_answer(bytes_max: usize) -> Abort {
    Abort::refused(format!("an answer from outside has more than {bytes_max} bytes"))
}

/// A row or key with too many or too few values.
pub fn wrong_shape(what: &str, columns: usize, given: usize) -> Abort {
    let reason = format!("{what} has {columns} columns, but {given} values were given");
    Abort { kind: AbortKind::Fault, reason }
}

/// An event for a stream that the handler can't emit into.
pub fn not_emittable(stream: &str) -> Abort {
    let reason = format!("stream {stream} can't be emitted into from here");
    Abort { kind: AbortKind::Fault, reason }
}
