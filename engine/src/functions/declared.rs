//! Declared transactions whose rows are not known from the event. They run at one node, with rows
//! fetched from their owners.

use std::sync::Arc;

use tidemill_core::{Row, StreamId, TableId, Value};
use tidemill_function::{Activation, Context, Step, Stop};
use tidemill_txn::execute::{transact, RemoteStore};
use tidemill_txn::program::{Abort, Program, Take, When};

use super::likely::Likely;
use super::times::Times;

/// A transaction of a handler.
pub(super) struct Declared {
    pub program: Arc<Program>,
    pub times: Arc<Times>,
    pub likely: Arc<Likely>,
    pub handler: usize,
    pub event: Arc<[Value]>,
}

impl Activation for Declared {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let Declared { program, times, likely, handler, event } = self;
        let input = program.handlers[*handler].input;
        let time_us = times.stands(input, times.of(input, event), context);
        let when = When { now_us: context.now_us(), time_us, chance: context.random() };
        let learns = likely.learns(input).then(|| (input, event[..].into()));
        let mut rows = OnNodes { context, likely, learns, is_unwound: false };
        let done = transact(program, *handler, event, when, &mut rows);
        let events = done.map_err(|abort| match rows.is_unwound {
            true => Stop::Unwind,
            false => abort.into(),
        })?;
        for (stream, row) in events {
            context.emit(stream, &row)?;
        }
        Ok(Step::Done(Value::Null))
    }
}

/// The rows that a function on a node reaches.
struct OnNodes<'c> {
    context: &'c mut dyn Context,
    likely: &'c Likely,
    /// The event and its stream, if that stream's uses of rows are still observed.
    learns: Option<(StreamId, Row)>,
    /// Whether everything runs again, because a row has not arrived yet.
    is_unwound: bool,
}

impl OnNodes<'_> {
    fn done<T>(&mut self, result: Result<T, Stop>) -> Result<T, Abort> {
        result.map_err(|stop| stop.abort(&mut self.is_unwound))
    }
}

impl RemoteStore for OnNodes<'_> {
    fn row(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        if let Some((stream, event)) = &self.learns {
            self.likely.used(*stream, event, table, key);
        }
        let row = self.context.get(table, key);
        Ok(self.done(row)?.map(|row| row.as_ref().into()))
    }

    fn prefetch(&mut self, stream: StreamId, event: &[Value]) -> Result<(), Abort> {
        let likely = self.likely;
        let expected = || likely.expected(stream, event);
        let asked = self.context.expect(&mut std::iter::once_with(expected).flatten());
        self.done(asked)
    }

    fn write(&mut self, table: TableId, key: &[Value], row: Option<&[Value]>) -> Result<(), Abort> {
        let written = self.context.write(table, key, row);
        self.done(written)
    }

    fn range(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        take: Take,
    ) -> Result<Vec<Row>, Abort> {
        let rows = self.context.range(table, from, to, take);
        Ok(self.done(rows)?.iter().map(|row| row.as_ref().into()).collect())
    }

    fn leading(
        &mut self,
        table: TableId,
        leading: &[Value],
        take: Take,
    ) -> Result<Vec<Row>, Abort> {
        let rows = self.context.find(table, leading, take);
        Ok(self.done(rows)?.iter().map(|row| row.as_ref().into()).collect())
    }
}
