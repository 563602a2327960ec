//! What goes along with a write or an emitted event, inside the same transaction: indexes, and triggers
//! (S-Store 3.2.2: those of the execution engine).
//!
//! A *trigger* is a function that runs in the transaction that has set it off, sees what that has done,
//! and aborts it when it aborts. On a stream it runs at once, when an event is emitted; on a window when a row
//! comes, before that slides the window, or when it slides; on a table when the function that has written its rows returns, once for each row that is
//! then another, in the order in which they were first written. What triggers do sets off triggers in
//! turn, at most [`DEPTH_MAX`] deep.
//!
//! An *index* is a table that the engine keeps: the rows of another one by some of its columns.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Keeps, Result, StreamId, TableId, Value};

use super::handler::{key_value, Abort, Body};
use super::owned::WindowId;
use super::stream::Origin;
use super::Program;

/// Triggers that set each other off are at most so many deep: they share one stack.
pub const DEPTH_MAX: usize = 128;

/// A function that runs inside of transactions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// Its name, unique among the triggers.
    pub name: Arc<str>,
    /// What sets it off.
    pub on: On,
    /// Its function: index into [`Program::opaques`]. It gets the event; of a table a text (`insert`,
    /// `update` or `delete`) and the columns of the row before and after, null where there is none; of
    /// a window that slides the time at which it ends (0 by count), its active rows, and how many of them have
    /// just come; of a row that comes into one the row.
    pub function: usize,
    /// The streams that it may emit into.
    #[serde(default)]
    pub emits: Vec<StreamId>,
    /// The user's line.
    #[serde(default)]
    pub at: String,
}

/// What sets a trigger off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// An event that is emitted into a stream.
    Emitted(StreamId),
    /// A row of a table that comes, changes or goes.
    Written {
        /// The table.
        table: TableId,
        /// Rows that come.
        insert: bool,
        /// Rows that change.
        update: bool,
        /// Rows that go.
        delete: bool,
    },
    /// A row that comes into a window.
    Inserted(WindowId),
    /// A window that slides.
    Slid(WindowId),
}

/// An index, ready to be used.
#[derive(Clone, Debug)]
pub struct Index {
    /// The table that the engine keeps.
    pub table: TableId,
    /// The columns of the other one, in its order: first those that it is by, then the rest of the key.
    columns: Vec<usize>,
    /// How many of them are the index's key.
    key: usize,
    /// The columns of the other one that need a value.
    needed: Vec<usize>,
}

impl Index {
    /// The entry of a row; none when there is a null in it, or while the row, which comes to be column by column,
    /// has not all the values that it needs.
    pub fn entry(&self, program: &Program, row: &[Value]) -> Option<Vec<Value>> {
        if self.needed.iter().any(|column| row[*column].is_null()) {
            return None;
        }
        let spec = &program.tables[self.table.index()];
        let value = |column: &usize| key_value(row[*column].clone(), spec).ok();
        self.columns.iter().map(value).collect()
    }

    /// The key of an entry.
    pub fn key<'e>(&self, entry: &'e [Value]) -> &'e [Value] {
        &entry[..self.key]
    }

    /// The columns of the other table that it is by.
    pub fn by(&self) -> &[usize] {
        &self.columns[..self.key]
    }

    /// Whether no two rows may have one key.
    pub fn is_unique(&self) -> bool {
        self.key < self.columns.len()
    }

    /// Why a row can't come: another one has its place.
    pub fn is_taken(&self, program: &Program, entry: &[Value]) -> Abort {
        let key: Vec<String> = self.key(entry).iter().map(ToString::to_string).collect();
        let name = &program.tables[self.table.index()].name;
        Abort::refused(format!("{name}[{}] exists already", key.join(", ")))
    }
}

