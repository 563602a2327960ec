//! A single transaction on rows that are stored elsewhere.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tidemill_core::{Key, Position, Row, SourceId, Stamp, StreamId, TableId, Value};

use super::rows::{Maps, Rows};
use super::work::Work;
use crate::program::{
    evaluate, key_value, Abort, Answers, Body, ExprId, Footprint, Moment, Program, RowUse,
};

/// A row that a declared transaction mentions: its table, its key, and whether it may be written.
pub type Mentioned = (TableId, Key, bool);

/// The result of such a transaction: the rows that it has written, and its events.
pub type Done = (Vec<(TableId, Key, Option<Row>)>, Vec<(StreamId, Row)>);

/// The time of a transaction, and the source of its random numbers.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// The clock, in microseconds since 1970.
    pub now_us: i64,
    /// The transaction's time: that of its event, or event time at the cut before; without event
    /// time, the clock.
    pub time_us: i64,
    /// A number that no other transaction has. Random numbers are made of it.
    pub chance: u64,
}

impl When {
    pub(super) fn moment<'a>(&self, step: usize, answers: &'a Answers) -> Moment<'a> {
        let When { now_us, time_us, chance } = *self;
        let at = Position { time_us, source: SourceId(0), offset: chance };
        Moment { now_us, stamp: Stamp::of(at), step, answers }
    }
}

/// Returns the rows of a declared handler's transactions if they follow from the event alone.
/// Returns `None` otherwise, and for handlers that are not declared.
pub(crate) fn known(program: &Program, handler: usize) -> Option<Vec<RowUse>> {
    let Body::Declared(_) = &program.handlers[handler].body else { return None };
    let footprint = Footprint::of(program, handler);
    (footprint.is_known() && footprint.ranges.is_empty()).then_some(footprint.rows)
}

/// Returns the rows that the transaction of an event mentions, without duplicates. A row whose key
/// can't be computed is left out; the transaction aborts where it uses that row.
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

/// Returns the key of a row if it can be computed.
pub(crate) fn key_of(
    program: &Program,
    handler: usize,
    row: &RowUse,
    event: &[Value],
) -> Option<SmallVec<[Value; 2]>> {
    let Body::Declared(declared) = &program.handlers[handler].body else { return None };
    let spec = &program.tables[row.table.index()];
    // A key that can't be computed aborts the transaction later, with the reason.
    let value = |id: &ExprId| key_value(evaluate(&declared.exprs, *id, event).ok()?, spec).ok();
    row.key.iter().map(value).collect()
}

/// Returns the rows that a declared handler's transaction of an event mentions, if they are known
/// before it runs.
pub fn mentions(program: &Program, handler: usize, event: &[Value]) -> Option<Vec<Mentioned>> {
    Some(mentioned(program, handler, &known(program, handler)?, event))
}

/// Returns the tables that a declared handler uses.
pub fn uses(program: &Program, handler: usize) -> impl Iterator<Item = TableId> + use<> {
    let Footprint { rows, ranges, .. } = Footprint::of(program, handler);
    rows.into_iter().map(|row| row.table).chain(ranges)
}

/// Runs a handler's transaction of an event and returns the events that it emits. `rows` supplies
/// any row.
///
/// # Errors
/// The reason of an abort. The transaction's writes so far stay.
pub fn transact(
    program: &Program,
    handler: usize,
    event: &[Value],
    when: When,
    rows: &mut impl Rows,
) -> Result<Vec<(StreamId, Row)>, Abort> {
    let answers = Answers::default();
    let moment = when.moment(handler, &answers);
    rows.prefetch(program, &[(program.handlers[handler].input, event)])?;
    let mut work = Work::new(program, rows, handler, &moment);
    work.handler(event)?;
    let emitted = work.inside.emitted.into_iter();
    Ok(emitted.map(|(stream, row)| (stream, row.into())).collect())
}

/// Runs a declared handler's transaction of an event on the rows that [`mentions`] names.
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
