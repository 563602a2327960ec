//! A transaction from inside, wherever its rows are held: what it emits, the triggers that it sets off, the
//! windows that it slides. The general path and the reference both are one.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use tidemill_core::{Row, StreamId, StreamTime, TableId, Value};

use super::answers::{Ask, ANSWER_MAX};
use super::groups;
use super::handler::{reasons, Abort, Tx};
use super::hooks::{self, DEPTH_MAX};
use super::moment::Moment;
use super::owned::{self, Frame, Held, OwnedWindow, Slid, WindowId};
use super::Program;

/// A row that was written, and what it was before.
type Changed = (TableId, Vec<Value>, Option<Vec<Value>>);

/// What a transaction is beside its rows.
pub(crate) struct Inside<'a> {
    pub(crate) program: &'a Program,
    /// When it is.
    pub(crate) moment: &'a Moment<'a>,
    /// Whose it is.
    pub(crate) handler: usize,
    /// The trigger that runs, and how deep it is.
    trigger: Option<usize>,
    depth: usize,
    pub(crate) emitted: Vec<(StreamId, Vec<Value>)>,
    /// Of functions, until now.
    operations: usize,
    /// Random numbers drawn until now.
    drawn: u64,
    /// Questions asked of outside until now.
    asked: u64,
    /// Rows with triggers that the function that runs has written.
    changed: Vec<Changed>,
    /// The windows that are sliding.
    sliding: Vec<WindowId>,
    /// What can't be mended by not looking: the transaction aborts.
    failed: Option<Abort>,
}

impl<'a> Inside<'a> {
    /// A transaction of a handler at a time.
    pub(crate) fn new(program: &'a Program, handler: usize, moment: &'a Moment<'a>) -> Inside<'a> {
        Inside {
            program,
            moment,
            handler,
            trigger: None,
            depth: 0,
            emitted: Vec::new(),
            operations: 0,
            drawn: 0,
            asked: 0,
            changed: Vec::new(),
            sliding: Vec::new(),
            failed: None,
        }
    }

    /// Counts operations of functions.
    pub(crate) fn count(&mut self, more: usize) -> Result<(), Abort> {
        reasons::count(&mut self.operations, more)
    }

    /// Operations of functions until now.
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// The next random number.
    pub(crate) fn random(&mut self) -> u128 {
        self.drawn += 1;
        self.moment.random(self.program.seed, self.drawn - 1)
    }

    /// As [`Tx::lookup`].
    pub(crate) fn lookup(&mut self, question: &[u8], ask: &Ask) -> Result<Arc<[u8]>, Abort> {
        self.count(1)?;
        let asked = self.moment.asked(self.asked, question);
        self.asked += 1;
        let answer = self.moment.answers.to(asked, ask);
        match answer.len() > ANSWER_MAX {
            true => Err(reasons::long_answer()),
            false => Ok(answer),
        }
    }

    /// A row is about to be written: where it has triggers, what it is now is kept.
    pub(crate) fn note(&mut self, table: TableId, key: &[Value], row: Option<&[Value]>) {
        let is_it = |(t, k, _): &Changed| (*t, &k[..]) == (table, key);
        let has_triggers = !self.program.hooks().written[table.index()].is_empty();
        if has_triggers && !self.changed.iter().any(is_it) {
            self.changed.push((table, key.to_vec(), row.map(<[Value]>::to_vec)));
        }
    }

    /// The transaction aborts, whatever its function makes of it.
    pub(crate) fn fail(&mut self, abort: &Abort) {
        self.failed.get_or_insert_with(|| abort.clone());
    }

    /// A window of the handler's own.
    fn owned(&mut self, window: WindowId) -> Result<&'a OwnedWindow, Abort> {
        self.count(1)?;
        let owned = &self.program.windows[window.index()];
        match owned.owner.index() == self.handler {
            true => Ok(owned),
            false => Err(owned::not_owner(self.program, owned)),
        }
    }
}

