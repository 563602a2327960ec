//! One transaction by itself, on rows that others hold.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tidemill_core::{Key, Position, Row, SourceId, Stamp, StreamId, TableId, Value};

use super::rows::{Maps, Rows};
use super::work::Work;
use crate::program::{
    evaluate, key_value, Abort, Answers, Body, ExprId, Footprint, Moment, Program, RowUse,
};

/// A row that a declared transaction mentions: its table and key, and whether it may be written.
pub type Mentioned = (TableId, Key, bool);

/// What such a transaction comes to: the rows that it has written, and its events.
pub type Done = (Vec<(TableId, Key, Option<Row>)>, Vec<(StreamId, Row)>);

/// When a transaction is, and what its random numbers are made of.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// The clock.
    pub now_us: i64,
    /// Its time: that of its event, or where event time was at the cut before; the clock, where nothing is in event time.
    pub time_us: i64,
    /// What no other transaction has.
    pub chance: u64,
}

impl When {
    pub(super) fn moment<'a>(&self, step: usize, answers: &'a Answers) -> Moment<'a> {
        let When { now_us, time_us, chance } = *self;
        let at = Position { time_us, source: SourceId(0), offset: chance };
        Moment { now_us, stamp: Stamp::of(at), step, answers }
    }
}

/// The rows of a declared handler's transactions, where they follow from the event alone: `None` where they do not, and for
/// handlers that are not declared.
pub(crate) fn known(program: &Program, handler: usize) -> Option<Vec<RowUse>> {
    let Body::Declared(_) = &program.handlers[handler].body else { return None };
    let footprint = Footprint::of(program, handler);
    (footprint.is_known() && footprint.ranges.is_empty()).then_some(footprint.rows)
}

/// Those of them that the transaction of an event mentions, none twice. A row whose key can't be computed is not among
/// them: the transaction aborts where it comes to it.
pub(crate) fn mentioned(
    program: &Program,
    handler: usize,
    rows: &[RowUse],
    event: &[Value],
) -> Vec<Mentioned> {
    let mut found: Vec<Mentioned> = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(key) = key_of(program, handler, row, event) else { continue };
        let key = Key::of(&key);
        let is_it = |(table, known, _): &&mut Mentioned| (*table, known) == (row.table, &key);
        match found.iter_mut().find(is_it) {
            Some((.., writes)) => *writes |= row.access.writes,
            None => found.push((row.table, key, row.access.writes)),
        }
    }
    found
}

/// The key of a row, where it can be computed.
pub(crate) fn key_of(
    program: &Program,
    handler: usize,
    row: &RowUse,
    event: &[Value],
) -> Option<SmallVec<[Value; 2]>> {
    let Body::Declared(declared) = &program.handlers[handler].body else { return None };
    let spec = &program.tables[row.table.index()];
    // A key that can't be computed aborts when its turn comes, with the reason.
    let value = |id: &ExprId| key_value(evaluate(&declared.exprs, *id, event).ok()?, spec).ok();
    row.key.iter().map(value).collect()
}

/// The rows that a declared handler's transaction of an event mentions, where that is known before it runs.
pub fn mentions(program: &Program, handler: usize, event: &[Value]) -> Option<Vec<Mentioned>> {
    Some(mentioned(program, handler, &known(program, handler)?, event))
}

/// The tables that a declared handler uses.
pub fn uses(program: &Program, handler: usize) -> impl Iterator<Item = TableId> + use<> {
    let Footprint { rows, ranges, .. } = Footprint::of(program, handler);
    rows.into_iter().map(|row| row.table).chain(ranges)
}

/// Runs a handler's transaction of an event on whatever rows it looks for, and gives the events that it emits.
///
/// # Errors
/// Why it aborts. What it has written by then stays.
pub fn transact(
    program: &Program,
    handler: usize,
    event: &[Value],
    when: When,
    rows: &mut impl Rows,
) -> Result<Vec<(StreamId, Row)>, Abort> {
    let answers = Answers::default();
    let moment = when.moment(handler, &answers);
    rows.comes(program, &[(program.handlers[handler].input, event)])?;
    let mut work = Work::new(program, rows, handler, &moment);
    work.handler(event)?;
    let emitted = work.inside.emitted.into_iter();
    Ok(emitted.map(|(stream, row)| (stream, row.into())).collect())
}

/// Runs a declared handler's transaction of an event, on the rows that [`mentions`] names.
///
/// # Errors
/// Why it aborts.
pub fn alone<'r>(
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
    // Neither time nor chance is in a declared transaction without windows.
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
