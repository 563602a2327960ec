//! A Python function's view of the tables while it runs: each row once, with its changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use pyo3::prelude::*;
use tidemill_core::{Key, TableId, Value};
use tidemill_function::Handle;
use tidemill_txn::program::{Abort, Tx};

use crate::remote::OnNode;
use crate::row::{Held, Write};
use crate::shapes::{Shapes, TableShape};

/// A function's view of the tables while it runs.
#[derive(Default)]
pub struct Rows {
    /// The engine's transaction while the call runs.
    pub(crate) tx: Option<Borrowed>,
    /// The first abort, from the engine or a row. A function that catches the exception does not
    /// undo it.
    pub(crate) abort: Option<Abort>,
    /// On a node: the calls of other functions that it has made, and the value that it returns.
    pub(crate) made: Vec<Handle>,
    pub(crate) returned: Option<Value>,
    /// The rows that it has found, in order.
    pub(crate) held: Vec<Held>,
    /// The place of each row, once there are more than [`ROWS_FEW`].
    pub(crate) by_key: HashMap<(usize, Key), usize, foldhash::fast::RandomState>,
    /// The rows that are loaded or written, or have objects that the function may change in place.
    /// All others are unchanged.
    pub(crate) active: BTreeSet<usize>,
    pub(crate) shapes: Arc<Shapes>,
}

/// The number of rows up to which a search is faster than hashing.
const ROWS_FEW: usize = 16;

