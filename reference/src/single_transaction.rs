//! A single transaction on given rows.

use std::collections::BTreeMap;

use tidemill_core::{Key, Row, StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Answers, When};
use tidemill_txn::Program;

use super::rows::Maps;
use super::work::Work;

/// The result of a single transaction: the rows that it has written, and its events.
pub type Done = (Vec<(TableId, Key, Option<Row>)>, Vec<(StreamId, Row)>);

/// Runs a declared handler's transaction of an event on these rows. All others are missing.
///
/// # Errors
/// The reason of an abort.
pub fn run_single<'r>(
    program: &Program,
    handler: usize,
    event: &[Value],
    rows: impl IntoIterator<Item = (TableId, Key, Option<&'r [Value]>)>,
) -> Result<Done, Abort> {
    let mut tables = vec![BTreeMap::new(); program.tables.len()];
    for (table, key, row) in rows {
        if let Some(row) = row {
            tables[table.index()].insert(key, row.into());
        }
    }
    let histories = vec![BTreeMap::new(); program.tables.len()];
    let mut rows = Maps { tables: &mut tables, histories: &histories };
    // A declared transaction without windows uses neither time nor random numbers.
    let (answers, when) = (Answers::default(), When { now_us: 0, time_us: 0, chance: 0 });
    let moment = when.moment(handler, &answers);
    let mut work = Work::new(program, &mut rows, handler, &moment);
    work.handler(event)?;
    let (written, emitted) = (work.written, work.inside.emitted);
    let row = |(table, key): (TableId, Key)| {
        let row = tables[table.index()].remove(&key);
        (table, key, row)
    };
    let written = written.into_iter().map(row).collect();
    Ok((written, emitted.into_iter().map(|(stream, row)| (stream, row.into())).collect()))
}
