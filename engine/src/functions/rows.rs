//! The rows of nodes, for transactions that run as they would in one process.

use std::sync::Arc;

use tidemill_core::{Row, StreamId, TableId, Value};
use tidemill_function::{Context, Stop};
use tidemill_txn::execute::RemoteStore;
use tidemill_txn::program::{Abort, AbortKind, Asker, Take};

use super::likely::{Likely, EVENTS};

/// The rows that a function on a node reaches.
pub(super) struct OnNodes<'c> {
    context: &'c mut dyn Context,
    likely: &'c Likely,
    /// The executed events, of streams whose uses of rows are still observed.
    learns: Vec<(StreamId, Vec<Row>)>,
    /// How many transactions have begun.
    begun: u32,
    /// Whether everything runs again, because a row has not arrived yet.
    is_unwound: bool,
}

impl<'c> OnNodes<'c> {
    pub(super) fn new(context: &'c mut dyn Context, likely: &'c Likely) -> OnNodes<'c> {
        OnNodes { context, likely, learns: Vec::new(), begun: 0, is_unwound: false }
    }

    /// Returns why a transaction has ended that aborted with `abort`.
    pub(super) fn why(&self, abort: Abort) -> Stop {
        match self.is_unwound {
            true => Stop::Unwind,
            false => abort.into(),
        }
    }

    fn done<T>(&mut self, result: Result<T, Stop>) -> Result<T, Abort> {
        result.map_err(|stop| match stop {
            Stop::Abort(abort) => abort,
            Stop::Overdue(_) => unreachable!("a function says so, and no context"),
            Stop::Unwind => {
                self.is_unwound = true;
                // This abort is never seen.
                Abort { kind: AbortKind::Raised, reason: String::new() }
            }
        })
    }
}

impl RemoteStore for OnNodes<'_> {
    fn row(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        for (stream, events) in &self.learns {
            self.likely.used(*stream, events, table, key);
        }
        let row = self.context.get(table, key);
        Ok(self.done(row)?.map(|row| row.as_ref().into()))
    }

    fn prefetch(&mut self, events: &[(StreamId, &[Value])]) -> Result<(), Abort> {
        self.learns.clear();
        for (stream, event) in events {
            match self.learns.iter_mut().find(|(of, _)| of == stream) {
                Some((_, events)) if events.len() < EVENTS => events.push((*event).into()),
                Some(_) => {}
                None if self.likely.learns(*stream) => {
                    self.learns.push((*stream, vec![(*event).into()]));
                }
                None => {}
            }
        }
        let likely = self.likely;
        let expected = || {
            let mut expected = Vec::new();
            likely.expected(events, |table, key| expected.push((table, key)));
            expected
        };
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

    fn lookup(&mut self, question: &[u8], ask: &Asker) -> Result<Arc<[u8]>, Abort> {
        let answer = self.context.lookup(question, ask);
        self.done(answer)
    }

    fn has_deadline(&self) -> bool {
        self.context.has_deadline()
    }

    fn verdict(&mut self) -> Result<Option<String>, Abort> {
        self.begun += 1;
        let verdict = self.context.verdict(self.begun, None);
        self.done(verdict)
    }

    fn overdue(&mut self, reason: &str) {
        let verdict = self.context.verdict(self.begun, Some(reason));
        // The transaction runs again, and then finds the verdict.
        let _ = self.done(verdict);
    }

    fn are_unavailable(&self) -> bool {
        self.is_unwound
    }
}
