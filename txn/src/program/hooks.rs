//! Indexes and triggers: further writes in the transaction of a write or an emitted event. Triggers
//! are those of the execution engine (S-Store, section 3.2.2).
//!
//! A *trigger* is a function that runs inside a transaction. It sees what the transaction has done
//! so far, and its abort aborts the transaction. On a stream it runs at once when an event is
//! emitted. On a window it runs when a row arrives, before the slide, or when the window slides. On
//! a table it runs when the function that wrote the rows returns. It then runs once for each
//! changed row, in the order of first writes. Triggers can fire further triggers, at most
//! [`DEPTH_MAX`] deep.
//!
//! An *index* is a table that the engine keeps, with the rows of another table by some of their
//! columns.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{EngineUse, Error, Result, StreamId, TableId, Value};

use super::handler::{key_value, Abort, Body};
use super::owned::WindowId;
use super::stream::Origin;
use super::Program;

/// The greatest depth of triggers that fire each other. They share one stack.
pub const DEPTH_MAX: usize = 128;

/// A function that runs inside transactions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// Its name, unique among the triggers.
    pub name: Arc<str>,
    /// The change on which it runs.
    pub on: On,
    /// Its function: an index into [`Program::opaques`]. The argument depends on `on`:
    ///
    /// - a stream: the event;
    /// - a table: a text (`insert`, `update` or `delete`) and the columns of the row before and
    ///   after, null if there is no such row;
    /// - a window that slides: the time at which it ends (0 by count), the number of its active
    ///   rows, and the number of newly active rows;
    /// - a row that arrives in a window: the row.
    pub function: usize,
    /// The streams that it may emit into.
    #[serde(default)]
    pub emits: Vec<StreamId>,
    /// The user's line.
    #[serde(default)]
    pub at: String,
}

/// The change on which a trigger runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// An event is emitted into a stream.
    Emitted(StreamId),
    /// A row of a table is inserted, updated or deleted.
    Written {
        /// The table.
        table: TableId,
        /// Run on inserted rows.
        insert: bool,
        /// Run on changed rows.
        update: bool,
        /// Run on deleted rows.
        delete: bool,
    },
    /// A row arrives in a window.
    Inserted(WindowId),
    /// A window slides.
    Slid(WindowId),
}

/// An index, prepared for use.
#[derive(Clone, Debug)]
pub struct Index {
    /// The table that the engine keeps.
    pub table: TableId,
    /// The columns of the indexed table, in the index's order: those it is by, then the rest of the
    /// key.
    columns: Vec<usize>,
    /// The number of columns that form the index's key.
    key: usize,
    /// The columns of the indexed table that need a value.
    needed: Vec<usize>,
}

impl Index {
    /// Returns the entry of a row. There is none if the entry would have a null, or while a new row
    /// still lacks a value that it needs.
    pub fn entry(&self, program: &Program, row: &[Value]) -> Option<Vec<Value>> {
        if self.needed.iter().any(|column| row[*column].is_null()) {
            return None;
        }
        let spec = &program.tables[self.table.index()];
        let value = |column: &usize| key_value(row[*column].clone(), spec).ok();
        self.columns.iter().map(value).collect()
    }

    /// Returns the key of an entry.
    pub fn key<'e>(&self, entry: &'e [Value]) -> &'e [Value] {
        &entry[..self.key]
    }

    /// Returns the columns of the indexed table that form the index's key.
    pub fn by(&self) -> &[usize] {
        &self.columns[..self.key]
    }

    /// Whether no two rows may have the same key.
    pub fn is_unique(&self) -> bool {
        self.key < self.columns.len()
    }

    /// Returns the abort of a row whose key another row has already.
    pub fn is_taken(&self, program: &Program, entry: &[Value]) -> Abort {
        let key: Vec<String> = self.key(entry).iter().map(ToString::to_string).collect();
        let name = &program.tables[self.table.index()].name;
        Abort::refused(format!("{name}[{}] exists already", key.join(", ")))
    }
}

/// The indexes and triggers of a program, by table, stream and window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hooks {
    pub(crate) indexes: Vec<Vec<Index>>,
    /// Triggers, by table.
    pub(crate) written: Vec<Vec<usize>>,
    /// Triggers, by stream.
    pub(crate) emitted: Vec<Vec<usize>>,
    /// Triggers on arriving rows, by window; then triggers on slides, by window.
    pub(crate) inserted: Vec<Vec<usize>>,
    pub(crate) slid: Vec<Vec<usize>>,
}

