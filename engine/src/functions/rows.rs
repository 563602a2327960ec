//! The rows of nodes, for transactions that run as they would in one process.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{Key, Row, StreamId, TableId, Value};
use tidemill_function::{Context, Stop};
use tidemill_txn::program::{Abort, AbortKind, Asker, Program};
use tidemill_txn::reference::{between, IsUnneeded, Rows, StoredVersions, Version};

use super::likely::{Likely, EVENTS};

/// The rows that a function on a node reaches.
pub(super) struct OnNodes<'c> {
    context: &'c mut dyn Context,
    kept: &'c StoredVersions,
    likely: &'c Likely,
    /// The executed events, of streams whose uses of rows are still observed.
    learns: Vec<(StreamId, Vec<Row>)>,
    /// Rows that lack some values yet. They go to their owners when they are whole.
    partial: BTreeMap<(TableId, Key), Row>,
    /// How many transactions have begun.
    begun: u32,
    /// Whether everything runs again, because a row has not arrived yet.
    is_unwound: bool,
}

impl<'c> OnNodes<'c> {
    pub(super) fn new(
        context: &'c mut dyn Context,
        kept: &'c StoredVersions,
        likely: &'c Likely,
    ) -> OnNodes<'c> {
        let (learns, partial) = (Vec::new(), BTreeMap::new());
        OnNodes { context, kept, likely, learns, partial, begun: 0, is_unwound: false }
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

    /// Refuses a row whose entry in a unique index belongs to another row, before anything of it is
    /// written.
    fn check_entries(
        &mut self,
        program: &Program,
        table: TableId,
        key: &[Value],
        row: &[Value],
    ) -> Result<(), Abort> {
        for index in program.indexes(table).iter().filter(|index| index.is_unique()) {
            let Some(entry) = index.entry(program, row) else { continue };
            let was = self.context.get(table, key);
            let was = self.done(was)?.and_then(|was| index.entry(program, &was));
            if was.is_some_and(|was| index.key(&was) == index.key(&entry)) {
                continue;
            }
            let other = self.context.get(index.table, index.key(&entry));
            if self.done(other)?.is_some() {
                return Err(index.is_taken(program, &entry));
            }
        }
        Ok(())
    }

    /// Returns the first rows of a range in key order. It merges the rows of the context with those
    /// that lack some values yet.
    fn look_for(
        &mut self,
        program: &Program,
        table: TableId,
        is_one: impl Fn(&Key, &Row) -> bool,
        limit: usize,
        ask: impl Fn(&mut dyn Context, u32) -> Result<Vec<Arc<[Value]>>, Stop>,
    ) -> Result<Vec<Row>, Abort> {
        let columns = &program.tables[table.index()].key;
        let key_of = |row: &[Value]| Key::of(columns.iter().map(|column| &row[*column]));
        let partial =
            self.partial.iter().filter(|((of, key), row)| *of == table && is_one(key, row));
        let partial: Vec<(Key, Row)> =
            partial.map(|((_, key), row)| (key.clone(), row.clone())).collect();
        // A row of the context may be an older version of one that lacks values.
        let asked = u32::try_from(limit.saturating_add(partial.len())).unwrap_or(u32::MAX);
        let rows = ask(self.context, asked);
        let rows = self.done(rows)?;
        let mut found: BTreeMap<Key, Row> =
            rows.iter().map(|row| (key_of(row), row.as_ref().into())).collect();
        found.extend(partial);
        Ok(found.into_values().take(limit).collect())
    }
}

/// Whether a row has all the values that it must have. A row that is built column by column has
/// them in the end.
fn is_whole(program: &Program, table: TableId, row: &[Value]) -> bool {
    let columns = &program.tables[table.index()].schema.columns;
    columns.iter().zip(row).all(|(column, value)| column.nullable || !value.is_null())
}

impl Rows for OnNodes<'_> {
    fn row(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        if let Some(row) = self.partial.get(&(table, Key::of(key))) {
            return Ok(Some(row.clone()));
        }
        for (stream, events) in &self.learns {
            self.likely.used(*stream, events, table, key);
        }
        let row = self.context.get(table, key);
        Ok(self.done(row)?.map(|row| row.as_ref().into()))
    }

    fn prefetch(&mut self, _: &Program, events: &[(StreamId, &[Value])]) -> Result<(), Abort> {
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

    fn write(
        &mut self,
        program: &Program,
        table: TableId,
        key: &[Value],
        row: Option<Row>,
    ) -> Result<(), Abort> {
        let Some(row) = row else {
            self.partial.remove(&(table, Key::of(key)));
            let deleted = self.context.delete(table, key);
            return self.done(deleted);
        };
        self.check_entries(program, table, key, &row)?;
        if !is_whole(program, table, &row) {
            self.partial.insert((table, Key::of(key)), row);
            return Ok(());
        }
        self.partial.remove(&(table, Key::of(key)));
        let put = self.context.put(table, &row);
        self.done(put)
    }

    fn range(
        &mut self,
        program: &Program,
        table: TableId,
        from: &[Value],
        to: &[Value],
    ) -> Result<Vec<Row>, Abort> {
        let is_in = between(program, table, from, to)?;
        let ask = |context: &mut dyn Context, limit: u32| context.range(table, from, to, limit);
        self.look_for(program, table, |key, _| is_in(key), usize::MAX, ask)
    }

    fn leading(
        &mut self,
        program: &Program,
        table: TableId,
        leading: &[Value],
        limit: usize,
    ) -> Result<Vec<Row>, Abort> {
        let columns = &program.tables[table.index()].key;
        let begins = |_: &Key, row: &Row| {
            leading.iter().zip(columns).all(|(v, at)| Key::of([v]) == Key::of([&row[*at]]))
        };
        let ask = |context: &mut dyn Context, limit: u32| context.find(table, leading, limit);
        self.look_for(program, table, begins, limit, ask)
    }

    fn versions(
        &mut self,
        program: &Program,
        table: TableId,
        key: &[Value],
        is_behind: IsUnneeded<'_>,
    ) -> Result<Vec<Version>, Abort> {
        self.kept.versions(program, table, key, is_behind, self)
    }

    fn lookup(&mut self, question: &[u8], ask: &Asker) -> Result<Option<Arc<[u8]>>, Abort> {
        let answer = self.context.lookup(question, ask);
        self.done(answer).map(Some)
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