/// A transaction, with its rows.
pub(crate) trait Transaction<'a>: Tx + Held + Sized {
    /// What it is beside them.
    fn inside(&mut self) -> &mut Inside<'a>;

    /// Runs a function, or what stands for one, and then the triggers on rows that it has written. One that
    /// panics aborts.
    fn function(&mut self, run: impl FnOnce(&mut Self) -> Result<(), Abort>) -> Result<(), Abort> {
        let before = std::mem::take(&mut self.inside().changed);
        // What it leaves behind goes with the transaction.
        let ran = catch_unwind(AssertUnwindSafe(|| run(self)));
        let result = ran.unwrap_or_else(|panic| Err(reasons::panicked(&*panic)));
        let result = result.and_then(|()| self.fire_changed());
        self.inside().changed = before;
        match &self.inside().failed {
            Some(abort) => Err(abort.clone()),
            None => result,
        }
    }

    /// As [`Tx::will_write`].
    fn first_write(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        let program = self.inside().program;
        if !program.hooks().written[table.index()].is_empty() {
            let key = program.stored_key(table, key)?;
            let row = self.held(table, &key)?;
            self.inside().note(table, &key, row.as_deref());
        }
        Ok(())
    }

    /// Sets off the triggers on rows that have been written.
    fn fire_changed(&mut self) -> Result<(), Abort> {
        let program = self.inside().program;
        for (table, key, before) in std::mem::take(&mut self.inside().changed) {
            for number in &program.hooks().written[table.index()] {
                let after = self.held(table, &key)?;
                let on = program.triggers[*number].on;
                if let Some(event) = hooks::change(on, before.as_deref(), after.as_deref()) {
                    self.fire(*number, &event)?;
                }
            }
        }
        Ok(())
    }

    /// Runs a trigger.
    fn fire(&mut self, number: usize, event: &[Value]) -> Result<(), Abort> {
        let inside = self.inside();
        let program = inside.program;
        let trigger = &program.triggers[number];
        let outer = inside.trigger.replace(number);
        inside.depth += 1;
        let result = match inside.depth > DEPTH_MAX {
            true => Err(reasons::too_deep(&trigger.name)),
            false => self.function(|tx| program.opaques[trigger.function].call(event, tx)),
        };
        let inside = self.inside();
        inside.depth -= 1;
        inside.trigger = outer;
        result.inspect_err(|abort| inside.fail(abort))
    }

    /// As [`Tx::emit`].
    fn emit_given(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Abort> {
        let inside = self.inside();
        inside.count(1)?;
        let whose = (inside.handler, inside.trigger);
        let event = inside.program.stored_event(whose, stream, row)?;
        self.emit_stored(stream, event)
    }

    /// Emits an event whose values fit the stream's columns.
    fn emit_stored(&mut self, stream: StreamId, row: Vec<Value>) -> Result<(), Abort> {
        let inside = self.inside();
        let triggers = &inside.program.hooks().emitted[stream.index()];
        if triggers.is_empty() {
            inside.emitted.push((stream, row));
            return Ok(());
        }
        inside.emitted.push((stream, row.clone()));
        triggers.iter().try_for_each(|trigger| self.fire(*trigger, &row))
    }

    /// As [`Tx::window_insert`].
    fn insert_into(&mut self, window: WindowId, row: &[Value]) -> Result<(), Abort> {
        let inside = self.inside();
        let owned = inside.owned(window)?;
        let row = owned::stored(owned, &inside.program.tables[owned.groups.index()], row)?;
        let program = self.inside().program;
        let triggers = &program.hooks().inserted[window.index()];
        let mut came = |tx: &mut Self, row: Vec<Value>| -> Result<(), Abort> {
            triggers.iter().try_for_each(|trigger| tx.fire(*trigger, &row))
        };
        let input = program.root_stream(program.handlers[owned.owner.index()].input);
        let by_arrival = program.streams[input.index()].spec.time == StreamTime::Arrival;
        self.slide(window, |frame, tx, time_us, slid| {
            let time_us = frame.takes(time_us, by_arrival)?;
            let came: Option<&mut Slid<'_, Self>> =
                if triggers.is_empty() { None } else { Some(&mut came) };
            frame.insert(tx, &row, time_us, came, slid)
        })
    }

    /// As [`Tx::window_advance`].
    fn advance(&mut self, window: WindowId) -> Result<(), Abort> {
        let inside = self.inside();
        inside.count(1)?;
        // What time has ended has slid before: for others than the owner there is nothing to do.
        match inside.program.windows[window.index()].owner.index() == inside.handler {
            true => self.slide(window, |frame, tx, time_us, slid| frame.advance(tx, time_us, slid)),
            false => Ok(()),
        }
    }

    /// A window ends at the transaction's time, and slides; without its triggers where these have aborted.
    fn slide_in_time(&mut self, window: WindowId, is_quiet: bool) -> Result<(), Abort> {
        if !is_quiet {
            return self.slide(window, |frame, tx, time_us, slid| frame.advance(tx, time_us, slid));
        }
        self.slide(window, |frame, tx, time_us, _| frame.advance(tx, time_us, &mut |_, _| Ok(())))
    }

    /// As [`Tx::window_rows`].
    fn active_rows(&mut self, window: WindowId) -> Result<Vec<Row>, Abort> {
        let owned = self.inside().owned(window)?;
        let frame = Frame::of(owned, self)?;
        self.inside().count(frame.len())?;
        frame.rows(self)
    }

    /// As [`Tx::window_groups`].
    fn active_groups(
        &mut self,
        window: WindowId,
        group: Option<&Value>,
    ) -> Result<Vec<Row>, Abort> {
        let owned = self.inside().owned(window)?;
        let program = self.inside().program;
        let groups = groups::groups(owned, self, group, program)?;
        self.inside().count(groups.len())?;
        Ok(groups)
    }

    /// Does something to a window that may slide it, and sets off its triggers when it does.
    fn slide(
        &mut self,
        window: WindowId,
        run: impl FnOnce(&mut Frame<'_>, &mut Self, i64, &mut Slid<'_, Self>) -> Result<(), Abort>,
    ) -> Result<(), Abort> {
        let inside = self.inside();
        let (program, time_us) = (inside.program, inside.moment.time_us());
        let owned = &program.windows[window.index()];
        if inside.sliding.contains(&window) {
            return Err(reasons::is_sliding(&owned.name));
        }
        inside.sliding.push(window);
        let mut slid = |tx: &mut Self, event: Vec<Value>| -> Result<(), Abort> {
            let triggers = &program.hooks().slid[window.index()];
            triggers.iter().try_for_each(|trigger| tx.fire(*trigger, &event))
        };
        let result =
            Frame::of(owned, self).and_then(|mut frame| run(&mut frame, self, time_us, &mut slid));
        let inside = self.inside();
        inside.sliding.pop();
        // Half of it may have been done.
        result.inspect_err(|abort| inside.fail(abort))
    }
}