impl Hooks {
    /// Collects the indexes and triggers of a program.
    pub(crate) fn of(program: &Program) -> Hooks {
        let mut hooks = Hooks {
            indexes: vec![Vec::new(); program.tables.len()],
            written: vec![Vec::new(); program.tables.len()],
            emitted: vec![Vec::new(); program.streams.len()],
            inserted: vec![Vec::new(); program.windows.len()],
            slid: vec![Vec::new(); program.windows.len()],
        };
        for (table, spec) in program.tables.iter().enumerate() {
            let Some(EngineUse::Index { of, columns }) = &spec.keeps else { continue };
            let Some(other) = program.tables.get(of.index()) else { continue };
            let rest = other.key.iter().filter(|column| !columns.contains(column));
            let columns = columns.iter().chain(rest).copied().collect();
            let needed = other.schema.columns.iter().enumerate();
            let needed = needed.filter(|(_, column)| !column.nullable).map(|(at, _)| at).collect();
            let table = TableId(table as u16);
            let index = Index { table, columns, key: spec.key.len(), needed };
            hooks.indexes[of.index()].push(index);
        }
        for (number, trigger) in program.triggers.iter().enumerate() {
            let of = match trigger.on {
                On::Emitted(stream) => hooks.emitted.get_mut(stream.index()),
                On::Written { table, .. } => hooks.written.get_mut(table.index()),
                On::Inserted(window) => hooks.inserted.get_mut(window.index()),
                On::Slid(window) => hooks.slid.get_mut(window.index()),
            };
            of.into_iter().for_each(|of| of.push(number));
        }
        hooks
    }

    /// Whether a table has neither indexes nor triggers.
    pub(crate) fn is_plain(&self, table: TableId) -> bool {
        self.indexes[table.index()].is_empty() && self.written[table.index()].is_empty()
    }
}

/// Returns a trigger's argument for a changed row; none if the trigger is not for this change.
pub(crate) fn change(
    on: On,
    before: Option<&[Value]>,
    after: Option<&[Value]>,
) -> Option<Vec<Value>> {
    let On::Written { insert, update, delete, .. } = on else { return None };
    let (kind, is_meant) = match (before, after) {
        (None, Some(_)) => ("insert", insert),
        (Some(before), Some(after)) => ("update", update && before != after),
        (Some(_), None) => ("delete", delete),
        (None, None) => ("", false),
    };
    let len = before.or(after).map_or(0, <[Value]>::len);
    let columns =
        |row: Option<&[Value]>| row.map_or_else(|| vec![Value::Null; len], <[Value]>::to_vec);
    is_meant.then(|| [vec![Value::str(kind)], columns(before), columns(after)].concat())
}

impl Program {
    /// Returns the program's indexes and triggers.
    pub(crate) fn hooks(&self) -> &Hooks {
        self.hooks.get_or_init(|| Hooks::of(self))
    }

    /// Whether a handler's function, or a trigger in its transaction, may emit into a stream.
    pub(crate) fn may_emit(
        &self,
        handler: usize,
        trigger: Option<usize>,
        stream: StreamId,
    ) -> bool {
        if let Some(trigger) = trigger {
            return self.triggers[trigger].emits.contains(&stream);
        }
        let handler = &self.handlers[handler];
        let may = |emits: &Vec<StreamId>| emits.contains(&stream);
        let is_open = self.streams[stream.index()].origin == Origin::Emitted
            && handler.emits.as_ref().is_none_or(may);
        Some(stream) == handler.output || is_open
    }

    /// Returns the indexes of a table.
    pub fn indexes(&self, table: TableId) -> &[Index] {
        &self.hooks().indexes[table.index()]
    }

    /// Whether a table has any indexes.
    pub fn has_indexes(&self, table: TableId) -> bool {
        !self.indexes(table).is_empty()
    }

    /// Returns the entries of a table's row in its indexes. Each has the index's table, whether its
    /// keys are unique, and the entry, whose first columns are the key.
    pub fn index_entries(&self, table: TableId, row: &[Value]) -> Vec<(TableId, bool, Vec<Value>)> {
        let indexes = self.hooks().indexes[table.index()].iter();
        let entry = |index: &Index| Some((index.table, index.is_unique(), index.entry(self, row)?));
        indexes.filter_map(entry).collect()
    }

    /// Returns the tables that a handler may write, or `None` if any table is possible.
    fn written_by(&self, handler: usize) -> Option<Vec<TableId>> {
        match &self.handlers[handler].body {
            Body::Declared(declared) => {
                let rows = declared.steps.iter().filter(|step| step.op.writes());
                let rows = rows.filter_map(|step| step.op.row());
                Some(rows.map(|row| declared.rows[row.index()].table).collect())
            }
            Body::Native(native) => {
                let native = &self.natives[*native];
                let written = native.rows.iter().enumerate().filter(|(row, _)| native.writes(*row));
                Some(written.map(|(_, row)| row.table).collect())
            }
            Body::Opaque(_) => None,
        }
    }

    /// Returns the triggers that a handler's transactions may fire, directly or through other
    /// triggers.
    pub(crate) fn triggers_of(&self, handler: usize) -> BTreeSet<usize> {
        let (hooks, mut found) = (self.hooks(), BTreeSet::new());
        if self.triggers.is_empty() {
            return found;
        }
        let mut next: Vec<usize> = Vec::new();
        let streams = self.emits_itself(handler);
        next.extend(streams.iter().flat_map(|stream| &hooks.emitted[stream.index()]));
        match self.written_by(handler) {
            Some(tables) => next.extend(tables.iter().flat_map(|t| &hooks.written[t.index()])),
            None => next.extend(self.by_function(handler)),
        }
        while let Some(trigger) = next.pop() {
            if found.insert(trigger) {
                let emits = &self.triggers[trigger].emits;
                next.extend(emits.iter().flat_map(|stream| &hooks.emitted[stream.index()]));
                next.extend(self.by_function(handler));
            }
        }
        found
    }

