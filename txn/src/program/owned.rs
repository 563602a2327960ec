//! Windows that belong to a procedure (S-Store, section 3.2.3). They hold its most recent rows, by
//! count or by time, and maintain aggregates over them.
//!
//! A new row is *staged*: it is invisible. When a slide is complete, the window *slides*: staged
//! rows become active, and rows older than the window leave. By count, the first slide happens when
//! the window is full, and then one after each `slide` rows. By time, windows end at multiples of
//! the slide. A window slides at a row, or at the procedure's request, if the transaction's time
//! has reached its end. Only the owner and the triggers in its transactions see the window.
//!
//! Four tables of the engine hold all of this. One has the rows, numbered in the order of arrival.
//! One has the numbers at which active and staged rows begin and end. Two have the groups of active
//! rows with their aggregates (`groups.rs`). Without new rows, time ends a window too
//! (`firing.rs`).

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tidemill_core::{
    rules, Column, DataType, EngineUse, Error, HandlerId, Result, Row, Schema, TableId, TableSpec,
    Value,
};

use super::groups::GroupAggregate;
use super::handler::{key_value, Abort, AbortKind};
use super::Program;

/// The place of a procedure's window in the program.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct WindowId(pub u16);

impl WindowId {
    /// Returns the place as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The extent of a window and of its slides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Extent {
    /// Extents by number of rows.
    Rows {
        /// The rows of the window.
        size: u64,
        /// The rows of a slide, at most `size`.
        slide: u64,
    },
    /// Extents by time, in microseconds or in the unit of an int time column.
    Time {
        /// The length of the window.
        size_us: i64,
        /// The length of a slide, at most `size_us`.
        slide_us: i64,
    },
}

/// A window that belongs to a procedure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnedWindow {
    /// Its name, unique among the windows.
    pub name: Arc<str>,
    /// The handler that owns it.
    pub owner: HandlerId,
    /// The columns of its rows.
    pub schema: Arc<Schema>,
    /// The window's extent and slide.
    pub extent: Extent,
    /// The column that groups the active rows. Without it, all rows are one group.
    #[serde(default)]
    pub group: Option<usize>,
    /// The aggregates of each group, beside the number of its rows.
    #[serde(default)]
    pub aggregates: Vec<GroupAggregate>,
    /// The table that holds its rows.
    pub rows: TableId,
    /// The table that holds where active and staged rows begin and end.
    pub state: TableId,
    /// The table that holds its groups.
    pub groups: TableId,
    /// The table that holds its queues; [`OwnedWindow::NO_QUEUES`] in programs from before queues.
    #[serde(default = "OwnedWindow::no_queues")]
    pub queues: TableId,
    /// The columns to sum, which older programs had in place of aggregates.
    #[serde(default, skip_serializing, rename = "sums")]
    pub(super) before: Option<IgnoredAny>,
    /// The user's line.
    #[serde(default)]
    pub at: String,
}

/// The most rows of a window by count.
const ROWS_MAX: u64 = 1 << 24;

/// The most consecutive windows by time that a row can be in. Each of its slides is a transaction.
const SLIDES_MAX: i64 = 100_000;

impl OwnedWindow {
    /// The mark of a program without a table of queues. Its groups have an older form and can't be
    /// continued.
    pub const NO_QUEUES: TableId = TableId(u16::MAX);

    fn no_queues() -> TableId {
        OwnedWindow::NO_QUEUES
    }

    /// Returns the tables that the engine keeps for a window: rows, state, groups and queues.
    pub fn tables(
        name: &str,
        schema: &Schema,
        group: Option<usize>,
        aggregates: &[GroupAggregate],
    ) -> [TableSpec; 4] {
        let int = |name: &str| Column::new(name, DataType::Int);
        let column = |column: usize| schema.columns.get(column).cloned();
        let mut rows = vec![int("#"), int("#at")];
        rows.extend(schema.columns.iter().cloned());
        let mut state = ["#", "first", "end", "next", "edge"].map(int).to_vec();
        state[4].nullable = true;
        let group = group.and_then(column).map_or_else(|| int("#"), |c| Column::new(&c.name, c.ty));
        let mut groups = vec![group.clone(), int("#rows")];
        let held = aggregates.iter().enumerate();
        groups.extend(held.flat_map(|(nth, made)| made.columns(nth, schema)));
        let group = Column { name: "#group".into(), ..group };
        let queues = vec![int("#of"), group, int("#place"), int("#")];
        let spec = |part: &str, key: Vec<usize>, columns: Vec<Column>| {
            let mut spec =
                TableSpec::new(&format!("{name}.{part}"), key, Schema::new(columns).into());
            spec.keeps = Some(EngineUse::Window);
            spec
        };
        let mut groups = spec("groups", vec![0], groups);
        groups.ordered = true;
        [
            spec("rows", vec![0], rows),
            spec("state", vec![0], state),
            groups,
            spec("queues", vec![0, 1, 2], queues),
        ]
    }

