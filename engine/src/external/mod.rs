//! Work outside. Transactions write requests for it into a table, an *outbox*. The work is done
//! after the request is durable, and its answer is an event of a stream.
//!
//! The outbox is the whole memory of the work. A row stays until the transaction of its answer
//! removes it. So nothing is lost in a crash. Work may be done again, with the row's key, by which
//! the outside can recognize it. A second answer finds no row.
//!
//! | file | purpose |
//! | --- | --- |
//! | `outbox` | an outbox: its rows, and the threads that do their work |
//! | `here` | the outboxes of one process: rows from its tables, answers as pushed events |
//! | `nodes` | those of a worker: rows that it owns, answers in the log |

mod here;
mod nodes;
mod outbox;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use tidemill_core::{rules, Error, Result, Schema, TableSpec, Value};

pub(crate) use self::here::start;
pub(crate) use self::nodes::OutboxesOnNode;
use crate::spec::ExternalDecl;

/// An implementation of work outside.
pub trait Outside: Send + Sync {
    /// Does the work of an outbox's row. Returns the columns of the stream of answers after the
    /// row's key. A long call should end when `gives_up` says so; its result is not used then.
    /// After a panic or a wrong answer it is called again, a second later.
    fn call(&self, asked: &[Value], gives_up: GivesUp) -> Vec<Value>;
}

/// Whether the answer is no longer awaited.
pub type GivesUp = Arc<dyn Fn() -> bool + Send + Sync>;

/// Returns the implementation for an outbox, and checks the columns of its answers.
///
/// # Errors
/// When there is no implementation, or the answers have wrong columns.
fn who(decl: &ExternalDecl, outbox: &TableSpec, answers: &Schema) -> Result<Arc<dyn Outside>> {
    let refuse = |what: String| Error::program(what).at(decl.at.clone());
    let Some(outside) = &decl.outside else {
        return Err(refuse(format!("no function does the work of outbox {}", decl.outbox)));
    };
    if outbox.key.len() != 1 || answers.columns[0].ty != outbox.schema.columns[outbox.key[0]].ty {
        let what = format!("the answers of outbox {} do not begin with its key", decl.outbox);
        return Err(refuse(what));
    }
    Ok(outside.clone())
}

/// Calls the implementation for a row of an outbox with this key. Returns a row of the stream of
/// answers, or `None` when the answer is wrong or the function has panicked.
fn ask(
    outside: &dyn Outside,
    asked: &[Value],
    key: &Value,
    answers: &Schema,
    gives_up: GivesUp,
) -> Option<Vec<Value>> {
    let said = catch_unwind(AssertUnwindSafe(|| outside.call(asked, gives_up))).ok()?;
    let row = std::iter::once(key.clone()).chain(said).zip(&answers.columns);
    // A value that fits no column is not an answer.
    let row: Vec<Value> =
        row.map(|(value, column)| rules::store(&value, column).ok()).collect::<Option<_>>()?;
    (row.len() == answers.len()).then_some(row)
}