    /// Returns the triggers that any function in a handler's transactions may fire by writing.
    fn by_function(&self, handler: usize) -> impl Iterator<Item = usize> + '_ {
        let hooks = self.hooks();
        let windows = self.windows.iter().enumerate();
        let own = windows.filter(move |(_, window)| window.owner.index() == handler);
        let by_window =
            own.flat_map(|(window, _)| hooks.inserted[window].iter().chain(&hooks.slid[window]));
        hooks.written.iter().flatten().chain(by_window).copied()
    }

    /// Whether a handler's transactions do more than its own steps say, through indexes or
    /// triggers.
    pub(crate) fn has_hooks(&self, handler: usize) -> bool {
        let written = self.written_by(handler).unwrap_or_default();
        written.iter().any(|table| !self.hooks().is_plain(*table))
            || !self.triggers_of(handler).is_empty()
    }

    /// Refuses invalid triggers and indexes.
    pub(super) fn check_hooks(&self) -> Result<()> {
        let mut names = HashSet::new();
        for trigger in &self.triggers {
            let mut check = || {
                let owner = format!("trigger {}", trigger.name);
                if !names.insert(&trigger.name) {
                    return Err(Error::program(format!(
                        "there are two triggers named {}",
                        trigger.name
                    )));
                }
                if trigger.function >= self.opaques.len() {
                    return Err(Error::internal(format!("{owner}: its function is missing")));
                }
                match trigger.on {
                    On::Emitted(stream) => {
                        if !matches!(
                            self.stream(stream)?.origin,
                            Origin::Emitted | Origin::Output(_)
                        ) {
                            return Err(Error::program(format!(
                                "{owner}: stream {} is not one that transactions emit into",
                                self.stream(stream)?.spec.name
                            ))
                            .help("let a handler or a procedure take events from outside"));
                        }
                    }
                    On::Written { table, insert, update, delete } => {
                        let table = self.table(table)?;
                        if table.keeps.is_some() {
                            return Err(Error::program(format!(
                                "{owner}: table {} is kept by the engine",
                                table.name
                            )));
                        }
                        if !(insert || update || delete) {
                            return Err(Error::program(format!(
                                "{owner}: it names none of insert, update and delete"
                            )));
                        }
                    }
                    On::Slid(window) | On::Inserted(window)
                        if window.index() >= self.windows.len() =>
                    {
                        return Err(Error::internal(format!("{owner}: its window is missing")));
                    }
                    On::Slid(_) | On::Inserted(_) => {}
                }
                trigger.emits.iter().try_for_each(|stream| self.emittable(self.stream(*stream)?))
            };
            let checked: Result<()> = check();
            checked.map_err(|e| e.at(trigger.at.clone()))?;
        }
        self.check_triggers_end()?;
        self.tables
            .iter()
            .try_for_each(|table| self.check_index(table).map_err(|e| e.at(table.at.clone())))
    }

    /// Refuses triggers on streams that emit into each other's streams and would never end.
    fn check_triggers_end(&self) -> Result<()> {
        let hooks = self.hooks();
        let mut left: BTreeSet<usize> = (0..self.triggers.len()).collect();
        let leads = |trigger: usize, left: &BTreeSet<usize>| {
            let emits = self.triggers[trigger].emits.iter();
            emits.flat_map(|stream| &hooks.emitted[stream.index()]).any(|next| left.contains(next))
        };
        while let Some(last) = left.iter().find(|trigger| !leads(**trigger, &left)).copied() {
            left.remove(&last);
        }
        let Some(first) = left.iter().next() else { return Ok(()) };
        let names: Vec<&str> = left.iter().map(|t| &*self.triggers[*t].name).collect();
        Err(Error::program(format!(
            "these triggers trigger each other without end: {}",
            names.join(", ")
        ))
        .help("emit into a stream that triggers none of them")
        .at(self.triggers[*first].at.clone()))
    }

    fn check_index(&self, table: &tidemill_core::TableSpec) -> Result<()> {
        let Some(EngineUse::Index { of, columns }) = &table.keeps else { return Ok(()) };
        let other = self.table(*of)?;
        let wrong = |what: String| Err(Error::program(format!("index {}: {what}", table.name)));
        if other.keeps.is_some() {
            return wrong(format!("table {} is kept by the engine", other.name));
        }
        if columns.is_empty() {
            return wrong("it has no columns".into());
        }
        for (place, column) in columns.iter().enumerate() {
            let Some(column) = other.schema.columns.get(*column) else {
                return wrong(format!("table {} has no column {column}", other.name));
            };
            if !column.ty.is_ordered() {
                return wrong(format!(
                    "'{}' is {}, which can't be indexed",
                    column.name, column.ty
                ));
            }
            if columns[..place].contains(&columns[place]) {
                return wrong(format!("'{}' is in it twice", column.name));
            }
        }
        Ok(())
    }
}