    /// Returns the ids of the tables that the engine keeps for it.
    pub fn table_ids(&self) -> [TableId; 4] {
        [self.rows, self.state, self.groups, self.queues]
    }

    /// Refuses an invalid window.
    pub(super) fn check(&self, program: &Program) -> Result<()> {
        let wrong = |what: String| Err(Error::program(format!("window {}: {what}", self.name)));
        self.schema.check(&format!("window {}", self.name))?;
        match program.handlers.get(self.owner.index()) {
            Some(handler) if matches!(handler.body, super::Body::Opaque(_)) => {}
            _ => return wrong("its owner is not a function".into()),
        }
        let (size, slide) = match self.extent {
            Extent::Rows { size, slide } => {
                (size.min(ROWS_MAX + 1) as i64, slide.min(ROWS_MAX + 1) as i64)
            }
            Extent::Time { size_us, slide_us } => (size_us, slide_us),
        };
        if size <= 0 || slide <= 0 || slide > size {
            return wrong(format!("its size is {size} and its slide {slide}: a slide is at least 1, and at most the size"));
        }
        if matches!(self.extent, Extent::Time { .. }) && (size - 1) / slide >= SLIDES_MAX {
            return wrong(format!("with a size of {size} and a slide of {slide} each row slides it more than {SLIDES_MAX} times"));
        }
        if matches!(self.extent, Extent::Rows { size, .. } if size > ROWS_MAX) {
            return wrong(format!("its size is over the limit of {ROWS_MAX} rows"));
        }
        if let Some(group) = self.group {
            match self.schema.columns.get(group) {
                Some(column) if column.ty.is_ordered() && !column.nullable => {}
                Some(column) => {
                    return wrong(format!(
                        "its rows can't be grouped by '{}', which is {}{}",
                        column.name,
                        if column.nullable { "nullable " } else { "" },
                        column.ty
                    ))
                }
                None => return wrong("the column of its groups is missing".into()),
            }
        }
        self.check_groups()?;
        let made = OwnedWindow::tables(&self.name, &self.schema, self.group, &self.aggregates);
        for (made, id) in made.iter().zip(self.table_ids()) {
            let table = program.tables.get(id.index());
            if table.is_none_or(|t| {
                (&t.schema, &t.key, &t.keeps, t.ordered)
                    != (&made.schema, &made.key, &made.keeps, made.ordered)
            }) {
                return Err(Error::internal(format!(
                    "window {}: its tables do not fit its declaration",
                    self.name
                )));
            }
        }
        Ok(())
    }
}

impl OwnedWindow {
    /// Returns the key under which a row is stored. By count, places are reused.
    fn key(&self, number: i64) -> Value {
        match self.extent {
            Extent::Rows { size, slide } => Value::Int(number % (size + slide) as i64),
            Extent::Time { .. } => Value::Int(number),
        }
    }

    /// Returns the stored row with this number; its columns follow its key and its time.
    pub(super) fn row(&self, held: &mut dyn WindowStore, number: i64) -> Done<Row> {
        let row = held.window_row(self.rows, &[self.key(number)])?;
        row.ok_or_else(|| lost(self))
    }
}

