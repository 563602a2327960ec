//! The groups of a window's active rows, with the number of rows and the aggregates of each.
//!
//! A group is a row of a table that the engine keeps. It holds the state of its aggregates: exact
//! sums as two words, counts of non-null values, the last value. The smallest, the largest and the
//! first value must change when old rows leave. For these, a queue holds the rows that may yet
//! become the result: for the smallest, those that no later row undercuts. Queues are rows of
//! another table, by aggregate, group and place; each holds the number of an active row. Each row
//! enters and leaves a queue once. So the amortized cost of a row does not depend on the window's
//! length, and a read costs one row.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{encode, rules, Column, DataType, Error, Result, Row, Schema, Value};

use super::handler::{key_value, Abort};
use super::owned::{lost, OwnedWindow, WindowStore};
use super::window::Aggregate;
use super::Program;

type Done<T> = std::result::Result<T, Abort>;

/// An aggregate that is maintained for each group of a window's active rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupAggregate {
    /// Its name, unique in the window.
    pub name: Arc<str>,
    /// The kind. Sums and means are of ints and decimals, whose sums are exact. A fold is refused,
    /// because nothing says how a row leaves it.
    pub of: Aggregate,
    /// The column of the window's rows. A count may have none and then counts all rows.
    pub column: Option<usize>,
}

impl GroupAggregate {
    /// Returns the columns of a group's row that hold the aggregate's state. `nth` makes their
    /// names unique.
    pub(super) fn columns(&self, nth: usize, schema: &Schema) -> Vec<Column> {
        let int = |part: &str| Column::new(&format!("#{nth}.{part}"), DataType::Int);
        let Some(column) = self.column.and_then(|column| schema.columns.get(column)) else {
            return Vec::new();
        };
        let mut value = Column::new(&format!("#{nth}"), column.ty.clone());
        value.nullable = true;
        match self.of {
            Aggregate::Count => vec![int("count")],
            Aggregate::Sum => vec![int("high"), int("low")],
            Aggregate::Avg => vec![int("high"), int("low"), int("count")],
            Aggregate::Last => vec![value],
            Aggregate::First | Aggregate::Min | Aggregate::Max => {
                vec![value, int("front"), int("behind")]
            }
            Aggregate::Fold(_) => Vec::new(),
        }
    }

    /// Returns the number of these columns.
    fn width(&self) -> usize {
        match (&self.of, self.column) {
            (Aggregate::Fold(_), _) | (_, None) => 0,
            (Aggregate::Count | Aggregate::Last, _) => 1,
            (Aggregate::Sum, _) => 2,
            _ => 3,
        }
    }

    /// Refuses an aggregate that can't be maintained.
    pub(super) fn check(&self, whose: &str, schema: &Schema) -> Result<()> {
        let wrong = |what: String| Err(Error::program(format!("{whose}: {}: {what}", self.name)));
        if matches!(self.of, Aggregate::Fold(_)) {
            return wrong(
                "a fold can't be maintained, because nothing says how a row leaves it".into(),
            );
        }
        let Some(column) = self.column else {
            return match self.of {
                Aggregate::Count => Ok(()),
                _ => wrong("it needs a column".into()),
            };
        };
        let Some(column) = schema.columns.get(column) else {
            return wrong("its column is missing".into());
        };
        let ty = self.of.of_column(column, whose)?.ty;
        match (&self.of, &column.ty) {
            (Aggregate::Sum | Aggregate::Avg, DataType::Float) => {
                let name = &column.name;
                Err(Error::program(format!(
                    "{whose}: {}: column '{name}' is float, whose sums are not exact: rows that have left would leave rounding errors",
                    self.name
                ))
                .help("make it a decimal, or add the rows up yourself"))
            }
            _ if ty.is_none() => wrong("it has no type".into()),
            _ => Ok(()),
        }
    }
}

impl OwnedWindow {
    /// Refuses aggregates that can't be maintained.
    pub(super) fn check_groups(&self) -> Result<()> {
        let whose = format!("window {}", self.name);
        let group = self.group.map(|group| &*self.schema.columns[group].name);
        let mut names = vec!["rows"];
        for name in group.into_iter().chain(self.aggregates.iter().map(|made| &*made.name)) {
            if names.contains(&name) {
                let two = match name {
                    "rows" => "the name 'rows' is taken: it is a group's number of rows".to_owned(),
                    _ => format!("a group would have two columns named '{name}'"),
                };
                return Err(Error::program(format!("{whose}: {two}")).help("rename one"));
            }
            names.push(name);
        }
        self.aggregates.iter().try_for_each(|made| made.check(&whose, &self.schema))
    }