/// By table and stream: what goes along.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hooks {
    pub(crate) indexes: Vec<Vec<Index>>,
    /// Triggers, by table.
    pub(crate) written: Vec<Vec<usize>>,
    /// Triggers, by stream.
    pub(crate) emitted: Vec<Vec<usize>>,
    /// Triggers on rows that come, and on slides, by window.
    pub(crate) inserted: Vec<Vec<usize>>,
    pub(crate) slid: Vec<Vec<usize>>,
}

impl Hooks {
    /// Those of a program.
    pub(crate) fn of(program: &Program) -> Hooks {
        let mut hooks = Hooks {
            indexes: vec![Vec::new(); program.tables.len()],
            written: vec![Vec::new(); program.tables.len()],
            emitted: vec![Vec::new(); program.streams.len()],
            inserted: vec![Vec::new(); program.windows.len()],
            slid: vec![Vec::new(); program.windows.len()],
        };
        for (table, spec) in program.tables.iter().enumerate() {
            let Some(Keeps::Index { of, columns }) = &spec.keeps else { continue };
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

    /// Whether nothing goes along with writes of a table.
    pub(crate) fn is_plain(&self, table: TableId) -> bool {
        self.indexes[table.index()].is_empty() && self.written[table.index()].is_empty()
    }
}

/// What a trigger gets of a row that is another now; none when it is not meant.
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
    /// What goes along with writes and emitted events.
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

    /// The indexes of a table.
    pub fn indexes(&self, table: TableId) -> &[Index] {
        &self.hooks().indexes[table.index()]
    }

    /// Whether a table has any.
    pub fn has_indexes(&self, table: TableId) -> bool {
        !self.indexes(table).is_empty()
    }

    /// The entries that a row of a table has in indexes: each index, whether no two rows may have one key
    /// there, and the entry, whose first columns are the key.
    pub fn index_entries(&self, table: TableId, row: &[Value]) -> Vec<(TableId, bool, Vec<Value>)> {
        let indexes = self.hooks().indexes[table.index()].iter();
        let entry = |index: &Index| Some((index.table, index.is_unique(), index.entry(self, row)?));
        indexes.filter_map(entry).collect()
    }

    /// The tables that a handler may write; all, when nobody knows.
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

    /// The triggers that a handler's transactions may set off, through others, too.
    pub(crate) fn set_off(&self, handler: usize) -> BTreeSet<usize> {
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

    /// The triggers that any function in a handler's transactions may set off by writing.
    fn by_function(&self, handler: usize) -> impl Iterator<Item = usize> + '_ {
        let hooks = self.hooks();
        let windows = self.windows.iter().enumerate();
        let own = windows.filter(move |(_, window)| window.owner.index() == handler);
        let by_window =
            own.flat_map(|(window, _)| hooks.inserted[window].iter().chain(&hooks.slid[window]));
        hooks.written.iter().flatten().chain(by_window).copied()
    }

    /// Whether more goes along with a handler's transactions than its own steps say.
    pub(crate) fn has_more(&self, handler: usize) -> bool {
        let written = self.written_by(handler).unwrap_or_default();
        written.iter().any(|table| !self.hooks().is_plain(*table))
            || !self.set_off(handler).is_empty()
    }

    /// Refuses triggers and indexes that can't be.
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
                            .help("what comes from outside is taken by handlers and procedures"));
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
                            return Err(Error::program(format!("{owner}: nothing sets it off")));
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

    /// Triggers on streams that emit into each other's would never end.
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
            "these triggers set each other off without end: {}",
            names.join(", ")
        ))
        .help("emit into a stream that none of them is on")
        .at(self.triggers[*first].at.clone()))
    }

    fn check_index(&self, table: &tidemill_core::TableSpec) -> Result<()> {
        let Some(Keeps::Index { of, columns }) = &table.keeps else { return Ok(()) };
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
                return wrong(format!("a {} can't be indexed ('{}')", column.ty, column.name));
            }
            if columns[..place].contains(&columns[place]) {
                return wrong(format!("'{}' is in it twice", column.name));
            }
        }
        Ok(())
    }
}