/// Access to a window's tables: rows by key, without the checks that programs need.
pub trait WindowStore {
    /// Returns the row with this key.
    fn window_row(
        &mut self,
        table: TableId,
        key: &[Value],
    ) -> std::result::Result<Option<Row>, Abort>;
    /// Creates or replaces a row.
    fn put_window_row(&mut self, table: TableId, row: Vec<Value>)
        -> std::result::Result<(), Abort>;
    /// Removes a row.
    fn remove_window_row(
        &mut self,
        table: TableId,
        key: &[Value],
    ) -> std::result::Result<(), Abort>;
    /// Returns all rows of a table, in key order.
    fn all(&mut self, table: TableId) -> std::result::Result<Vec<Row>, Abort>;
}

type Done<T> = std::result::Result<T, Abort>;

/// A callback for a window that has slid, or for a row that has arrived.
pub(crate) type Slid<'s, H> = dyn FnMut(&mut H, Vec<Value>) -> Done<()> + 's;

/// The numbers at which a window's active and staged rows begin and end.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// The first active row.
    first: i64,
    /// The first staged row, after the last active one.
    end: i64,
    /// The next row to arrive.
    next: i64,
    /// By time: the end of the next window; none before the first row.
    edge: Option<i64>,
}

/// A window in a transaction.
pub(crate) struct Frame<'w> {
    window: &'w OwnedWindow,
    marks: Marks,
}

