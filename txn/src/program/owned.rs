//! Windows that belong to a procedure (S-Store 3.2.3): the last rows that it has put there, by count or
//! by time, with sums that go along.
//!
//! A row that comes is *staged*: nobody sees it. When a slide's worth has come, the window *slides*: what
//! is staged becomes active, and what is older than the window goes. By count, the first slide comes with
//! as many rows as the window has, and then one with each `slide` rows. By time, windows end at multiples
//! of the slide, and one slides when a row comes, or the procedure says, whose transaction's time is not
//! before its end. Only the owner sees it, and the triggers in its transactions.
//!
//! All of it is in four tables that the engine keeps: the rows, numbered as they came; the numbers where
//! active ones begin and end, and staged ones; and the groups of active rows with what goes along, in two
//! (`groups.rs`). When nobody puts a row in, time ends a window all the same (`firing.rs`).

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tidemill_core::{
    rules, Column, DataType, Error, HandlerId, Keeps, Result, Row, Schema, TableId, TableSpec,
    Value,
};

use super::groups::GroupAggregate;
use super::handler::{key_value, Abort, AbortKind};
use super::Program;

/// A window of a procedure, by its place in the program.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct WindowId(pub u16);

impl WindowId {
    /// As an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// How much is in a window, and how far it slides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Extent {
    /// So many rows.
    Rows {
        /// Of the window.
        size: u64,
        /// Of a slide, at most as many.
        slide: u64,
    },
    /// Rows of so many microseconds (or the unit of an int time column).
    Time {
        /// Of the window.
        size_us: i64,
        /// Of a slide, at most as many.
        slide_us: i64,
    },
}

/// A window that belongs to a procedure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnedWindow {
    /// Its name, unique among the windows.
    pub name: Arc<str>,
    /// Whose it is.
    pub owner: HandlerId,
    /// The columns of its rows.
    pub schema: Arc<Schema>,
    /// How much is in it.
    pub extent: Extent,
    /// The column by which active rows are grouped; all are one group without.
    #[serde(default)]
    pub group: Option<usize>,
    /// What goes along with each group, beside the number of its rows.
    #[serde(default)]
    pub aggregates: Vec<GroupAggregate>,
    /// The table of its rows.
    pub rows: TableId,
    /// The table of where they begin and end.
    pub state: TableId,
    /// The table of groups.
    pub groups: TableId,
    /// The table of queues; [`OwnedWindow::NO_QUEUES`] in what was written before there were any.
    #[serde(default = "OwnedWindow::no_queues")]
    pub queues: TableId,
    /// What was written in place of aggregates before: columns to be summed.
    #[serde(default, skip_serializing, rename = "sums")]
    pub(super) before: Option<IgnoredAny>,
    /// The user's line.
    #[serde(default)]
    pub at: String,
}

/// Rows by count are at most so many.
const ROWS_MAX: u64 = 1 << 24;

/// A row is in so many windows by time at most, one after the other: each of its slides is a transaction.
const SLIDES_MAX: i64 = 100_000;

impl OwnedWindow {
    /// No table of queues: groups are held in another form, and can't be gone on with.
    pub const NO_QUEUES: TableId = TableId(u16::MAX);

    fn no_queues() -> TableId {
        OwnedWindow::NO_QUEUES
    }

    /// The tables that the engine keeps for it: rows, state, groups and queues.
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
            spec.keeps = Some(Keeps::Window);
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

    /// The tables that the engine keeps for it.
    pub fn kept(&self) -> [TableId; 4] {
        [self.rows, self.state, self.groups, self.queues]
    }

    /// Refuses what can't be a window.
    pub(super) fn check(&self, program: &Program) -> Result<()> {
        let wrong = |what: String| Err(Error::program(format!("window {}: {what}", self.name)));
        self.schema.check(&format!("window {}", self.name))?;
        match program.handlers.get(self.owner.index()) {
            Some(handler) if matches!(handler.body, super::Body::Opaque(_)) => {}
            _ => return wrong("it belongs to no function".into()),
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
            return wrong(format!("it has at most {ROWS_MAX} rows"));
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
                None => return wrong("the column of its groups is not there".into()),
            }
        }
        self.check_groups()?;
        let made = OwnedWindow::tables(&self.name, &self.schema, self.group, &self.aggregates);
        for (made, id) in made.iter().zip(self.kept()) {
            let table = program.tables.get(id.index());
            if table.is_none_or(|t| {
                (&t.schema, &t.key, &t.keeps, t.ordered)
                    != (&made.schema, &made.key, &made.keeps, made.ordered)
            }) {
                return Err(Error::internal(format!(
                    "window {}: its tables are others",
                    self.name
                )));
            }
        }
        Ok(())
    }
}

impl OwnedWindow {
    /// The key of a row's place: by count, places are used again.
    fn key(&self, number: i64) -> Value {
        match self.extent {
            Extent::Rows { size, slide } => Value::Int(number % (size + slide) as i64),
            Extent::Time { .. } => Value::Int(number),
        }
    }

    /// The row with a number, behind its key and its time.
    pub(super) fn row(&self, held: &mut dyn Held, number: i64) -> Done<Row> {
        let row = held.held(self.rows, &[self.key(number)])?;
        row.ok_or_else(|| lost(self))
    }
}