    /// Returns the group of a row.
    fn group_of(&self, row: &[Value]) -> Value {
        self.group.map_or(Value::Int(0), |group| row[group].clone())
    }

    /// Returns an empty group in its stored form.
    fn nothing(&self, group: Value) -> Vec<Value> {
        let mut row = vec![group, Value::Int(0)];
        for (nth, made) in self.aggregates.iter().enumerate() {
            let columns = made.columns(nth, &self.schema);
            row.extend(
                columns.iter().map(|c| if c.nullable { Value::Null } else { Value::Int(0) }),
            );
        }
        row
    }

    /// Returns a group in its stored form.
    fn held_group(&self, held: &mut dyn WindowStore, group: &Value) -> Done<Vec<Value>> {
        let there = held.window_row(self.groups, std::slice::from_ref(group))?;
        Ok(there.map_or_else(|| self.nothing(group.clone()), |row| row.to_vec()))
    }

    /// Adds a newly active row to its group.
    pub(super) fn enter(&self, held: &mut dyn WindowStore, number: i64, row: &[Value]) -> Done<()> {
        let mut group = self.held_group(held, &self.group_of(row))?;
        let (head, mut rest) = group.split_at_mut(2);
        add(&mut head[1], 1);
        for (nth, made) in self.aggregates.iter().enumerate() {
            let state;
            (state, rest) = rest.split_at_mut(made.width());
            let Some(column) = made.column else { continue };
            match (&made.of, &row[column]) {
                (Aggregate::Last, value) => state[0] = value.clone(),
                (Aggregate::First, value) => {
                    self.queue(nth, &head[0], column)
                        .push(held, state, number, value, |_| false)?;
                }
                (_, Value::Null) => {}
                (Aggregate::Min | Aggregate::Max, value) => {
                    let largest = made.of == Aggregate::Max;
                    let rank = rank(value);
                    let gives_way = |there: &Value| match largest {
                        true => self::rank(there) <= rank,
                        false => self::rank(there) >= rank,
                    };
                    let queue = self.queue(nth, &head[0], column);
                    queue.push(held, state, number, value, gives_way)?;
                }
                (_, value) => along(&made.of, state, value, 1),
            }
        }
        held.put_window_row(self.groups, group)
    }

    /// Removes a row from its group: the oldest active one.
    pub(super) fn leave(&self, held: &mut dyn WindowStore, number: i64, row: &[Value]) -> Done<()> {
        let mut group = self.held_group(held, &self.group_of(row))?;
        let (head, mut rest) = group.split_at_mut(2);
        add(&mut head[1], -1);
        for (nth, made) in self.aggregates.iter().enumerate() {
            let state;
            (state, rest) = rest.split_at_mut(made.width());
            let Some(column) = made.column else { continue };
            match (&made.of, &row[column]) {
                (Aggregate::First | Aggregate::Min | Aggregate::Max, _) => {
                    self.queue(nth, &head[0], column).drop_front(held, state, number)?;
                }
                // The last value vanishes only with its group.
                (Aggregate::Last, _) | (_, Value::Null) => {}
                (_, value) => along(&made.of, state, value, -1),
            }
        }
        match group[1] {
            Value::Int(0) => held.remove_window_row(self.groups, &group[..1]),
            _ => held.put_window_row(self.groups, group),
        }
    }

    /// Returns a group as its owner sees it: the group, the number of its rows, and its aggregates.
    fn shown(&self, group: &[Value]) -> Done<Row> {
        let (head, mut rest) = group.split_at(2);
        let mut shown = head.to_vec();
        for made in &self.aggregates {
            let state;
            (state, rest) = rest.split_at(made.width());
            let ty = made.column.map(|column| &self.schema.columns[column].ty);
            shown.push(match (&made.of, ty) {
                (Aggregate::Sum, Some(ty)) => rules::sum_of(exact(state), ty)?,
                (Aggregate::Avg, Some(ty)) => match int(&state[2]) {
                    0 => Value::Null,
                    count => rules::mean_of(exact(state), count as u64, ty),
                },
                (_, Some(_)) => state[0].clone(),
                (_, None) => head[1].clone(),
            });
        }
        Ok(shown.into())
    }

    fn queue<'a>(&'a self, nth: usize, group: &'a Value, column: usize) -> Queue<'a> {
        Queue { window: self, nth: nth as i64, group, column }
    }
}