impl<'w> Frame<'w> {
    /// Reads the window's state.
    pub(crate) fn of(window: &'w OwnedWindow, held: &mut dyn WindowStore) -> Done<Frame<'w>> {
        let row = held.window_row(window.state, &[Value::Int(0)])?;
        let marks = row.map_or_else(Marks::default, |row| {
            let int = |at: usize| match row[at] {
                Value::Int(int) => Some(int),
                _ => None,
            };
            let number = |at: usize| int(at).expect("only the edge may be null");
            Marks { first: number(1), end: number(2), next: number(3), edge: int(4) }
        });
        Ok(Frame { window, marks })
    }

    /// Inserts a row of a transaction at this time. Calls `added` when the row is staged, and `slid`
    /// for each slide.
    pub(crate) fn insert<H: WindowStore>(
        &mut self,
        held: &mut H,
        row: &[Value],
        time_us: i64,
        added: Option<&mut Slid<'_, H>>,
        slid: &mut Slid<'_, H>,
    ) -> Done<()> {
        self.advance(held, time_us, slid)?;
        let mut stored = Vec::with_capacity(row.len() + 2);
        // By count the time is not needed. Without it, the stored row does not depend on the clock.
        let is_timed = matches!(self.window.extent, Extent::Time { .. });
        let at = if is_timed { time_us } else { 0 };
        stored.extend([self.window.key(self.marks.next), Value::Int(at)]);
        stored.extend(row.iter().cloned());
        held.put_window_row(self.window.rows, stored)?;
        self.marks.next += 1;
        if let Extent::Time { slide_us, .. } = self.window.extent {
            self.marks.edge.get_or_insert(slide_after(time_us, slide_us));
        }
        if let Some(added) = added {
            // The callback may look at the window.
            self.keep(held)?;
            added(held, row.to_vec())?;
        }
        match self.window.extent {
            Extent::Rows { size, slide } => {
                let (size, next) = (size as i64, self.marks.next);
                if next >= size && (next - size) % slide as i64 == 0 {
                    return self.slide(held, next - size, next, 0, slid);
                }
            }
            Extent::Time { .. } => {}
        }
        self.keep(held)
    }

    /// Returns the time at which a row of this time counts. At the end of the input, the window
    /// slides past all its rows. A row that still arrives is late; in arrival time it belongs to
    /// the next window.
    ///
    /// # Errors
    /// If the row is late.
    pub(crate) fn takes(&self, time_us: i64, by_arrival: bool) -> Done<i64> {
        let (Extent::Time { slide_us, .. }, Some(edge)) = (self.window.extent, self.marks.edge)
        else {
            return Ok(time_us);
        };
        let ended = edge.saturating_sub(slide_us);
        match time_us < ended {
            true if !by_arrival => {
                let name = &self.window.name;
                let what =
                    format!("window {name} has ended at {ended}: a row of {time_us} is late");
                Err(Abort::refused(what))
            }
            true => Ok(ended),
            false => Ok(time_us),
        }
    }

    /// By time: slides up to a transaction's time.
    pub(crate) fn advance<H: WindowStore>(
        &mut self,
        held: &mut H,
        time_us: i64,
        slid: &mut Slid<'_, H>,
    ) -> Done<()> {
        let Extent::Time { size_us, slide_us } = self.window.extent else { return Ok(()) };
        while let Some(edge) = self.marks.edge.filter(|edge| time_us >= *edge) {
            let from = edge.saturating_sub(size_us);
            let mut first = self.marks.first;
            while first < self.marks.next && self.at(held, first)? < from {
                first += 1;
            }
            // With no rows left, the next row sets the edge again. At the end of time there is no
            // next edge.
            let next = edge.saturating_add(slide_us);
            self.marks.edge = (first < self.marks.next && next > edge).then_some(next);
            self.slide(held, first, self.marks.next, edge, slid)?;
        }
        Ok(())
    }

    /// Returns the active rows, in the order of their arrival.
    pub(crate) fn rows(&self, held: &mut dyn WindowStore) -> Done<Vec<Row>> {
        (self.marks.first..self.marks.end)
            .map(|n| Ok(self.window.row(held, n)?[2..].into()))
            .collect()
    }

    /// Returns the number of active rows.
    pub(crate) fn len(&self) -> usize {
        (self.marks.end - self.marks.first) as usize
    }

    /// Returns the time at which a row arrived.
    fn at(&self, held: &mut dyn WindowStore, number: i64) -> Done<i64> {
        match self.window.row(held, number)?[1] {
            Value::Int(at) => Ok(at),
            _ => Err(lost(self.window)),
        }
    }

    /// Makes the rows from `first` to `end` the active ones.
    fn slide<H: WindowStore>(
        &mut self,
        held: &mut H,
        first: i64,
        end: i64,
        edge: i64,
        slid: &mut Slid<'_, H>,
    ) -> Done<()> {
        let before = self.marks;
        // Some of the rows that leave were active, others were only staged.
        for number in before.first..first {
            let row = self.window.row(held, number)?;
            if number < before.end {
                self.window.leave(held, number, &row[2..])?;
            }
            if let Extent::Time { .. } = self.window.extent {
                held.remove_window_row(self.window.rows, &[self.window.key(number)])?;
            }
        }
        for number in before.end.max(first)..end {
            let row = self.window.row(held, number)?;
            self.window.enter(held, number, &row[2..])?;
        }
        (self.marks.first, self.marks.end) = (first, end);
        self.keep(held)?;
        let came = end - before.end.max(first);
        slid(held, vec![Value::Int(edge), Value::Int(end - first), Value::Int(came)])
    }

    fn keep(&self, held: &mut dyn WindowStore) -> Done<()> {
        let Marks { first, end, next, edge } = self.marks;
        let mut row = [0, first, end, next].map(Value::Int).to_vec();
        row.push(edge.map_or(Value::Null, Value::Int));
        held.put_window_row(self.window.state, row)
    }
}

/// Returns the first multiple of the slide after a time.
fn slide_after(time_us: i64, slide_us: i64) -> i64 {
    time_us.div_euclid(slide_us).saturating_mul(slide_us).saturating_add(slide_us)
}

/// Returns the values of a row as the window stores them.
pub(crate) fn stored(window: &OwnedWindow, spec: &TableSpec, row: &[Value]) -> Done<Vec<Value>> {
    let columns = &window.schema.columns;
    if row.len() != columns.len() {
        return Err(super::reasons::wrong_shape(&window.name, columns.len(), row.len()));
    }
    let stored: std::result::Result<Vec<Value>, rules::Fault> =
        row.iter().zip(columns).map(|(value, column)| rules::store(value, column)).collect();
    let mut stored = stored?;
    if let Some(group) = window.group {
        stored[group] = key_value(stored[group].clone(), spec)?;
    }
    Ok(stored)
}

/// A handler's access to another handler's window.
pub(crate) fn not_owner(program: &Program, window: &OwnedWindow) -> Abort {
    let owner = &program.handlers[window.owner.index()].name;
    let reason = format!("window {} belongs to {owner}", window.name);
    Abort { kind: AbortKind::Fault, reason }
}

pub(super) fn lost(window: &OwnedWindow) -> Abort {
    unreachable!("window {} has lost a row", window.name)
}
