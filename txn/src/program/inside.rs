//! The inside of a transaction, independent of where its rows are held: the events it emits, the
//! triggers it fires, the windows it slides. The general path and the reference both use it.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use tidemill_core::{Row, StreamId, StreamTime, TableId, Value};

use super::answers::Asker;
use super::groups;
use super::handler::{Abort, AbortKind, Tx};
use super::hooks::{self, DEPTH_MAX};
use super::moment::Moment;
use super::owned::{self, Frame, OwnedWindow, Slid, WindowId, WindowStore};
use super::{reasons, Program};

/// A row that was written: its table, its key, and the row before.
type Changed = (TableId, Vec<Value>, Option<Vec<Value>>);

/// The state of a transaction beside its rows.
pub struct Inside<'a> {
    /// The transaction's program.
    pub program: &'a Program,
    /// The transaction's moment.
    pub moment: &'a Moment<'a>,
    /// The handler's number.
    pub handler: usize,
    /// The running trigger, and its depth.
    trigger: Option<usize>,
    depth: usize,
    /// The events that it has emitted, in order.
    pub emitted: Vec<(StreamId, Vec<Value>)>,
    /// Operations of functions so far.
    operations: usize,
    /// Random numbers drawn so far.
    drawn: u64,
    /// Questions asked of the outside so far.
    asked: u64,
    /// Rows with triggers that the running function has written.
    changed: Vec<Changed>,
    /// The windows that are sliding.
    sliding: Vec<WindowId>,
    /// An abort that stands even if the function ignores its error.
    failed: Option<Abort>,
}

impl<'a> Inside<'a> {
    /// Begins a transaction of a handler.
    pub fn new(program: &'a Program, handler: usize, moment: &'a Moment<'a>) -> Inside<'a> {
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
    pub fn count(&mut self, more: usize) -> Result<(), Abort> {
        reasons::count(&mut self.operations, more)
    }

    /// Returns the number of operations of functions so far.
    pub fn operations(&self) -> usize {
        self.operations
    }

    /// Returns the next random number.
    pub fn random(&mut self) -> u128 {
        self.drawn += 1;
        self.moment.random(self.program.seed, self.drawn - 1)
    }

    /// Implements [`Tx::lookup`].
    pub fn lookup(&mut self, question: &[u8], ask: &Asker) -> Result<Arc<[u8]>, Abort> {
        self.count(1)?;
        let asked = self.moment.question_id(self.asked, question);
        self.asked += 1;
        let later = || Abort { kind: AbortKind::Raised, reason: "it is asked later".into() };
        let answer = self.moment.answers.to(asked, ask).ok_or_else(later)?;
        let bytes_max = self.moment.answers.bytes_max();
        match answer.len() > bytes_max {
            true => Err(reasons::long_answer(bytes_max)),
            false => Ok(answer),
        }
    }

    /// Retains the row before its first write, if the table has triggers.
    pub fn note(&mut self, table: TableId, key: &[Value], row: Option<&[Value]>) {
        let is_it = |(t, k, _): &Changed| (*t, &k[..]) == (table, key);
        let has_triggers = !self.program.hooks().written[table.index()].is_empty();
        if has_triggers && !self.changed.iter().any(is_it) {
            self.changed.push((table, key.to_vec(), row.map(<[Value]>::to_vec)));
        }
    }

    /// Aborts the transaction, even if its function ignores the error.
    pub fn fail(&mut self, abort: &Abort) {
        self.failed.get_or_insert_with(|| abort.clone());
    }

    /// Returns a window that belongs to the handler.
    fn owned(&mut self, window: WindowId) -> Result<&'a OwnedWindow, Abort> {
        self.count(1)?;
        let owned = &self.program.windows[window.index()];
        match owned.owner.index() == self.handler {
            true => Ok(owned),
            false => Err(owned::not_owner(self.program, owned)),
        }
    }
}

/// A transaction with its rows.
pub trait Transaction<'a>: Tx + WindowStore + Sized {
    /// Returns the transaction's state beside its rows.
    fn inside(&mut self) -> &mut Inside<'a>;

    /// Runs a function or equivalent steps, and then the triggers on rows that it has written. A
    /// panic aborts.
    fn function(&mut self, run: impl FnOnce(&mut Self) -> Result<(), Abort>) -> Result<(), Abort> {
        let before = std::mem::take(&mut self.inside().changed);
        // A panic may leave the state inconsistent, but the transaction is dropped.
        let ran = catch_unwind(AssertUnwindSafe(|| run(self)));
        let result = ran.unwrap_or_else(|panic| Err(reasons::panicked(&*panic)));
        let result = result.and_then(|()| fire_changed(self));
        self.inside().changed = before;
        match &self.inside().failed {
            Some(abort) => Err(abort.clone()),
            None => result,
        }
    }

    /// Implements [`Tx::will_write`].
    fn first_write(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        let program = self.inside().program;
        if !program.hooks().written[table.index()].is_empty() {
            let key = program.stored_key(table, key)?;
            let row = self.window_row(table, &key)?;
            self.inside().note(table, &key, row.as_deref());
        }
        Ok(())
    }

