//! One declared transaction by itself, on rows that others hold.

use std::collections::BTreeMap;

use tidemill_core::{Key, Position, Row, SourceId, Stamp, StreamId, TableId, Value};

use super::work::{Looked, Work, Write};
use super::Outcome;
use crate::program::{evaluate, key_value, Abort, Answers, Body, Footprint, Moment, Op, Program};

/// A row that a declared transaction mentions: its table and key, and whether it may be written.
pub type Mentioned = (TableId, Key, bool);

/// What such a transaction comes to: the rows that it has written, and its events.
pub type Done = (Vec<(TableId, Key, Option<Row>)>, Vec<(StreamId, Row)>);

/// The same, with all that it has written in its order: a row may be there more than once.
pub type Found = (Vec<Write>, Vec<(StreamId, Row)>);

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

/// The tables of which a declared handler reads ranges of rows.
pub fn ranges(program: &Program, handler: usize) -> Vec<TableId> {
    Footprint::of(program, handler).ranges
}

/// The tables that a declared handler uses.
pub fn uses(program: &Program, handler: usize) -> impl Iterator<Item = TableId> + use<> {
    let Footprint { rows, ranges, .. } = Footprint::of(program, handler);
    rows.into_iter().map(|row| row.table).chain(ranges)
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

/// Runs a declared handler's transaction of an event on whatever rows it looks for, which `fetch` gives as they are
/// before it. What it is not given it takes for missing, and then it runs again.
///
/// # Errors
/// Why it aborts, or what `fetch` says.
pub fn looking<E: From<Abort>>(
    program: &Program,
    handler: usize,
    event: &[Value],
    fetch: &mut dyn FnMut(&Looked) -> Result<Vec<Row>, E>,
) -> Result<Found, E> {
    let (mut known, mut rows) = (Vec::new(), Vec::<(TableId, Key, Row)>::new());
    loop {
        let given = rows.iter().map(|(table, key, row)| (*table, key.clone(), Some(&row[..])));
        let (looked, done) = run(program, handler, event, given);
        let before = known.len();
        for next in looked.0 {
            // The first one that is not known is what it has to look for, the others mostly are.
            let is_first = known.len() == before;
            if known.contains(&next) || !(is_first || matches!(next, Looked::Row(..))) {
                continue;
            }
            let (Looked::Row(table, _) | Looked::Range(table, ..)) = &next;
            let key = &program.tables[table.index()].key;
            let fetched = fetch(&next)?.into_iter();
            rows.extend(fetched.map(|row| (*table, Key::of(key.iter().map(|at| &row[*at])), row)));
            known.push(next);
        }
        if known.len() == before {
            let (_, events) = done?;
            return Ok((looked.1, events));
        }
    }
}

/// Runs a declared handler's transaction of an event, on the rows that [`mentions`] names.
pub fn alone<'r>(
    program: &Program,
    handler: usize,
    event: &[Value],
    rows: impl IntoIterator<Item = (TableId, Key, Option<&'r [Value]>)>,
) -> Result<Done, Abort> {
    run(program, handler, event, rows).1
}

/// The same, and what it has looked for and written.
fn run<'r>(
    program: &Program,
    handler: usize,
    event: &[Value],
    rows: impl IntoIterator<Item = (TableId, Key, Option<&'r [Value]>)>,
) -> ((Vec<Looked>, Vec<Write>), Result<Done, Abort>) {
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
    let done = work.declared(declared, event);
    let (looked, written, emitted) =
        ((work.looked, work.writes), work.written, work.inside.emitted);
    if let Err(abort) = done {
        return (looked, Err(abort));
    }
    let mut left = Vec::with_capacity(written.len());
    for (table, key) in written {
        let row = outcome.tables[table.index()].remove(&key);
        left.push((table, key, row));
    }
    let emitted = emitted.into_iter().map(|(stream, row)| (stream, row.into())).collect();
    (looked, Ok((left, emitted)))
}