/// Where a window's rows are held: rows by key, without any of the checks that programs need.
pub(crate) trait Held {
    /// The row with this key.
    fn held(&mut self, table: TableId, key: &[Value]) -> std::result::Result<Option<Row>, Abort>;
    /// Makes or replaces a row.
    fn hold(&mut self, table: TableId, row: Vec<Value>) -> std::result::Result<(), Abort>;
    /// Removes a row.
    fn let_go(&mut self, table: TableId, key: &[Value]) -> std::result::Result<(), Abort>;
    /// All rows of a table, in key order.
    fn all(&mut self, table: TableId) -> std::result::Result<Vec<Row>, Abort>;
}

type Done<T> = std::result::Result<T, Abort>;

/// Who is told that a window has slid, or that a row has come.
pub(crate) type Slid<'s, H> = dyn FnMut(&mut H, Vec<Value>) -> Done<()> + 's;

/// Where a window's rows begin and end, by number.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// The first active one.
    first: i64,
    /// Behind the last active one: the first that is staged.
    end: i64,
    /// The next one to come.
    next: i64,
    /// By time: where the next window ends; none before the first row.
    edge: Option<i64>,
}

/// A window in a transaction.
pub(crate) struct Frame<'w> {
    window: &'w OwnedWindow,
    marks: Marks,
}

impl<'w> Frame<'w> {
    /// The window as it is held.
    pub(crate) fn of(window: &'w OwnedWindow, held: &mut dyn Held) -> Done<Frame<'w>> {
        let row = held.held(window.state, &[Value::Int(0)])?;
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

    /// A row comes, of a transaction at this time. `came` is told of it, when it is staged, and `slid` of each slide.
    pub(crate) fn insert<H: Held>(
        &mut self,
        held: &mut H,
        row: &[Value],
        time_us: i64,
        came: Option<&mut Slid<'_, H>>,
        slid: &mut Slid<'_, H>,
    ) -> Done<()> {
        self.advance(held, time_us, slid)?;
        let mut stored = Vec::with_capacity(row.len() + 2);
        // By count nobody asks when, and what is kept does not depend on the clock.
        let is_timed = matches!(self.window.extent, Extent::Time { .. });
        let at = if is_timed { time_us } else { 0 };
        stored.extend([self.window.key(self.marks.next), Value::Int(at)]);
        stored.extend(row.iter().cloned());
        held.hold(self.window.rows, stored)?;
        self.marks.next += 1;
        if let Extent::Time { slide_us, .. } = self.window.extent {
            self.marks.edge.get_or_insert(behind(time_us, slide_us));
        }
        if let Some(came) = came {
            // Whoever is told may look at the window.
            self.keep(held)?;
            came(held, row.to_vec())?;
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

    /// The time at which a row counts that comes at this time. When the input ended, the window slid beyond the rows that
    /// were there: one that comes all the same is late, or, where rows come when they arrive, is in the next window.
    ///
    /// # Errors
    /// When it is late.
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

    /// By time: slides as far as a transaction at this time comes.
    pub(crate) fn advance<H: Held>(
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
            // Nothing is left: the next row begins anew. And at the end of time there is no next one.
            let next = edge.saturating_add(slide_us);
            self.marks.edge = (first < self.marks.next && next > edge).then_some(next);
            self.slide(held, first, self.marks.next, edge, slid)?;
        }
        Ok(())
    }

    /// The active rows, in the order in which they came.
    pub(crate) fn rows(&self, held: &mut dyn Held) -> Done<Vec<Row>> {
        (self.marks.first..self.marks.end)
            .map(|n| Ok(self.window.row(held, n)?[2..].into()))
            .collect()
    }

    /// How many rows are active.
    pub(crate) fn len(&self) -> usize {
        (self.marks.end - self.marks.first) as usize
    }

    /// When a row came.
    fn at(&self, held: &mut dyn Held, number: i64) -> Done<i64> {
        match self.window.row(held, number)?[1] {
            Value::Int(at) => Ok(at),
            _ => Err(lost(self.window)),
        }
    }

    /// The rows from `first` to `end` become active.
    fn slide<H: Held>(
        &mut self,
        held: &mut H,
        first: i64,
        end: i64,
        edge: i64,
        slid: &mut Slid<'_, H>,
    ) -> Done<()> {
        let before = self.marks;
        // Those that go were active, or have never been.
        for number in before.first..first {
            let row = self.window.row(held, number)?;
            if number < before.end {
                self.window.leave(held, number, &row[2..])?;
            }
            if let Extent::Time { .. } = self.window.extent {
                held.let_go(self.window.rows, &[self.window.key(number)])?;
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

    fn keep(&self, held: &mut dyn Held) -> Done<()> {
        let Marks { first, end, next, edge } = self.marks;
        let mut row = [0, first, end, next].map(Value::Int).to_vec();
        row.push(edge.map_or(Value::Null, Value::Int));
        held.hold(self.window.state, row)
    }
}

/// Where the first slide behind a time begins.
fn behind(time_us: i64, slide_us: i64) -> i64 {
    time_us.div_euclid(slide_us).saturating_mul(slide_us).saturating_add(slide_us)
}

/// The values of a row that is put into a window.
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

/// A handler asks for a window that is not its own.
pub(crate) fn not_owner(program: &Program, window: &OwnedWindow) -> Abort {
    let owner = &program.handlers[window.owner.index()].name;
    let reason = format!("window {} belongs to {owner}", window.name);
    Abort { kind: AbortKind::Fault, reason }
}

pub(super) fn lost(window: &OwnedWindow) -> Abort {
    unreachable!("window {} has lost a row", window.name)
}