    /// Implements [`Tx::emit`].
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
        if let Some(limit) = &inside.program.event_limit {
            limit.0(&row).inspect_err(|abort| inside.fail(abort))?;
        }
        let triggers = &inside.program.hooks().emitted[stream.index()];
        if triggers.is_empty() {
            inside.emitted.push((stream, row));
            return Ok(());
        }
        inside.emitted.push((stream, row.clone()));
        triggers.iter().try_for_each(|trigger| fire(self, *trigger, &row))
    }

    /// Implements [`Tx::window_insert`].
    fn insert_into(&mut self, window: WindowId, row: &[Value]) -> Result<(), Abort> {
        let inside = self.inside();
        let owned = inside.owned(window)?;
        let row = owned::stored(owned, &inside.program.tables[owned.groups.index()], row)?;
        let program = self.inside().program;
        let triggers = &program.hooks().inserted[window.index()];
        let mut added = |tx: &mut Self, row: Vec<Value>| -> Result<(), Abort> {
            triggers.iter().try_for_each(|trigger| fire(tx, *trigger, &row))
        };
        let input = program.root_stream(program.handlers[owned.owner.index()].input);
        let by_arrival = program.streams[input.index()].spec.time == StreamTime::Arrival;
        slide(self, window, |frame, tx, time_us, slid| {
            let time_us = frame.takes(time_us, by_arrival)?;
            let added: Option<&mut Slid<'_, Self>> =
                if triggers.is_empty() { None } else { Some(&mut added) };
            frame.insert(tx, &row, time_us, added, slid)
        })
    }

    /// Implements [`Tx::window_advance`].
    fn advance(&mut self, window: WindowId) -> Result<(), Abort> {
        let inside = self.inside();
        inside.count(1)?;
        // Windows that have ended by time have slid before. So a handler other than the owner has
        // nothing to do.
        match inside.program.windows[window.index()].owner.index() == inside.handler {
            true => {
                slide(self, window, |frame, tx, time_us, slid| frame.advance(tx, time_us, slid))
            }
            false => Ok(()),
        }
    }

    /// Slides a window that ends at the transaction's time. With `is_quiet`, it fires no triggers,
    /// because they have aborted before.
    fn slide_in_time(&mut self, window: WindowId, is_quiet: bool) -> Result<(), Abort> {
        if !is_quiet {
            return slide(self, window, |frame, tx, time_us, slid| {
                frame.advance(tx, time_us, slid)
            });
        }
        slide(self, window, |frame, tx, time_us, _| frame.advance(tx, time_us, &mut |_, _| Ok(())))
    }

    /// Implements [`Tx::window_rows`].
    fn active_rows(&mut self, window: WindowId) -> Result<Vec<Row>, Abort> {
        let owned = self.inside().owned(window)?;
        let frame = Frame::of(owned, self)?;
        self.inside().count(frame.len())?;
        frame.rows(self)
    }

    /// Implements [`Tx::window_groups`].
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
}

/// Fires the triggers on rows that have been written.
fn fire_changed<'a>(tx: &mut impl Transaction<'a>) -> Result<(), Abort> {
    let program = tx.inside().program;
    for (table, key, before) in std::mem::take(&mut tx.inside().changed) {
        for number in &program.hooks().written[table.index()] {
            let after = tx.window_row(table, &key)?;
            let on = program.triggers[*number].on;
            if let Some(event) = hooks::change(on, before.as_deref(), after.as_deref()) {
                fire(tx, *number, &event)?;
            }
        }
    }
    Ok(())
}

/// Runs a trigger.
fn fire<'a>(tx: &mut impl Transaction<'a>, number: usize, event: &[Value]) -> Result<(), Abort> {
    let inside = tx.inside();
    let program = inside.program;
    let trigger = &program.triggers[number];
    let outer = inside.trigger.replace(number);
    inside.depth += 1;
    let result = match inside.depth > DEPTH_MAX {
        true => Err(reasons::too_deep(&trigger.name)),
        false => tx.function(|tx| program.opaques[trigger.function].call(event, tx)),
    };
    let inside = tx.inside();
    inside.depth -= 1;
    inside.trigger = outer;
    result.inspect_err(|abort| inside.fail(abort))
}

/// Runs an operation that may slide a window, and fires the window's triggers if it does.
fn slide<'a, T: Transaction<'a>>(
    tx: &mut T,
    window: WindowId,
    run: impl FnOnce(&mut Frame<'_>, &mut T, i64, &mut Slid<'_, T>) -> Result<(), Abort>,
) -> Result<(), Abort> {
    let inside = tx.inside();
    let (program, time_us) = (inside.program, inside.moment.time_us());
    let owned = &program.windows[window.index()];
    if inside.sliding.contains(&window) {
        return Err(reasons::is_sliding(&owned.name));
    }
    inside.sliding.push(window);
    let mut slid = |tx: &mut T, event: Vec<Value>| -> Result<(), Abort> {
        let triggers = &program.hooks().slid[window.index()];
        triggers.iter().try_for_each(|trigger| fire(tx, *trigger, &event))
    };
    let result = Frame::of(owned, tx).and_then(|mut frame| run(&mut frame, tx, time_us, &mut slid));
    let inside = tx.inside();
    inside.sliding.pop();
    // The operation may have been half done.
    result.inspect_err(|abort| inside.fail(abort))
}
