//! One declared transaction by itself, on rows that others hold.

use std::collections::BTreeMap;

use tidemill_core::{Key, Position, Row, SourceId, Stamp, StreamId, TableId, Value};

use super::work::Work;
use super::Outcome;
use crate::program::{evaluate, key_value, Abort, Answers, Body, Footprint, Moment, Op, Program};

/// A row that a declared transaction mentions: its table and key, and whether it may be written.
pub type Mentioned = (TableId, Key, bool);

/// What such a transaction comes to: the rows that it has written, and its events.
pub type Done = (Vec<(TableId, Key, Option<Row>)>, Vec<(StreamId, Row)>);

/// The rows that a declared handler's transaction of an event mentions, none twice. A row whose key can't be
/// computed is not among them: the transaction aborts where it comes to it.
///
/// `None` where they are not known from the event alone, and for handlers that are not declared.
pub fn mentions(program: &Program, handler: usize, event: &[Value]) -> Option<Vec<Mentioned>> {
    let Body::Declared(declared) = &program.handlers[handler].body else { return None };
    let footprint = Footprint::of(program, handler);
    if !footprint.is_known() || !footprint.ranges.is_empty() {
        return None;
    }
    let mut found: Vec<Mentioned> = Vec::with_capacity(footprint.rows.len());
    for row in &footprint.rows {
        let spec = &program.tables[row.table.index()];
        let value = |id| key_value(evaluate(&declared.exprs, id, event)?, spec);
        let key: Result<Vec<Value>, Abort> = row.key.iter().map(|id| value(*id)).collect();
        let Ok(key) = key else { continue };
        let key = Key::of(&key);
        match found
            .iter_mut()
            .find(|(table, known, _)| (*table, known as &Key) == (row.table, &key))
        {
            Some((.., writes)) => *writes |= row.access.writes,
            None => found.push((row.table, key, row.access.writes)),
        }
    }
    Some(found)
}

/// Whether a declared handler reads ranges of rows.
pub fn ranges(program: &Program, handler: usize) -> bool {
    !Footprint::of(program, handler).ranges.is_empty()
}

/// Whether the keys of all rows of a declared handler follow from its event.
pub fn keys_are_known(program: &Program, handler: usize) -> bool {
    Footprint::of(program, handler).is_known()
}

/// Whether a declared handler reads the versions of rows.
pub fn reads_versions(program: &Program, handler: usize) -> bool {
    match &program.handlers[handler].body {
        Body::Declared(declared) => {
            declared.steps.iter().any(|step| matches!(step.op, Op::Window { .. }))
        }
        _ => true,
    }
}

/// Runs a declared handler's transaction of an event, on the rows that [`mentions`] names.
pub fn alone<'r>(
    program: &Program,
    handler: usize,
    event: &[Value],
    rows: impl IntoIterator<Item = (TableId, Key, Option<&'r [Value]>)>,
) -> Result<Done, Abort> {
    let Body::Declared(declared) = &program.handlers[handler].body else {
        unreachable!("whoever asks has looked")
    };
    let mut outcome = Outcome {
        tables: vec![BTreeMap::new(); program.tables.len()],
        histories: vec![BTreeMap::new(); program.tables.len()],
        ..Outcome::default()
    };
    for (table, key, row) in rows {
        if let Some(row) = row {
            outcome.tables[table.index()].insert(key, row.into());
        }
    }
    let (answers, at) =
        (Answers::default(), Position { time_us: 0, source: SourceId(0), offset: 0 });
    // Neither time nor chance is in a declared transaction without windows.
    let moment = Moment { now_us: 0, stamp: Stamp::of(at), step: handler, answers: &answers };
    let mut work = Work::new(program, &mut outcome, handler, &moment);
    work.declared(declared, event)?;
    let (written, emitted) = (work.written, work.inside.emitted);
    let mut left = Vec::with_capacity(written.len());
    for (table, key) in written {
        let row = outcome.tables[table.index()].remove(&key);
        left.push((table, key, row));
    }
    Ok((left, emitted.into_iter().map(|(stream, row)| (stream, row.into())).collect()))
}