/// Returns the groups of a window, in order, or only the given group, which may have no active
/// rows. Each result holds the group, the number of its rows, and its aggregates.
pub(crate) fn groups(
    window: &OwnedWindow,
    held: &mut dyn WindowStore,
    group: Option<&Value>,
    program: &Program,
) -> Done<Vec<Row>> {
    let groups = match group {
        None => held.all(window.groups)?.iter().map(|row| row.to_vec()).collect(),
        Some(group) => {
            let group = match window.group {
                Some(column) => {
                    let stored = rules::store(group, &window.schema.columns[column])?;
                    key_value(stored, &program.tables[window.groups.index()])?
                }
                None => Value::Int(0),
            };
            vec![window.held_group(held, &group)?]
        }
    };
    groups.iter().map(|group| window.shown(group)).collect()
}

/// The active rows of a group that are, or may become, the aggregate's result. The front row is the
/// result.
struct Queue<'a> {
    window: &'a OwnedWindow,
    nth: i64,
    group: &'a Value,
    column: usize,
}

impl Queue<'_> {
    fn key(&self, place: i64) -> [Value; 3] {
        [Value::Int(self.nth), self.group.clone(), Value::Int(place)]
    }

    /// Returns the number of the row at a place.
    fn number(&self, held: &mut dyn WindowStore, place: i64) -> Done<i64> {
        let entry = held.window_row(self.window.queues, &self.key(place))?;
        Ok(int(&entry.ok_or_else(|| lost(self.window))?[3]))
    }

    /// Returns the value of the row at a place.
    fn value(&self, held: &mut dyn WindowStore, place: i64) -> Done<Value> {
        let number = self.number(held, place)?;
        Ok(self.window.row(held, number)?[2 + self.column].clone())
    }

    /// Appends a row, after removing the rows at the end that it supersedes. The group's state is
    /// the value of the front row, its place, and the place after the last row.
    fn push(
        &self,
        held: &mut dyn WindowStore,
        state: &mut [Value],
        number: i64,
        value: &Value,
        gives_way: impl Fn(&Value) -> bool,
    ) -> Done<()> {
        let (front, mut behind) = (int(&state[1]), int(&state[2]));
        while behind > front && gives_way(&self.value(held, behind - 1)?) {
            behind -= 1;
            held.remove_window_row(self.window.queues, &self.key(behind))?;
        }
        let mut entry = self.key(behind).to_vec();
        entry.push(Value::Int(number));
        held.put_window_row(self.window.queues, entry)?;
        if behind == front {
            state[0] = value.clone();
        }
        state[2] = Value::Int(behind + 1);
        Ok(())
    }

    /// Removes a row that leaves the window, if it is in front. A row that is not in front is not
    /// in the queue.
    fn drop_front(&self, held: &mut dyn WindowStore, state: &mut [Value], number: i64) -> Done<()> {
        let (front, behind) = (int(&state[1]), int(&state[2]));
        if front == behind || self.number(held, front)? != number {
            return Ok(());
        }
        held.remove_window_row(self.window.queues, &self.key(front))?;
        state[0] = match front + 1 < behind {
            true => self.value(held, front + 1)?,
            false => Value::Null,
        };
        state[1] = Value::Int(front + 1);
        Ok(())
    }
}

/// Returns the encoding of a value, which sorts in the order of keys.
fn rank(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode::value(value, &mut bytes);
    bytes
}

/// Adds a non-null value to a count, a sum or a mean (`sign` 1), or removes it (-1).
fn along(of: &Aggregate, state: &mut [Value], value: &Value, sign: i64) {
    if *of != Aggregate::Sum {
        add(state.last_mut().expect("it has a count"), sign);
    }
    if *of != Aggregate::Count {
        let more = match value {
            Value::Int(units) | Value::Decimal(units, _) => i128::from(*units),
            other => unreachable!("the program was checked: {other}"),
        };
        let sum = exact(state) + i128::from(sign) * more;
        state[0] = Value::Int((sum >> 64) as i64);
        state[1] = Value::Int(sum as i64);
    }
}

/// Returns the sum that two words hold, the high word first.
fn exact(state: &[Value]) -> i128 {
    i128::from(int(&state[0])) << 64 | i128::from(int(&state[1]) as u64)
}

fn add(value: &mut Value, more: i64) {
    *value = Value::Int(int(value) + more);
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(int) => *int,
        other => unreachable!("the engine keeps ints here, not {other}"),
    }
}