/// The transaction of the running call, without its lifetime.
pub(crate) enum Borrowed {
    Engine(*mut (dyn Tx + 'static)),
    Node(*mut OnNode<'static>),
}

// SAFETY: the pointer is used under the mutex only, and taken away (see `NativeTx::end`) before the
// borrow it was made from ends. The value behind it is not bound to a thread while the mutex
// serialises its users: the calling thread waits for the function meanwhile.
unsafe impl Send for Borrowed {}

impl Rows {
    /// Returns the number of a row.
    pub(crate) fn find(&mut self, table: usize, key: Vec<Value>) -> usize {
        let held = &self.held;
        let found = if held.len() < ROWS_FEW {
            held.iter().position(|held| held.table == table && held.key == key)
        } else {
            if self.by_key.is_empty() {
                let places = held.iter().enumerate();
                let places = places.map(|(at, held)| ((held.table, Key::of(&held.key)), at));
                self.by_key.extend(places);
            }
            self.by_key.get(&(table, Key::of(&key))).copied()
        };
        found.unwrap_or_else(|| {
            let at = self.held.len();
            if at >= ROWS_FEW {
                self.by_key.insert((table, Key::of(&key)), at);
            }
            self.held.push(Held::new(table, key));
            at
        })
    }

    /// Returns a row.
    pub(crate) fn held(&mut self, at: usize) -> &mut Held {
        &mut self.held[at]
    }

    /// Returns a row, and fetches it the first time.
    pub(crate) fn loaded(&mut self, at: usize) -> Result<&mut Held, Abort> {
        if !self.held[at].loaded {
            let held = &mut self.held[at];
            let row = engine(&mut self.tx).get(TableId(held.table as u16), &held.key)?;
            held.load(row, &self.shapes.tables[held.table].spec);
            self.active.insert(at);
        }
        Ok(&mut self.held[at])
    }

    /// Stores the values of a row that was found, unless the function has it already.
    pub(crate) fn is(&mut self, at: usize, row: tidemill_core::Row) {
        let held = &mut self.held[at];
        if !held.loaded {
            held.load(Some(row), &self.shapes.tables[held.table].spec);
            self.active.insert(at);
        }
    }

    /// Looks up rows again, of one table or of all, that both other code and the function (in
    /// place) may have written.
    pub(crate) fn refresh(&mut self, table: Option<usize>) -> Result<(), Abort> {
        let is_due = |at: &usize| {
            let held = &self.held[*at];
            held.is_to_be_looked_at() && table.is_none_or(|table| held.table == table)
        };
        let due: Vec<usize> = self.active.iter().copied().filter(is_due).collect();
        due.into_iter().try_for_each(|at| self.loaded(at).map(drop))
    }

    /// Sets several columns of a row.
    pub(crate) fn set(
        &mut self,
        py: Python<'_>,
        at: usize,
        columns: Vec<(usize, Value)>,
    ) -> Result<(), Abort> {
        self.begins(at)?;
        let (held, shapes) = (&mut self.held[at], &self.shapes);
        let TableShape { spec, unique, .. } = &shapes.tables[held.table];
        let mut is_due = !held.is_known();
        for (column, value) in columns {
            is_due |= unique.get(column).is_some_and(|is_unique| *is_unique);
            held.set(column, value, spec);
        }
        if is_due {
            self.became(py, at)?;
        }
        Ok(())
    }

    /// Replaces a row.
    pub(crate) fn replace(
        &mut self,
        py: Python<'_>,
        at: usize,
        values: Vec<Value>,
    ) -> Result<(), Abort> {
        self.begins(at)?;
        self.held[at].replace(values);
        self.became(py, at)
    }

    /// Removes a row.
    pub(crate) fn remove(&mut self, py: Python<'_>, at: usize) -> Result<(), Abort> {
        self.begins(at)?;
        let (held, shapes) = (&mut self.held[at], &self.shapes);
        held.remove(&shapes.tables[held.table].spec);
        self.became(py, at)
    }

    /// Notes that a row is about to be written. If triggers see it, they run in this order.
    pub(crate) fn begins(&mut self, at: usize) -> Result<(), Abort> {
        self.active.insert(at);
        let held = &mut self.held[at];
        if self.shapes.tables[held.table].watched && !std::mem::replace(&mut held.announced, true) {
            engine(&mut self.tx).will_write(TableId(held.table as u16), &held.key)?;
        }
        Ok(())
    }

    /// Notes that a row has changed. If it has entries in unique indexes, these change now:
    /// uniqueness is checked after each operation, in the order of the program.
    pub(crate) fn became(&mut self, py: Python<'_>, at: usize) -> Result<(), Abort> {
        let held = &mut self.held[at];
        let TableShape { spec, unique, .. } = &self.shapes.tables[held.table];
        if unique.is_empty() {
            return Ok(());
        }
        let write = held.flushed(py, spec)?;
        perform(&mut self.tx, held, write)
    }

    /// Returns the abort for an error of a row.
    pub(crate) fn refused(&self, at: usize, why: &str) -> Abort {
        let held = &self.held[at];
        Abort::refused(format!("{} {why}", held.shown(&self.shapes.tables[held.table].spec)))
    }

    /// Writes the changes of one table, or of all, before an operation of the engine.
    pub(crate) fn flush(&mut self, py: Python<'_>, table: Option<usize>) -> Result<(), Abort> {
        self.refresh(table)?;
        for &at in &self.active {
            let held = &mut self.held[at];
            if table.is_none_or(|table| held.table == table) {
                let write = held.flushed(py, &self.shapes.tables[held.table].spec)?;
                perform(&mut self.tx, held, write)?;
            }
        }
        Ok(())
    }

    /// Does something that may cause triggers. They see the writes so far, and their own writes are
    /// seen afterwards.
    pub(crate) fn shown(
        &mut self,
        py: Python<'_>,
        has_triggers: bool,
        run: impl FnOnce(&mut dyn Tx) -> Result<(), Abort>,
    ) -> Result<(), Abort> {
        if has_triggers {
            self.flush(py, None)?;
        }
        run(engine(&mut self.tx))?;
        if has_triggers {
            self.forget();
        }
        Ok(())
    }

    /// Forgets the values of rows, because other code may have written them.
    pub(crate) fn forget(&mut self) {
        let held = &mut self.held;
        self.active.retain(|at| {
            held[*at].forget();
            held[*at].is_active()
        });
    }

    /// Returns the node on which the function runs, if it does.
    pub(crate) fn node(&mut self) -> Option<&mut OnNode<'static>> {
        match self.tx {
            // SAFETY: as in `engine`.
            Some(Borrowed::Node(node)) => Some(unsafe { &mut *node }),
            _ => None,
        }
    }

    /// Whether the function is started again, whatever it goes on to do.
    pub(crate) fn is_unwound(&self) -> bool {
        match self.tx {
            // SAFETY: as in `engine`.
            Some(Borrowed::Node(node)) => unsafe { (*node).is_unwound },
            _ => false,
        }
    }
}

/// Returns the engine's transaction.
pub(crate) fn engine(tx: &mut Option<Borrowed>) -> &mut dyn Tx {
    let tx: *mut (dyn Tx + 'static) = match tx.as_mut().expect("the caller has checked") {
        Borrowed::Engine(tx) => *tx,
        Borrowed::Node(node) => *node,
    };
    // SAFETY: it is set, so the call whose borrow it was made from is still running. The mutex,
    // whose guard `tx` is borrowed from, makes this the only use.
    unsafe { &mut *tx }
}

/// Performs the write of a row.
pub(crate) fn perform(
    tx: &mut Option<Borrowed>,
    held: &Held,
    write: Option<Write>,
) -> Result<(), Abort> {
    let table = TableId(held.table as u16);
    match write {
        Some(Write::Put(row)) => engine(tx).put(table, &row),
        Some(Write::Delete) => engine(tx).delete(table, &held.key),
        None => Ok(()),
    }
}
