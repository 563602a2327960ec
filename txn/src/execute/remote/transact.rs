//! One transaction by itself, which may need any row.

use tidemill_core::{Row, StreamId, Value};

use super::store::View;
use super::RemoteStore;
use crate::execute::serial::call;
use crate::program::{Abort, Answers, Program, When};

/// Runs a handler's transaction of an event and returns the events that it emits. `rows` supplies
/// any row.
///
/// # Errors
/// The reason of an abort. The transaction has then written nothing.
pub fn transact(
    program: &Program,
    handler: usize,
    event: &[Value],
    when: When,
    rows: &mut impl RemoteStore,
) -> Result<Vec<(StreamId, Row)>, Abort> {
    let answers = Answers::default();
    let moment = when.moment(handler, &answers);
    rows.prefetch(program.handlers[handler].input, event)?;
    let view = View::new(rows);
    let result = call(program, &view, handler, event, &moment, &mut 0);
    let mut effects = view.settled(result)?;
    let emitted = std::mem::take(&mut effects.emitted);
    for (table, key, row) in effects.into_written() {
        rows.write(table, &key, row.as_deref())?;
    }
    Ok(emitted.into_iter().map(|(stream, row)| (stream, row.into())).collect())
}
